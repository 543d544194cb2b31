"""The process of a model dies: who hears of it, and what goes on."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import llama_py
from llama_py import EngineDeadError, Llama, LlamaDiskCache, demo_model_path
from llama_py.errors import ClosedError, ForkedProcessError, LlamaError
from tests.isolation.killing import OPTIONS, STORY, gone, kill, status_of, until

ROOT = Path(__file__).parents[2]
#: What a conversation may grow by before it is written again.
AGAIN = 64
GGML = next(Path(llama_py.__file__).parent.glob("lib/libggml-base.*"))
HELLO = [{"role": "user", "content": "Hello!"}]


@pytest.fixture
def llm() -> Iterator[Llama]:
    with Llama(demo_model_path(), isolate=True, **OPTIONS) as llm:
        yield llm


def answers(llm: Llama) -> str:
    reply = llm.create_chat_completion(HELLO, temperature=0)
    return str(reply["choices"][0]["message"]["content"])


def test_streams_and_replies_end_with_an_error_and_the_next_call_is_answered(llm: Llama) -> None:
    before = answers(llm)
    failures: list[EngineDeadError] = []
    begun = threading.Barrier(5)

    def stream() -> None:
        chunks = llm.create_completion("Once", stream=True, **STORY)
        next(chunks)
        begun.wait()
        with pytest.raises(EngineDeadError) as caught:
            for _ in chunks:
                pass
        failures.append(caught.value)

    def whole() -> None:
        begun.wait()
        with pytest.raises(EngineDeadError) as caught:
            llm.create_completion("Twice", **STORY)
        failures.append(caught.value)

    threads = [threading.Thread(target=each) for each in (stream, stream, stream, whole)]
    for each in threads:
        each.start()
    begun.wait()
    until(lambda: llm.runtime.port.report().running == 4, "all of them run")
    first = kill(llm)
    for each in threads:
        each.join()
    assert len(failures) == 4
    for error in failures:
        assert (error.signal, error.exit_code) == ("SIGKILL", -9)
        assert f"pid {first}" in str(error)
        assert "call again" in str(error)
        assert demo_model_path() not in (error.public or "")
    assert answers(llm) == before
    status = status_of(llm)
    assert (status.ready, status.restarts, status.pause) == (True, 1, 0.0)
    assert status.pid != first
    assert llm.metrics["generated"] > 0


def test_calls_that_come_while_it_is_started_again_wait(llm: Llama) -> None:
    for _ in range(3):
        kill(llm)
        assert answers(llm)
        assert llm.cache.report()["cells_used"] > 0
    assert status_of(llm).restarts == 3


ASKED: dict[str, Any] = {
    "embed": lambda llm: llm.embed("Hello"),
    "report": lambda llm: llm.cache.report(),
    "score": lambda llm: llm.score("Hello", [" there"]),
    "metrics": lambda llm: llm.metrics,
}


@pytest.mark.parametrize("name", ASKED)
def test_what_is_asked_when_it_dies_fails_as_well(llm: Llama, name: str) -> None:
    ASKED[name](llm)
    process = llm.runtime.port.model_process  # type: ignore[attr-defined]
    kill(llm, signal.SIGSTOP)
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            ASKED[name](llm)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    until(lambda: process._answers or process._jobs, "it is asked")
    kill(llm)
    thread.join()
    assert [type(error) for error in errors] == [EngineDeadError]
    assert answers(llm)


def test_what_was_not_queued_yet_is_queued_in_the_next_one(llm: Llama) -> None:
    expected = answers(llm)
    process = llm.runtime.port.model_process  # type: ignore[attr-defined]
    kill(llm, signal.SIGSTOP)
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(answers(llm)))
    thread.start()
    until(lambda: process._answers, "it is being queued")
    kill(llm)
    thread.join()
    assert found == [expected]


def test_an_abort_in_c_says_what_c_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import ctypes, signal\n"
        "def abort(*_):\n"
        f"    c = ctypes.CDLL({str(GGML)!r})\n"
        "    c.ggml_abort(b'ggml.c', 17, b'GGML_ASSERT(%s) failed', b'n > 0')\n"
        "signal.signal(signal.SIGUSR1, abort)\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Llama(demo_model_path(), isolate=True, **OPTIONS) as llm:
        stream = llm.create_completion("Once", stream=True, **STORY)
        next(stream)
        with caplog.at_level(logging.INFO, "llama_py"):
            kill(llm, signal.SIGUSR1)
            with pytest.raises(EngineDeadError, match="GGML_ASSERT") as caught:
                for _ in stream:
                    pass
        assert caught.value.signal == "SIGABRT"
        assert any("GGML_ASSERT(n > 0) failed" in line for line in caught.value.log)
        assert "GGML_ASSERT" in caplog.text
        assert answers(llm)


def test_sessions_come_back_from_the_store(llm: Llama, tmp_path: Path) -> None:
    llm.cache.set_store(LlamaDiskCache(tmp_path))
    messages: list[Any] = [{"role": "user", "content": "Tell me of the sea. " * 50}]
    reply = llm.create_chat_completion(messages, temperature=0, max_tokens=10, session_id="a")
    evaluated = reply["usage"]["prompt_tokens"] + reply["usage"]["completion_tokens"]
    assert llm.cache.flush()
    for turn in range(3):
        kill(llm)
        messages += [reply["choices"][0]["message"], {"role": "user", "content": f"And {turn}?"}]
        reply = llm.create_chat_completion(messages, temperature=0, max_tokens=10, session_id="a")
        assert reply.cache["action"] == "load"
        assert reply.cache["reused"] >= evaluated - AGAIN
        evaluated = reply["usage"]["prompt_tokens"] + reply["usage"]["completion_tokens"]
        assert llm.cache.flush()


def _await_death(llm: Llama, pid: int) -> None:
    until(lambda: f"(pid {pid})" in str(status_of(llm).last_death), "it is known")


def test_one_that_dies_again_and_again_is_left_alone(llm: Llama) -> None:
    assert answers(llm)
    for death in range(1, 4):
        until(lambda: status_of(llm).ready, "it is there")
        pid = kill(llm)
        _await_death(llm, pid)
        assert (status_of(llm).pause > 0) is (death > 1)
    with pytest.raises(EngineDeadError, match="died 3 times") as caught:
        answers(llm)
    assert caught.value.retry_after >= 1
    until(lambda: status_of(llm).ready, "it is started again by itself")
    assert answers(llm)
    kill(llm)  # it has worked meanwhile, so that nobody has to wait
    assert answers(llm)


def test_a_file_that_is_gone_when_it_is_started_again(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(Path(demo_model_path()).read_bytes())
    with Llama(path, isolate=True, **OPTIONS) as llm:
        path.unlink()
        kill(llm)
        with pytest.raises(EngineDeadError, match="could not load it again"):
            until(lambda: answers(llm) and False, "it says why")
        path.write_bytes(Path(demo_model_path()).read_bytes())
        until(lambda: status_of(llm).ready, "it is loaded when the file is there again")
        assert answers(llm)


def test_what_cannot_be_loaded_is_refused_as_ever(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 100)
    for path in (broken, tmp_path / "missing.gguf"):
        with pytest.raises(LlamaError) as expected:
            Llama(path)
        with pytest.raises(type(expected.value)):
            Llama(path, isolate=True)
    with pytest.raises(LlamaError, match="n_ctx"):
        Llama(demo_model_path(), isolate=True, n_ctx=-5)


def test_its_process_ends_with_the_model(tmp_path: Path) -> None:
    with Llama(demo_model_path(), isolate=True, **OPTIONS) as llm:
        llm.cache.set_store(LlamaDiskCache(tmp_path))
        closed = status_of(llm).pid
        llm.create_completion("word " * 200, max_tokens=1)
    assert gone(closed)
    assert len(LlamaDiskCache(tmp_path)) == 1  # it was written before
    with pytest.raises(ClosedError):
        llm.create_completion("x", max_tokens=1)
    dropped = Llama(demo_model_path(), isolate=True, **OPTIONS)
    pid = status_of(dropped).pid
    del dropped
    gc.collect()
    until(lambda: gone(pid), "the process of a model that nobody has any more ends")


def test_closing_ends_the_streams_of_others(llm: Llama) -> None:
    stream = llm.create_completion("Once", stream=True, **STORY)
    next(stream)
    llm.close()
    with pytest.raises(ClosedError):
        for _ in stream:
            pass


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_is_left_of_one_that_is_killed(number: signal.Signals) -> None:
    program = (
        "from llama_py import Llama, demo_model_path\n"
        "llm = Llama(demo_model_path(), n_ctx=512, isolate=True)\n"
        "print(llm.runtime.port.own_process.pid, flush=True)\n"
        "for _ in llm.create_completion('Once', stream=True, max_tokens=None, ignore_eos=True):\n"
        "    pass\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(number)
        process.wait()
        until(lambda: gone(pid), "the model's process has ended")


def test_a_fork_neither_uses_it_nor_keeps_it(llm: Llama) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            llm.create_completion("x", max_tokens=1)
        except ForkedProcessError:
            os.write(write, b"refused")
        except BaseException as error:
            os.write(write, repr(error).encode()[:100])
        time.sleep(60)
        os._exit(0)
    try:
        assert os.read(read, 100) == b"refused"
        assert answers(llm)
        pid = status_of(llm).pid
        llm.close()
        assert gone(pid)  # although the child has copies of everything
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)
