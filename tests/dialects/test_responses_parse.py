"""Bodies of the Responses API: which conversation they are, and what is wrong with them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import pytest

from llama_py.chat.conversation import Message, Text, Thinking, ToolCall, ToolResult
from llama_py.chat.messages import ChatRequest
from llama_py.chat.rendered import RenderedChat
from llama_py.dialects.failures import Kind, RequestError, failure_of
from llama_py.dialects.limits import RequestLimits
from llama_py.dialects.responses import tools
from llama_py.dialects.responses.items import InputHistory, sealed
from llama_py.dialects.responses.parse import parse_responses
from llama_py.dialects.wire import WireCall
from llama_py.errors import LlamaError
from tests.dialects.playing import Context
from tests.dialects.test_responses_encode import CRM, PATCH, WEATHER
from tests.server.codex import Codex


@dataclass
class Seen(Context):
    """Remembers what is to be rendered."""

    requests: list[ChatRequest] = field(default_factory=list)

    def render_chat(self, request: ChatRequest) -> RenderedChat:
        self.requests.append(request)
        return super().render_chat(request)


@pytest.fixture
def seen(context: Context) -> Seen:
    return Seen(context.vocab, context.template)


def parse(context: Context, given: Any = "hello", **body: Any) -> WireCall:
    return parse_responses(context, {"input": given, **body}, RequestLimits(), "tiny")


def request_of(context: Seen, given: Any = "hello", **body: Any) -> ChatRequest:
    parse(context, given, **body)
    return context.requests[-1]


def messages_of(context: Seen, given: Any, **body: Any) -> list[Message]:
    return [*request_of(context, given, **body).messages]


def said(role: Any, *parts: Any) -> Message:
    return Message(role, tuple(Text(part) if isinstance(part, str) else part for part in parts))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


# ---- input -----------------------------------------------------------------------------------


def test_a_text_is_what_the_user_says(seen: Seen) -> None:
    assert messages_of(seen, "hi") == [said("user", "hi")]


def test_the_form_of_the_same_words_makes_no_difference(seen: Seen) -> None:
    part = {"type": "input_text", "text": "hi"}
    forms: list[Any] = [
        "hi",
        [user("hi")],
        [{"type": "message", "role": "user", "content": [part]}],
        [{"id": "msg_1", "status": "completed", "type": "message", "role": "user",
          "content": [{**part, "prompt_cache_breakpoint": {"mode": "explicit"}}]}],
    ]  # fmt: skip
    prompts = [parse(seen, form).requests[0].prompt.text for form in forms]
    assert len({*prompts}) == 1


def test_instructions_and_developers(seen: Seen) -> None:
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "b"}]},
        {"role": "system", "content": "c"},
        user("d"),
    ]
    assert messages_of(seen, items, instructions="a") == [
        said("system", "a"), said("developer", "b"), said("system", "c"), said("user", "d"),
    ]  # fmt: skip


def test_a_reply_is_one_message_and_users_have_each_their_own(seen: Seen) -> None:
    items = [
        user("<environment>"),
        user("do it"),
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": "I will."}, {"type": "refusal", "refusal": "No."}]},
        {"type": "function_call", "name": "a", "arguments": '{"x": 1}', "call_id": "call_1"},
        {"type": "function_call", "name": "b", "arguments": "", "call_id": "call_2"},
        {"type": "function_call_output", "call_id": "call_1", "output": "one"},
        {"type": "function_call_output", "call_id": "call_2",
         "output": [{"type": "input_text", "text": "two"}]},
        {"role": "assistant", "content": "Done."},
        user("thanks"),
    ]  # fmt: skip
    assert messages_of(seen, items) == [
        said("user", "<environment>"),
        said("user", "do it"),
        said("assistant", Thinking("hm"), "I will.\nNo.",
             ToolCall("a", '{"x": 1}', "1"), ToolCall("b", "{}", "2")),
        said("tool", ToolResult("1", (Text("one"),), name="a")),
        said("tool", ToolResult("2", (Text("two"),), name="b")),
        said("assistant", "Done."),
        said("user", "thanks"),
    ]  # fmt: skip


def test_messages_of_the_assistant_in_a_row_have_each_their_own(seen: Seen) -> None:
    items = [
        user("a"),
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "one"}]},
        {"role": "assistant", "content": "b"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "two"}]},
        {"role": "assistant", "content": "c"},
        {"type": "function_call", "name": "a", "arguments": "{}", "call_id": "1"},
        {"type": "function_call_output", "call_id": "1", "output": "d"},
    ]
    assert messages_of(seen, items)[1:3] == [
        said("assistant", Thinking("one"), "b"),
        said("assistant", Thinking("two"), "c", ToolCall("a", "{}", "1")),
    ]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"content": [{"type": "reasoning_text", "text": "a"}], "encrypted_content": None}, "a"),
        ({"summary": [{"type": "summary_text", "text": "s"}]}, "s"),
        ({"summary": [], "encrypted_content": sealed("mine")}, "mine"),
        ({"summary": [], "encrypted_content": "gAAAAABo9"}, None),
        ({"summary": [], "encrypted_content": "llama-py:%%%"}, None),
        ({"summary": [], "content": None}, None),
        ({}, None),
    ],
)
def test_reasoning_that_is_replayed(seen: Seen, item: dict[str, Any], text: str | None) -> None:
    items = [user("q"), {"type": "reasoning", **item}, {"role": "assistant", "content": "a"}]
    thoughts = [] if text is None else [Thinking(text)]
    assert messages_of(seen, items)[1] == said("assistant", *thoughts, "a")


def test_custom_tools_and_namespaces_are_replayed(seen: Seen) -> None:
    items = [
        user("q"),
        {"type": "custom_tool_call", "name": "apply_patch", "input": 'é "x"', "call_id": "call_1"},
        {"type": "custom_tool_call_output", "call_id": "call_1", "output": "ok"},
        {"type": "function_call", "name": "get_weather", "namespace": "crm", "arguments": "{}",
         "call_id": "call_2"},
        {"type": "function_call_output", "call_id": "call_2", "output": ""},
        {"type": "function_call", "name": "gone", "namespace": "old__", "arguments": "{}",
         "call_id": "call_3"},
    ]  # fmt: skip
    calls = [
        part
        for message in messages_of(seen, items, tools=[CRM, PATCH])
        for part in message.parts
        if isinstance(part, ToolCall)
    ]
    assert [call.name for call in calls] == ["apply_patch", "crm__get_weather", "old__gone"]
    assert calls[0].arguments == '{"input": "é \\"x\\""}'


def test_a_call_with_broken_arguments_does_not_end_the_conversation(seen: Seen) -> None:
    for text in ('{"city": "Par', "[1]", "nonsense", '{"x": NaN}'):
        items = [user("q"), {"type": "function_call", "name": "f", "arguments": text}]
        call = messages_of(seen, items)[1].parts[0]
        assert isinstance(call, ToolCall)
        assert call.arguments.startswith('{"invalid_arguments": ')


def test_a_result_without_an_id_belongs_to_the_only_call(seen: Seen) -> None:
    items = [
        user("q"),
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "call_7"},
        {"type": "function_call_output", "output": "x"},
    ]
    assert messages_of(seen, items)[-1].parts[0] == ToolResult("7", (Text("x"),), name="f")


def test_pictures_leave_a_note(seen: Seen) -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    text = {"type": "input_text", "text": "what is it?"}
    (message,) = messages_of(seen, [{"role": "user", "content": [text, picture]}])
    assert message.text.startswith("what is it?\n[")
    items = [
        user("q"),
        {"type": "function_call", "name": "shot", "arguments": "{}", "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": [picture]},
    ]
    result = messages_of(seen, items)[-1].parts[0]
    assert isinstance(result, ToolResult)
    assert "input_image" in str(result.content[0])


def test_items_that_are_not_supported_are_left_out_and_mentioned_once(
    seen: Seen, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "_told", set())
    items = [{"type": "web_search_call", "id": "ws_1"}, {"type": "web_search_call"}, user("q")]
    with caplog.at_level(logging.WARNING):
        assert messages_of(seen, items) == [said("user", "q")]
        messages_of(seen, items)
    assert [record.message for record in caplog.records] == [
        "an input item of the type 'web_search_call': not supported, and left out of the prompt"
    ]


# ---- what was stored -------------------------------------------------------------------------


class Stored:
    """A history with one reply."""

    def __init__(self) -> None:
        answer = {"id": "msg_1", "role": "assistant", "content": "yes", "type": "message"}
        self.known = InputHistory((user("really?"), answer), 10)
        self.kept: list[Any] = []

    def conversation(self, response_id: str) -> InputHistory | None:
        return self.known if response_id == "resp_1" else None

    def item(self, item_id: str) -> Any:
        return next((item for item in self.known.items if item.get("id") == item_id), None)

    def keep(self, *kept: Any) -> None:
        self.kept.append(kept)


def test_a_conversation_goes_on_after_a_stored_reply(seen: Seen) -> None:
    history = Stored()
    body = {"input": "sure?", "previous_response_id": "resp_1", "instructions": "short"}
    parse_responses(seen, body, RequestLimits(), "tiny", history=history)
    assert [*seen.requests[-1].messages] == [
        said("system", "short"), said("user", "really?"), said("assistant", "yes"),
        said("user", "sure?"),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [{"type": "item_reference"}, {"type": None}, {}])
def test_an_item_may_be_referred_to(seen: Seen, kind: dict[str, Any]) -> None:
    items = [user("really?"), {**kind, "id": "msg_1"}, user("sure?")]
    parse_responses(seen, {"input": items}, RequestLimits(), "tiny", history=Stored())
    assert seen.requests[-1].messages[1] == said("assistant", "yes")


# ---- tools -----------------------------------------------------------------------------------


def test_tools_are_flattened(seen: Seen) -> None:
    other = {**CRM, "name": "mcp__files__"}
    tools = request_of(seen, tools=[CRM, WEATHER, PATCH, other]).tools
    assert [tool.name for tool in tools] == [
        "get_weather", "apply_patch", "crm__get_weather", "crm__apply_patch",
        "mcp__files__get_weather", "mcp__files__apply_patch",
    ]  # fmt: skip
    assert tools[0].parameters == WEATHER["parameters"]
    assert [*tools[1].parameters["properties"]] == ["input"]


def test_flattened_names_never_meet(seen: Seen) -> None:
    outside = {**WEATHER, "name": "crm__get_weather"}
    tools = request_of(seen, tools=[CRM, outside]).tools
    assert len({tool.name for tool in tools}) == 3
    assert tools[0].name == "crm__get_weather"


def test_the_grammar_of_a_custom_tool_is_shown(seen: Seen) -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"}
    (tool,) = request_of(seen, tools=[{**PATCH, "format": form}]).tools
    assert tool.description.startswith("Edit files.")
    assert "lark" in tool.description
    assert "start: /a+/" in tool.description


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search"},
        {"type": "local_shell"},
        {"type": "image_generation", "output_format": "png"},
        {"type": "tool_search", "execution": "client"},
        {"type": "mcp", "server_label": "x"},
        {"type": "something_new"},
        {},
    ],
)
def test_tools_that_are_not_supported_are_left_out(seen: Seen, tool: dict[str, Any]) -> None:
    request = request_of(seen, tools=[tool, WEATHER])
    assert request.tool_names == ("get_weather",)
    assert request_of(seen, tools=[tool], tool_choice="required").tool_choice.mode == "auto"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ("auto", "", ())),
        ("auto", ("auto", "", ())),
        ("none", ("none", "", ())),
        ("required", ("required", "", ())),
        ({"type": "function", "name": "get_weather"}, ("named", "get_weather", ())),
        ({"type": "custom", "name": "apply_patch"}, ("named", "crm__apply_patch", ())),
        ({"type": "web_search_preview"}, ("auto", "", ())),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [
                {"type": "function", "name": "get_weather"}, {"type": "image_generation"}]},
            ("auto", "", ("get_weather",)),
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [
                {"type": "function", "name": "get_weather", "namespace": "crm"}]},
            ("required", "", ("crm__get_weather",)),
        ),
        ({"type": "allowed_tools", "tools": []}, ("none", "", ())),
    ],
)  # fmt: skip
def test_tool_choice(seen: Seen, choice: Any, expected: Any) -> None:
    found = request_of(seen, tools=[WEATHER, CRM], tool_choice=choice).tool_choice
    assert (found.mode, found.name, found.allowed) == expected


# ---- options ---------------------------------------------------------------------------------


def test_options_reach_the_engine(seen: Seen) -> None:
    call = parse(seen, max_output_tokens=7, temperature=0.5, top_p=0.25, top_k=3, seed=1,
                 top_logprobs=4)  # fmt: skip
    (request,) = call.requests
    assert request.generation.max_tokens == 7
    assert request.generation.logprobs == 4
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (
        0.5,
        0.25,
        3,
        1,
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, None),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, 3),
        ({"top_logprobs": 0}, None),
        ({"include": ["something.new", 5]}, None),
    ],
)
def test_when_logprobs_are_computed(seen: Seen, body: dict[str, Any], expected: Any) -> None:
    assert parse(seen, **body).requests[0].generation.logprobs == expected


def test_a_session_has_a_name(context: Context) -> None:
    call = parse_responses(context, {"input": "x"}, RequestLimits(), "tiny", "mine")
    assert call.requests[0].session == "mine"


def test_a_whole_number_may_have_a_point(seen: Seen) -> None:
    assert parse(seen, max_output_tokens=7.0).requests[0].generation.max_tokens == 7


def test_the_room_is_not_checked_here(seen: Seen) -> None:
    assert parse(seen, max_output_tokens=10**9).requests[0].generation.max_tokens == 10**9


def test_formats_of_the_text(seen: Seen) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    assert request_of(seen, text={"format": form}).schema == schema
    assert request_of(seen, text={"format": {"type": "json_object"}}).schema == {"type": "object"}
    assert request_of(seen, text={"format": {"type": "text"}, "verbosity": "low"}).schema is None
    assert request_of(seen, text={}).schema is None


def test_reasoning_effort(seen: Seen) -> None:
    assert request_of(seen, reasoning={"effort": "high"}).reasoning_effort == "high"
    assert request_of(seen, reasoning={"effort": None, "summary": "auto"}).reasoning_effort is None
    assert request_of(seen, reasoning_budget=0).enable_thinking is False


def test_a_strict_server_knows_what_clients_send(context: Context) -> None:
    limits = RequestLimits(strict=True)
    for body in (
        Codex("hi").body(),
        {"input": "x", "top_k": 3, "seed": 1, "session_id": "s", "background": False},
    ):
        parse_responses(context, body, limits, "tiny")
    with pytest.raises(RequestError) as caught:
        parse_responses(context, {"input": "x", "temprature": 1}, limits, "tiny")
    assert caught.value.failure.kind is Kind.UNKNOWN_PARAMETER
    assert caught.value.failure.param == "temprature"
    parse_responses(context, {"input": "x", "temprature": 1}, RequestLimits(), "tiny")


def test_null_is_not_there(seen: Seen) -> None:
    names = (
        "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "reasoning",
        "max_output_tokens", "temperature", "top_p", "top_logprobs", "include", "metadata", "store",
        "stream", "previous_response_id", "prompt_cache_key", "truncation", "user", "conversation",
        "prompt", "background", "service_tier", "max_tool_calls",
    )  # fmt: skip
    assert request_of(seen, **dict.fromkeys(names)) == request_of(seen)


# ---- mistakes --------------------------------------------------------------------------------

_PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}


@pytest.mark.parametrize(
    ("body", "kind", "param"),
    [
        ({}, Kind.MISSING, "input"),
        ({"input": 3}, Kind.INVALID_TYPE, "input"),
        ({"input": []}, Kind.INVALID_VALUE, "input"),
        ({"input": [3]}, Kind.INVALID_TYPE, "input[0]"),
        ({"input": [{}]}, Kind.INVALID_TYPE, "input[0].type"),
        ({"input": [{"role": "critic", "content": "x"}]}, Kind.INVALID_VALUE, "input[0].role"),
        ({"input": [{"role": "user"}]}, Kind.MISSING, "input[0].content"),
        ({"input": [{"role": "user", "content": 3}]}, Kind.INVALID_TYPE, "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "video", "text": "x"}]}]},
            Kind.INVALID_VALUE,
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": [], "text": "x"}]}]},
            Kind.INVALID_VALUE,
            "input[0].content[0].type",
        ),
        ({"input": [{"role": "user", "content": [_PICTURE]}]}, Kind.INVALID_VALUE,
         "input[0].content"),
        ({"input": "half \ud83d"}, Kind.INVALID_VALUE, "input"),
        ({"input": [{"type": "function_call", "arguments": "{}"}]}, Kind.MISSING, "input[0].name"),
        (
            {"input": [{"type": "function_call_output", "output": "x"}]},
            Kind.MISSING,
            "input[0].call_id",
        ),
        ({"input": [{"type": "item_reference", "id": "msg_9"}]}, Kind.INVALID_VALUE, "input[0].id"),
        ({"input": "x", "instructions": 3}, Kind.INVALID_TYPE, "instructions"),
        ({"input": "x", "stream": "yes"}, Kind.INVALID_TYPE, "stream"),
        ({"input": "x", "store": 1}, Kind.INVALID_TYPE, "store"),
        ({"input": "x", "max_output_tokens": 0}, Kind.INVALID_VALUE, "max_output_tokens"),
        ({"input": "x", "max_output_tokens": "9"}, Kind.INVALID_TYPE, "max_output_tokens"),
        ({"input": "x", "top_logprobs": 21}, Kind.INVALID_VALUE, "top_logprobs"),
        ({"input": "x", "metadata": []}, Kind.INVALID_TYPE, "metadata"),
        ({"input": "x", "metadata": {"a": "\udc00"}}, Kind.INVALID_VALUE, "metadata"),
        ({"input": "x", "tools": {}}, Kind.INVALID_TYPE, "tools"),
        ({"input": "x", "tools": [WEATHER, WEATHER]}, Kind.INVALID_VALUE, "tools[1].name"),
        (
            {"input": "x", "tools": [{"type": "namespace", "name": "n", "tools": [3]}]},
            Kind.INVALID_TYPE,
            "tools[0].tools[0]",
        ),
        (
            {"input": "x", "tools": [{"type": "function", "name": "f", "parameters": 3}]},
            Kind.INVALID_TYPE,
            "tools[0].parameters",
        ),
        (
            {"input": "x", "tools": [{**WEATHER, "parameters": {"type": "array"}}]},
            Kind.INVALID_VALUE,
            "tools[0].parameters.type",
        ),
        ({"input": "x", "tools": [{"type": "web_search"}] * 600}, Kind.INVALID_VALUE, "tools"),
        ({"input": "x", "tool_choice": "maybe"}, Kind.INVALID_VALUE, "tool_choice"),
        ({"input": "x", "tool_choice": "required"}, Kind.INVALID_VALUE, "tool_choice"),
        (
            {"input": "x", "tools": [WEATHER], "tool_choice": {"type": "function", "name": "f"}},
            Kind.INVALID_VALUE,
            "tool_choice.name",
        ),
        ({"input": "x", "text": {"format": {"type": "xml"}}}, Kind.INVALID_VALUE,
         "text.format.type"),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, Kind.MISSING,
         "text.format.schema"),
        ({"input": "x", "reasoning": {"effort": "extreme"}}, Kind.INVALID_VALUE,
         "reasoning.effort"),
        ({"input": "x", "conversation": "conv_1"}, Kind.INVALID_VALUE, "conversation"),
        ({"input": "x", "prompt": {"id": "pmpt_1"}}, Kind.INVALID_VALUE, "prompt"),
    ],
)  # fmt: skip
def test_mistakes_are_named(context: Context, body: Any, kind: Kind, param: str) -> None:
    with pytest.raises((RequestError, LlamaError)) as caught:
        parse_responses(context, body, RequestLimits(), "tiny")
    failure = failure_of(caught.value)
    assert (failure.kind, failure.param) == (kind, param)
    assert failure.message.startswith(param)


def test_a_reply_that_is_not_stored(context: Context) -> None:
    body = {"input": "x", "previous_response_id": "resp_9"}
    with pytest.raises(RequestError) as caught:
        parse_responses(context, body, RequestLimits(), "tiny", history=Stored())
    failure = caught.value.failure
    assert failure.code == "previous_response_not_found"
    assert failure.param == "previous_response_id"
    assert "resp_9" in failure.message
