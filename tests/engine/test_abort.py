"""Decodes that are ended in the middle: by a cancel from another thread, or by a timeout."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from llama_py.core.host.interrupts import run_interruptibly
from llama_py.errors import GenerationTimeout
from tests.engine.conftest import MakeRig
from tests.engine.rig import Asked, Rig, StepClock, ask, words
from tests.models import KINDS
from tests.patience import PATIENCE

ABORTED = 2


@contextmanager
def watched(rig: Rig, began: threading.Event | None = None) -> Iterator[list[int]]:
    """What ``llama_decode`` returns.

    Args:
        began: set when a prompt's second chunk begins, which waits until it is to be aborted.
    """
    context: Any = rig.context
    real, ask = context.decode, context.abort.ask
    codes: list[int] = []
    asked = threading.Event()

    def decode(batch: Any) -> int:
        if len(codes) == 1 and began is not None:
            began.set()
            # Nobody aborts the prompts of others, or what cannot be taken back.
            alone = rig.engine.runner.abortable and len(rig.engine.runner.prefilling) == 1
            asked.wait(PATIENCE if alone else 0)
        codes.append(int(real(batch)))
        return codes[-1]

    def watched_ask() -> None:
        ask()
        asked.set()

    context.decode, context.abort.ask = decode, watched_ask
    try:
        yield codes
    finally:
        del context.decode, context.abort.ask


def cancel_in_second_chunk(rig: Rig, request: Asked, *beside: Asked) -> list[int]:
    """Run the requests, and cancel the first from another thread; returns the decodes' results."""
    began = threading.Event()

    def cancel() -> None:
        began.wait(PATIENCE)
        rig.cancel(request)

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with watched(rig, began) as codes:
        rig.submit(request)
        rig.submit(*beside)
        ends = rig.read(request, *beside)
    canceller.join()
    assert ends[0].reason == "cancelled"
    assert [end.reason for end in ends[1:]] == ["length"] * len(beside)
    return codes


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancel_from_another_thread_ends_the_decode(make_rig: MakeRig, kind: str) -> None:
    rig = make_rig(kind, in_place=False, n_batch=1024, n_ubatch=1024)
    request = ask(words(1, 2000), 4)
    codes = cancel_in_second_chunk(rig, request)
    # A recurrent state cannot be taken back: there the chunk is evaluated to its end.
    assert (ABORTED in codes) == (not rig.cache.traits.recurrent)
    rig.check_at_rest()
    again = [ask(words(1, 1500), 4), ask(words(2, 300), 4)]
    rig.run(*again)
    rig.check(*again)
    rig.check_at_rest()


@pytest.mark.parametrize("kind", KINDS)
def test_streams_beside_an_aborted_prompt_lose_nothing(make_rig: MakeRig, kind: str) -> None:
    rig = make_rig(kind, in_place=False, n_batch=1024, n_ubatch=1024, n_ctx=4096)
    streams = [ask(words(2, 40), 20), ask(words(3, 30), 20)]
    cancel_in_second_chunk(rig, ask(words(1, 1900), 4), *streams)
    rig.check(*streams)
    rig.check_at_rest()


def test_the_end_of_the_time_ends_the_decode(make_rig: MakeRig) -> None:
    """By the clock, the first chunk leaves half a millisecond, and so long the next one computes.

    It takes some hundred times as long, and the first one, on the busiest machine, less than what
    the clock says.
    """
    rig = make_rig(n_batch=1024, n_ubatch=1024, clock=StepClock(step=0.0, row=0.1))
    with watched(rig) as codes, pytest.raises(GenerationTimeout):
        rig.llm.create_completion(words(1, 2000), max_tokens=1, timeout=102.4005)
    assert codes == [0, ABORTED]
    rig.check_at_rest()
    again = ask(words(1, 1500), 4)
    rig.run(again)
    rig.check(again)


def test_a_cancel_that_comes_too_late_ends_nothing_else(rig: Rig) -> None:
    rig.context.abort.ask()
    request = ask(words(1, 200), 6)
    assert [end.reason for end in rig.run(request)] == ["length"]
    rig.check(request)
    rig.context.abort.ask()
    rig.llm.eval(words(4, 150))
    row = rig.oracle.logits(words(4, 150))
    assert abs(rig.llm.last_logits - row).max() < 1e-3 * abs(row).max()


