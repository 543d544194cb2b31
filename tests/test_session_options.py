"""Options of a session that its prompts depend on, and what is saved with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_py import ChatSession, Llama
from tests.models import CHATML, tiny_model

OPTIONS: dict[str, Any] = {
    "n_ctx": 1024,
    "n_threads": 1,
    "flash_attn": False,
    "chat_template": "{{- '<|im_start|>system\\nBe ' + (style or 'plain') + '.<|im_end|>\\n' -}}"
    + CHATML,
}
STYLE = "kind, patient, and as exact as the matter allows"


@pytest.fixture
def llm() -> Iterator[Llama]:
    with Llama(tiny_model("full"), **OPTIONS) as opened:
        yield opened


@pytest.mark.parametrize("overtaken", [False, True], ids=["in memory", "overtaken by a branch"])
def test_the_state_is_that_of_the_sessions_own_options(
    llm: Llama, tmp_path: Path, overtaken: bool
) -> None:
    """A session whose template variables change the prompt would find no state without them."""
    file = tmp_path / "chat.json"
    own: dict[str, Any] = {
        "temperature": 0,
        "max_tokens": 12,
        "chat_template_kwargs": {"style": STYLE},
    }
    chat = ChatSession(llm, **own)
    chat.send("My name is Anna.")
    chat.send("My number is 7.")
    if overtaken:
        chat.fork().send("The secret is 42.")
    chat.save(file)
    assert json.loads(file.read_text())["state"] is not None
    with Llama(tiny_model("full"), **OPTIONS) as other:
        resumed = ChatSession.load(other, file, **own)
        assert other.metrics["evaluated"] == 0
        resumed.send("What is my name?")
        held = resumed.last_response["usage"]  # type: ignore[index]
        reused = held["prompt_tokens_details"]["cached_tokens"]
        assert 2 * reused > held["prompt_tokens"]


def test_options_are_not_written_to_the_file(llm: Llama, tmp_path: Path) -> None:
    """They may be functions; ``load`` is given them."""
    chat = ChatSession(llm, max_tokens=4, logits_processor=[lambda tokens, logits: logits])
    chat.send("Hello!")
    chat.save(tmp_path / "chat.json")
    saved = json.loads((tmp_path / "chat.json").read_text())
    assert {*saved} == {
        "format", "version", "session_id", "messages", "tool_results", "tools", "state"
    }  # fmt: skip
    assert saved["state"] is not None
