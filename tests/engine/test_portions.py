"""How much of a prompt is evaluated beside streams: pure, with steps of known duration."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_py.engine.portions import Portions
from llama_py.memory.saving import hurried
from tests.engine.rig import Rig, ask, words

MOST = 256


def evaluated(
    portions: Portions, prompt: int, usual: float, token: float, deeper: float = 0.0
) -> Iterator[tuple[int, float]]:
    """Tokens and seconds of each step of a prompt beside a stream.

    Args:
        token: seconds of a token of the prompt; the last one's cost ``deeper`` times as much more.
    """
    done = 0
    while done < prompt:
        count = min(prompt - done, portions.size(1, MOST))
        seconds = usual + count * token * (1 + deeper * done / prompt)
        portions.note(1, count, seconds)
        done += count
        yield count, seconds


def seen() -> Portions:
    """A prompt alone, at a millisecond for each token, and a step of one stream in 20 ms."""
    portions = Portions()
    portions.note(0, 512, 0.512)
    portions.note(1, 0, 0.02)
    return portions


@settings(max_examples=200, deadline=None)
@given(st.floats(0.001, 2.0), st.floats(1e-5, 0.008), st.floats(0.0, 4.0))
def test_no_step_is_longer_than_three_usual_ones_and_a_moment(
    usual: float, token: float, deeper: float
) -> None:
    portions = Portions()
    portions.note(0, 512, 512 * token)
    portions.note(1, 0, usual)
    steps = [*evaluated(portions, 3000, usual, token, deeper)]
    assert max(seconds for _, seconds in steps) <= 3 * usual + 0.05 + 4 * token * (1 + deeper)


def test_the_prompt_gets_more_than_half_of_the_time() -> None:
    portions = seen()
    took = sum(seconds for _, seconds in evaluated(portions, 3000, 0.02, 0.001))
    assert took < 1.6 * 3000 * 0.001


def test_where_steps_are_short_a_portion_is_as_large_as_it_can_be() -> None:
    portions = Portions()
    portions.note(0, 512, 0.02)
    portions.note(1, 0, 0.002)
    assert portions.size(1, MOST) == MOST


def test_a_portion_recovers_from_a_step_that_something_else_delayed() -> None:
    portions = seen()
    before = portions.size(1, MOST)
    assert before == pytest.approx(40, abs=1)
    portions.note(1, before, 0.5)
    assert portions.size(1, MOST) < before / 2
    for _ in range(4):
        portions.note(1, size := portions.size(1, MOST), 0.02 + 0.001 * size)
    assert portions.size(1, MOST) == before


def test_the_short_end_of_a_prompt_does_not_make_the_next_one_begin_slowly() -> None:
    portions = seen()
    before = portions.size(1, MOST)
    portions.note(1, 1, 0.025)
    assert portions.size(1, MOST) == before
    portions.note(1, 1, 0.4)
    assert portions.size(1, MOST) < before, "that one token takes longer than all should"


def test_streams_have_a_step_to_themselves_when_it_is_not_known_how_long_one_takes() -> None:
    portions = Portions()
    portions.note(0, 512, 0.512)
    assert portions.size(1, MOST) == 0
    portions.note(1, 0, 0.02)
    assert portions.size(1, MOST) > 0
    assert portions.size(3, MOST) == 0, "nothing is known of three"
    assert portions.size(2, MOST) > 0, "two take as long as one, at least"
    for _ in range(64):
        assert portions.size(1, MOST) > 0
        portions.note(1, 10, 0.04)
    assert portions.size(1, MOST) == 0, "it was long ago"
    portions.note(1, 0, 0.02)
    assert portions.size(1, MOST) > 0


def test_who_has_only_just_begun_waits_longer_for_others_who_begin() -> None:
    portions = seen()
    assert portions.size(1, 1000) < 50
    assert portions.at_first() == 200
    assert Portions().at_first() == 0, "nothing is known"


def test_a_few_tokens_that_cost_nothing_do_not_make_many_seem_cheap() -> None:
    portions = Portions()
    portions.note(1, 0, 0.02)
    portions.note(0, 8, 0.021)
    assert portions.size(1, MOST) < 20
    assert portions.at_first() < 100


# --- in the engine --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "iswa", "recurrent", "hybrid"])
def test_a_prompt_beside_a_stream_is_evaluated_in_portions(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever their sizes are, everybody gets what it would get alone."""
    rig = Rig(kind, n_seq_max=4)
    sizes = iter([0, 7, 1, 30, 0, 13] * 40)
    given: list[int] = []
    asked: list[int] = []

    def size(streams: int, most: int) -> int:
        given.append(min(next(sizes), most))
        asked.append(streams)
        return given[-1]

    monkeypatch.setattr(rig.engine._portions, "size", size)
    stream, prompt = ask(words(1, 30), 60), ask(words(2, 150), 8)
    rig.submit(stream)
    rig.step_until(lambda: len(stream.generated) > 2)
    assert given == [], "there is no prompt"
    rig.submit(prompt)
    evaluated = [rig.engine.metrics.evaluated]
    while not prompt.generated:
        count = len(stream.generated)
        rig.step()
        assert len(stream.generated) == count + 1
        evaluated.append(rig.engine.metrics.evaluated)
    steps = [b - a for a, b in pairwise(evaluated)]
    assert steps[0] <= given[0] == 0
    assert all(step <= size for step, size in zip(steps, given, strict=True))
    assert set(asked) == {1}
    rig.read(stream, prompt)
    rig.check(stream, prompt)
    rig.check_at_rest()
    rig.close()