def test_one_requests_deadline_is_not_anothers(rig: Rig) -> None:
    hurried = ask(words(1, 60), 900, generation={"timeout": 0.05})
    patient = ask(words(2, 60), 600)
    ends = rig.run(hurried, patient)
    assert isinstance(ends[0].error, GenerationTimeout)
    assert ends[1].reason == "length"
    rig.check(hurried, patient)
    rig.check_at_rest()
    time.sleep(0.05)
    rig.llm.eval(words(3, 50))


def test_streams_keep_what_they_have_when_a_prompt_beside_them_is_aborted(
    make_rig: MakeRig,
) -> None:
    rig = make_rig("iswa", in_place=False, n_batch=1024, n_ubatch=1024, n_ctx=4096)
    streams = [ask(words(2, 300), 30), ask(words(3, 290), 30)]
    cancel_in_second_chunk(rig, ask(words(1, 1900), 4), *streams)
    rig.check(*streams)
    assert rig.engine.metrics.preempted == 0


def interrupt_second_chunk(rig: Rig, monkeypatch: pytest.MonkeyPatch, late: bool) -> list[int]:
    """Ctrl-C while the second chunk is computed, or right after; what the decodes return."""
    context: Any = rig.context
    decode, ask = context.decode, context.abort.ask
    codes: list[int] = []
    asked = threading.Event()

    def press() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def watched_ask() -> None:
        ask()
        asked.set()

    def watched_decode(batch: Any) -> int:
        second = len(codes) == 1
        if second and not late:
            press()
            asked.wait(0 if rig.cache.traits.recurrent else 10)
        codes.append(int(decode(batch)))
        if second and late:
            press()
        return codes[-1]

    monkeypatch.setattr(context, "decode", watched_decode)
    monkeypatch.setattr(context.abort, "ask", watched_ask)
    return codes


@pytest.mark.skipif(os.name != "posix", reason="sends a signal to a thread")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("whole", [True, False], ids=["completion", "eval"])
@pytest.mark.parametrize("late", [True, False], ids=["after", "during"])
def test_ctrl_c_ends_the_decode(
    make_rig: MakeRig, kind: str, whole: bool, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(kind, in_place=False, n_batch=1024, n_ubatch=1024)
    evaluate = rig.llm.create_completion if whole else rig.llm.eval
    with monkeypatch.context() as patch:
        codes = interrupt_second_chunk(rig, patch, late)
        with pytest.raises(KeyboardInterrupt):
            evaluate(words(1, 2000))
        rig.wait_until_idle()
    if not late:
        assert (ABORTED in codes) == (not rig.cache.traits.recurrent)
    if not whole:  # what was evaluated can be gone on with
        rig.llm.eval(words(1, 2000)[rig.llm.n_tokens :])
        row = rig.oracle.logits(words(1, 2000))
        assert abs(rig.llm.last_logits - row).max() < 1e-3 * abs(row).max()
        rig.llm.reset()
    rig.check_at_rest()
    again = ask(words(1, 1500), 4)
    rig.run(again)
    rig.check(again)


def test_an_interrupt_before_the_thread_has_begun_computes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    computed: list[int] = []
    stopped: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(lambda: computed.append(1), lambda: stopped.append(1))
    assert not computed
    assert not stopped


def test_without_threads_the_main_thread_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert run_interruptibly(lambda: 3, lambda: None) == 3


def test_what_the_computation_raises_or_returns_comes_back() -> None:
    assert run_interruptibly(lambda: 3, lambda: None) == 3
    with pytest.raises(ZeroDivisionError):
        run_interruptibly(lambda: 1 // 0, lambda: None)


def test_a_second_interrupt_does_not_leave_the_computation_alone() -> None:
    running, go_on = threading.Event(), threading.Event()
    asked: list[int] = []

    def compute() -> None:
        running.set()
        go_on.wait(PATIENCE)

    def stop() -> None:
        asked.append(1)
        if len(asked) == 1:
            raise KeyboardInterrupt
        go_on.set()

    def strike(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, strike)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            run_interruptibly(compute, stop)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert running.is_set()
    assert len(asked) == 2
    assert go_on.is_set()
