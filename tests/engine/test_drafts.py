"""Drafts change how many steps a reply takes, and nothing else: requests at the engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llama_py import PromptLookup, Speculative
from llama_py.engine.drafts.payoff import StepCosts
from tests.engine.conftest import MakeRig
from tests.engine.rig import Asked, Rig, ask, words

Tokens = NDArray[np.intc]

N_VOCAB = 250
LONG = 24


class Prompter:
    """Knows the replies of some prompts; its methods are drafters.

    Attributes:
        length: tokens of a draft.
        asked: how often it was asked.
    """

    def __init__(self, length: int, rig: Rig, *requests: Asked) -> None:
        self.length = length
        self.asked = 0
        self._known = [[*each.tokens, *rig.expected(each, LONG + 20)] for each in requests]
        self._choose = random.Random(3)

    def right(self, tokens: Tokens) -> Sequence[int]:
        self.asked += 1
        seen = tokens.tolist()
        for known in self._known:
            if known[: len(seen)] == seen:
                return known[len(seen) : len(seen) + self.length]
        raise AssertionError("these tokens were never generated")

    def wrong(self, tokens: Tokens) -> Sequence[int]:
        return [(token + 1) % N_VOCAB for token in self.right(tokens)]

    def half_right(self, tokens: Tokens) -> Sequence[int]:
        draft = [*self.right(tokens)]
        half = len(draft) // 2
        return draft[:half] + [(token + 1) % N_VOCAB for token in draft[half:]]

    def by_chance(self, tokens: Tokens) -> Sequence[int]:
        draft = [*self.right(tokens)]
        return [token if self._choose.random() < 0.6 else 7 for token in draft]

    def raising(self, tokens: Tokens) -> Sequence[int]:
        if len(tokens) % 5 == 3:
            raise RuntimeError("no idea")
        return self.right(tokens)


MANNERS = ("right", "wrong", "half_right", "by_chance", "raising")
Drafts = Callable[[Tokens], Sequence[int]]


def drafted(request: Asked, *drafters: Drafts, **settings: Any) -> Asked:
    """The same request with drafts, whether they pay or not."""
    speculative = Speculative(drafters, **{"adaptive": False, **settings})
    return Asked(replace(request.request, speculative=speculative))


@pytest.fixture(
    scope="module",
    params=[("full", False), ("iswa", False), ("iswa", True)],
    ids=["full", "iswa", "iswa_full"],
)
def cuttable(request: pytest.FixtureRequest) -> Iterator[Rig]:
    kind, swa_full = request.param
    rig = Rig(kind, swa_full=swa_full)
    yield rig
    rig.close()


def finish(rig: Rig, *requests: Asked) -> None:
    """Read requests to the end; they generate all that they may, and what they would alone."""
    waiting = [each for each in requests if each.events is None]
    rig.submit(*waiting)
    assert [end.reason for end in rig.read(*requests)] == ["length"] * len(requests)
    rig.check(*requests)


def follow_up(rig: Rig, request: Asked) -> None:
    """What the request left in memory is what a fresh context would have there."""
    rig.check_at_rest()
    after = ask([*request.tokens, *request.generated, *words(9, 6)], 5)
    finish(rig, after)
    reused = after.record.cache["reused"]
    if not rig.cache.traits.needs_checkpoints:
        assert reused >= len(request.tokens) + len(request.generated) - 1
    rig.check_at_rest()


# -- one stream -----------------------------------------------------------------------------------


@pytest.mark.parametrize("manner", MANNERS)
def test_every_length_gives_the_tokens_of_plain_decoding(cuttable: Rig, manner: str) -> None:
    plain = ask(words(1, 40), LONG)
    for length in range(17):
        cuttable.llm.reset()
        prompter = Prompter(length, cuttable, plain)
        request = drafted(plain, getattr(prompter, manner))
        assert [end.reason for end in cuttable.run(request)] == ["length"]
        assert request.generated == cuttable.expected(plain), length
        follow_up(cuttable, request)


@pytest.mark.parametrize("manner", MANNERS)
def test_other_kinds_of_memory(rig: Rig, manner: str) -> None:
    plain = ask(words(2, 40), LONG)
    for length in (1, 2, 5, 16):
        request = drafted(plain, getattr(Prompter(length, rig, plain), manner))
        finish(rig, request)
        follow_up(rig, request)
    assert not rig.engine.metrics.preempted, "going back is cheaper than beginning again"


def test_right_drafts_save_steps(cuttable: Rig) -> None:
    cuttable.llm.reset()
    plain = ask(words(3, 30), LONG)
    cuttable.engine.reset_counters()
    request = drafted(plain, Prompter(7, cuttable, plain).right)
    cuttable.run(request)
    metrics = cuttable.engine.metrics
    assert metrics.drafts == 3  # the prompt gives the first token, and three steps the others
    assert metrics.accepted == metrics.drafted == request.record.accepted == 20
    assert metrics.generated == LONG


def test_steps_without_a_draft_are_those_of_plain_decoding(
    cuttable: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drafter that is silent most of the time costs nothing but being asked."""
    cuttable.llm.reset()
    runner, plain = cuttable.engine.runner, ask(words(3, 30), LONG)
    counts: dict[str, int] = {}

    def counted(name: str) -> None:
        function = getattr(runner, name)

        def count(*arguments: Any) -> Any:
            counts[name] = counts.get(name, 0) + 1
            return function(*arguments)

        monkeypatch.setattr(runner, name, count)

    prompter = Prompter(2, cuttable, plain)
    counted("_decode")
    counted("_run_steps")
    request = drafted(plain, lambda tokens: prompter.right(tokens) if len(tokens) % 6 == 0 else ())
    finish(cuttable, request)
    follow_up(cuttable, request)
    drafts = cuttable.engine.metrics.drafts
    assert drafts >= 2
    # Beside the steps with drafts there are the prompts, in one or two parts each.
    assert counts["_decode"] <= drafts + 5
    assert counts["_run_steps"] >= LONG - 3 * drafts - 2


