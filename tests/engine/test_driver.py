"""``Driver``: its thread, its queue, and those who wait, when things come at the wrong moment."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from llama_py import AsyncLlama, Llama
from llama_py.errors import ClosedError, GenerationTimeout, LlamaError, ParameterError
from tests.models import tiny_model
from tests.patience import PATIENCE
from tests.rest import in_flight

OPTIONS: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "flash_attn": False, "n_seq_max": 4}
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture
def llm() -> Iterator[Llama]:
    with Llama(tiny_model("full"), **OPTIONS) as opened:
        yield opened


def works(llm: Llama) -> bool:
    reply = llm.create_completion([9, 8, 7], max_tokens=4, timeout=PATIENCE, **GREEDY)
    return reply["usage"] is not None and reply["usage"]["completion_tokens"] == 4


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.001)


def engine_threads() -> int:
    return sum(thread.name == "llama_py-engine" for thread in threading.enumerate())


@contextlib.contextmanager
def a_call_that_goes_on(llm: Llama) -> Iterator[threading.Thread]:
    """A thread whose call has begun, and has not ended before the end of the block."""
    enough = threading.Event()

    def slowly(*_: Any) -> bool:
        time.sleep(0.05)  # 900 of them are more than any test needs
        return enough.is_set()

    thread = threading.Thread(
        target=lambda: llm.create_completion(
            [5, 6], max_tokens=900, stopping_criteria=slowly, **GREEDY
        )
    )
    thread.start()
    try:
        while not in_flight(llm):
            time.sleep(0.001)
        yield thread
        assert thread.is_alive()
    finally:
        enough.set()
        thread.join()


# -- interrupts ------------------------------------------------------------------------------------


def test_an_interrupt_when_a_call_was_queued_already(
    llm: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert works(llm)
    driver, posted = llm.runtime.loaded.driver, []
    post = driver.post

    def interrupted(command: Any) -> None:
        post(command)
        posted.append(command)
        if len(posted) == 1:  # the call has begun by then
            time.sleep(0.05)
            raise KeyboardInterrupt

    monkeypatch.setattr(driver, "post", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.create_completion([5, 6, 7], max_tokens=900, stream=True, **GREEDY)
    assert works(llm)
    assert in_flight(llm) == 0


def test_an_interrupt_while_the_thread_starts(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs, and the one who started it does not know."""
    before = engine_threads()
    start, starts = threading.Thread.start, []

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "llama_py-engine":
            starts.append(thread)
            if len(starts) == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.create_completion([5, 6, 7], max_tokens=900, **GREEDY)
    assert works(llm)
    until(lambda: engine_threads() == before + 1)
    assert in_flight(llm) == 0


