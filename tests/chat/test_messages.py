"""Requests of whatever dialect: what is refused, and what templates get."""

from __future__ import annotations

from typing import Any

import pytest

from llama_py import Llama, demo_model_path
from llama_py.chat.conversation import (
    ImagePart,
    Message,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from llama_py.chat.messages import ChatRequest
from llama_py.chat.templates.inputs import message_values
from llama_py.errors import ParameterError, ParameterTypeError
from tests.chat import families
from tests.chat.families import TOOLS, USER
from tests.chat.openai import chat_request

HELLO = Message("user", (Text("Hello"),))
PICTURE = ImagePart(b"x", "image/png")


def test_what_templates_get() -> None:
    assert message_values(
        [
            HELLO,
            Message("user", (Text("a"), Text("b")), "bob"),
            Message("assistant", (Thinking("Hm."), Text("Well."), ToolCall("f", '{"a": 1}', "c"))),
            Message("tool", (ToolResult("c", (Text("1"),), name="f"),)),
            Message("assistant"),
        ]
    ) == [
        {"role": "user", "content": "Hello"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            "name": "bob",
        },
        {
            "role": "assistant",
            "content": "Well.",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {
                    "type": "function",
                    "function": {"name": "f", "arguments": '{"a": 1}'},
                    "id": "c",
                }
            ],
        },
        {"role": "tool", "content": "1", "name": "f", "tool_call_id": "c"},
        {"role": "assistant", "content": ""},
    ]


@pytest.mark.parametrize("name", families.names())
def test_a_text_is_a_list_of_one_text(name: str) -> None:
    """Clients write the same message once as a text and once as a part: the cache must fit."""
    words = [
        ("system", "Be brief."),
        ("user", "Hello"),
        ("assistant", "Hi"),
        ("user", "Weather in Paris?"),
    ]
    texts = [{"role": role, "content": text} for role, text in words]
    parts = [{"role": r, "content": [{"type": "text", "text": text}]} for r, text in words]
    template = families.load(name)
    one, other = (template.render(chat_request(each, now=0)) for each in (texts, parts))
    assert one == other


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tools": (Tool("f", "", {}), Tool("f", "", {}))}, "two tools are called 'f'"),
        ({"tool_choice": ToolChoice("required")}, "there are no tools"),
        ({"tool_choice": ToolChoice("named", "g")}, "tool_choice names 'g'; .*none are given"),
        ({"continue_final_message": True}, 'the last message has the role "user"'),
    ],
)
def test_contradictions(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ParameterError, match=expected):
        ChatRequest((HELLO,), **options)
    with pytest.raises(ParameterError, match="at least one message"):
        ChatRequest(())


def test_dictionaries_are_no_messages() -> None:
    with pytest.raises(ParameterTypeError, match=r"messages\[0\] must be a Message, not \{"):
        ChatRequest(tuple(USER))  # type: ignore[arg-type]


def test_whether_tools_are_used() -> None:
    assert chat_request(USER, tools=TOOLS).uses_tools
    assert not chat_request(USER, tools=TOOLS, tool_choice="none").uses_tools


def test_both_forms_of_a_conversation_give_the_same_prompt() -> None:
    with Llama(demo_model_path(), n_threads=1) as llm:
        typed = llm.render_chat(ChatRequest((HELLO,)))
        assert typed == llm.render_chat([{"role": "user", "content": "Hello"}])