def test_wrong_drafts_are_counted(cuttable: Rig) -> None:
    cuttable.llm.reset()
    plain = ask(words(3, 30), 10)
    cuttable.engine.reset_counters()
    cuttable.run(request := drafted(plain, Prompter(4, cuttable, plain).wrong))
    metrics = cuttable.engine.metrics
    assert (metrics.drafts, metrics.accepted) == (8, 0)
    assert request.record.drafted == metrics.drafted == 4 * 5 + 3 + 2 + 1


def test_max_tokens_at_each_place_of_a_draft(cuttable: Rig) -> None:
    for count in range(1, 20):
        cuttable.llm.reset()
        plain = ask(words(4, 35), count)
        request = drafted(plain, Prompter(8, cuttable, plain).right)
        assert cuttable.run(request)[0].reason == "length"
        assert request.generated == cuttable.expected(plain)
        follow_up(cuttable, request)


def test_a_stop_token_at_each_place_of_a_draft(cuttable: Rig) -> None:
    expected = cuttable.expected(ask(words(5, 35), LONG))
    for place in range(1, 14):
        if expected[place] in expected[:place]:
            continue
        cuttable.llm.reset()
        plain = ask(words(5, 35), LONG, generation={"stop_tokens": frozenset({expected[place]})})
        request = drafted(plain, Prompter(6, cuttable, plain).right)
        assert cuttable.run(request)[0].reason == "stop"
        assert request.generated == expected[: place + 1]
        assert request.given == expected[:place]
        follow_up(cuttable, request)


def test_the_end_of_the_context(make_rig: MakeRig) -> None:
    for kind in ("full", "iswa"):
        rig = make_rig(kind, n_ctx=256)
        plain = ask(words(6, 230), 100)
        rig.run(plain)
        rig.llm.reset()
        known = [*plain.tokens, *plain.generated, *words(1, 20)]

        def draft(tokens: Tokens, known: list[int] = known) -> Sequence[int]:
            return known[len(tokens) : len(tokens) + 9]

        request = drafted(plain, draft)
        assert rig.run(request)[0].reason == "length"
        assert request.generated == plain.generated
        assert request.record.accepted
        rig.check_at_rest()


def test_what_callbacks_see_is_what_they_see_without_drafts(cuttable: Rig) -> None:
    def observed(speculate: bool) -> tuple[list[Any], list[Any], list[int]]:
        cuttable.llm.reset()
        processed: list[Any] = []
        stopped: list[Any] = []

        def process(tokens: Tokens, row: Any) -> Any:
            processed.append((tokens.tolist(), int(row.argmax())))
            return row

        def stop(tokens: Tokens, row: Any) -> bool:
            stopped.append((tokens.tolist(), int(row.argmax())))
            return len(tokens) == 35 + 11

        plain = ask(
            words(7, 35),
            LONG,
            sampling={"logits_processors": (process,)},
            generation={"stopping_criteria": (stop,)},
        )
        request = drafted(plain, Prompter(5, cuttable, plain).half_right) if speculate else plain
        cuttable.run(request)
        follow_up(cuttable, request)
        return processed, stopped, request.generated

    assert observed(True) == observed(False)


