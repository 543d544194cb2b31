"""Calls of only some of the tools that a conversation lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from llama_py.chat.conversation import Message, Text, Tool, ToolChoice
from llama_py.chat.formats.tools import CHATML_TOOLS
from llama_py.chat.messages import ChatRequest
from llama_py.chat.template import ChatTemplate, RenderedChat
from llama_py.errors import ParameterError

GOOD = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.fixture(scope="module")
def template() -> Iterator[ChatTemplate]:
    template = ChatTemplate.from_text(CHATML_TOOLS, eos="<|im_end|>")
    yield template
    template.close()


def render(template: ChatTemplate, *tools: Tool, **choice: Any) -> RenderedChat:
    request = ChatRequest(
        (Message("user", (Text("hi"),)),), tools=tools, tool_choice=ToolChoice(**choice)
    )
    return template.render(request)


def test_only_allowed_tools_can_be_called(template: ChatTemplate) -> None:
    tools = [Tool(name, "", GOOD) for name in ("red", "green", "blue")]
    prompts = set()
    for choice in (
        {},
        {"mode": "required", "allowed": ("red", "blue")},
        {"mode": "auto", "allowed": ("blue", "red")},
        {"mode": "named", "name": "green"},
    ):
        rendered = render(template, *tools, **choice)
        prompts.add(rendered.prompt)
        assert rendered.grammar is not None
        found = {name for name in ("red", "green", "blue") if name in rendered.grammar.gbnf}
        allowed = choice.get("allowed", (choice.get("name", "green"),))
        assert found == ({*allowed} if choice else {"red", "green", "blue"})
    assert len(prompts) == 1, "all are listed, so that what is cached fits"


def test_what_is_allowed_has_to_be_there(template: ChatTemplate) -> None:
    with pytest.raises(ParameterError, match="'yellow'"):
        render(template, Tool("red", "", GOOD), allowed=("red", "yellow"))
