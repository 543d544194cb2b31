"""Decodes that fail, interrupts at every point, allocations that fail: the rest must be right."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from llama_py import Llama
from llama_py.errors import ContextCreationError, DecodeError, LlamaError
from tests.engine.conftest import MakeRig
from tests.engine.rig import EXACT, Rig, ask, words
from tests.models import KINDS, tiny_model


@contextmanager
def failing_decode(rig: Rig, step: int, code: int, *, late: bool) -> Iterator[None]:
    """Let ``llama_decode`` fail at one step; ``late``: after it did its work."""
    context: Any = rig.context
    real, real_steps, calls = context.decode, context.decode_steps, iter(range(10**9))

    def decode(batch: Any) -> int:
        if next(calls) != step:
            return int(real(batch))
        if late:
            assert real(batch) == 0
        return code

    def decode_steps(batch: Any, steps: Any, most: int, seconds: float) -> None:
        fails = next(calls) == step
        if late or not fails:
            real_steps(batch, steps, most, seconds)
        if fails:
            steps.done, steps.code = 0, code

    context.decode, context.decode_steps = decode, decode_steps
    try:
        yield
    finally:
        del context.decode, context.decode_steps


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("code", [-3, -2])
@pytest.mark.parametrize("step", [0, 1, 4])
def test_a_failed_decode_fails_its_requests_and_repairs_the_memory(
    rig: Rig, step: int, code: int, late: bool
) -> None:
    earlier = ask(words(1, 90), 6)
    rig.run(earlier)
    with failing_decode(rig, step, code, late=late):
        requests = [ask([*words(1, 90), 7, 8], 6), ask(words(2, 90), 6)]
        ends = rig.run(*requests)
        failed = [end for end in ends if end.reason == "error"]
        assert failed
        assert all(isinstance(end.error, DecodeError) for end in failed)
        assert all(end.error.code == code for end in failed)  # type: ignore[union-attr]
    rig.check_at_rest()
    rig.check(*requests)  # what was generated before the failure was right
    again = [ask([*words(1, 90), 7, 8], 6), ask(words(2, 90), 6), ask(words(1, 80), 6)]
    rig.run(*again)
    rig.check(*again)
    rig.check_at_rest()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("step", [0, 1, 4])
def test_an_aborted_decode_is_made_again(rig: Rig, step: int, late: bool) -> None:
    rig.run(ask(words(1, 90), 6))
    with failing_decode(rig, step, 2, late=late):
        requests = [ask([*words(1, 90), 7, 8], 6), ask(words(2, 90), 6)]
        assert [end.reason for end in rig.run(*requests)] == ["length"] * 2
    rig.check(*requests)
    rig.check_at_rest()


def test_a_failed_decode_leaves_those_alone_that_were_not_in_it(make_rig: MakeRig) -> None:
    rig = make_rig(n_seq_max=1)
    first, second = ask(words(1, 20), 6), ask(words(2, 20), 6)
    with failing_decode(rig, 2, -3, late=False):
        ends = rig.run(first, second)
    assert [end.reason for end in ends] == ["error", "length"]
    rig.check(first, second)


@pytest.mark.parametrize("late", [False, True])
def test_no_free_cells_once_is_not_an_error(rig: Rig, late: bool) -> None:
    if late and rig.cache.traits.recurrent:
        pytest.skip("a full memory is found out before anything is computed")
    rig.run(ask(words(5, 40), 2))
    with failing_decode(rig, 1, 1, late=False):
        requests = [ask(words(n, 70), 6) for n in range(3)]
        assert [end.reason for end in rig.run(*requests)] == ["length"] * 3
    rig.check(*requests)
    rig.check_at_rest()


@pytest.mark.parametrize("fails", ["release", "commit", "forget", "close"])
def test_an_ending_that_fails_keeps_no_sequence(
    rig: Rig, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner is told all the same, and the next one has every sequence."""
    request = ask(words(1, 90), 6)
    rig.submit(request)
    rig.step_until(lambda: len(request.generated) > 2)
    (running,) = rig.engine.requests.running
    owners = {"commit": rig.cache.index, "forget": rig.cache.transfers, "close": running.sampler}

    def fail(*_: Any, **__: Any) -> None:
        monkeypatch.undo()
        raise MemoryError("there is no room for it")

    monkeypatch.setattr(owners.get(fails, rig.cache), fails, fail)
    rig.cancel(request)
    assert running.lease is None
    rig.check_at_rest()
    requests = [ask(words(2 + place, 90), 6) for place in range(rig.context.n_seq_max)]
    assert [end.reason for end in rig.run(*requests)] == ["length"] * len(requests)
    rig.check(*requests)


