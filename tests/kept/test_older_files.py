"""What the version before this one has kept: refused with a reason, and lost to nobody by surprise.

The folder ``0c1e57098`` was written by the last commit with that llama.cpp, by ``make_files.py``,
whose docstring has the command. Its states are bytes that this llama.cpp reads otherwise.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from llama_py import ChatSession, Llama, LlamaDiskCache, demo_model_path
from llama_py.api.kept.states import LlamaState
from llama_py.errors import FingerprintError, StateError
from llama_py.states.state import StoredState, refusal, why_refused
from llama_py.states.whole import read_whole
from llama_py.version import LLAMA_CPP_COMMIT
from tests.kept.make_files import ASKED, BRIEF, OPTIONS, SAID, SESSION, SLOT, TOLD
from tests.server.serving import demo_settings, serving

OLDER = "0c1e57098"
#: Long enough for a store to take what was said about it.
STORY = "The quick brown fox jumps over the lazy dog, and then it goes home again. " * 3
LONG_AGO = 1_700_000_000


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A copy of what was kept, with the age that it has for somebody who updates."""
    folder = Path(shutil.copytree(Path(__file__).parent / OLDER, tmp_path / "kept"))
    for path in folder.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    return folder


@pytest.fixture
def llm() -> Iterator[Llama]:
    with Llama(demo_model_path(), **OPTIONS) as llm:
        yield llm


def slot_state(kept: Path) -> StoredState:
    path = kept / "slots" / SLOT
    with FileIO(str(path)) as file:
        return read_whole(file, path)


def entries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.state"))


def say(llm: Llama, text: str, **options: Any) -> dict[str, Any]:
    """What was said, and what was reused for it."""
    messages = [{"role": "user", "content": text}]
    response = llm.create_chat_completion(messages, **{**BRIEF, **options})
    return {"text": response["choices"][0]["message"]["content"], **llm.cache_info}


# ---- a store -------------------------------------------------------------------------------------


def test_only_the_version_is_another_one(kept: Path, llm: Llama) -> None:
    """Otherwise these tests would show how other settings are refused."""
    own, theirs = llm.runtime.loaded.fingerprint, slot_state(kept).fingerprint
    assert theirs.replace(repr(OLDER), repr(LLAMA_CPP_COMMIT)) == own


def test_a_store_says_that_what_it_has_is_of_another_version(kept: Path, llm: Llama) -> None:
    expected = say(llm, TOLD)["text"]
    llm.cache.reset()
    with LlamaDiskCache(kept / "store") as store:
        llm.cache.set_store(store)
        assert len(store) == 1
        found = say(llm, TOLD)
        assert (found["reused"], found["action"], found["refused"]) == (0, "evaluate", "version")
        assert (
            f"was written with llama.cpp {OLDER}, and this is {LLAMA_CPP_COMMIT}"
            in (found["reason"])
        )
        assert found["text"] == expected
        llm.cache.set_store(None)


def test_a_prompt_that_is_not_stored_is_refused_nothing(kept: Path, llm: Llama) -> None:
    with LlamaDiskCache(kept / "store") as store:
        llm.cache.set_store(store)
        llm.create_completion("Once upon a time", max_tokens=1)
        assert (llm.cache_info["refused"], llm.cache_info["reused"]) == ("", 0)
        say(llm, TOLD)
        say(llm, f"{TOLD} And then?")
        assert (llm.cache_info["refused"], llm.cache_info["reused"] > 30) == ("", True)
        llm.cache.set_store(None)


def test_other_settings_are_another_reason(tmp_path: Path) -> None:
    with LlamaDiskCache(tmp_path) as store:
        for n_ctx, refused in ((512, ""), (256, "settings")):
            with Llama(demo_model_path(), **{**OPTIONS, "n_ctx": n_ctx}) as llm:
                llm.cache.set_store(store)
                found = say(llm, TOLD)
                assert found["refused"] == refused
                assert ("other settings" in found["reason"]) == bool(refused)


def test_entries_of_another_version_stay_until_they_make_room(kept: Path, llm: Llama) -> None:
    folder = kept / "store"
    (old,) = entries(folder)
    size = old.stat().st_size
    with LlamaDiskCache(folder, capacity_bytes=9 * size) as store:
        llm.cache.set_store(store)
        say(llm, STORY[:200])
        llm.cache.flush()
        assert old.exists()
        assert len(store) == 2
        assert (store.stats().evicted, store.stats().damaged) == (0, 0)
        another = store.used_bytes - size
        store.capacity_bytes = store.used_bytes + another - size // 2  # in place of the old one
        say(llm, f"But {STORY[:200]}")
        llm.cache.flush()
        assert not old.exists()
        assert len(store) == 2
        assert store.stats().evicted == 1
        llm.cache.set_store(None)
    assert old not in entries(folder)


