"""Requests together, on every kind of memory: each gets what it would get alone."""

from __future__ import annotations

import itertools
import random
import threading
import time
from typing import Any

import pytest

from llama_py.engine.events import Events
from llama_py.engine.loop import MOST_EVENTS
from llama_py.errors import (
    ContextOverflowError,
    GenerationTimeout,
    GrammarError,
    LlamaError,
    ParameterError,
    QueueFullError,
)
from tests.engine.conftest import MakeRig
from tests.engine.rig import Asked, Rig, StepClock, ask, words
from tests.models import KINDS
from tests.patience import PATIENCE


def test_requests_together_equal_requests_alone(rig: Rig) -> None:
    requests = [
        ask(words(n, length), 12) for n, length in enumerate((1, 5, 63, 64, 65, 150, 9, 30))
    ]
    ends = rig.run(*requests)
    assert [end.reason for end in ends] == ["length"] * 8
    rig.check(*requests)
    rig.check_at_rest()


def test_more_requests_than_sequences(rig: Rig) -> None:
    requests = [ask(words(n, 20 + n), 5) for n in range(20)]
    rig.run(*requests)
    rig.check(*requests)
    rig.check_at_rest()


def test_prompts_that_come_and_go_at_random(rig: Rig) -> None:
    choose = random.Random(5)
    requests: list[Asked] = []
    while len(requests) < 40:
        while sum(not each.ended for each in requests) < 8:
            length, count = choose.choice((3, 11, 33, 60, 105, 139)), choose.choice((1, 5, 9))
            requests.append(ask(words(choose.randrange(1000), length), count))
            rig.submit(requests[-1])
        rig.step()
    rig.read(*requests)
    rig.check(*requests)
    rig.check_at_rest()


def test_a_shared_prefix_is_evaluated_once(rig: Rig) -> None:
    shared, own, count = words(1, 1000), 20, 8
    requests = [ask(shared + words(50 + n, own), 4) for n in range(count)]
    rig.run(*requests)
    rig.check(*requests)
    evaluated = rig.engine.metrics.evaluated
    assert evaluated <= len(shared) + count * (own + 1)
    rig.check_at_rest()


@pytest.mark.parametrize("unified", [True, False], ids=["one buffer", "separate"])
@pytest.mark.parametrize("kind", ["full", "iswa", "hybrid", "hybrid_swa"])
def test_the_last_of_a_shared_prefix_waits_for_little_more_than_it(
    make_rig: MakeRig, kind: str, unified: bool
) -> None:
    """Until its first token: the steps of the prefix, and of what each has behind it."""
    rig = make_rig(kind, kv_unified=unified, n_seq_max=8, n_ctx=8 * 512)
    shared, own, count = words(1, 400), 20, 8
    requests = [ask(shared + words(50 + n, own), 16) for n in range(count)]
    rig.submit(*requests, whole=True)
    rig.step_until(lambda: all(each.generated for each in requests))
    metrics = rig.engine.metrics
    assert metrics.evaluated <= len(shared) + count * (own + 1)
    # Seven of 64 tokens for the prefix; then one of as many, and as soon as some generate half as
    # many in each, except where llama.cpp takes one prompt at a time.
    assert metrics.steps <= (9 + 2 * 7 if kind == "hybrid_swa" else 7 + 5)


@pytest.mark.parametrize("kind", ["full", "iswa", "recurrent", "hybrid"])
def test_the_first_of_a_shared_prefix_takes_the_others_with_it(
    make_rig: MakeRig, kind: str
) -> None:
    """Also where they are read as they come: what each has behind the prefix is one step."""
    rig = make_rig(kind, n_seq_max=8, n_ctx=8 * 512, n_ubatch=512, n_batch=512)
    shared = words(1, 400)
    requests = [ask(shared + words(50 + n, 20), 16) for n in range(8)]
    for request in requests:
        rig.submit(request)
    rig.step_until(lambda: any(each.generated for each in requests))
    assert all(each.generated for each in requests)
    rig.read(*requests)
    rig.check(*requests)
    rig.check_at_rest()


def test_equal_prompts_are_evaluated_once(rig: Rig) -> None:
    requests = [ask(words(3, 500), 3) for _ in range(8)]
    rig.run(*requests)
    rig.check(*requests)
    assert rig.engine.metrics.evaluated <= 500 + 8


