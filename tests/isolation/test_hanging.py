"""The process of a model hangs, or says what it should not: others go on, it is started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import psutil
import pytest

from llama_py import EngineDeadError, Llama, demo_model_path
from llama_py.api.isolation import messages, requests
from llama_py.api.isolation import process as isolation
from llama_py.api.isolation.connection import MessageSocket
from llama_py.api.isolation.messages import Down
from llama_py.server.config.settings import Settings
from tests.isolation.hostile import speaking
from tests.isolation.killing import OPTIONS, STORY, gone, kill, status_of, until
from tests.server.serving import Server, demo_settings, serving

HELLO = {"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0, "max_tokens": 4}
#: Seconds after which calls fail, and after which it is killed; and some for this machine.
SILENT, HANGS, MORE = isolation._SILENT + 2.0, isolation._HANGS + 2.0, 8.0


@pytest.fixture
def llm() -> Iterator[Llama]:
    with Llama(demo_model_path(), isolate=True, **OPTIONS) as llm:
        yield llm


def taking(call: Callable[[], Any]) -> tuple[float, BaseException | None]:
    """How long a call takes, and what it raises."""
    start = time.monotonic()
    try:
        call()
    except BaseException as error:
        return time.monotonic() - start, error
    return time.monotonic() - start, None


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life are asked for more often."""
    monkeypatch.setattr(isolation, "_BEAT", 0.4)


@pytest.mark.usefixtures("impatient")
def test_one_that_hangs_is_killed_and_started_again(llm: Llama) -> None:
    stream = llm.create_completion("Once", stream=True, **STORY)
    next(stream)
    pid = kill(llm, signal.SIGSTOP)

    def read_on() -> None:
        for _ in stream:
            pass

    found: list[tuple[float, BaseException | None]] = []
    reading = threading.Thread(target=lambda: found.append(taking(read_on)))
    reading.start()
    seconds, error = taking(lambda: llm.score("Hello", [" there"]))
    assert isinstance(error, EngineDeadError)
    assert "does not answer" in str(error)
    assert seconds < SILENT + MORE
    assert not status_of(llm).ready
    reading.join()
    ((seconds, error),) = found
    assert isinstance(error, EngineDeadError)
    assert "no sign of life" in str(error)
    assert seconds < HANGS + MORE
    assert gone(pid)
    assert llm.create_completion("Once", max_tokens=2)["choices"][0]["text"]
    assert status_of(llm).restarts == 1


def test_a_short_pause_ends_nothing(llm: Llama) -> None:
    stream = llm.create_completion("Once", stream=True, max_tokens=200, ignore_eos=True)
    next(stream)
    pid = kill(llm, signal.SIGSTOP)
    time.sleep(2.0)
    os.kill(pid, signal.SIGCONT)
    assert len([*stream]) > 1
    assert status_of(llm).restarts == 0


def test_a_request_s_own_limit_holds(llm: Llama) -> None:
    stream = llm.create_completion("Once", stream=True, timeout=1.0, **STORY)
    next(stream)
    kill(llm, signal.SIGSTOP)

    def read_on() -> None:
        for _ in stream:
            pass

    seconds, error = taking(read_on)
    assert isinstance(error, TimeoutError)
    assert seconds < 1.0 + requests.SLACK + isolation._BEAT + MORE


def test_closing_one_that_hangs_takes_no_longer_than_it_is_given(llm: Llama) -> None:
    pid = kill(llm, signal.SIGSTOP)
    seconds, error = taking(llm.close)
    assert error is None
    assert seconds < SILENT + MORE
    assert gone(pid)


SAID = {
    "an absurd length": 'bytes_of(struct.pack("<IQ", 10, 2**63))',
    "a structure without end": 'bytes_of(struct.pack("<IQ", 2**32 - 1, 0))',
    "an unknown kind": "tell(99, 1, 2)",
    "an answer without a value": "tell(int(Up.ANSWER), call)",
    "no message": "tell()",
    "garbage": 'bytes_of(struct.pack("<IQ", 4, 0) + b"\\xc1" * 4)',
    "metrics that are none": "tell(int(Up.ENDS), [], call)",
    "rows that are none": "tell(int(Up.EVENTS), 7)",
}


@pytest.mark.parametrize("said", SAID)
def test_what_nobody_understands_ends_it(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with speaking(monkeypatch, SAID[said]) as process:
        seconds, error = taking(lambda: process.ask("report"))
        assert isinstance(error, EngineDeadError)
        assert "because of a message" in str(error)
        assert seconds < MORE
        until(lambda: process.status.ready and process.restarts == 1, "it is there again")


def test_too_little_memory_for_a_message_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, length: int) -> bytearray:
        raise MemoryError

    with speaking(monkeypatch, "tell(int(Up.ANSWER), call, 1)") as process:
        with monkeypatch.context() as patch:
            patch.setattr(MessageSocket, "_read_behind", full)
            with pytest.raises(EngineDeadError, match="MemoryError"):
                process.ask("report")
        until(lambda: process.status.ready, "it is there again")
        assert process.ask("report") == 1


