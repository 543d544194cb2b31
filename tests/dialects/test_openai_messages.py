"""OpenAI's conversations: what is accepted, what it becomes, and what the errors say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llama_py.chat.conversation import (
    Message,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from llama_py.dialects.limits import RequestLimits
from llama_py.dialects.openai.bodies import read_chat
from llama_py.dialects.openai.messages import (
    read_messages,
    read_response_format,
    read_tool_choice,
    read_tools,
)
from llama_py.errors import ParameterError, ParameterTypeError
from tests.chat.families import TOOLS, USER, WEATHER
from tests.chat.openai import chat_request
from tests.dialects.playing import Context

USER_TURN = {"role": "user", "content": "x"}
CALLING = {"role": "assistant", "content": None, "tool_calls": [WEATHER]}


def one(message: dict[str, Any], *before: dict[str, Any]) -> Message:
    return read_messages([*before, message])[-1]


def call_of(message: Message) -> ToolCall:
    return next(part for part in message.parts if isinstance(part, ToolCall))


def result_of(message: Message) -> ToolResult:
    (part,) = message.parts
    assert isinstance(part, ToolResult)
    return part


def test_messages_keep_what_matters() -> None:
    named = {"role": "user", "content": "x", "name": "bob", "extra": 1}
    assert one(named) == Message("user", (Text("x"),), "bob")
    assert one({"role": "developer", "content": "x"}) == Message("developer", (Text("x"),))
    for key in ("reasoning", "reasoning_content"):
        thought = {"role": "assistant", "content": "x", key: "r"}
        assert one(thought) == Message("assistant", (Thinking("r"), Text("x")))


@pytest.mark.parametrize("message", [CALLING, {**CALLING, "content": ""}, {"role": "assistant"}])
def test_assistants_may_have_no_content(message: dict[str, Any]) -> None:
    assert one(message, USER_TURN).text == ""


def test_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "c"}]
    assert one({"role": "user", "content": parts}).parts == (Text("a"), Text("c"))


def test_tool_results() -> None:
    result = {"role": "tool", "content": [{"type": "text", "text": "1"}]}
    assert result_of(one(result, USER_TURN, CALLING)) == ToolResult(WEATHER["id"], (Text("1"),))
    named = {**result, "tool_call_id": "other", "name": "get_weather"}
    read = result_of(one(named, USER_TURN, CALLING))
    assert (read.call_id, read.name) == ("other", "get_weather")
    twice = {**CALLING, "tool_calls": [WEATHER, {**WEATHER, "id": "b"}]}
    first = {**result, "tool_call_id": WEATHER["id"]}
    assert result_of(one(result, USER_TURN, twice, first)).call_id == "b"
    with pytest.raises(ParameterError, match=r"messages\[2\]\.tool_call_id is missing.* 2 calls"):
        one(result, USER_TURN, twice)


def test_a_single_call_without_an_id_has_its_result() -> None:
    """Some clients send null for ids; with one call there is no doubt whose result it is."""
    call = {"id": None, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    turn = [asked, {"role": "tool", "tool_call_id": None, "content": "1"}]
    _, called, result, *_, last = read_messages([*USER, *turn, *turn])
    assert result.parts[0].call_id == called.parts[0].id == last.parts[0].call_id  # type: ignore[union-attr]
    two = [{**asked, "tool_calls": [call, call]}, turn[1]]
    with pytest.raises(ParameterError, match="tool_call_id is missing"):
        read_messages([*USER, *two])


def test_arguments_become_text() -> None:
    def arguments(value: Any) -> str:
        call = {"function": {"name": "f", "arguments": value}}
        return call_of(one({"role": "assistant", "tool_calls": [call]})).arguments

    assert json.loads(arguments({"a": "é"})) == {"a": "é"}
    assert arguments('{"a":  1}') == '{"a":  1}'
    assert arguments("") == arguments(None) == "{}"
    for cut in ("{", '{"a": "x', "nonsense", "[1]", "null", '{"a": "\x00'):
        assert json.loads(arguments(cut)) == {"invalid_arguments": cut}
    assert json.loads(arguments([1])) == {"invalid_arguments": "[1]"}


def test_functions_become_tools() -> None:
    request = chat_request(
        [
            USER_TURN,
            {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "1"},
        ],
        functions=[{"name": "f", "parameters": {"type": "object"}}],
        function_call={"name": "f"},
    )
    assert request.tool_names == ("f",)
    assert [tool.name for tool in request.callable_tools] == ["f"]
    result = result_of(request.messages[2])
    assert result.call_id == call_of(request.messages[1]).id
    assert result.name == "f"


def test_null_is_the_same_as_a_member_that_is_not_there() -> None:
    """Clients that send what their own classes have write null for what was never set."""
    assert one({**CALLING, "tool_calls": [{**WEATHER, "type": None}]}) == one(CALLING)
    thinking = {"role": "assistant", "reasoning_content": None, "reasoning": "Hm."}
    assert one(thinking) == Message("assistant", (Thinking("Hm."),))
    answer = {"role": "function", "name": "f", "content": "1", "tool_call_id": None}
    assert result_of(one(answer)).call_id == "call_f"
    assert read_tools([{**TOOLS[0], "type": None}]) == read_tools([TOOLS[0]])
    assert read_tool_choice(allowed("add", mode=None)) == ToolChoice("auto", allowed=("add",))
    assert read_response_format({"type": None}) is None


def test_null_is_a_content_without_words() -> None:
    """As for llama-server: a tool that returned nothing, a user who only attached a file."""
    assert one({"role": "user", "content": None}) == Message("user", (Text(""),))
    assert one({"role": "system", "content": None}) == Message("system", (Text(""),))
    answer = {"role": "tool", "tool_call_id": "x", "content": None}
    assert result_of(one(answer)).content == (Text(""),)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "thinking", "thinking": "Hm."},
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "thinking", "text": "Hm."},
        {"type": "reasoning", "reasoning": "Hm."},
        {"type": "reasoning", "text": "Hm."},
    ],
)
def test_thoughts_among_the_parts_of_an_assistant(part: dict[str, Any]) -> None:
    """Clients that talk to several providers send them back so."""
    said = [part, {"type": "text", "text": "Yes."}]
    expected = Message("assistant", (Thinking("Hm."), Text("Yes.")))
    assert one({"role": "assistant", "content": said}) == expected
    assert one({"role": "assistant", "content": said, "reasoning_content": "Hm."}) == expected


CALLED: list[dict[str, Any]] = [USER_TURN, CALLING]
WRONG: dict[str, tuple[Any, str]] = {
    "no list": ("hello", "messages must be a list, not 'hello'"),
    "empty": ([], "at least one message"),
    "no object": (["x"], r"messages\[0\] must be an object"),
    "role": ([{"role": "bot", "content": "x"}], r"messages\[0\]\.role is 'bot'; expected one of"),
    "no role": ([{"content": "x"}], r"role is None"),
    "no content": ([{"role": "user"}], r"messages\[0\]\.content is missing"),
    "a user's thought": (
        [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}],
        r"content\[0\]\.type is 'thinking'",
    ),
    "number": (
        [{"role": "user", "content": 21}],
        r"messages\[0\]\.content must be a string or a list of parts such as .*, not 21",
    ),
    "object": ([{"role": "user", "content": {}}], r"content must be a string or a list of parts"),
    "bytes": (
        [{"role": "user", "content": b"hi"}],
        r"messages\[0\]\.content must be a string, not bytes; decode it first",
    ),
    "plain part": (
        [{"role": "user", "content": [{"type": "text", "text": "a"}, 7]}],
        r"messages\[0\]\.content\[1\] must be a part such as .*, not 7",
    ),
    "marker": (
        [{"role": "user", "content": [{"type": "media_marker", "text": "<__media__>"}]}],
        r"messages\[0\]\.content\[0\]\.type is 'media_marker'",
    ),
    "result": (
        [*CALLED, {"role": "tool", "tool_call_id": WEATHER["id"], "content": {"t": 21}}],
        r"messages\[2\]\.content must be a string, not \{'t': 21\}; .*json\.dumps\(result\)",
    ),
    "result number": (
        [*CALLED, {"role": "tool", "tool_call_id": WEATHER["id"], "content": 21}],
        r"messages\[2\]\.content must be a string, not 21; .*json\.dumps\(result\)",
    ),
    "part": ([{"role": "user", "content": [{"type": "x"}]}], r"content\[0\]\.type is 'x'"),
    "video": (
        [{"role": "user", "content": [{"type": "video_url", "video_url": "u"}]}],
        "no model here sees films",
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
        chat_request(messages)


def test_tools() -> None:
    assert read_tools(None) == ()
    nothing = {"type": "object", "properties": {}}
    assert read_tools([{"function": {"name": "f", "strict": True}}]) == (Tool("f", "", nothing),)


def allowed(*names: str, **options: Any) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"tools": tools, **options}}


def test_allowed_tools() -> None:
    assert read_tool_choice(allowed("add")) == ToolChoice("auto", allowed=("add",))
    several = allowed("add", "get_weather", "add", mode="required")
    assert read_tool_choice(several) == ToolChoice("required", allowed=("add", "get_weather"))
    assert read_tool_choice(allowed()) == ToolChoice("none")


@pytest.mark.parametrize("members", [{}, {"allowed_tools": {"mode": "auto", "tools": []}}])
def test_a_choice_of_a_kind_that_is_not_known_is_left_out(
    context: Context, members: dict[str, Any]
) -> None:
    body = {"messages": [USER_TURN], "tool_choice": {"type": "mcp", **members}}
    for tools in ({}, {"tools": TOOLS}):
        read_chat(context, {**body, **tools}, RequestLimits(), "m")
        assert context.asked is not None
        assert context.asked.tool_choice == ToolChoice()


WRONG_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "tool type": ({"tools": [{"type": "web_search"}]}, r"tools\[0\]\.type is 'web_search'"),
    "tool name": ({"tools": [{"function": {"name": ""}}]}, "name is empty"),
    "two tools": ({"tools": [TOOLS[0], TOOLS[0]]}, "two tools are called 'get_weather'"),
    "tools": ({"tools": {}}, "tools must be a list"),
    "functions": ({"functions": 5}, "functions must be a list, not 5"),
    "a function": ({"functions": [None]}, r"functions\[0\] must be an object"),
    "a function's name": ({"functions": [{}]}, r"functions\[0\]\.name must be a string"),
    "choice": ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice is 'sometimes'"),
    "named": (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nope"}}},
        "tool_choice names 'nope'; the tools are: get_weather, add",
    ),
    "allowed": (
        {"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}},
        "tool_choice.allowed_tools must be an object",
    ),
    "allowed tools": (
        {"tools": TOOLS, "tool_choice": allowed("nope")},
        "tool_choice allows 'nope', which is not a tool",
    ),
    "allowed mode": (
        {"tools": TOOLS, "tool_choice": allowed("add", mode="often")},
        "tool_choice.allowed_tools.mode is 'often'",
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
        chat_request(USER, **options)


def test_wrong_types_are_type_errors() -> None:
    with pytest.raises(ParameterTypeError):
        chat_request("hello")


def test_response_formats() -> None:
    schema = read_response_format
    assert schema(None) is None
    assert schema({"type": "text"}) is None
    assert schema({"type": "json_object"}) == {"type": "object"}
    assert schema({"type": "json_object", "schema": {"type": "array"}}) == {"type": "array"}
    wrapped = {"name": "n", "strict": True, "schema": {"type": "null"}}
    assert schema({"type": "json_schema", "json_schema": wrapped}) == {"type": "null"}


# ---- texts that have no bytes, and values that are not JSON ------------------------------------

HALF = "a\ud800b"


def calling(arguments: Any) -> dict[str, Any]:
    function = {**WEATHER["function"], "arguments": arguments}
    return {**CALLING, "tool_calls": [{**WEATHER, "function": function}]}


def result(**changes: Any) -> list[dict[str, Any]]:
    return [*CALLED, {"role": "tool", "tool_call_id": WEATHER["id"], "content": "x", **changes}]


HALVES = [{"type": "text", "text": text} for text in ("fine", HALF)]
ARGUMENTS = "messages[1].tool_calls[0].function.arguments"
LONE, NUMBER = "has a lone surrogate (U+D800", "which JSON cannot express"
#: Conversations with a value that cannot be sent on, where it stands, and what is wrong with it.
UNUSABLE: dict[str, tuple[Any, str, str]] = {
    "content": ([{"role": "user", "content": HALF}], "messages[0].content", LONE),
    "part": ([{"role": "user", "content": HALVES}], "messages[0].content[1].text", LONE),
    "name": ([{**USER_TURN, "name": HALF}], "messages[0].name", LONE),
    "reasoning": (
        [USER_TURN, {"role": "assistant", "reasoning_content": HALF}],
        "messages[1].reasoning_content",
        LONE,
    ),
    "result": (result(content=HALF), "messages[2].content", LONE),
    "result id": (result(tool_call_id=HALF), "messages[2].tool_call_id", LONE),
    "argument": ([USER_TURN, calling({"city": HALF})], f"{ARGUMENTS}.city", LONE),
    "escaped": ([USER_TURN, calling('{"city": "\\ud800"}')], f"{ARGUMENTS}.city", LONE),
    "half key": ([USER_TURN, calling({HALF: 2})], ARGUMENTS, LONE),
    "nan": ([USER_TURN, calling({"n": [1, float("nan")]})], f"{ARGUMENTS}.n[1]", NUMBER),
    "nan as text": ([USER_TURN, calling('{"n": [1, NaN]}')], f"{ARGUMENTS}.n[1]", NUMBER),
    "infinity": ([USER_TURN, calling('{"n": -Infinity}')], f"{ARGUMENTS}.n", NUMBER),
    "set": ([USER_TURN, calling({"n": {1}})], f"{ARGUMENTS}.n", "is {1}, which is not a value of"),
    "key": ([USER_TURN, calling({1: 2})], ARGUMENTS, "has the key 1; keys must be strings"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_the_place_of_an_unusable_value_is_named(name: str) -> None:
    messages, place, why = UNUSABLE[name]
    with pytest.raises(ParameterError) as caught:
        chat_request(messages)
    assert str(caught.value).startswith(place)
    assert why in str(caught.value)
    str(caught.value).encode()  # the message itself can be printed and sent


def test_the_index_of_a_lone_surrogate_is_named() -> None:
    for text, index, code in (
        ("ab\ud800", 2, "D800"),
        ("\udfff", 0, "DFFF"),
        ("\ud83d\ude00\ud83d", 2, "D83D"),
        ("\ude00\ud83d", 0, "DE00"),
    ):
        with pytest.raises(ParameterError, match=rf"U\+{code}.* at index {index},"):
            one({"role": "user", "content": text})


def test_surrogate_pairs_become_the_character_that_they_stand_for() -> None:
    assert one({"role": "user", "content": "a\ud83d\ude00b"}).text == "a\U0001f600b"
    call = call_of(one(calling({"city": "\ud83d\ude00"}), USER_TURN))
    assert json.loads(call.arguments) == {"city": "\U0001f600"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({1: 2}, "chat_template_kwargs has the key 1; keys must be strings"),
        ({"a": {1}}, "chat_template_kwargs.a is {1}, which is not a value of JSON"),
        ({"a": [float("inf")]}, "chat_template_kwargs.a[0] is inf"),
        ({"a": HALF}, "chat_template_kwargs.a has a lone surrogate"),
        ({"a": 10**400}, "chat_template_kwargs.a is an integer of 1329 bits"),
        ({"messages": []}, "chat_template_kwargs.messages would replace the conversation's own"),
        ({"tools": None}, "chat_template_kwargs.tools would replace the conversation's own"),
    ],
    ids=["key", "set", "infinity", "text", "integer", "messages", "tools"],
)
def test_template_variables_are_json(given: Any, expected: str) -> None:
    with pytest.raises(ParameterError) as caught:
        chat_request(USER, template_kwargs=given)
    assert str(caught.value).startswith(expected)


def test_nothing_nests_without_end() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ParameterError, match="nested more than 200 levels"):
        chat_request(USER, template_kwargs={"a": deep})
    with pytest.raises(ParameterError, match=r"arguments\[0\].* is nested more than"):
        chat_request([USER_TURN, calling(deep)])
    while deep:  # taken apart by hand: the garbage collector would recurse as deeply
        deep = deep.pop()