def test_when_the_first_of_a_shared_prefix_is_cancelled_the_others_go_on(rig: Rig) -> None:
    shared = words(2, 400)
    requests = [ask(shared + words(60 + n, 5), 4) for n in range(3)]
    for request in requests:
        rig.submit(request)
    rig.step()
    rig.cancel(requests[0])
    rig.read(*requests[1:])
    rig.check(*requests[1:])
    rig.check_at_rest()


def test_choices_of_one_prompt_share_its_evaluation(rig: Rig) -> None:
    prompt = words(4, 300)
    response: Any = rig.llm.create_completion(prompt, n=4, max_tokens=4, temperature=1.0, seed=1)
    assert len(response["choices"]) == 4
    assert rig.engine.metrics.evaluated <= 300 + 4
    rig.check_at_rest()


# -- cancelling, timeouts, what callers do --------------------------------------------------------


def test_cancel_in_the_middle_of_a_prompt(rig: Rig) -> None:
    request = ask(words(5, 1500))
    rig.submit(request)
    for _ in range(3):
        rig.step()
    assert not request.generated
    rig.cancel(request)
    assert rig.read(request)[0].reason == "cancelled"
    rig.check_at_rest()
    again = ask(words(5, 1500), 4)
    rig.run(again)
    rig.check(again)


def test_cancel_from_another_thread_takes_one_step(make_rig: MakeRig) -> None:
    rig = make_rig(in_place=False)
    request = ask(words(6, 1900))
    rig.submit(request)
    reader = threading.Thread(target=lambda: rig.read(request))
    reader.start()
    while not request.started:
        time.sleep(0.001)
    steps = rig.engine.metrics.steps
    rig.cancel(request)
    assert request.ended
    assert rig.engine.metrics.steps <= steps + 2
    reader.join(PATIENCE)
    assert not reader.is_alive()
    rig.check_at_rest()


@pytest.mark.parametrize("started", [False, True])
def test_an_abandoned_generator_frees_its_sequence(rig: Rig, started: bool) -> None:
    for leave in ("close", "drop"):
        stream: Any = rig.llm.create_completion(
            words(7, 50), max_tokens=400, temperature=0.0, ignore_eos=True, stream=True
        )
        if started:
            next(stream)
        if leave == "close":
            stream.close()
        del stream
        rig.check_at_rest()
    assert rig.engine.metrics.cancelled == 2
    request = ask(words(7, 50), 5)
    rig.run(request)
    rig.check(request)


class ConsumerError(Exception):
    """Raised by the consumer of a stream."""


def test_a_raising_consumer_got_every_token_and_the_next_call_works(rig: Rig) -> None:
    prompt = words(8, 40)
    seen: list[int] = []

    def consume() -> None:
        for token in rig.llm.generate(prompt, temperature=0.0):
            seen.append(token)
            if len(seen) == 7:
                raise ConsumerError

    with pytest.raises(ConsumerError):
        consume()
    rig.check_at_rest()
    assert seen == rig.oracle.greedy(prompt, 7)[0]
    for sequence in rig.cache.live:  # nothing is held beyond what was really evaluated
        assert sequence.tokens == (prompt + seen)[: len(sequence.tokens)]
    follow = ask(prompt + seen + [5, 6], 5)
    rig.run(follow)
    rig.check(follow)


def test_a_timeout_says_what_there_was(rig: Rig) -> None:
    with pytest.raises(GenerationTimeout) as caught:
        rig.llm.create_completion(
            words(9, 10), max_tokens=1900, ignore_eos=True, temperature=0.0, timeout=0.02
        )
    assert caught.value.partial["choices"][0]["finish_reason"] == "error"
    rig.check_at_rest()


def test_a_waiting_request_times_out_too(make_rig: MakeRig) -> None:
    rig = make_rig(n_seq_max=1)
    long, late = ask(words(1, 10), 1500), ask(words(2, 10), generation={"timeout": 0.01})
    rig.submit(long)
    rig.submit(late)
    rig.step_until(lambda: late.ended)
    assert not late.started
    rig.cancel(long)
    assert isinstance(rig.read(long, late)[1].error, GenerationTimeout)
    rig.check_at_rest()


