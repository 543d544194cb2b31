"""How much of a prompt is evaluated beside streams: pure, with steps of known duration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llama_py.engine.prefill_budget import PrefillBudget
from llama_py.memory.saving import hurried
from tests.engine.rig import Asked, Rig, StepClock, ask, words

MOST = 256


def evaluated(
    budget: PrefillBudget,
    prompt: int,
    usual: float,
    token: float,
    deeper: float = 0.0,
    waiting: int = 1,
) -> Iterator[tuple[int, float]]:
    """Tokens and seconds of each step of a prompt beside a stream.

    Args:
        token: seconds of a token of the prompt; the last one's cost ``deeper`` times as much more.
        waiting: prompts that wait.
    """
    done = 0
    while done < prompt:
        count = min(prompt - done, budget.size(1, MOST, waiting))
        seconds = usual + count * token * (1 + deeper * done / prompt)
        budget.note(1, count, seconds)
        done += count
        yield count, seconds


def seen() -> PrefillBudget:
    """A prompt alone, at a millisecond for each token, and a step of one stream in 20 ms."""
    budget = PrefillBudget()
    budget.note(0, 512, 0.512)
    budget.note(1, 0, 0.02)
    return budget


@settings(max_examples=200, deadline=None)
@given(st.floats(0.001, 2.0), st.floats(1e-5, 0.008), st.floats(0.0, 4.0), st.integers(1, 100))
@example(0.00193, 0.000143, 4.0, 95)  # what tokens cost rises fastest, in the largest portions
def test_no_step_is_longer_than_three_usual_ones_and_a_moment(
    usual: float, token: float, deeper: float, waiting: int
) -> None:
    budget = PrefillBudget()
    budget.note(0, 512, 512 * token)
    budget.note(1, 0, usual)
    steps = [*evaluated(budget, 3000, usual, token, deeper, waiting)]
    assert max(seconds for _, seconds in steps) <= 3 * usual + 0.05 + 4 * token * (1 + deeper)


def test_the_prompt_gets_more_than_half_of_the_time() -> None:
    budget = seen()
    took = sum(seconds for _, seconds in evaluated(budget, 3000, 0.02, 0.001))
    assert took < 1.6 * 3000 * 0.001


def test_the_more_wait_for_the_fewer_streams_the_more_they_get() -> None:
    budget = seen()
    assert budget.size(1, MOST) == 40
    assert budget.size(1, MOST, 2) == 52
    assert budget.size(1, MOST, 8) == 61
    budget.note(7, 0, 0.02)
    assert budget.size(7, MOST, 2) == 43


def test_a_step_may_take_longer_where_many_begin() -> None:
    budget = seen()
    assert [budget.pause(begin, 8000, 0.0) for begin in range(1, 9)] == [
        *(0.0, 0.0),
        *(0.25, 0.5, 0.75, 1.0),
        *(1.0, 1.0),
    ]
    assert budget.pause(8, 600, 0.0) == pytest.approx(0.15), "all of it takes 0.6 s"
    assert budget.pause(8, 100, 0.5) == pytest.approx(0.15), "the last one waits as long in all"
    assert PrefillBudget().pause(8, 8000, 9.0) == 0, "nothing is known"


def test_the_portion_of_a_longer_step_fills_it() -> None:
    budget = seen()
    assert budget.size(1, 2000, 7, 0.5) == 480
    assert budget.size(1, 100, 7, 0.5) == 100, "no more than a chunk"
    budget.note(1, 100, 0.12)
    assert budget.size(1, 2000, 7, 1.0) == 200, "it grows by a factor at most"
    budget = seen()
    assert budget.size(1, MOST, 7, 0.05) == budget.size(1, MOST, 7), "it takes longer anyway"
    budget = seen()
    assert budget.size(5, 2000, 3, 0.5) == 480, "what is usual need not be seen before"
    assert budget.size(5, 2000, 3) == 0


@settings(max_examples=200, deadline=None)
@given(
    st.floats(0.001, 0.4),
    st.floats(1e-5, 0.008),
    st.floats(0.0, 1.0),
    st.integers(3, 100),
    st.floats(0.0, 20.0),
)
def test_no_step_is_longer_than_many_that_begin_may_make_it(
    usual: float, token: float, deeper: float, begin: int, waited: float
) -> None:
    """Or than it may be anyway. What tokens cost may become more, step by step."""
    budget = PrefillBudget()
    budget.note(0, 512, 512 * token)
    budget.note(1, 0, usual)
    left = 3000
    while left:
        pause = budget.pause(begin, left, waited)
        assert pause <= 1.0
        size = budget.size(1, MOST, 7, pause)
        count = min(left, size)
        cost = token * (1 + deeper * (1 - left / 3000))
        seconds = usual + count * cost
        budget.note(1, count, seconds)
        allowed = max(3 * usual + 0.05, pause)
        assert seconds <= allowed * (1 + 0.2 * deeper) + 4 * cost
        left, waited = left - count, waited + seconds


def test_where_steps_are_short_a_portion_is_as_large_as_it_can_be() -> None:
    budget = PrefillBudget()
    budget.note(0, 512, 0.02)
    budget.note(1, 0, 0.002)
    assert budget.size(1, MOST) == MOST


def test_a_portion_recovers_from_a_step_that_something_else_delayed() -> None:
    budget = seen()
    before = budget.size(1, MOST)
    assert before == pytest.approx(40, abs=1)
    budget.note(1, before, 0.5)
    assert budget.size(1, MOST) < before / 2
    for _ in range(4):
        budget.note(1, size := budget.size(1, MOST), 0.02 + 0.001 * size)
    assert budget.size(1, MOST) == before


def test_the_short_end_of_a_prompt_does_not_make_the_next_one_begin_slowly() -> None:
    budget = seen()
    before = budget.size(1, MOST)
    budget.note(1, 1, 0.025)
    assert budget.size(1, MOST) == before
    budget.note(1, 1, 0.4)
    assert budget.size(1, MOST) < before, "that one token takes longer than all should"


def test_streams_have_a_step_to_themselves_when_it_is_not_known_how_long_one_takes() -> None:
    budget = PrefillBudget()
    budget.note(0, 512, 0.512)
    assert budget.size(1, MOST) == 0
    budget.note(1, 0, 0.02)
    assert budget.size(1, MOST) > 0
    assert budget.size(3, MOST) == 0, "nothing is known of three"
    assert budget.size(2, MOST) > 0, "two take as long as one, at least"
    for _ in range(64):
        assert budget.size(1, MOST) > 0
        budget.note(1, 10, 0.04)
    assert budget.size(1, MOST) == 0, "it was long ago"
    budget.note(1, 0, 0.02)
    assert budget.size(1, MOST) > 0


def test_who_has_only_just_begun_waits_longer_for_others_who_begin() -> None:
    budget = seen()
    assert budget.size(1, 1000) < 50
    assert budget.at_first() == 200
    assert PrefillBudget().at_first() == 0, "nothing is known"


def test_a_few_tokens_that_cost_nothing_do_not_make_many_seem_cheap() -> None:
    budget = PrefillBudget()
    budget.note(1, 0, 0.02)
    budget.note(0, 8, 0.021)
    assert budget.size(1, MOST) < 20
    assert budget.at_first() < 100


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

    def size(streams: int, most: int, waiting: int, pause: float) -> int:
        assert (waiting, pause) == (1, 0.0)
        given.append(min(next(sizes), most))
        asked.append(streams)
        return given[-1]

    monkeypatch.setattr(rig.engine._prefill_budget, "size", size)
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
    clock = StepClock(step=0.001, row=0.0005)
    rig = Rig(kind, n_seq_max=8, n_ubatch=512, n_batch=512, clock=clock)
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
    """Nor does the end of one make it wait; what is short behind it begins at once."""
    rig = Rig("full", n_seq_max=8, n_ubatch=512, n_batch=512)
    budget = rig.engine._prefill_budget
    first, long, short = ask(words(1, 30), 8), ask(words(2, 215), 8), ask(words(3, 30), 8)
    rig.submit(first)
    rig.step_until(lambda: bool(first.generated))
    rig.submit(long)
    budget.note(0, 100, 0.1)
    budget.note(1, 0, 0.001)
    monkeypatch.setattr(budget, "note", lambda *_: None)
    evaluated = rig.engine.metrics.evaluated
    rig.step()
    assert 0 < rig.engine.metrics.evaluated - evaluated < 50
    rig.submit(short)
    rig.step()
    assert 50 < rig.engine.metrics.evaluated - evaluated < 250
    assert short.generated
    assert not long.generated
    rig.read(first, long, short)
    rig.check(first, long, short)
    rig.close()


def test_replies_that_nobody_reads_before_their_end_leave_prompts_their_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig("full", n_seq_max=4)
    monkeypatch.setattr(rig.engine._prefill_budget, "size", lambda *_: 1)
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


class Costs(StepClock):
    """Steps of 512 rows and fewer take so many seconds, and so many for each row."""

    def cost(self, rows: int) -> float:
        return -(-rows // 512) * self.step + rows * self.row

    def took(self, rows: int, seconds: float) -> float:
        spent = self.cost(rows)
        self.now += spent
        return spent

    def within(self, rows: int, most: int, seconds: float) -> tuple[int, float]:
        return 1, 3600.0


#: Tokens of each prompt of those that come together, and of each reply.
PROMPT, REPLY = 85, 24


@dataclass(frozen=True)
class Gap:
    """Between two tokens of a stream.

    Attributes:
        token: the number of the one before.
        streams: that had their next token with it.
    """

    seconds: float
    token: int
    streams: int


@pytest.mark.parametrize(("step", "row"), [(0.035, 0.0058), (0.02, 0.002), (0.1, 0.02)])
def test_many_that_come_together(step: float, row: float) -> None:
    """Eight at one moment are evaluated in one step."""
    clock = Costs(step, row)
    firsts, gaps = begin_together(clock, [PROMPT] * 8, begun=False)
    assert max(firsts) <= 1.001 * clock.cost(8 * PROMPT)
    assert_short(gaps, clock, 0.0)


@pytest.mark.parametrize(
    ("step", "row", "late"), [(0.035, 0.0058, 1.06), (0.02, 0.002, 1.08), (0.1, 0.02, 1.25)]
)
def test_many_that_come_behind_one(step: float, row: float, late: float) -> None:
    """They find the first one evaluated, as over HTTP: beside a step for all others.

    That is how llama-server does it: all others begin at its end, and the first one stands still.
    Here they begin one after the other, a quarter sooner on average; where a step costs much before
    its first row, the last one begins later by as much as more steps cost.
    """
    clock = Costs(step, row)
    firsts, gaps = begin_together(clock, [PROMPT] * 8)
    alone = clock.cost(PROMPT)
    others = alone + clock.cost(7 * PROMPT + 1)
    assert sum(firsts) <= 0.77 * (alone + 7 * others)
    assert max(firsts) <= late * others
    assert_short(gaps, clock, min(1.0, max(firsts) / 4))


def assert_short(gaps: list[Gap], clock: Costs, many: float) -> None:
    """No gap is longer than it may be, or than ``many`` seconds."""
    for gap in gaps:
        usual = clock.cost(gap.streams)
        allowed = 3 * usual + 0.05
        if gap.token <= 2:
            allowed = max(allowed, 0.2 + usual)
        assert gap.seconds <= max(allowed, many) + 4 * clock.row, gap


def test_two_that_come_behind_one_leave_its_gaps_short() -> None:
    clock = Costs(0.035, 0.0058)
    _, gaps = begin_together(clock, [PROMPT] * 3)
    assert_short(gaps, clock, 0.25)
    _, gaps = begin_together(clock, [PROMPT, 1000])
    assert_short(gaps, clock, 0.0)


def test_the_last_of_many_begins_as_soon_behind_the_others() -> None:
    clock = Costs(0.035, 0.0058)
    firsts, _ = begin_together(clock, [PROMPT] * 8)
    waits = [after - before for before, after in pairwise(sorted(firsts))]
    assert max(waits) < 2 * clock.cost(PROMPT)


def test_a_long_prompt_among_many_is_evaluated_in_portions_when_the_others_have_begun() -> None:
    clock = Costs(0.035, 0.0058)
    _, gaps = begin_together(clock, [*[PROMPT] * 7, 1500], reply=60)
    assert max(gap.seconds for gap in gaps) > 0.7
    assert_short([gap for gap in gaps if gap.token > 12 and gap.streams >= 7], clock, 0.0)


def test_many_that_nobody_reads_before_their_end_leave_gaps_short() -> None:
    clock = Costs(0.035, 0.0058)
    _, gaps = begin_together(clock, [PROMPT] * 8, whole=True)
    assert_short([gap for gap in gaps if gap.streams == 1], clock, 0.0)


def begin_together(
    clock: Costs, prompts: list[int], *, begun: bool = True, reply: int = REPLY, whole: bool = False
) -> tuple[list[float], list[Gap]]:
    """Seconds to the first token of each, and the gaps in all replies.

    Args:
        prompts: their tokens.
        begun: the first one is evaluated when the others come.
        whole: nobody reads the others before their end.
    """
    count = len(prompts)
    rig = Rig("full", n_seq_max=count, n_ubatch=512, n_batch=2048, n_ctx=8192, clock=clock)
    rig.run(ask(words(99, PROMPT), REPLY))  # what tokens cost is known
    start = clock.now
    asked = [ask(words(seed, tokens), reply) for seed, tokens in enumerate(prompts, 1)]
    rig.submit(*asked[: 1 if begun else count])
    rig.step()
    for each in asked[1 if begun else count :]:
        rig.submit(each, whole=whole)
    last: dict[Asked, float] = {}
    firsts: list[float] = []
    gaps: list[Gap] = []
    known: dict[Asked, int] = {}
    while not all(each.ended for each in asked):
        streams = sum(len(each.generated) > known[each] for each in asked if each in known)
        for each in asked:
            had = known.get(each, 0)
            if len(each.generated) > had:
                if had:
                    gaps.append(Gap(clock.now - last[each], had, streams))
                else:
                    firsts.append(clock.now - start)
                known[each], last[each] = len(each.generated), clock.now
        rig.step()
    rig.close()
    return firsts, gaps
