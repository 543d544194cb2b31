"""The scheduler, which is pure: requests are plain objects here."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from llama_py.engine.scheduler import Chunk, plan_step


@dataclass
class Fake:
    """What the scheduler sees of a request."""

    prompt_left: int = 0
    blocked: bool = False
    limit: int = 10**9

    @property
    def chunk_limit(self) -> int:
        return self.limit


def test_streams_come_first_and_the_prompt_gets_the_rest() -> None:
    running = [Fake(1000), Fake(), Fake()]
    assert plan_step(running, 256, 64) == [Chunk(1, 0), Chunk(2, 0), Chunk(0, 30)]


def test_prompts_are_served_in_order() -> None:
    assert plan_step([Fake(50), Fake(50)], 256, 64) == [Chunk(0, 50), Chunk(1, 14)]


def test_a_paused_request_is_left_out() -> None:
    assert plan_step([Fake(blocked=True), Fake(9, blocked=True), Fake()], 256, 64) == [Chunk(2, 0)]


def test_a_chunk_ends_where_a_checkpoint_is_due() -> None:
    assert plan_step([Fake(50, limit=7), Fake(50)], 256, 64) == [Chunk(0, 7), Chunk(1, 50)]


def test_a_prompt_advances_even_beside_as_many_streams_as_a_chunk_has_tokens() -> None:
    running = [*[Fake()] * 8, Fake(100)]
    assert plan_step(running, 16, 8)[-1] == Chunk(8, 1)


def test_more_streams_than_fit_into_a_batch() -> None:
    assert len(plan_step([Fake()] * 10, 4, 4)) == 4


def test_one_prompt_at_a_time() -> None:
    running = [Fake(50), Fake(50), Fake()]
    assert plan_step(running, 256, 64, 1) == [Chunk(2, 0), Chunk(0, 31)]


def test_nothing_to_do() -> None:
    assert plan_step([], 16, 8) == []


fakes = st.builds(
    Fake,
    st.one_of(st.just(0), st.integers(1, 300)),
    st.booleans(),
    st.integers(1, 200),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(fakes, max_size=12), st.integers(1, 128), st.integers(1, 128))
def test_every_plan_keeps_the_rules(running: list[Fake], n_batch: int, n_chunk: int) -> None:
    chunks = plan_step(running, n_batch, n_chunk)
    assert sum(max(chunk.count, 1) for chunk in chunks) <= n_batch
    assert len({chunk.index for chunk in chunks}) == len(chunks)
    for chunk in chunks:
        request = running[chunk.index]
        assert not request.blocked
        assert chunk.count <= min(request.prompt_left, request.limit)
        assert (chunk.count > 0) == (request.prompt_left > 0)
    streams = [i for i, r in enumerate(running) if not r.prompt_left and not r.blocked]
    assert [chunk.index for chunk in chunks if not chunk.count] == streams[:n_batch]
    prompts = [i for i, r in enumerate(running) if r.prompt_left and not r.blocked]
    if prompts and len(streams) < n_batch:
        assert chunks[-1].count > 0