def test_an_interrupted_job_in_place_leaves_nothing_half_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Llama(tiny_model("full"), in_place=True, **OPTIONS) as llm:
        runner = llm.runtime.loaded.engine.runner
        decode = runner._decode

        def interrupted() -> int:
            decode()
            raise KeyboardInterrupt

        monkeypatch.setattr(runner, "_decode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.eval([5, 6, 7])
        monkeypatch.undo()
        llm.eval([9, 8, 7])
        assert llm.n_tokens == 3
        assert works(llm)


def test_calls_do_not_wait_for_a_reset_that_was_interrupted(llm: Llama) -> None:
    driver = llm.runtime.loaded.driver
    with a_call_that_goes_on(llm):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver, "wait_for", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                llm.reset()
        assert works(llm)


# -- time ------------------------------------------------------------------------------------------


def test_the_time_of_a_call_that_waits_for_a_reset_runs(llm: Llama) -> None:
    with a_call_that_goes_on(llm):
        reset = threading.Thread(target=llm.reset)
        reset.start()
        until(lambda: llm.runtime.loaded.driver._loop._quiet)
        with pytest.raises(GenerationTimeout):
            llm.create_completion([7, 8], max_tokens=4, timeout=0.1, **GREEDY)
    reset.join()
    assert works(llm)


@pytest.mark.parametrize("timeout", [1e10, 1e30, sys.maxsize])
def test_a_timeout_that_no_clock_can_express(llm: Llama, timeout: float) -> None:
    stream = llm.create_completion([5, 6], max_tokens=700, stream=True, timeout=timeout, **GREEDY)
    mailbox = stream._events._mailbox
    while not mailbox.paused:  # the engine has nothing to do then but to wait
        time.sleep(0.001)
    time.sleep(0.05)
    assert [*stream][-1]["choices"][0]["finish_reason"] == "length"


# -- threads ---------------------------------------------------------------------------------------


def test_several_threads_read_one_stream(llm: Llama) -> None:
    stream = llm.create_completion([5, 6], max_tokens=100, stream=True, **GREEDY)
    readers = [threading.Thread(target=lambda: [*stream], daemon=True) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(PATIENCE)
        assert not reader.is_alive()


def test_a_thread_that_has_the_number_of_the_engines(llm: Llama) -> None:
    assert works(llm)
    llm.close()
    thread = llm.runtime.loaded.driver._loop.thread
    assert thread is not None
    thread._ident = threading.get_ident()  # type: ignore[attr-defined]
    llm.close()
    with pytest.raises(ClosedError):
        llm.create_completion([5])


def test_a_callback_that_reads_another_stream() -> None:
    """It would wait for the step that it is a part of."""
    for in_place in (False, True):
        with Llama(tiny_model("full"), in_place=in_place, **OPTIONS) as model:
            stream = model.create_completion([5, 6], max_tokens=400, stream=True, **GREEDY)

            def read(*_: Any, stream: Any = stream) -> bool:
                return len([*stream]) < 0

            with pytest.raises(LlamaError, match="a callback of a request"):
                model.create_completion([9, 8], max_tokens=4, stopping_criteria=read, **GREEDY)
            assert works(model)


def test_what_is_awaited_needs_a_thread() -> None:
    with pytest.raises(ParameterError, match="in_place"):
        AsyncLlama(tiny_model("full"), in_place=True, **OPTIONS)
    in_place = Llama(tiny_model("full"), in_place=True, **OPTIONS)
    with in_place, pytest.raises(ParameterError, match="in_place"):
        AsyncLlama(llama=in_place)


# -- the end of the process ------------------------------------------------------------------------

AT_THE_END = {
    "a generator that has a stream": """
        def read():
            with llm.create_completion([5, 6], max_tokens=3000, stream=True, **GREEDY) as stream:
                yield from stream
        reading = read()
        next(reading)
    """,
    "a call of an older exit handler": """
        def late():
            try:
                llm.create_completion([5, 6], max_tokens=3)
            except ClosedError:
                print("refused")
        at_exit.append(late)
        llm.create_completion([5, 6], max_tokens=3)
    """,
    "a callback that never returns": """
        inside = threading.Event()
        def wait(*_):
            inside.set()
            threading.Event().wait()
        stream = llm.create_completion([5, 6], stream=True, stopping_criteria=wait, **GREEDY)
        inside.wait()
    """,
}


@pytest.mark.parametrize("what", AT_THE_END)
def test_a_process_ends(what: str) -> None:
    begin = f"""
        import atexit, threading
        at_exit = []
        atexit.register(lambda: [function() for function in at_exit])
        from llama_py import Llama
        from llama_py.errors import ClosedError
        GREEDY = {GREEDY!r}
        llm = Llama({str(tiny_model("full"))!r}, **{OPTIONS | {"n_ctx": 4096}!r})
    """
    script = textwrap.dedent(begin) + textwrap.dedent(AT_THE_END[what]) + "print('the end')\n"
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "the end" in ended.stdout
    assert ended.stderr == ""
    assert ("refused" in ended.stdout) == ("older" in what)
