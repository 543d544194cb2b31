"""A conversation has the same prompt in every dialect and in process, and loses nothing."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from llama_py.chat.conversation import Message, Text
from llama_py.chat.messages import ChatRequest
from llama_py.chat.templates.normal_form import normal_form
from llama_py.chat.templates.system import FixedSlots
from tests.chat import families
from tests.chat.families import TOOLS, WEATHER
from tests.chat.openai import chat_request
from tests.server.serving import demo_settings, serving

template_of = cache(families.load)
STRICT = FixedSlots(adjacent_users=False, adjacent_replies=False, without_user=False)


def say(role: Any, text: str) -> Message:
    return Message(role, (Text(text),))


def texts(messages: tuple[Message, ...]) -> list[tuple[str, str]]:
    return [(m.role, "".join(p.text for p in m.parts if isinstance(p, Text))) for m in messages]


def test_what_a_template_takes_stays_as_it_is() -> None:
    talk = (say("user", "a"), say("user", "b"), say("assistant", "c"), say("assistant", "d"))
    assert normal_form(talk, FixedSlots()) == talk


def test_messages_of_one_side_in_a_row() -> None:
    talk = (say("user", "a"), say("user", "b"), say("assistant", "c"), say("assistant", "d"))
    assert texts(normal_form(talk, STRICT)) == [("user", "a\n\nb"), ("assistant", "c\n\nd")]
    begun = (*talk, say("user", "e"), say("assistant", "f"), say("assistant", "g"))
    last = texts(normal_form(begun, STRICT, goes_on=True))[-2:]
    assert last == [("assistant", "f"), ("assistant", "g")]


def test_a_conversation_in_which_no_user_says_anything() -> None:
    talk = (say("system", "s"), say("assistant", "a"))
    assert [m.role for m in normal_form(talk, STRICT)] == ["system", "user", "assistant"]


#: Conversations that clients send and some templates refuse.
ODD: dict[str, list[dict[str, Any]]] = {
    "users in a row": [
        {"role": "user", "content": "Apple?"},
        {"role": "user", "content": "Banana?"},
    ],
    "replies in a row": [
        {"role": "user", "content": "Apple?"},
        {"role": "assistant", "content": "Banana."},
        {"role": "assistant", "content": "Cherry."},
        {"role": "user", "content": "Date?"},
    ],
    "system in the middle": [
        {"role": "user", "content": "Apple?"},
        {"role": "system", "content": "Banana."},
        {"role": "user", "content": "Cherry?"},
    ],
    "two system messages": [
        {"role": "system", "content": "Apple."},
        {"role": "system", "content": "Banana."},
        {"role": "user", "content": "Cherry?"},
    ],
    "no user": [
        {"role": "system", "content": "Apple."},
        {"role": "assistant", "content": "Banana."},
    ],
}


@pytest.mark.parametrize("case", ODD)
@pytest.mark.parametrize("name", families.names())
def test_odd_conversations_are_rendered_whole(name: str, case: str) -> None:
    if (name, case) == ("mistralai-Mistral-Nemo-Instruct-2407", "no user"):
        pytest.skip("its template writes the system message into the user's last turn only")
    prompt = template_of(name).render(chat_request(ODD[case])).prompt
    for message in ODD[case]:
        assert prompt.count(message["content"]) == 1


def test_a_call_without_words_is_no_empty_message() -> None:
    """OpenAI's form has null there; this template writes a message for an empty text."""
    template = families.load("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B")
    result = {"role": "tool", "tool_call_id": WEATHER["id"], "content": "Sunny."}
    for content in (None, ""):
        calling = {"role": "assistant", "content": content, "tool_calls": [WEATHER]}
        messages = [{"role": "user", "content": "Weather?"}, calling, result]
        for _ in range(2):  # anew, and as a known shape
            prompt = template.render(chat_request(messages, tools=TOOLS)).prompt
            assert "<｜Assistant｜><｜end▁of▁sentence｜>" not in prompt


IN_A_ROW = (
    ("user", "Apple?"), ("user", "Banana?"), ("assistant", "Cherry."), ("assistant", "Date."),
    ("system", "Elder."), ("user", "Fig?"),
)  # fmt: skip


@pytest.mark.parametrize("name", ["google-gemma-2-2b-it", "Qwen-Qwen2.5-7B-Instruct"])
def test_every_dialect_has_the_same_prompt(name: str) -> None:
    given = [{"role": role, "content": text} for role, text in IN_A_ROW]
    options: dict[str, Any] = {"chat_template": families.source(name), "n_threads": 1}
    tokens = set()
    with serving(demo_settings(**options)) as server, server.http() as http:
        base = {"model": "demo", "max_tokens": 1, "messages": given}
        chat = http.post("/v1/chat/completions", json=base).json()
        tokens.add(chat["usage"]["prompt_tokens"])
        items = {"model": "demo", "max_output_tokens": 16, "input": given}
        tokens.add(http.post("/v1/responses", json=items).json()["usage"]["input_tokens"])
        said = http.post("/v1/messages", json=base).json()["usage"]
        tokens.add(said["input_tokens"] + said["cache_read_input_tokens"])
        ollama = {"model": "demo", "messages": given, "stream": False}
        limit = {"options": {"num_predict": 1}}
        tokens.add(http.post("/api/chat", json=ollama | limit).json()["prompt_eval_count"])
        shown = http.post("/apply-template", json={"messages": given}).json()["prompt"]
    assert len(tokens) == 1
    rendered = families.load(name).render(
        ChatRequest(tuple(say(role, text) for role, text in IN_A_ROW))
    )
    assert shown.endswith(rendered.prompt.removeprefix("<s>").removeprefix("<bos>"))
