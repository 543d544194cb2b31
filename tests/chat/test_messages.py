"""Requests: what is accepted, what it becomes, and what the errors say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llama_py.chat.messages import ChatRequest, normalise_messages, normalise_tools
from llama_py.errors import ParameterError, ParameterTypeError
from tests.chat.families import TOOLS, USER, WEATHER

USER_TURN = {"role": "user", "content": "x"}
CALLING = {"role": "assistant", "content": None, "tool_calls": [WEATHER]}


def one(message: dict[str, Any], *before: dict[str, Any]) -> dict[str, Any]:
    return normalise_messages([*before, message])[-1]


def test_messages_keep_what_matters() -> None:
    assert one({"role": "user", "content": "x", "name": "bob", "extra": 1}) == {
        "role": "user",
        "content": "x",
        "name": "bob",
    }
    assert one({"role": "developer", "content": "x"})["role"] == "developer"
    assert one({"role": "assistant", "content": "x", "reasoning": "r"}) == {
        "role": "assistant",
        "content": "x",
        "reasoning_content": "r",
    }


@pytest.mark.parametrize("message", [CALLING, {**CALLING, "content": ""}, {"role": "assistant"}])
def test_assistants_may_have_no_content(message: dict[str, Any]) -> None:
    assert one(message, USER_TURN)["content"] == ""


def test_parts() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"type": "refusal", "refusal": "c"}]
    assert one({"role": "user", "content": parts})["content"] == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
        {"type": "text", "text": "c"},
    ]


def test_tool_results() -> None:
    result = {"role": "tool", "content": [{"type": "text", "text": "1"}]}
    assert one(result, USER_TURN, CALLING)["tool_call_id"] == WEATHER["id"]
    named = {**result, "tool_call_id": "other"}
    assert one(named, USER_TURN, CALLING)["tool_call_id"] == "other"
    twice = {**CALLING, "tool_calls": [WEATHER, {**WEATHER, "id": "b"}]}
    first = {**result, "tool_call_id": WEATHER["id"]}
    assert one(result, USER_TURN, twice, first)["tool_call_id"] == "b"
    with pytest.raises(ParameterError, match=r"messages\[2\]\.tool_call_id is missing.* 2 calls"):
        one(result, USER_TURN, twice)


def test_arguments_become_text() -> None:
    def arguments(value: Any) -> str:
        call = {"function": {"name": "f", "arguments": value}}
        message = one({"role": "assistant", "tool_calls": [call]})
        return str(message["tool_calls"][0]["function"]["arguments"])

    assert json.loads(arguments({"a": "é"})) == {"a": "é"}
    assert arguments('{"a":  1}') == '{"a":  1}'
    assert arguments("") == arguments(None) == "{}"
    with pytest.raises(ParameterError, match=r"tool_calls\[0\]\.function\.arguments is not JSON"):
        arguments("{")


def test_functions_become_tools() -> None:
    request = ChatRequest(
        [
            USER_TURN,
            {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "1"},
        ],
        functions=[{"name": "f", "parameters": {"type": "object"}}],
        function_call={"name": "f"},
    )
    assert request.tool_names == ("f",)
    assert request.forced_tool == "f"
    call, result = request.messages[1]["tool_calls"][0], request.messages[2]
    assert result["role"] == "tool"
    assert result["tool_call_id"] == call["id"]


WRONG: dict[str, tuple[Any, str]] = {
    "no list": ("hello", "messages must be a list, not 'hello'"),
    "empty": ([], "at least one message"),
    "no object": (["x"], r"messages\[0\] must be an object"),
    "role": ([{"role": "bot", "content": "x"}], r"messages\[0\]\.role is 'bot'; expected one of"),
    "no role": ([{"content": "x"}], r"role is None"),
    "no content": ([{"role": "user"}], r"messages\[0\]\.content is missing"),
    "null content": ([{"role": "system", "content": None}], "content is missing"),
    "number": ([{"role": "user", "content": 3}], r"content must be a list"),
    "object": ([{"role": "user", "content": {}}], r"content must be a string or a list"),
    "part": ([{"role": "user", "content": [{"type": "x"}]}], r"content\[0\]\.type is 'x'"),
    "image": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": "u"}]}],
        "no multimodal handler is loaded",
    ),
    "part text": ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\]\.text must"),
    "call type": (
        [{"role": "assistant", "tool_calls": [{"type": "x"}]}],
        r"tool_calls\[0\]\.type is 'x'",
    ),
    "call name": (
        [{"role": "assistant", "tool_calls": [{"function": {}}]}],
        r"tool_calls\[0\]\.function\.name must be a string",
    ),
    "orphan": ([{"role": "tool", "content": "x"}], "tool_call_id is missing"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_messages(name: str) -> None:
    messages, expected = WRONG[name]
    with pytest.raises(ParameterError, match=expected):
        ChatRequest(messages)


def test_tools() -> None:
    assert normalise_tools(None) == ()
    tool = normalise_tools([{"function": {"name": "f", "strict": True}}])[0]
    assert tool == {
        "type": "function",
        "function": {
            "name": "f",
            "description": "",
            "parameters": {"type": "object", "properties": {}},
        },
    }


WRONG_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "tool type": ({"tools": [{"type": "web_search"}]}, r"tools\[0\]\.type is 'web_search'"),
    "tool name": ({"tools": [{"function": {"name": ""}}]}, "name is empty"),
    "two tools": ({"tools": [TOOLS[0], TOOLS[0]]}, "two tools are called 'get_weather'"),
    "tools": ({"tools": {}}, "tools must be a list"),
    "choice": ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice is 'sometimes'"),
    "named": (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nope"}}},
        "tool_choice names 'nope'; the tools are: get_weather, add",
    ),
    "required": ({"tool_choice": "required"}, "there are no tools"),
    "format": ({"response_format": {"type": "xml"}}, r"response_format\.type is 'xml'"),
    "schema": (
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        "schema is missing",
    ),
    "reasoning": ({"reasoning_format": "loud"}, "reasoning_format is 'loud'"),
    "budget": ({"reasoning_budget": 1.5}, "reasoning_budget must be an integer"),
    "continue": ({"continue_final_message": True}, 'the last message has the role "user"'),
    "continue what": ({"continue_final_message": "end"}, "continue_final_message is 'end'"),
    "kwargs": ({"template_kwargs": []}, "template_kwargs must be an object"),
}


@pytest.mark.parametrize("name", WRONG_OPTIONS)
def test_wrong_options(name: str) -> None:
    options, expected = WRONG_OPTIONS[name]
    with pytest.raises(ParameterError, match=expected):
        ChatRequest(USER, **options)


def test_wrong_types_are_type_errors() -> None:
    with pytest.raises(ParameterTypeError):
        ChatRequest("hello")  # type: ignore[arg-type]


def test_response_formats() -> None:
    def schema(given: Any) -> Any:
        return ChatRequest(USER, response_format=given).schema

    assert schema(None) is None
    assert schema({"type": "text"}) is None
    assert schema({"type": "json_object"}) == {"type": "object"}
    assert schema({"type": "json_object", "schema": {"type": "array"}}) == {"type": "array"}
    wrapped = {"name": "n", "strict": True, "schema": {"type": "null"}}
    assert schema({"type": "json_schema", "json_schema": wrapped}) == {"type": "null"}


def test_requests_can_be_made_from_requests() -> None:
    request = ChatRequest(USER, tools=TOOLS)
    assert ChatRequest(request.messages, tools=request.tools) == request
    assert request.uses_tools
    assert not ChatRequest(USER, tools=TOOLS, tool_choice="none").uses_tools
