"""A thought may mention the marks of calls, and goes on until its own end."""

from __future__ import annotations

from typing import Any

import pytest

from llama_py.chat.stream import ChatStream, parse_reply
from llama_py.errors import TemplateError
from tests.chat import families
from tests.chat.families import OPTIONS, TOOLS, USER
from tests.chat.openai import chat_request

MARKS = (
    "<tool_call>", "<tool_calls>", "<|tool_call|>", "<|tool_calls_section_begin|>", "[TOOL_CALLS]",
    "<｜tool▁calls▁begin｜>", "<｜DSML｜tool_calls>", "<minimax:tool_call>", "<function=",
    "<|START_ACTION|>", "<|tool_call_start|>",
)  # fmt: skip


def cases() -> list[tuple[str, str]]:
    return [
        (name, mark) for name in families.names() for mark in MARKS if mark in families.source(name)
    ]


@pytest.mark.parametrize("with_tools", [False, True], ids=["plain", "tools"])
@pytest.mark.parametrize(("name", "mark"), cases())
def test_a_mark_of_calls_in_a_thought_is_a_part_of_it(
    name: str, mark: str, with_tools: bool
) -> None:
    template = families.load(name)
    if not template.supports_thinking:
        pytest.skip("does not reason")
    options: dict[str, Any] = {"enable_thinking": True, **OPTIONS.get(name, {})}
    try:
        rendered = template.render(
            chat_request(USER, tools=TOOLS if with_tools else None, **options)
        )
    except TemplateError:
        pytest.skip("has no form for tools")
    if not rendered.thinking_ends:
        pytest.skip("has several kinds of messages")
    begun = rendered.thinking_start.strip() in rendered.generation_prompt
    thought = f"I could write {mark} here, but no."
    start = "" if begun else rendered.thinking_start
    text = f"{start}{thought}{rendered.thinking_ends[0]}\n\nDone."
    whole = parse_reply(rendered, text)
    stream = ChatStream(rendered)
    for char in text:
        stream.feed(char)
    for reply in (whole, stream.finish()):
        assert reply.reasoning.strip().endswith(thought)
        assert reply.content.strip().endswith("Done.")  # some open it with a mark of its own
        assert not reply.tool_calls
