"""What stands around the mark of a call, read off llama.cpp's description of a format."""

from __future__ import annotations

import pytest

from llama_py.chat.calls.call_triggers import SPACE, CallOpening, openings_of
from tests.chat import families
from tests.chat.openai import chat_request

#: One for each way in which the mark stands in the description.
OPENINGS = {
    "Kimi-K2-Instruct": [
        CallOpening("<|tool_call_begin|>", ("<|tool_calls_section_begin|>",), ("functions.",))
    ],
    "Kimi-K3": [
        CallOpening(
            "<|open|>tools<|sep|>",
            ("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
            ('<|open|>call tool="',),
        )
    ],
    "Apriel-1.6-15b-Thinker-fixed": [CallOpening("<tool_calls>", (), (SPACE, "[", SPACE, "{"))],
    # It ends within a literal, or consists of several with the name of a tool in the middle.
    "Qwen3-Coder": [
        CallOpening("<tool_call>", (), ("\n",)),
        CallOpening("<function=get_weather>", ("<tool_call>\n",), ("\n",)),
        CallOpening("<function=add>", ("<tool_call>\n",), ("\n",)),
    ],
    # Each tool has a call of its own, and all begin alike.
    "openbmb-MiniCPM5-1B": [CallOpening("<function", (), (' name="',))],
    "inclusionai-ling-3.0-flash": [CallOpening("<tool_call>")],
    "IFM-K2-Horizon": [CallOpening("<ifm|tool_calls>", (), (SPACE, "<ifm|tool_call>"))],
    # Arguments may contain themselves.
    "LFM2.5-8B-A1B": [CallOpening("<|tool_call_start|>", (), ("[", SPACE))],
}


@pytest.mark.parametrize("name", OPENINGS)
def test_openings_of_a_family(name: str) -> None:
    request = chat_request(messages=families.USER, now=0, tools=families.TOOLS)
    rendered = families.load(name).render(request)
    assert rendered.parser is not None
    arena = rendered.parser["arena"]
    found = openings_of(arena, rendered.call_marks, rendered.generation_prompt)
    assert [*found] == OPENINGS[name]


def test_a_mark_that_no_description_has_stands_alone() -> None:
    assert openings_of("", ("<call>",), "") == (CallOpening("<call>"),)