@pytest.mark.parametrize("kind", ["full", "iswa", "recurrent", "hybrid"])
def test_requests_that_come_while_the_first_is_evaluated_begin_together(kind: str) -> None:
    """The second token of the first one comes with the first ones of all others."""
    rig = Rig(kind, n_seq_max=8, n_ubatch=512, n_batch=512)
    rig.engine._portions.note(0, 100, 0.1)
    first, *others = [ask(words(seed, 30), 8) for seed in range(1, 9)]
    rig.submit(first)
    rig.step_until(lambda: bool(first.generated))
    for other in others:
        rig.submit(other)
    rig.step_until(lambda: all(other.generated for other in others))
    most = 2 if kind == "full" else 3  # with a checkpoint before the last token
    assert len(first.generated) <= most
    rig.read(first, *others)
    rig.check(first, *others)
    rig.check_at_rest()
    rig.close()


def test_a_long_prompt_beside_a_stream_that_has_only_just_begun_comes_in_portions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does the end of one make it wait, or what is short behind it."""
    rig = Rig("full", n_seq_max=8, n_ubatch=512, n_batch=512)
    portions = rig.engine._portions
    first, long, short = ask(words(1, 30), 8), ask(words(2, 215), 8), ask(words(3, 30), 8)
    rig.submit(first)
    rig.step_until(lambda: bool(first.generated))
    rig.submit(long)
    rig.submit(short)
    portions.note(0, 100, 0.1)
    portions.note(1, 0, 0.001)
    monkeypatch.setattr(portions, "note", lambda *_: None)
    evaluated = rig.engine.metrics.evaluated
    rig.step()
    rig.step()
    assert 0 < rig.engine.metrics.evaluated - evaluated < 200
    rig.read(first, long, short)
    rig.check(first, long, short)
    rig.close()


def test_replies_that_nobody_reads_before_their_end_leave_prompts_their_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig("full", n_seq_max=4)
    monkeypatch.setattr(rig.engine._portions, "size", lambda *_: 1)
    whole, prompt = ask(words(1, 30), 60), ask(words(2, 150), 8)
    rig.submit(whole)
    rig.step_until(lambda: len(whole.generated) > 2)
    (running,) = rig.engine.requests.running
    assert running.read
    running.read = False  # as in a call without stream=True
    rig.submit(prompt)
    before = len(whole.generated)
    rig.step_until(lambda: bool(prompt.generated))
    assert len(whole.generated) - before < 10
    rig.read(whole, prompt)
    rig.check(whole, prompt)
    rig.close()


def test_who_reads() -> None:
    rig = Rig("full")
    read: list[bool] = []

    def looks(*_: object) -> bool:
        read.extend(each.read for each in rig.engine.requests.running)
        return False

    for stream in (False, True):
        reply = rig.llm.create_completion("a", max_tokens=1, stopping_criteria=looks, stream=stream)
        assert list(reply)
    assert read == [False, True]
    rig.close()


def test_pieces_that_are_copied_behind_a_step_with_a_prompt_leave_the_gap_short() -> None:
    assert hurried(0.02, 0.02) == pytest.approx(0.04)
    assert hurried(0.02, 0.0) == pytest.approx(0.04), "nothing is known"
    assert hurried(0.05, 0.02) == pytest.approx(0.01), "most of the time has gone"
    assert hurried(0.5, 0.02) == pytest.approx(0.003)
    assert hurried(1.0, 1.0) == pytest.approx(0.05)