def test_a_failing_callback_fails_its_request_only(rig: Rig) -> None:
    def fail(*_: object) -> Any:
        raise ConsumerError

    good = ask(words(1, 70))
    bad = [
        ask(words(2, 70), on_progress=fail),
        ask(words(3, 70), sampling={"logits_processors": (fail,)}),
        ask(words(4, 70), generation={"stopping_criteria": (fail,)}),
    ]
    good_end, *ends = rig.run(good, *bad)
    assert good_end.reason == "length"
    rig.check(good)
    assert [end.reason for end in ends] == ["error"] * 3
    assert all(isinstance(end.error, ConsumerError) for end in ends)
    rig.check_at_rest()


def test_a_callback_cannot_call_its_model(rig: Rig) -> None:
    def call(*_: object) -> Any:
        rig.llm.create_completion([1, 2], max_tokens=1)

    end = rig.run(ask(words(1, 10), sampling={"logits_processors": (call,)}))[0]
    assert isinstance(end.error, LlamaError)
    assert "cannot call, reset or close the model" in str(end.error)
    rig.check_at_rest()


def test_a_callback_may_cancel_its_request(rig: Rig) -> None:
    request: Asked = ask(words(1, 300), on_progress=lambda done, total: rig.cancel(request))
    assert rig.run(request)[0].reason == "cancelled"
    rig.check_at_rest()


def test_progress_reaches_the_end(rig: Rig) -> None:
    seen: list[tuple[int, int]] = []
    rig.run(ask(words(2, 200), on_progress=lambda done, total: seen.append((done, total))))
    assert seen == sorted(seen)
    assert seen[-1] == (200, 200)
    assert len(seen) >= 3


# -- the queue ------------------------------------------------------------------------------------


def test_the_queue_is_bounded(make_rig: MakeRig) -> None:
    rig = make_rig(n_seq_max=2, max_waiting=3)
    requests = [ask(words(n, 5), 3) for n in range(5)]
    rig.submit(*requests)
    with pytest.raises(QueueFullError):
        rig.submit(ask(words(9, 5)))
    rig.read(*requests)
    rig.check(*requests)


def test_of_several_requests_all_are_queued_or_none(rig: Rig) -> None:
    good, too_long = ask(words(1, 5)), ask(words(2, 3000))
    with pytest.raises(ContextOverflowError):
        rig.submit(good, too_long)
    with pytest.raises(ParameterError):
        rig.submit(good, ask([]))
    rig.check_at_rest()


def test_a_bad_grammar_is_known_at_once(rig: Rig) -> None:
    with pytest.raises(GrammarError):
        rig.llm.create_completion("x", grammar='root ::= "')
    rig.check_at_rest()


