"""A tool that is named is called once, in every dialect, unless several calls are asked for."""

from __future__ import annotations

from typing import Any

import pytest

from llama_py.dialects.anthropic.messages import read_call
from llama_py.dialects.limits import RequestLimits
from llama_py.dialects.openai.bodies import read_chat
from llama_py.dialects.openai.chat import parse_chat
from llama_py.dialects.responses.parse import parse_responses
from tests.dialects.playing import Context

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "parameters": SCHEMA}
HELLO = [{"role": "user", "content": "Paris and Rome?"}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def chat(context: Context, **options: Any) -> Any:
    body = {"messages": HELLO, "tools": [{"type": "function", "function": FUNCTION}]}
    return read_chat(context, {**body, "tool_choice": NAMED, **options}, RequestLimits(), "m")


def responses(context: Context, **options: Any) -> Any:
    tools = [{"type": "function", **FUNCTION}]
    body = {
        "input": "x",
        "tools": tools,
        "tool_choice": {"type": "function", "name": "get_weather"},
    }
    return parse_responses(context, {**body, **options}, RequestLimits(), "m")


def messages(context: Context, **options: Any) -> Any:
    tools = [{"name": "get_weather", "input_schema": SCHEMA}]
    choice = {"type": "tool", "name": "get_weather"}
    body = {"messages": HELLO, "tools": tools, "tool_choice": choice}
    return read_call(context, {**body, **options}, RequestLimits(), "m")


def in_process(context: Context, **options: Any) -> Any:
    tools = [{"type": "function", "function": FUNCTION}]
    return parse_chat(context, HELLO, tools=tools, tool_choice=NAMED, **options)


def functions(context: Context, **options: Any) -> Any:
    chosen: dict[str, Any] = {"functions": [FUNCTION], "function_call": {"name": "get_weather"}}
    return parse_chat(context, HELLO, **chosen, **options)


@pytest.mark.parametrize("call", [chat, responses, messages, in_process, functions])
def test_a_named_tool_is_called_once(context: Context, call: Any) -> None:
    once = call(context).requests[0].sampling.grammar
    assert once is not None
    assert once == call(context, parallel_tool_calls=False).requests[0].sampling.grammar
    several = call(context, parallel_tool_calls=True).requests[0].sampling.grammar
    assert (several == once) == (call is functions)  # a function_call is a single one


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_other_choices_leave_it_to_the_template(context: Context, choice: str) -> None:
    given = chat(context, tool_choice=choice).requests[0].sampling.grammar
    several = chat(context, tool_choice=choice, parallel_tool_calls=True)
    assert given == several.requests[0].sampling.grammar
