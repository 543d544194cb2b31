"""A template that translates: languages, and system messages, for which it has no place."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.chat import families
from tests.chat.openai import chat_request

NAME = "google-translategemma-4b-it"
LANGUAGES = {"source_lang_code": "de", "target_lang_code": "fr-CA"}


def prompt_of(*messages: dict[str, Any], **options: Any) -> str:
    ask = {"template_kwargs": LANGUAGES, **options}
    return families.load(NAME).render(chat_request([*messages], **ask)).prompt


def say(role: str, *texts: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": text} for text in texts]
    return {"role": role, "content": parts if len(parts) > 1 else texts[0]}


def test_the_languages_are_those_of_the_template_variables() -> None:
    prompt = prompt_of(say("user", "Guten Tag."))
    assert "a professional German (de) to French (fr-CA) translator" in prompt
    assert prompt.endswith(
        "German text into French:\n\n\nGuten Tag.<end_of_turn>\n<start_of_turn>model\n"
    )


def test_without_languages_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    template = families.load(NAME)
    with caplog.at_level(logging.WARNING, logger="llama_py"):
        template.render(chat_request(families.USER, template_kwargs=LANGUAGES))
        assert not caplog.messages
        for _ in range(2):
            prompt = template.render(chat_request(families.USER)).prompt
    assert "from English (en-GB)" not in prompt
    assert "English (en-GB) to English (en-GB)" in prompt
    assert [text for text in caplog.messages if "source_lang_code" in text] == caplog.messages[:1]
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("system", [("Be formal.",), ("Be", "formal.")])
@pytest.mark.parametrize("user", [("Guten Tag.",), ("Guten", "Tag.")])
@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_system_message_becomes_a_part_of_the_text(
    role: str, system: tuple[str, ...], user: tuple[str, ...]
) -> None:
    """Whether it, or the message that it becomes a part of, is one text or several."""
    prompt = prompt_of(say(role, *system), say("user", *user))
    text = "\n".join((*system, *user))
    assert f"\n\n\n{text}<end_of_turn>" in prompt


def test_a_reply_that_goes_on_has_no_system_message_in_it() -> None:
    prompt = prompt_of(
        say("system", "Be", "formal."),
        say("user", "Guten", "Tag."),
        say("assistant", "Bon"),
        continue_final_message=True,
    )
    assert "\n\n\nBe\nformal.\nGuten\nTag.<end_of_turn>\n<start_of_turn>model\nBon" in prompt
    assert prompt.endswith("<start_of_turn>model\nBon")
    request = chat_request(
        [say("system", "Be", "formal."), say("assistant", "Bon")], continue_final_message=True
    )
    other = families.load("google-gemma-2-2b-it").render(request).prompt
    assert other.endswith("<start_of_turn>model\nBon")
