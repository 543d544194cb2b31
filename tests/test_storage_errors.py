"""Files that cannot be written or read: a typed error, and nothing lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import llama_py
from llama_py import ChatSession, Llama, LlamaDiskCache
from llama_py.errors import (
    LlamaError,
    ParameterError,
    ParameterTypeError,
    StateError,
    StorageError,
    StorageNotFoundError,
)
from tests.models import tiny_model
from tests.patience import PATIENCE

OPTIONS: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "flash_attn": False}


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(str(tiny_model("full")), **OPTIONS) as llm:
        yield llm


# -- conversations -------------------------------------------------------------------------------


def test_halves_of_characters_are_saved_as_whole_ones(llm: Llama, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    session = ChatSession(llm, "Be brief.", max_tokens=2)
    session.send("\ud83d\ude00")
    session.save(path)
    assert ChatSession.load(llm, path).messages[1]["content"] == "\U0001f600"
    session.edit(1, "\ud83d")
    with pytest.raises(ParameterError, match="surrogate"):
        session.save(path)
    assert len(ChatSession.load(llm, path).messages) == 3, "the older file is as it was"
    assert {each.name for each in tmp_path.iterdir()} <= {"chat.json", "chat.json.state"}


# -- caches ----------------------------------------------------------------------------------------


def test_a_cache_that_cannot_be_made(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    impossible = [file, file / "below", Path("/proc/nowhere/cache")]
    for path in impossible:
        with pytest.raises(StorageError, match=r"cannot be used: .*; name a directory") as caught:
            LlamaDiskCache(str(path))
        error = caught.value
        assert isinstance(error, OSError)
        assert isinstance(error, LlamaError)
        assert str(path) in str(error)
        assert error.filename == str(path)
        assert error.errno is not None
    assert file.read_text() == "x"


def test_a_directory_without_a_usable_index(tmp_path: Path) -> None:
    (tmp_path / "llama_py-2" / "index.db").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"cannot be used: .*unable to open database"):
        LlamaDiskCache(str(tmp_path))


@pytest.mark.parametrize("wrong", [None, 3, b"x"])
def test_what_is_no_directory(wrong: Any) -> None:
    with pytest.raises(ParameterTypeError, match="cache_dir must be a path"):
        LlamaDiskCache(wrong)


@pytest.mark.parametrize("wrong", ["1", 1.5, True, None])
def test_what_is_no_capacity(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(ParameterTypeError, match="capacity_bytes must be an integer"):
        LlamaDiskCache(str(tmp_path), wrong)
    with pytest.raises(ParameterTypeError, match="capacity_bytes must be an integer"):
        llama_py.LlamaRAMCache(wrong)


# -- sessions --------------------------------------------------------------------------------------


def test_a_session_that_is_not_there(llm: Llama, tmp_path: Path) -> None:
    with pytest.raises(StorageNotFoundError, match="cannot be read: No such file") as caught:
        ChatSession.load(llm, tmp_path / "gone.json")
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, LlamaError)
    with pytest.raises(StorageError, match="cannot be read: Is a directory"):
        ChatSession.load(llm, tmp_path)


def test_a_session_is_saved_to_files_only(llm: Llama, tmp_path: Path) -> None:
    """A device would be replaced by a file, and not be written to."""
    chat = llm.chat_session(max_tokens=2)
    chat.send("the")
    with pytest.raises(StorageError, match="not a regular file"):
        chat.save(tmp_path)
    fifo = tmp_path / "fifo"
    if hasattr(os, "mkfifo"):
        os.mkfifo(fifo)
        with pytest.raises(StorageError, match="fifo cannot be written: it is not a regular file"):
            chat.save(fifo)
        assert fifo.is_fifo()
    with pytest.raises(StorageNotFoundError, match="No such file or directory"):
        chat.save(tmp_path / "nowhere" / "chat.json")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits")
@pytest.mark.parametrize("room", [100, 20_000], ids=["nothing fits", "part of the state"])
def test_a_full_disk_keeps_the_older_files(tmp_path: Path, room: int) -> None:
    """The limit on a file's size stands for the disk's. Both older files work afterwards."""
    program = f"""
    import json, pathlib, resource, signal, sys
    from llama_py import ChatSession, Llama
    from llama_py.errors import StorageError

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with Llama({str(tiny_model("full"))!r}, **{OPTIONS}) as llm:
        chat = llm.chat_session("x " * 100, max_tokens=4, temperature=0)
        chat.send("the quick brown fox")
        chat.save("chat.json")
        chat.send("and the lazy dog")
        resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))
        try:
            chat.save("chat.json")
            sys.exit("it was saved")
        except StorageError as error:
            print(error)
        assert [m["role"] for m in chat.messages] == ["system", *["user", "assistant"] * 2]
        chat.send("still here")
    with Llama({str(tiny_model("full"))!r}, **{OPTIONS}) as llm:
        chat = ChatSession.load(llm, "chat.json", max_tokens=4, temperature=0)
        assert len(chat.messages) == 3
        chat.send("and the lazy dog")
        print(llm.cache_info["reused"])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(llama_py.__file__).parents[1]),
            # Modules that are imported under the limit would be written as far as it allows.
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )
    assert done.returncode == 0, done.stderr + done.stdout
    message, reused = done.stdout.splitlines()
    assert message == "chat.json cannot be written: File too large"
    assert int(reused) > 100  # the older state was still that of the older text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chat.json", "chat.json.state"]