# ---- a session -----------------------------------------------------------------------------------


def test_a_session_opens_without_its_state(
    kept: Path, llm: Llama, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "llama_py"):
        chat = ChatSession.load(llm, kept / "session.json", **BRIEF)
    why = f"the saved state is not used: this conversation was written with llama.cpp {OLDER}"
    assert why in caplog.text
    assert chat.messages[0]["content"] == SAID
    history = chat.messages
    reply = chat.send("Go on.")
    assert (llm.cache_info["reused"], llm.cache_info["restored_bytes"]) == (0, 0)
    again = say_all(llm, [*history, {"role": "user", "content": "Go on."}])
    assert again == reply
    chat.save(kept / "session.json")
    llm.cache.reset()
    longer = ChatSession.load(llm, kept / "session.json", **BRIEF)
    longer.send("And then?")
    assert llm.cache_info["reused"] > 20


def say_all(llm: Llama, messages: Any) -> str:
    """The reply of a call that reuses nothing."""
    response = llm.create_chat_completion(messages, reuse=False, **BRIEF)
    return str(response["choices"][0]["message"]["content"])


def test_a_saved_state_is_refused_with_a_type(kept: Path, llm: Llama) -> None:
    llm.eval([5, 6, 7])
    with pytest.raises(FingerprintError, match=f"was written with llama.cpp {OLDER}") as caught:
        llm.load_state(LlamaState(slot_state(kept)))
    assert caught.value.refused == "version"
    assert llm.n_tokens == 3


def test_llama_cpp_itself_refuses_the_bytes(kept: Path, llm: Llama) -> None:
    """Where a build says that it is of the version of the file, and is not."""
    context = llm.runtime.loaded.context
    with pytest.raises(StateError, match="rotation"):
        context.state_set(0, slot_state(kept).state)
    assert context.pos_max(0) == -1
    say(llm, TOLD)


# ---- a server ------------------------------------------------------------------------------------


def test_a_server_goes_on_with_a_session(kept: Path) -> None:
    settings = demo_settings({"session_dir": kept / "sessions"}, **OPTIONS)
    (old,) = entries(kept / "sessions")
    with serving(settings) as server, server.http() as http:
        (known,) = http.get("/v1/sessions").json()["data"]
        assert (known["id"], known["turns"], known["tokens_in_memory"]) == (SESSION, 1, 0)
        body = {"messages": ASKED, "session_id": SESSION, **BRIEF}
        answer = http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert http.get(f"/v1/sessions/{SESSION}").json()["turns"] == 2
        assert old.exists()
        assert http.delete(f"/v1/sessions/{SESSION}").status_code == 200
        assert not old.exists()


def test_a_server_refuses_a_slot(kept: Path) -> None:
    settings = demo_settings({"slot_dir": kept / "slots"}, **OPTIONS)
    with serving(settings) as server, server.http() as http:
        body = {"filename": SLOT}
        answer = http.post("/slots/0", params={"action": "restore"}, json=body)
        assert answer.status_code == 400
        assert f"was written with llama.cpp {OLDER}" in answer.json()["error"]["message"]
        assert (kept / "slots" / SLOT).exists()
        http.post("/v1/chat/completions", json={"messages": ASKED, **BRIEF}).raise_for_status()


# ---- the words -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "other", "kind", "words"),
    [
        ("(2, 'b2', 'ab', 1)", "(2, 'b2', 'ab', 1)", "", None),
        ("(2, 'b2', 'ab', 1)", "(2, 'b1', 'ab', 1)", "version", "llama.cpp b1, and this is b2"),
        ("(2, 'b2', 'ab', 1)", "(2, 'b1', 'ab', 9)", "version", "llama.cpp b1, and this is b2"),
        ("(2, 'b2', 'ab', 1)", "(1, 'b2', 'ab', 1)", "version", "the format 1, and .* format 2"),
        ("(2, 'b2', 'ab', 1)", "(2, 'b2', 'ab', 9)", "settings", "other settings"),
        ("(2, 'b2', 'ab', 1)", "(2, 'b1', 'cd', 1)", "settings", "another model"),
        ("(2, 'b2', 'ab', 1)", "(2, 'b\n1', 'ab', 1)", "settings", "other settings"),
        ("(2, 'b2', 'ab', 1)", "", "settings", "other settings"),
        ("f", "g", "settings", "other settings"),
    ],
)
def test_what_differs_is_named(own: str, other: str, kind: str, words: str | None) -> None:
    assert refusal(own, other) == kind
    if words is not None:
        assert re.search(words, why_refused(own, other))
