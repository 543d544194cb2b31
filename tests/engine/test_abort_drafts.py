"""Steps that verify drafts, ended in the middle: by a cancel, by a timeout, by Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from llama_py import Speculative
from llama_py.errors import GenerationTimeout, RequestCancelled
from tests.engine.conftest import MakeRig
from tests.engine.rig import Asked, Rig, ask, words
from tests.engine.test_abort import ABORTED
from tests.engine.test_drafts import LONG, Prompter, drafted, finish, follow_up
from tests.models import KINDS
from tests.patience import PATIENCE

#: Whether it happens while the step is decoded, or when its rows are there.
PLACES = ("during", "after")


def at_verify(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, place: str, act: Callable[[], None]
) -> list[int]:
    """Let ``act`` happen when the second step with a draft is decoded; returns their rows."""
    context: Any = rig.context
    real = context.decode
    rows: list[int] = []

    def decode(batch: Any) -> int:
        verifies = len(batch) < 20 and int(batch.outputs[: len(batch)].sum()) > 1
        rows.extend([len(batch)] * verifies)
        now = verifies and len(rows) == 2
        if now and place == "during":
            act()
        code = int(real(batch))
        if now and place == "after":
            act()
        return code

    monkeypatch.setattr(context, "decode", decode)
    return rows


def beside(rig: Rig, act: Callable[[], None]) -> Callable[[], None]:
    """Do it in another thread, which may have to wait for the step, until it is asked for."""

    def begin() -> None:
        commands = rig.driver._loop.commands
        threading.Thread(target=act, daemon=True).start()
        end = time.monotonic() + PATIENCE
        while commands.empty() and time.monotonic() < end:
            time.sleep(0.001)

    return begin


def leaves_nothing_behind(rig: Rig, request: Asked) -> None:
    """What was generated is right, memory is what the books say, and is gone on with."""
    rig.wait_until_idle()
    rig.check(request)
    assert 0 < len(request.generated) < LONG
    follow_up(rig, request)


@pytest.fixture(params=KINDS)
def threaded(request: pytest.FixtureRequest, make_rig: MakeRig) -> Rig:
    return make_rig(request.param, in_place=False)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("manner", ["right", "half_right"])
def test_a_cancel(threaded: Rig, place: str, manner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = threaded
    plain = ask(words(1, 90), LONG)
    request = drafted(plain, getattr(Prompter(4, rig, plain), manner))
    other = ask(words(2, 30), LONG)
    with monkeypatch.context() as patch:
        at_verify(rig, patch, place, beside(rig, lambda: rig.cancel(request)))
        rig.submit(request)
        rig.submit(other)
        (end,) = rig.read(request)
        assert isinstance(end.error, RequestCancelled)
        finish(rig, other)
    leaves_nothing_behind(rig, request)
    follow_up(rig, other)


@pytest.mark.parametrize("manner", ["right", "half_right"])
def test_the_end_of_the_time(threaded: Rig, manner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = threaded
    plain = ask(words(3, 90), LONG, generation={"timeout": 999.0})
    request = drafted(plain, getattr(Prompter(4, rig, plain), manner))

    def pass_time() -> None:
        request.record.submitted -= 1000

    with monkeypatch.context() as patch:
        at_verify(rig, patch, "after", pass_time)
        (end,) = rig.run(request)
        assert isinstance(end.error, GenerationTimeout)
    leaves_nothing_behind(rig, request)


@pytest.mark.skipif(os.name != "posix", reason="sends a signal to a thread")
@pytest.mark.parametrize("place", PLACES)
def test_ctrl_c(threaded: Rig, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = threaded
    plain = ask(words(4, 90), LONG)
    prompter = Prompter(4, rig, plain)

    def press() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with monkeypatch.context() as patch:
        rows = at_verify(rig, patch, place, beside(rig, press))
        speculative = Speculative((prompter.half_right,), adaptive=False)
        with pytest.raises(KeyboardInterrupt):
            rig.llm.create_completion(
                plain.tokens,
                max_tokens=900,
                temperature=0.0,
                ignore_eos=True,
                speculative=speculative,
            )
        rig.wait_until_idle()
        assert len(rows) >= 2
    rig.check_at_rest()
    generated = rig.expected(plain)[:5]
    after = ask([*plain.tokens, *generated, *words(9, 6)], 5)
    finish(rig, after)
    if not rig.cache.traits.needs_checkpoints:
        assert after.record.cache["reused"] >= len(plain.tokens) + 3
    rig.check_at_rest()


@pytest.mark.parametrize("kind", ["full", "iswa"])
def test_a_prompt_in_the_same_step_is_aborted(
    make_rig: MakeRig, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft of the stream beside it is taken back with it, and the stream loses nothing."""
    rig = make_rig(kind, in_place=False, n_batch=1024, n_ubatch=1024, n_ctx=4096)
    plain = ask(words(5, 60), LONG)
    request = drafted(plain, Prompter(4, rig, plain).half_right)
    prompt = ask(words(6, 1900), 4)
    context: Any = rig.context
    real, codes, real_ask = context.decode, [], context.abort.ask
    began, asked = threading.Event(), threading.Event()
    monkeypatch.setattr(rig.engine._prefill_budget, "size", lambda _streams, most, *_: most)

    def decode(batch: Any) -> int:
        mixed = len(batch) > 300 and int(batch.outputs[: len(batch)].sum()) > 2
        if mixed and not began.is_set():
            began.set()
            asked.wait(PATIENCE)
        code = int(real(batch))
        if mixed:
            codes.append(code)
        return code

    def ask_to_abort() -> None:
        real_ask()
        asked.set()

    def cancel() -> None:
        began.wait(PATIENCE)
        rig.cancel(prompt)

    canceller = threading.Thread(target=cancel)
    with monkeypatch.context() as patch:
        patch.setattr(context, "decode", decode)
        patch.setattr(context.abort, "ask", ask_to_abort)
        canceller.start()
        rig.submit(request)
        rig.submit(prompt)
        ends = rig.read(prompt, request)
    canceller.join()
    assert [end.reason for end in ends] == ["cancelled", "length"]
    assert ABORTED in codes
    rig.check(request)
    assert request.record.accepted
    assert rig.engine.metrics.preempted == 0
    follow_up(rig, request)


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_in_place(
    make_rig: MakeRig, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is certain then, so nothing is kept."""
    rig = make_rig(kind)
    plain = ask(words(7, 60), LONG)
    prompter = Prompter(4, rig, plain)

    def press() -> None:
        raise KeyboardInterrupt

    for place in PLACES:
        with monkeypatch.context() as patch:
            at_verify(rig, patch, place, press)
            with pytest.raises(KeyboardInterrupt):
                rig.run(drafted(plain, prompter.half_right))
        rig.check_at_rest()
        request = drafted(plain, prompter.half_right)
        finish(rig, request)
        follow_up(rig, request)