def test_a_callback_that_raises_within_a_draft(cuttable: Rig) -> None:
    for place in range(2, 9):
        cuttable.llm.reset()

        def stop(tokens: Tokens, _row: Any, end: int = 35 + place) -> bool:
            if len(tokens) == end:
                raise KeyError("mine")
            return False

        plain = ask(words(8, 35), LONG, generation={"stopping_criteria": (stop,)})
        request = drafted(plain, Prompter(6, cuttable, plain).right)
        (end,) = cuttable.run(request)
        assert isinstance(end.error, KeyError)
        assert request.generated == cuttable.expected(plain, place)
        follow_up(cuttable, request)


# -- several streams ------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_streams_with_different_drafts_beside_a_prompt(rig: Rig, count: int) -> None:
    plain = [ask(words(20 + n, 20 + 7 * n), 16 + n) for n in range(count)]
    asked = [
        drafted(each, getattr(Prompter(1 + 3 * n % 7, rig, each), MANNERS[n % len(MANNERS)]))
        if n % 3 < 2
        else each
        for n, each in enumerate(plain)
    ]
    late = ask(words(90, 400), 6)
    rig.submit(*asked)
    rig.step_until(lambda: all(len(each.generated) > 3 for each in asked))
    finish(rig, late)
    finish(rig, *asked)
    for each in asked:
        follow_up(rig, each)


def test_prompts_with_common_beginnings_come_and_go(rig: Rig) -> None:
    """Forks from streams whose drafts are being verified, cancelled ones among them."""
    choose = random.Random(11)
    heads = [words(70 + n, 90) for n in range(2)]
    requests: list[Asked] = []
    while len(requests) < 30:
        while sum(not each.ended for each in requests) < 6:
            head = choose.choice(heads)[: choose.choice((30, 60, 90))]
            plain = ask(head + words(choose.randrange(99), choose.choice((1, 9, 40))), LONG)
            manner = choose.choice((*MANNERS[:4], None))
            if manner is not None:
                prompter = Prompter(choose.randrange(1, 9), rig, plain)
                plain = drafted(plain, getattr(prompter, manner))
            requests.append(plain)
            rig.submit(plain)
        rig.step()
        live = [each for each in requests if not each.ended]
        if live and choose.random() < 0.05:
            rig.cancel(choose.choice(live))
    for each in requests:
        if not each.ended:
            rig.read(each)
    rig.check(*requests)
    assert sum(len(each.generated) == LONG for each in requests) > 15
    follow_up(rig, requests[-1])


