"""The scheduler, which is pure: requests are plain objects here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from llama_py.engine.scheduler import plan_step


@dataclass
class Fake:
    """What the scheduler sees of a request."""

    prompt_left: int = 0
    paused: bool = False
    limit: int = 10**9

    @property
    def chunk_limit(self) -> int:
        return self.limit


def planned(running: list[Fake], *limits: Any, separate: bool = False) -> list[tuple[int, int]]:
    """(index of the request, tokens of its prompt or 0 for one sampled token), in order."""
    plan = plan_step(running, *limits, separate=separate)
    indices = {id(request): index for index, request in enumerate(running)}
    entries = [(indices[id(entry.request)], 0) for entry in plan.decodes]
    return entries + [(indices[id(entry.request)], entry.count) for entry in plan.prefills]


def test_streams_come_first_and_the_prompt_gets_the_rest() -> None:
    running = [Fake(1000), Fake(), Fake()]
    assert planned(running, 256, 64) == [(1, 0), (2, 0), (0, 30)]


def test_prompts_are_served_in_order() -> None:
    assert planned([Fake(50), Fake(50)], 256, 64) == [(0, 50), (1, 14)]


def test_with_buffers_of_their_own_no_little_piece_is_cut_off_behind_another_prompt() -> None:
    """llama.cpp would make parts with 14 tokens of each of three, and with 11 of each of two."""
    assert planned([Fake(25), Fake(25), Fake(25)], 256, 64, separate=True) == [(0, 25), (1, 25)]
    assert planned([Fake(50), Fake(25), Fake(9)], 256, 64, separate=True) == [(0, 50), (2, 9)]
    assert planned([Fake(7), Fake(100), Fake(7)], 256, 64, separate=True) == [(0, 7), (1, 57)]
    assert planned([Fake(100), Fake(25)], 256, 64, separate=True) == [(0, 64)]


def test_a_paused_request_is_left_out() -> None:
    assert planned([Fake(paused=True), Fake(9, paused=True), Fake()], 256, 64) == [(2, 0)]


def test_a_chunk_ends_where_a_checkpoint_is_due() -> None:
    assert planned([Fake(50, limit=7), Fake(50)], 256, 64) == [(0, 7), (1, 50)]


def test_a_prompt_advances_even_beside_as_many_streams_as_a_chunk_has_tokens() -> None:
    running = [*[Fake() for _ in range(8)], Fake(100)]
    assert planned(running, 16, 8)[-1] == (8, 1)


def test_more_streams_than_fit_into_a_batch() -> None:
    assert len(plan_step([Fake() for _ in range(10)], 4, 4)) == 4


def test_one_prompt_at_a_time() -> None:
    running = [Fake(50), Fake(50), Fake()]
    assert planned(running, 256, 64, 1) == [(2, 0), (0, 31)]


def test_nothing_to_do() -> None:
    assert planned([], 16, 8) == []


fakes = st.builds(
    Fake,
    st.one_of(st.just(0), st.integers(1, 300)),
    st.booleans(),
    st.integers(1, 200),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(fakes, max_size=12), st.integers(1, 128), st.integers(1, 128), st.booleans())
def test_every_plan_keeps_the_rules(
    running: list[Fake], n_batch: int, n_chunk: int, separate: bool
) -> None:
    chunks = planned(running, n_batch, n_chunk, separate=separate)
    assert sum(max(count, 1) for _, count in chunks) <= n_batch
    assert len({index for index, _ in chunks}) == len(chunks)
    for index, count in chunks:
        request = running[index]
        assert not request.paused
        assert count <= min(request.prompt_left, request.limit)
        assert (count > 0) == (request.prompt_left > 0)
    streams = [i for i, r in enumerate(running) if not r.prompt_left and not r.paused]
    assert [index for index, count in chunks if not count] == streams[:n_batch]
    prompts = [i for i, r in enumerate(running) if r.prompt_left and not r.paused]
    if prompts and len(streams) < n_batch:
        assert chunks[-1][1] > 0
