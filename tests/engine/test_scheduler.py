"""The scheduler, which is pure: requests are plain objects here, but for the last tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_py.engine.scheduler import plan_step
from tests.engine.rig import Rig, ask, words
from tests.models import KINDS


@dataclass(eq=False)
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


def steps(
    running: list[Fake], n_chunk: int, most_prompts: int | None = None, separate: bool = False
) -> Iterator[list[tuple[int, int]]]:
    """What comes of the prompts in each step, until all are done."""
    passed_over = False
    while any(request.prompt_left for request in running):
        waiting = [index for index, request in enumerate(running) if request.prompt_left]
        plan = plan_step(
            [running[index] for index in waiting],
            4 * n_chunk,
            n_chunk,
            most_prompts,
            separate=separate,
            passed_over=passed_over,
        )
        done = [(running.index(entry.request), entry.count) for entry in plan.prefills]
        passed_over = done[0][0] != waiting[0]
        for index, count in done:
            running[index].prompt_left -= count
        yield done


def test_streams_come_first_and_the_prompt_gets_the_rest() -> None:
    running = [Fake(1000), Fake(), Fake()]
    assert planned(running, 256, 64) == [(1, 0), (2, 0), (0, 30)]


def test_prompts_are_served_in_order() -> None:
    assert planned([Fake(50), Fake(50)], 256, 64) == [(0, 50), (1, 14)]


def test_with_buffers_of_their_own_no_little_piece_is_cut_off_behind_another_prompt() -> None:
    """llama.cpp would make parts with 14 tokens of each of three, and with 11 of each of two."""
    four = [Fake(25) for _ in range(4)]
    assert planned(four, 256, 64, separate=True) == [(0, 25), (1, 25)]
    assert planned([Fake(50), Fake(40), Fake(9)], 256, 64, separate=True) == [(0, 50), (2, 9)]
    assert planned([Fake(7), Fake(100), Fake(7)], 256, 64, separate=True) == [(0, 7), (1, 57)]
    assert planned([Fake(100), Fake(60)], 256, 64, separate=True) == [(0, 64)]


def test_a_short_prompt_goes_beside_a_long_one_that_came_before() -> None:
    assert planned([Fake(8347), Fake(600)], 2048, 512) == [(0, 256), (1, 256)]
    assert planned([Fake(8347), Fake(600), Fake(8)], 2048, 512) == [(0, 504), (2, 8)]
    assert planned([Fake(8347), Fake(8), Fake(9), Fake()], 2048, 512)[1:] == [
        (0, 238),
        (1, 8),
        (2, 9),
    ]


def test_few_tokens_of_short_prompts_have_a_step_to_themselves() -> None:
    """One with the long prompt in it takes seconds, of a model of some size."""
    assert planned([Fake(8347), Fake(8)], 2048, 512) == [(1, 8)]
    assert planned([Fake(8347), Fake(8)], 2048, 512, separate=True) == [(1, 8)]
    assert planned([Fake(8347), Fake(60), Fake(68)], 2048, 512) == [(1, 60), (2, 68)]
    assert planned([Fake(8347), Fake(60), Fake(69)], 2048, 512) == [(0, 383), (1, 60), (2, 69)]
    assert planned([Fake(8347), Fake(8), Fake()], 2048, 512)[1:] == [(0, 247), (1, 8)]
    assert planned([Fake(500), Fake(8)], 2048, 512) == [(0, 500), (1, 8)], "all of it fits"
    two = [Fake(8347), Fake(8), Fake(9)]
    assert [*steps(two, 512)][:2] == [[(1, 8), (2, 9)], [(0, 512)]]
    always = [Fake(8347), *[Fake(8) for _ in range(40)]]
    taken = [*steps(always[:17], 512)]
    assert taken[0] == [(number, 8) for number in range(1, 17)]
    assert taken[1][0][0] == 0, "then it is the turn of the first one"


def test_one_that_is_not_much_shorter_waits_for_its_turn() -> None:
    assert planned([Fake(900), Fake(600)], 2048, 512) == [(0, 512)]


def test_what_fits_into_a_step_anyway_is_in_the_order_in_which_it_came() -> None:
    assert planned([Fake(300), Fake(100), Fake(9)], 2048, 512) == [(0, 300), (1, 100), (2, 9)]


def test_a_little_rest_of_several_that_come_together_is_not_left_over() -> None:
    eight = [Fake(85) for _ in range(8)]
    assert planned(eight, 2048, 512) == [(index, 85) for index in range(8)]
    assert planned(eight, 600, 512)[-1] == (7, 5), "no more than fits into a batch"
    assert planned([*eight, Fake()], 2048, 512)[-1] == (2, 85), "not beside a stream"
    assert planned([Fake(680)], 2048, 512) == [(0, 512)], "one begins no sooner with it"
    assert planned([Fake(600), Fake(169)], 2048, 512) == [(0, 343), (1, 169)]


def test_a_short_prompt_has_every_other_step_where_only_one_fits() -> None:
    running = [Fake(8347), Fake(600), Fake(8)]
    seen = steps(running, 512, most_prompts=1)
    assert [step[0] for step in (next(seen) for _ in range(6))] == [
        (2, 8),
        (0, 512),
        (1, 512),
        (0, 512),
        (1, 88),
        (0, 512),
    ]


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


lefts = st.lists(st.one_of(st.integers(1, 80), st.integers(1, 2000)), min_size=1, max_size=10)


@settings(max_examples=200, deadline=None)
@given(lefts, st.integers(2, 256), st.booleans(), st.sampled_from([None, 1, 2]))
def test_the_first_one_has_half_of_each_long_step_and_nobody_starves(
    lengths: list[int], n_chunk: int, separate: bool, most: int | None
) -> None:
    running = [Fake(length) for length in lengths]
    half = n_chunk // 2
    owed, before = 0, sum(lengths)
    for number, done in enumerate(steps(running, n_chunk, most, separate)):
        first = next(i for i, r in enumerate(running) if r.prompt_left or (i in dict(done)))
        share = dict(done).get(first, 0)
        full = min(n_chunk - half, share + running[first].prompt_left)
        owed = 0 if share else owed + 1
        assert owed <= 1, "it has every other step"
        if most != 1:
            short = sum(count for _, count in done) <= n_chunk // 4
            assert share >= full or (short and not share)
        assert number <= 2 * ceil(before / max(1, half)) + len(lengths)


@settings(max_examples=200, deadline=None)
@given(lefts, st.integers(2, 256), st.integers(1, 600))
def test_how_long_a_short_prompt_waits_behind_a_long_one(
    lengths: list[int], n_chunk: int, short: int
) -> None:
    """A prompt far longer than all is being evaluated when they come."""
    running = [Fake(100_000), *[Fake(length) for length in lengths], Fake(short)]
    before = sum(length for length in lengths if length <= short)
    half = n_chunk // 2
    bound = 2 * ceil((short + before) / half) if before else ceil(short / half)
    for number, _ in enumerate(steps(running, n_chunk), 1):
        if not running[-1].prompt_left:
            assert number <= bound
            return


# --- in the engine --------------------------------------------------------------------------------


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_begins_beside_the_long_prompt_of_another(kind: str, unified: bool) -> None:
    """Within two steps, though the long prompt needs a dozen; both say what they say alone."""
    if kind == "recurrent" and not unified:
        return
    rig = Rig(kind, n_seq_max=4, kv_unified=unified, n_ctx=2048 if unified else 4 * 2048)
    long, short = ask(words(1, 700), 4), ask(words(2, 8), 6)
    rig.submit(long)
    rig.step()
    rig.submit(short)
    before = rig.engine.metrics.steps
    rig.step_until(lambda: bool(short.generated))
    # One step for the prompt, and one more where a checkpoint is taken before its last token.
    assert rig.engine.metrics.steps - before <= 3
    assert not long.generated
    rig.step_until(lambda: long.ended and short.ended)
    assert short.generated == rig.expected(short)
    assert long.generated == rig.expected(long)
    rig.close()