def test_choices_of_one_prompt(rig: Rig) -> None:
    rig.llm.reset()
    options: Any = {"n": 4, "max_tokens": 12, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    prompt = words(11, 60)
    plain = rig.llm.create_completion(prompt, **options)
    rig.llm.reset()
    spoken = Speculative((PromptLookup(1, 5), lambda tokens: [int(tokens[-1]), 3]), adaptive=False)
    with_drafts = rig.llm.create_completion(prompt, speculative=spoken, **options)
    assert with_drafts["choices"] == plain["choices"]
    assert rig.engine.metrics.drafts
    rig.check_at_rest()


def test_cells_for_the_drafts_run_out(make_rig: MakeRig) -> None:
    for kind in ("full", "iswa"):
        rig = make_rig(kind, n_ctx=256, n_seq_max=4)
        plain = [ask(words(30 + n, 40), 40) for n in range(4)]
        requests = [drafted(each, Prompter(6, rig, each).half_right) for each in plain]
        finish(rig, *requests)
        rig.check_at_rest()


def test_a_request_is_preempted_between_drafts(make_rig: MakeRig) -> None:
    for kind in ("full", "iswa"):
        rig = make_rig(kind)
        plain = [ask(words(40 + n, 40), LONG) for n in range(3)]
        requests = [drafted(each, Prompter(3, rig, each).half_right) for each in plain]
        rig.submit(*requests)
        for _ in range(6):
            rig.step()
            rig.driver.run(rig.engine._admission.preempt_one)
        finish(rig, *requests)
        rig.check_at_rest()
        assert rig.engine.metrics.preempted


def test_cancel_within_a_reply_with_drafts(cuttable: Rig) -> None:
    for steps in range(1, 6):
        cuttable.llm.reset()
        plain = [ask(words(50 + n, 30), LONG) for n in range(2)]
        requests = [drafted(each, Prompter(4, cuttable, each).half_right) for each in plain]
        cuttable.submit(requests[0])
        cuttable.submit(requests[1])
        for _ in range(steps):
            cuttable.step()
        cuttable.cancel(requests[0])
        finish(cuttable, requests[1])
        cuttable.check(*requests)
        for each in requests:
            follow_up(cuttable, each)


def test_a_timeout_within_a_draft(cuttable: Rig) -> None:
    cuttable.llm.reset()

    def slow(tokens: Tokens, _row: Any) -> bool:
        return False

    plain = ask(words(60, 30), LONG, generation={"timeout": 0.0, "stopping_criteria": (slow,)})
    request = drafted(plain, Prompter(4, cuttable, plain).right)
    (end,) = cuttable.run(request)
    assert type(end.error).__name__ == "GenerationTimeout"
    cuttable.check_at_rest()


# -- drafters that misbehave ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "draft",
    [[10**6], [-1], [1.5], ["a"], None, 5, [None], [2**40]],
    ids=str,
)
def test_a_drafter_that_says_nonsense_is_not_asked_again(
    cuttable: Rig, draft: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cuttable.llm.reset()
    cuttable.engine.reset_counters()
    asked = 0

    def nonsense(_tokens: Tokens) -> Any:
        nonlocal asked
        asked += 1
        return draft

    request = drafted(ask(words(12, 20), 8), nonsense)
    finish(cuttable, request)
    assert (asked, cuttable.engine.metrics.draft_errors) == (1, 1)
    assert "not asked again" in caplog.text


def test_the_first_drafter_with_a_guess_counts(cuttable: Rig) -> None:
    cuttable.llm.reset()
    plain = ask(words(13, 20), 12)
    prompter = Prompter(4, cuttable, plain)

    def every_other(tokens: Tokens) -> Sequence[int]:
        return () if len(tokens) % 2 else prompter.wrong(tokens)

    request = drafted(plain, every_other, prompter.right)
    finish(cuttable, request)
    assert 0 < request.record.accepted < request.record.drafted


def test_an_array_and_a_generator_are_drafts_as_well(cuttable: Rig) -> None:
    plain = ask(words(14, 20), 12)
    for make in (np.asarray, iter, tuple):
        cuttable.llm.reset()
        prompter = Prompter(4, cuttable, plain)

        def draft(tokens: Tokens, make: Any = make, prompter: Prompter = prompter) -> Any:
            return make(prompter.right(tokens))

        request = drafted(plain, draft)
        finish(cuttable, request)
        assert request.record.accepted


def test_a_drafter_cannot_change_what_was_said(cuttable: Rig) -> None:
    def meddling(tokens: Tokens) -> Sequence[int]:
        tokens[0] = 5
        return ()

    request = drafted(ask(words(15, 20), 8), meddling)
    finish(cuttable, request)
    assert cuttable.engine.metrics.draft_errors


def test_exact_steps_where_memory_cannot_be_cut_are_refused_and_counted(make_rig: MakeRig) -> None:
    rig = make_rig("recurrent")
    plain = ask(words(16, 20), 8)
    finish(rig, drafted(plain, Prompter(4, rig, plain).right, exact=True))
    assert rig.llm.metrics["drafts_refused"] == {"recurrent state cannot be cut": 1}
    assert rig.llm.metrics["drafts"] == 0


# -- exact ----------------------------------------------------------------------------------------


def test_exact_steps_give_the_same_logits(make_rig: MakeRig) -> None:
    rig = make_rig("full")

    def logits(*drafters: Drafts) -> tuple[list[int], Any]:
        rig.llm.reset()
        plain = ask(words(17, 40), LONG, keep_logits=True)
        request = drafted(plain, *drafters, exact=True)
        rig.run(request)
        return request.generated, request.record.logits

    tokens, row = logits()
    assert rig.engine.metrics.drafted >= LONG - 1, "every step but the first has two rows"
    prompter = Prompter(5, rig, ask(words(17, 40), LONG))
    for drafter in (prompter.half_right, prompter.right, prompter.by_chance):
        with_drafts = logits(drafter)
        assert with_drafts[0] == tokens
        assert np.abs(with_drafts[1] - row).max() <= 1e-5


# -- whether it pays ------------------------------------------------------------------------------


class DearRows(StepCosts):
    """As on a machine where each row takes as long as the first one."""

    def add(self, rows: int, _seconds: float, *, drafts: bool = False) -> None:
        super().add(rows, rows * 1e-3, drafts=drafts)


def test_drafts_that_do_not_pay_are_left_out(cuttable: Rig) -> None:
    cuttable.llm.reset()
    cuttable.engine.reset_counters()
    plain = ask(words(18, 20), 400)
    request = drafted(plain, lambda _tokens: [1] * 8, adaptive=True)
    cuttable.engine._drafts.costs = DearRows()
    cuttable.run(request)
    metrics = cuttable.engine.metrics
    assert metrics.drafts < 20
    assert metrics.drafts_skipped > 300