def test_eval_after_a_failed_eval(rig: Rig) -> None:
    tokens = words(3, 150)
    rig.llm.eval(tokens[:30])
    with failing_decode(rig, 1, -3, late=True), pytest.raises(DecodeError):
        rig.llm.eval(tokens[30:])
    held = rig.llm.n_tokens
    assert rig.llm.eval_tokens == tokens[:held]
    rig.llm.eval(tokens[held:])
    row = rig.oracle.logits(tokens)
    assert abs(rig.llm.last_logits - row).max() < 1e-3 * abs(row).max()


# -- interrupts -----------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="sends a signal to a thread")
@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_loses_no_other_request(make_rig: MakeRig, kind: str) -> None:
    rig = make_rig(kind, in_place=False)
    choose = random.Random(3)
    main = threading.main_thread().ident or 0
    interrupted = 0
    for turn in range(25):
        other = ask(words(turn % 4, 60), 12)
        rig.submit(other)
        press = threading.Timer(choose.random() * 0.01, signal.pthread_kill, (main, signal.SIGINT))
        try:
            press.start()
            rig.run(ask(words(turn % 5, 50), 200))
            press.join()
            time.sleep(0.01)  # it came after the end
        except KeyboardInterrupt:
            interrupted += 1
        assert rig.read(other)[0].reason == "length"
        rig.check(other)
    rig.wait_until_idle()
    rig.check_at_rest()
    assert interrupted == 25
    metrics = rig.engine.metrics
    assert metrics.requests == metrics.finished + metrics.cancelled
    assert metrics.cancelled > 5


class _Interrupt:
    """A KeyboardInterrupt at one of the places at which Python looks for signals.

    Those are the beginnings of its functions, and the ends of calls of C functions.
    """

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.seen = 0

    def __enter__(self) -> None:
        sys.setprofile(self._look)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "c_return"):
            return
        if any(part in frame.f_code.co_filename for part in ("/llama_py/memory/", "/engine/")):
            self.seen += 1
            if self.seen == self.wanted:
                sys.setprofile(None)
                raise KeyboardInterrupt


# One that comes in a destructor is lost; Python says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["full", "hybrid"])
def test_an_interrupt_in_place_ends_what_is_in_flight_and_breaks_nothing(
    make_rig: MakeRig, kind: str
) -> None:
    rig = make_rig(kind, n_seq_max=2)
    place = seen = 0
    while seen >= place:
        place += 1 + place // 40  # all of the first places, and some of the thousands of others
        other, mine = ask(words(place % 3, 40), 3), ask(words(place % 5, 50), 3)
        rig.submit(other)
        interrupt = _Interrupt(place)
        try:
            with interrupt:
                rig.run(mine)
        except KeyboardInterrupt:
            pass
        assert rig.read(other)[0].reason in ("length", "error")
        third = ask(words(place % 3, 45), 3)
        assert rig.run(third)[0].reason == "length"
        rig.check(other, third)
        rig.check_at_rest()
        seen = interrupt.seen
    assert place > 100


# -- allocations ----------------------------------------------------------------------------------


def test_a_context_that_cannot_be_allocated_is_a_typed_error() -> None:
    with pytest.raises(ContextCreationError, match="n_ctx"):
        Llama(str(tiny_model("full")), **{**EXACT, "n_ctx": 2**31 - 1})


@pytest.mark.parametrize("error", [MemoryError, LlamaError])
def test_a_failed_allocation_stores_nothing_half(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    rig = make_rig("hybrid", n_seq_max=1)
    first = ask(words(1, 100), 4)
    rig.run(first)

    def fail(*_: Any, **__: Any) -> Any:
        raise error("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(rig.context, "state_get", fail, raising=False)
        second = ask(words(2, 100), 4)
        rig.run(second)
    stores = rig.cache.stores.open
    assert all(store.used_bytes == 0 for store in stores)
    rig.check(first, second)
    rig.check_at_rest()
    third = ask(words(1, 100), 4)
    assert rig.run(third)[0].reason == "length"
    rig.check(third)
    rig.check_at_rest()