def test_priority_then_order(make_rig: MakeRig) -> None:
    rig = make_rig(n_seq_max=1)
    requests = [ask(words(n, 5), 2, priority=p) for n, p in enumerate((0, 5, 0, -1))]
    rig.run(*requests)
    order = sorted(requests, key=lambda request: request.record.started)
    assert [requests.index(request) for request in order] == [3, 0, 2, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_prompt_does_not_stop_a_stream(make_rig: MakeRig, kind: str) -> None:
    rig = make_rig(kind, clock=StepClock(step=0.004, row=0.0001))
    stream, long = ask(words(1, 5), 120), ask(words(2, 1000), 1)
    rig.submit(stream)
    while len(stream.generated) < 3:
        rig.step()
    rig.submit(long)
    while not long.generated:
        before = len(stream.generated)
        rig.step()
        assert len(stream.generated) == before + 1
    rig.read(stream, long)
    rig.check(stream, long)


# -- consumers that do not read -------------------------------------------------------------------


def test_a_consumer_that_does_not_read_pauses_and_holds_nobody_up(make_rig: MakeRig) -> None:
    rig = make_rig(n_seq_max=2)
    paused = [ask(words(n, 5), MOST_EVENTS + 50) for n in range(2)]
    for each in paused:
        rig.submit(each)
    others = [ask(words(10 + n, 5), 5) for n in range(5)]
    rig.run(*others)
    while rig.step():
        pass
    assert [len(each.generated) for each in paused] == [MOST_EVENTS] * 2
    late = ask(words(20, 5), 5)  # no sequence is free: one that nobody reads gives its own
    rig.run(late)
    for each in paused:
        rig.read(each)
    rig.check(*paused, *others, late)
    rig.check_at_rest()


def test_what_is_read_whole_never_pauses(make_rig: MakeRig) -> None:
    rig = make_rig(n_seq_max=1)
    request = ask(words(1, 5), MOST_EVENTS + 50)
    events = Events(rig.driver, [request.request], whole=True)
    while rig.step():
        pass
    assert len([*events]) == MOST_EVENTS + 51
    rig.check_at_rest()


# -- cells ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "iswa", "hybrid", "hybrid_swa"])
def test_when_cells_run_out_requests_wait_and_resume(make_rig: MakeRig, kind: str) -> None:
    rig = make_rig(kind, n_ctx=256)
    requests = [ask(words(n, 30), 60) for n in range(8)]
    ends = rig.run(*requests)
    assert [end.reason for end in ends] == ["length"] * 8
    assert rig.engine.metrics.preempted > 0
    rig.check(*requests)
    for request in requests:
        assert request.record.n_prompt == 30
        assert len(request.generated) == 60
    rig.check_at_rest()


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
@pytest.mark.parametrize("kind", KINDS)
def test_with_too_little_room_everybody_comes_to_an_end(
    make_rig: MakeRig, kind: str, seed: int
) -> None:
    """New prompts, turns that go on, and clients that leave, where three or four have room."""
    choose = random.Random(seed)
    rig = make_rig(kind, n_ctx=512, n_batch=512, n_ubatch=512)
    known: list[list[int]] = []
    running: list[Asked] = []
    for number in range(40):
        tokens = words(choose.randrange(100), choose.choice((5, 60, 200, 300)))
        if known and choose.random() < 0.5:
            tokens = [*choose.choice(known), *words(number, choose.choice((1, 20)))]
        if len(tokens) < 400:
            running.append(ask(tokens, choose.choice((1, 8, 90))))
            rig.submit(running[-1], whole=choose.random() < 0.5)
        for _ in range(choose.randrange(6)):
            rig.step()
        if running and choose.random() < 0.1:
            rig.cancel(running.pop(choose.randrange(len(running))))
        while sum(not each.ended for each in running) > 5:
            rig.step_until(lambda: sum(not each.ended for each in running) <= 5)
        known += [[*each.tokens, *each.generated[:-1]] for each in running if each.ended]
    rig.step_until(lambda: all(each.ended for each in running))
    rig.read(*running)
    rig.check(*running)
    rig.check_at_rest()


def test_who_gave_up_its_cells_does_not_take_those_of_a_prompt_that_has_begun(
    make_rig: MakeRig,
) -> None:
    """It would only have to give them up again in the next step, and nobody would ever go on."""
    rig = make_rig(n_ctx=512, n_batch=512, n_ubatch=512)
    known = words(3, 295)
    rig.run(ask(known, 4))
    stream = ask(words(1, 5), 100)
    rig.submit(stream, whole=True)
    rig.step_until(lambda: len(stream.generated) > 4)
    prompt, goes_on = ask(words(2, 200), 4), ask([*known, *rig.expected(ask(known, 4)), 7], 4)
    rig.submit(prompt, goes_on, whole=True)
    rig.step_until(lambda: prompt.ended and goes_on.ended and stream.ended)
    assert rig.engine.metrics.preempted == 1
    rig.read(prompt, goes_on, stream)
    rig.check(prompt, goes_on, stream)
    rig.check_at_rest()


def test_a_preempted_request_keeps_penalties_log_probabilities_and_text(make_rig: MakeRig) -> None:
    rig = make_rig(n_ctx=2048)
    options: dict[str, Any] = {
        "sampling": {"repeat_penalty": 1.3, "frequency_penalty": 0.4},
        "generation": {"logprobs": 2, "prompt_logprobs": True, "stop": ("\x00never",)},
    }
    alone, other = (ask(words(3, 90), 40, **_copy(options)) for _ in range(2))
    rig.submit(alone)
    rig.read(alone)
    rig.llm.reset()
    rig.submit(other)
    for steps in itertools.count():
        if other.ended:
            break
        rig.step()
        if steps in (0, 1, 7, 20) and not other.ended:
            rig.engine._admission.preempt(rig.engine.requests.running[0])
    assert rig.engine.metrics.preempted == 4
    assert other.generated == alone.generated
    known, expected = other.record.prompt_logprobs, alone.record.prompt_logprobs
    assert len(known) == len(expected) == 89
    assert [entry.logprob for entry in known] == pytest.approx(
        [entry.logprob for entry in expected], abs=1e-4
    )
    metrics = rig.engine.metrics
    assert (metrics.prompt_tokens, metrics.generated, metrics.requests) == (90, 40, 1)
    rig.check_at_rest()


def _copy(options: dict[str, Any]) -> dict[str, Any]:
    return {name: {**value} for name, value in options.items()}


def test_a_request_that_fills_the_context_ends_with_length(make_rig: MakeRig) -> None:
    rig = make_rig(n_ctx=256)
    request = ask(words(1, 200), 500)
    assert rig.run(request)[0].reason == "length"
    assert len(request.generated) == 57
    rig.check(request)


# -- counting -------------------------------------------------------------------------------------


def test_metrics_add_up(rig: Rig) -> None:
    requests = [ask(words(n, 30), 4) for n in range(3)]
    rig.run(*requests)
    rig.run(ask(words(0, 30), 4))
    found = rig.llm.metrics
    assert found["requests"] == found["finished"] == 4
    assert found["prompt_tokens"] == 120
    assert found["reused"] + found["evaluated"] == 120
    assert found["generated"] == 16
    assert found["first_token_seconds"]["count"] == found["queue_seconds"]["count"] == 4
    assert found["token_seconds"]["count"] == 12
    assert found["decode_seconds"] > 0
    assert (found["longest"], found["stopped"], found["request_seconds"]["count"]) == (34, 0, 4)
    assert 0 < found["prompt_seconds"] <= 4 * found["request_seconds"]["max"]
    rig.engine.reset_counters()
    assert rig.llm.metrics["requests"] == 0


@pytest.mark.parametrize(
    "end", [{"max_tokens": 9}, {"stop": "?"}, {"max_tokens": 40, "stop": "ab"}]
)
def test_streaming_and_not_count_and_finish_alike(rig: Rig, end: dict[str, Any]) -> None:
    options: dict[str, Any] = {"temperature": 0.0, "max_tokens": 60, "seed": 1, **end}
    prompt = words(11, 20)
    whole: Any = rig.llm.create_completion(prompt, **options)
    stream: Any = rig.llm.create_completion(
        prompt, stream=True, stream_options={"include_usage": True}, **options
    )
    *chunks, last = stream
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole["choices"][0]["text"]
    reasons = [c["choices"][0]["finish_reason"] for c in chunks]
    assert reasons[-1] == whole["choices"][0]["finish_reason"]
    assert not any(reasons[:-1])
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == whole["usage"][name]


def test_reuse_under_repetition_penalties_equals_a_cold_call(rig: Rig) -> None:
    options: dict[str, Any] = {
        "temperature": 0.0,
        "max_tokens": 20,
        "repeat_penalty": 1.4,
        "presence_penalty": 0.3,
    }
    first, second = words(12, 60), words(13, 10)
    start: Any = rig.llm.create_completion(first, ignore_eos=True, **options)
    assert start["usage"]["completion_tokens"] == 20
    kept = max(rig.cache.live, key=lambda sequence: sequence.last_used)
    longer = [*kept.tokens, *second]
    warm: Any = rig.llm.create_completion(longer, ignore_eos=True, **options)
    assert rig.llm.cache_info["reused"] >= 60
    rig.llm.reset()
    cold: Any = rig.llm.create_completion(longer, ignore_eos=True, **options)
    assert rig.llm.cache_info["reused"] == 0
    assert warm["choices"][0]["text"] == cold["choices"][0]["text"]


def test_the_context_stays_the_same_object(rig: Rig) -> None:
    context = rig.context
    address = context.pointer.value
    for temperature in (0.0, 0.7, 1.2):
        rig.llm.create_completion(words(1, 9), max_tokens=3, temperature=temperature, top_k=5)
    assert rig.context is context
    assert context.pointer.value == address


def test_slow_samplers_side_by_side_choose_what_they_choose_in_turn(make_rig: MakeRig) -> None:
    rig = make_rig()
    options: dict[str, Any] = {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "typical_p": 0.9,
        "seed": 5,
    }
    found = []
    for side_by_side in (False, True):
        rig.llm.reset()
        rig.engine._sampling._side_by_side = side_by_side
        requests = [
            ask(words(n, 20), 10, sampling=options, generation={"logprobs": 1}) for n in range(6)
        ]
        rig.run(*requests)
        found.append([request.generated for request in requests])
    assert found[0] == found[1]
    assert rig.engine._sampling._workers is not None
    rig.check_at_rest()