def test_the_older_state_stays_with_the_older_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new state is complete already when its text cannot be written."""
    file = tmp_path / "chat.json"
    options: dict[str, Any] = {"max_tokens": 4, "temperature": 0}
    with Llama(str(tiny_model("full")), **OPTIONS) as llm:
        chat = llm.chat_session("x " * 100, **options)
        chat.send("the quick brown fox")
        chat.save(file)
        chat.send("and the lazy dog")
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        with monkeypatch.context() as patch:

            def full(*_: object, **__: object) -> None:
                raise OSError(28, "No space left on device")

            patch.setattr(Path, "write_text", full)
            with pytest.raises(StorageError, match=r"chat\.json cannot be written: No space left"):
                chat.save(file)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with Llama(str(tiny_model("full")), **OPTIONS) as llm:
        resumed = ChatSession.load(llm, file, **options)
        resumed.send("and the lazy dog")
        assert llm.cache_info["reused"] > 100


STATES = [True, 3, "x", [], {}, {"key": 1}, {"key": "a", "head_bytes": -1, "file_bytes": 5}]
STATES += [{"key": "a", "head_bytes": True, "file_bytes": 10**30}, {"key": "a", "head_bytes": 9.5}]


@pytest.mark.parametrize("state", STATES, ids=str)
def test_a_damaged_description_of_a_state_is_not_used(
    llm: Llama, tmp_path: Path, caplog: pytest.LogCaptureFixture, state: Any
) -> None:
    file = tmp_path / "chat.json"
    chat = llm.chat_session(max_tokens=2)
    chat.send("the quick brown fox")
    chat.save(file)
    file.write_text(json.dumps({**json.loads(file.read_text()), "state": state}))
    with caplog.at_level("WARNING", "llama_py"):
        loaded = ChatSession.load(llm, file, max_tokens=2)
    assert "the saved state is not used: its description is damaged" in caplog.text
    assert loaded.messages == chat.messages
    loaded.send("the")


@pytest.mark.parametrize(
    "change",
    [{"messages": {}}, {"messages": None}, {"tool_results": "x"}, {"messages": [3]}, {"tools": 3}],
    ids=str,
)
def test_a_damaged_session_is_refused(llm: Llama, tmp_path: Path, change: dict[str, Any]) -> None:
    file = tmp_path / "chat.json"
    llm.chat_session().save(file)
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(StateError, match=r"chat\.json is damaged"):
        ChatSession.load(llm, file)


def test_text_that_nests_without_end_is_no_session(llm: Llama, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_text("[" * 100_000)
    with pytest.raises(StateError, match="not a saved conversation"):
        ChatSession.load(llm, file)


def test_a_tool_result_that_is_no_text_is_refused_at_once(llm: Llama) -> None:
    """Even while other calls are open, when nothing is sent yet: it could not be saved."""
    chat = llm.chat_session(max_tokens=2)
    calls = [
        {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for name in ("a", "b")
    ]
    chat._messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": calls},
    ]
    with pytest.raises(ParameterError, match=r"messages\[2\]\.content must be .*json\.dumps"):
        chat.send_tool_result("a", {"t": 21})  # type: ignore[call-overload]
    assert chat.send_tool_result("a", "21") is None
    with pytest.raises(ParameterError, match=r"messages\[3\]\.content has a lone surrogate"):
        chat.send_tool_result("b", "\ud800")
    assert [call["id"] for call in chat.tool_calls] == ["b"]
