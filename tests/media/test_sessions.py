"""Sessions with pictures: said, edited, forked, saved and opened."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_py import Audio, ChatSession, Image, StateError
from llama_py.api.kept.conversations import Conversations
from tests.media import pictures
from tests.media.talking import talk

DISC, STRIPES = Image(pictures.disc()), Image(pictures.stripes())


def test_a_session_goes_on_about_its_picture() -> None:
    with talk() as talking:
        session = ChatSession(talking.llm, temperature=0.0, max_tokens=4)
        session.send(["What is ", DISC, " this?"])
        session.send("And its colour?")
        assert talking.encoded == 1
        branch = session.fork()
        branch.send("And its size?")
        assert talking.encoded == 1
        session.edit(0, ["What is ", STRIPES, " this?"])
        session.regenerate()
        assert talking.encoded == 2


def test_a_saved_session_has_each_picture_once_and_opens_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    with talk("full", "omni") as talking:
        session = ChatSession(talking.llm, temperature=0.0, max_tokens=4)
        session.send([DISC, "and once more", DISC, "and", STRIPES])
        session.send(["Listen: ", Audio(pictures.tone(), pictures.RATE)])
        session.save(path)
        expected = session.fork().send("Go on.")
        messages = session.messages
    names = sorted(each.suffix for each in (tmp_path / "talk.json.media").iterdir())
    assert names == [".png", ".png", ".wav"]
    assert "base64" not in path.read_text()
    with talk("full", "omni") as talking:
        opened = ChatSession.load(talking.llm, path, temperature=0.0, max_tokens=4)
        assert opened.messages == messages
        assert opened.send("Go on.") == expected
        assert talking.encoded == 0  # the state has the cells of all of them
        opened.edit(0, "No picture any more.")
        opened.save(path)
    assert not (tmp_path / "talk.json.media").exists()


def test_a_conversation_with_a_picture_comes_back_by_its_name() -> None:
    """As a server's snapshots and slots do."""
    with talk() as talking:
        asked = [{"role": "user", "content": ["What is ", DISC, " this?"]}]
        given: Any = {"session_id": "anna", "temperature": 0, "max_tokens": 4}
        first = talking.llm.create_chat_completion(asked, **given)
        held = Conversations(talking.llm.runtime.port)
        state = held.export("anna")
        talking.llm.cache.reset()
        held.bring_in(state, "anna")
        longer = [*asked, first["choices"][0]["message"], {"role": "user", "content": "Why?"}]
        again = talking.llm.create_chat_completion(longer, **given)
        assert again.cache["reused"] >= len(state.tokens) - 2
        assert talking.encoded == 1
        wrong = replace(state, tokens=np.where(state.tokens < 0, -1, state.tokens))
        with pytest.raises(StateError, match="the vocabulary has not"):
            held.bring_in(wrong, "bob")


def test_a_file_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    path, data = tmp_path / "talk.json", b"no picture"
    name = f"{hashlib.sha256(data).hexdigest()}.png"
    part = {"type": "image_url", "image_url": {"url": f"media:{name}"}}
    with talk() as talking:
        ChatSession(talking.llm, "You see.").save(path, state=False)
        folder = tmp_path / "talk.json.media"
        folder.mkdir()
        (folder / name).write_bytes(data)
        saved = json.loads(path.read_text())
        saved["messages"].append({"role": "user", "content": [part]})
        path.write_text(json.dumps(saved))
        with pytest.raises(StateError, match=f"{name} is of no known format") as refused:
            ChatSession.load(talking.llm, path)
        assert str(folder) in str(refused.value)


def test_a_picture_that_was_changed_on_disk_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    with talk() as talking:
        session = ChatSession(talking.llm, temperature=0.0, max_tokens=4)
        session.send(["What is ", DISC, " this?"])
        session.save(path, state=False)
        (file,) = (tmp_path / "talk.json.media").iterdir()
        file.write_bytes(STRIPES.data)
        with pytest.raises(StateError, match="is not what it was"):
            ChatSession.load(talking.llm, path)
        file.unlink()
        with pytest.raises(StateError, match="cannot be read"):
            ChatSession.load(talking.llm, path)
        saved = json.loads(path.read_text())
        saved["messages"][0]["content"][1]["image_url"]["url"] = "media:../../etc/passwd"
        path.write_text(json.dumps(saved))
        with pytest.raises(StateError, match="not a digest"):
            ChatSession.load(talking.llm, path)