def test_an_answer_that_never_comes_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "_ANSWERED", 2.0)
    # It tells that it is alive, all the time.
    with speaking(monkeypatch, "pass") as process, pytest.raises(EngineDeadError, match="did not"):
        process.ask("report")


def test_one_that_does_not_read_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with speaking(monkeypatch, "time.sleep(1000)", ends=False) as process:
        asking = threading.Thread(target=taking, args=[lambda: process.ask("report")])
        asking.start()
        # More than the socket holds: whoever sends does not wait.
        start = time.monotonic()
        for _ in range(20):
            process.send(Down.PING, "x" * 1_000_000)
        assert time.monotonic() - start < 2.0
        asking.join()
        seconds, _ = taking(process.close)
        assert seconds < SILENT + MORE


@pytest.mark.usefixtures("impatient")
def test_one_that_drips_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    drip = 'bytes_of(struct.pack("<IQ", 99, 0)); [(bytes_of(b"x"), time.sleep(1)) for _ in "" * 9]'
    with speaking(monkeypatch, drip) as process:
        asking = threading.Thread(target=taking, args=[lambda: process.ask("report")])
        asking.start()
        until(lambda: process.last_death, "it died")
        assert "no sign of life" in str(process.last_death)
        asking.join()


def test_what_it_writes_without_an_end_of_a_line_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    floods = 'any(not os.write(1, b"x" * (1 << 20)) for _ in range(300)); tell(4, 20, "y" * 10**6)'
    here = psutil.Process()
    with speaking(monkeypatch, f"{floods}; tell(int(Up.ANSWER), call, 1)") as process:
        before = here.memory_info().rss
        assert process.ask("report") == 1
        assert here.memory_info().rss - before < 100 << 20


@pytest.mark.parametrize("text", ["x" * 10_000_000, ["a list"]], ids=["long", "none"])
def test_a_text_that_no_token_has_ends_it(
    text: Any, llm: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = llm.create_completion("Once", stream=True, **STORY)
    next(stream)
    real = messages.note_event

    def note_event(row: Any, record: Any) -> Any:
        return real((*row[:2], text) if len(row) > 2 else row, record)

    monkeypatch.setattr("llama_py.api.isolation.requests.note_event", note_event)
    with pytest.raises(EngineDeadError, match=r"because of a message.*a reply has more text"):
        for _ in stream:
            pass
    monkeypatch.undo()
    assert llm.create_completion("Once", max_tokens=2)["choices"][0]["text"]


# ---- a server of two models ----------------------------------------------------------------------


def two_models() -> Settings:
    one = demo_settings({"metrics": True, "max_loaded": 2}, isolate=True, n_ctx=1024, n_threads=1)
    return replace(one, models=tuple(replace(one.models[0], id=name) for name in "ab"))


def test_others_are_not_held_up_by_one_that_hangs() -> None:
    with serving(two_models()) as server, server.http() as http:
        for name in "ab":
            assert _ask(http, name).status_code == 200
        kill(server.service.models.models[0].llama, signal.SIGSTOP)
        threads = [threading.Thread(target=_ask_alone, args=[server, "a"]) for _ in range(6)]
        for each in threads:
            each.start()
        time.sleep(0.5)
        seconds, error = taking(lambda: _ask(http, "b").raise_for_status())
        assert error is None
        assert seconds < 2.0  # although all of those wait for the other model
        for path in ("/metrics", "/v1/sessions"):
            seconds, error = taking(lambda path=path: http.get(path).raise_for_status())  # type: ignore[misc]
            assert error is None
            assert seconds < SILENT + MORE
        seconds, _ = taking(lambda: _ask(http, "b").raise_for_status())
        assert seconds < SILENT + MORE
        for _ in range(3):  # and when it is known that it is silent, nobody waits at all
            seconds, error = taking(lambda: _ask(http, "b").raise_for_status())
            assert error is None
            assert seconds < 2.0
            seconds, _ = taking(lambda: http.get("/metrics"))
            assert seconds < 2.0
        for each in threads:
            each.join()
        assert _ask(http, "a").status_code == 200


def _ask(http: httpx.Client, model: str) -> httpx.Response:
    return http.post("/v1/chat/completions", json={"model": model, **HELLO})


def _ask_alone(server: Server, model: str) -> None:
    with server.http() as http:
        _ask(http, model)


def test_sigterm_ends_a_server_whose_model_hangs_within_its_time() -> None:
    command = [sys.executable, "-m", "llama_py", "serve", demo_model_path(), "--isolate"]
    more = ["--drain-seconds", "3", "--port", "0", "--n-ctx", "1024"]
    with subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = next(line for line in server.stdout if "http://" in line).split()[-1]
        with httpx.Client(base_url=address, timeout=60) as http:
            (child,) = psutil.Process(server.pid).children()
            asked = {**HELLO, "stream": True, "max_tokens": 900, "ignore_eos": True}
            with http.stream("POST", "/v1/chat/completions", json=asked) as stream:
                next(stream.iter_lines())
                child.suspend()
                server.terminate()
                seconds, _ = taking(lambda: server.wait(60))
        assert server.returncode == 0
        assert seconds < 3.0 + SILENT + MORE
        until(lambda: gone(child.pid), "nothing is left of it")
