"""Anthropic's requests, as the conversations that they are."""

from __future__ import annotations

import base64
import logging
import re
import sys
from collections.abc import Iterator
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
from llama_py.chat.templates.template import ChatTemplate
from llama_py.core.model import Model
from llama_py.core.vocab import Vocab
from llama_py.dialects.anthropic.blocks import note_ignored, read_messages, read_system
from llama_py.dialects.anthropic.messages import read_call
from llama_py.dialects.anthropic.tools import read_tool_choice, read_tools
from llama_py.dialects.limits import RequestLimits
from llama_py.dialects.wire import WireCall
from llama_py.errors import ParameterError, TemplateError
from llama_py.params import ModelParams
from tests.chat import families
from tests.dialects.playing import TEMPLATE, Context
from tests.models import tiny_model

HELLO = {"role": "user", "content": "Hello."}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
BILLING = "x-anthropic-billing-header: cc_version=2.1.330.abc; cc_entrypoint=cli; cch={};"
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "The weather.", "input_schema": SCHEMA}


@pytest.fixture(scope="module")
def vocab() -> Iterator[Vocab]:
    with Model(tiny_model("full"), ModelParams(vocab_only=True)) as model:
        yield model.vocab


@pytest.fixture(scope="module")
def context(vocab: Vocab) -> Context:
    return Context(vocab, ChatTemplate.from_text(TEMPLATE, eos="<|im_end|>"))


def call(context: Context, **body: Any) -> WireCall:
    return read_call(context, {"messages": [HELLO], **body}, RequestLimits(), "m")


def prompt(context: Context, **body: Any) -> str:
    text = call(context, **body).requests[0].prompt.text
    assert text is not None
    return text.decode()


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def said(role: Any, words: str) -> Message:
    return Message(role, (Text(words),))


# ---- the system prompt -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "system",
    [
        "Be kind.\nBe brief.",
        [text("Be kind.\nBe brief.")],
        [text("Be kind."), text("Be brief.")],
        [text("Be kind.", **CACHED), text("Be brief.", **CACHED)],
        [text(BILLING.format("1")), text("Be kind."), text("Be brief.", **CACHED)],
        [text(BILLING.format("2")), text("Be kind.\nBe brief.", citations=None)],
        f"{BILLING.format('3')}\nBe kind.\nBe brief.",
    ],
)
def test_the_form_of_the_system_prompt_makes_no_difference(system: Any) -> None:
    assert read_system(system) == (said("system", "Be kind.\nBe brief."),)


@pytest.mark.parametrize("system", [None, "", [], [text("")], [text(BILLING.format("1"))]])
def test_no_system_prompt(system: Any) -> None:
    assert read_system(system) == ()


# ---- messages --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    ["Hi.\nYou.", [text("Hi.\nYou.", **CACHED)], [text("Hi.", **CACHED), text(""), text("You.")]],
)
@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_the_form_of_a_message_makes_no_difference(role: str, content: Any) -> None:
    assert read_messages([HELLO, {"role": role, "content": content}])[-1].text.endswith("Hi.\nYou.")


def test_messages_in_a_row_have_each_their_own() -> None:
    messages = [HELLO, {"role": "user", "content": [text("More.")]}]
    assert read_messages(messages) == (said("user", "Hello."), said("user", "More."))
    answers = [
        {"role": "assistant", "content": "Well."},
        {"role": "assistant", "content": [text("Yes.")]},
    ]
    assert read_messages([HELLO, *answers])[1:] == (
        said("assistant", "Well."),
        said("assistant", "Yes."),
    )


def test_the_parts_of_a_reply_are_one_message() -> None:
    """Clients send them apart as well."""
    thought = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
    reply = [{"role": "assistant", "content": [part]} for part in (thought, text("Well."), call)]
    more = [{"role": "assistant", "content": [thought, text("Yes.")]}]
    parsed = read_messages([HELLO, *more, *reply])
    assert parsed[1:] == (
        Message("assistant", (Thinking("Hm."), Text("Yes."))),
        Message("assistant", (Thinking("Hm."), Text("Well."), ToolCall("f", "{}", "1"))),
    )


def test_system_messages_stay_where_they_are() -> None:
    messages = [HELLO, {"role": "system", "content": [text("Note.", **CACHED)]}, HELLO]
    expected = (said("user", "Hello."), said("system", "Note."), said("user", "Hello."))
    assert read_messages(messages) == expected


def test_a_turn_with_thinking_and_tools() -> None:
    assistant = [
        {"type": "thinking", "thinking": "Hm.", "signature": "whatever/it+is=="},
        {"type": "redacted_thinking", "data": "abc"},
        text("Let me look."),
        {"type": "tool_use", "id": "toolu_abcdefghi", "name": "f", "input": {"a": "é"}},
        {"type": "tool_use", "id": "toolu_0123456789ab_call_1", "name": "g", "input": {}},
    ]
    user = [
        text("And be quick."),
        {"type": "tool_result", "tool_use_id": "toolu_abcdefghi", "content": "fine", **CACHED},
        {
            "type": "tool_result",
            "tool_use_id": "toolu_0123456789ab_call_1",
            "is_error": True,
            "content": [text("no"), IMAGE],
        },
    ]
    messages = [
        HELLO,
        {"role": "assistant", "content": assistant},
        {"role": "user", "content": user},
    ]
    _, spoken, first, second, last = read_messages(messages)
    calls = (ToolCall("f", '{"a": "é"}', "abcdefghi"), ToolCall("g", "{}", "call_1"))
    assert spoken == Message("assistant", (Thinking("Hm."), Text("Let me look."), *calls))
    assert first == Message("tool", (ToolResult("abcdefghi", (Text("fine"),), name="f"),))
    result = second.parts[0]
    assert isinstance(result, ToolResult)
    assert (result.call_id, result.is_error, result.name) == ("call_1", True, "g")
    assert "image was left out" in str(result.content)
    assert last == said("user", "And be quick.")


@pytest.mark.parametrize("content", [None, "", []])
def test_a_result_of_nothing(content: Any) -> None:
    block = {"type": "tool_result", "tool_use_id": "x", "content": content}
    (message,) = read_messages([{"role": "user", "content": [block]}])
    assert message == Message("tool", (ToolResult("x", (Text(""),)),))


def test_hidden_thinking_comes_back_from_its_signature() -> None:
    hidden = "llama-py:" + base64.b64encode("Hm, é.".encode()).decode()
    for signature, words in ((hidden, "Hm, é."), ("llama-py:???", ""), ("llama-py", "")):
        block = {"type": "thinking", "thinking": "", "signature": signature}
        content = [block, text("Yes.")]
        message = read_messages([HELLO, {"role": "assistant", "content": content}])[1]
        thought = [part.text for part in message.parts if isinstance(part, Thinking)]
        assert "".join(thought) == words


def test_a_picture_is_left_out_unless_it_is_all_there_is() -> None:
    (message,) = read_messages([{"role": "user", "content": [text("What is this?"), IMAGE]}])
    assert message.text.startswith("What is this?\n[An image was left out")
    with pytest.raises(ParameterError, match=r"messages\[0\]\.content has nothing but .* image"):
        read_messages([{"role": "user", "content": [IMAGE, IMAGE]}])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"type": "text", "media_type": "text/plain", "data": "Words."}, "T\nWords."),
        ({"type": "content", "content": "Words."}, "T\nWords."),
        ({"type": "content", "content": [text("Words."), IMAGE]}, "T\nWords."),
        ({"type": "base64", "media_type": "application/pdf", "data": "aGk="}, "[A document was"),
    ],
)
def test_documents_of_text_are_read(source: Any, words: str) -> None:
    content = [{"type": "document", "source": source, "title": "T"}, text("Sum it up.")]
    (message,) = read_messages([{"role": "user", "content": content}])
    assert message.text.startswith(words)
    assert message.text.endswith("\nSum it up.")


def test_search_results_and_references_are_read() -> None:
    found = {"type": "search_result", "source": "s", "title": "t", "content": [text("Words.")]}
    named = {"type": "tool_reference", "tool_name": "grep"}
    block = {"type": "tool_result", "tool_use_id": "x", "content": [found, named]}
    (message,) = read_messages([{"role": "user", "content": [block]}])
    assert message.parts[0] == ToolResult("x", (Text("t\ns\nWords.\nTool: grep"),))


def test_blocks_of_unknown_types_are_left_out_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    note_ignored.cache_clear()
    strange = {"type": "hologram\n", "data": 1}
    messages = [
        {"role": "user", "content": [text("Hello."), strange]},
        {"role": "assistant", "content": [{"type": "server_tool_use", "id": "x"}, text("Yes.")]},
    ]
    with caplog.at_level(logging.INFO, "llama_py"):
        for _ in range(3):
            assert read_messages(messages) == (said("user", "Hello."), said("assistant", "Yes."))
    assert len(caplog.messages) == 2
    assert "\n" not in "".join(caplog.messages)


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        (None, "messages is missing"),
        ([], "messages is empty"),
        ([{"role": "assistant", "content": []}], "messages has no content"),
        ([{"role": "system", "content": ""}], "messages has no content"),
        ({}, "messages must be a list"),
        ([1], r"messages\[0\] must be an object"),
        ([{"content": "x"}], r"messages\[0\].role is None"),
        ([{"role": "tool", "content": "x"}], r"messages\[0\].role is 'tool'"),
        ([{"role": "user"}], r"messages\[0\].content is missing"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content must be a string or a list"),
        ([{"role": "user", "content": ["x"]}], r"messages\[0\].content\[0\] must be an object"),
        ([{"role": "user", "content": [{}]}], r"messages\[0\].content\[0\].type is None"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\].text must be a string"),
        ([{"role": "user", "content": [{"type": "tool_result"}]}], "tool_use_id must be a string"),
        ([{"role": "user", "content": "\ud800"}], "lone surrogate"),
        ([{"role": "assistant", "content": [{"type": "tool_use", "id": "x"}]}], "name must be"),
        (
            [{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": ""}]}],
            "name is empty",
        ),
        (
            [
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "x", "name": "f", "input": "{}"}],
                }
            ],
            "input must be an object",
        ),
    ],
)
def test_what_is_wrong_is_named(messages: Any, complaint: str) -> None:
    with pytest.raises(ParameterError, match=complaint):
        read_messages(messages)


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_of_a_kind_that_is_ignored_only_the_beginning_is_remembered(role: str) -> None:
    kind = "".join(["unknown ", *("x" * 1000)])
    uses = sys.getrefcount(kind)
    blocks = [{"type": kind}, {"type": "text", "text": "x"}]
    read_messages([{"role": role, "content": blocks}, HELLO])
    del blocks
    assert sys.getrefcount(kind) == uses


# ---- tools -------------------------------------------------------------------------------------


def test_tools_of_servers_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    tools = [
        WEATHER,
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {**WEATHER, "type": "custom", "name": "g", "defer_loading": True, **CACHED},
    ]
    assert read_tools(tools) == (
        Tool("get_weather", "The weather.", SCHEMA),
        Tool("g", "The weather.", SCHEMA),
    )


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, (ToolChoice(), None)),
        ({"type": "auto"}, (ToolChoice(), None)),
        ({"type": "any"}, (ToolChoice("required"), None)),
        ({"type": "none"}, (ToolChoice("none"), None)),
        ({"type": "tool", "name": "f"}, (ToolChoice("named", "f"), None)),
        ({"type": "any", "disable_parallel_tool_use": True}, (ToolChoice("required"), False)),
    ],
)
def test_tool_choice(choice: Any, expected: Any) -> None:
    assert read_tool_choice(choice, [Tool("f", "", SCHEMA)]) == expected


@pytest.mark.parametrize("given", [None, True, False])
def test_calls_in_plain_json(context: Context, given: bool | None) -> None:
    call(context, tools=[WEATHER], json_calls=given)
    assert context.asked is not None
    assert context.asked.json_calls is given


def test_nothing_is_chosen_from_tools_that_were_left_out() -> None:
    server_side = [{"type": "web_search_20250305", "name": "web_search"}]
    assert read_tool_choice({"type": "any"}, [], server_side) == (ToolChoice(), None)


def test_one_that_was_left_out_cannot_be_chosen(context: Context) -> None:
    tools = [WEATHER, {"type": "web_search_20250305", "name": "web_search"}]
    choice = {"type": "tool", "name": "web_search"}
    call(context, tools=tools, tool_choice=choice)
    with pytest.raises(ParameterError, match="'search'; the tools are: get_weather"):
        call(context, tools=tools, tool_choice={**choice, "name": "search"})


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"tools": {}}, "tools must be a list"),
        ({"tools": [{"input_schema": {}}]}, r"tools\[0\].name must be a string"),
        ({"tools": [{"name": "f"}]}, r"tools\[0\].input_schema must be an object"),
        ({"tools": [{"name": "f", "input_schema": {"type": "string"}}]}, "input_schema.type"),
        ({"tools": [WEATHER, WEATHER]}, "two tools are called 'get_weather'"),
        ({"tools": [WEATHER], "tool_choice": "auto"}, "tool_choice must be an object"),
        ({"tools": [WEATHER], "tool_choice": {"type": "all"}}, "tool_choice.type is 'all'"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "g"}}, "names 'g'"),
        ({"tool_choice": {"type": "any"}}, "tool_choice is given, but there are no tools"),
        ({"tool_choice": {"type": "tool", "name": "g"}}, "tool_choice is given, but there are no"),
        ({"max_tokens": -1}, "max_tokens=-1"),
        ({"max_tokens": "9"}, "max_tokens must be an integer"),
        ({"max_tokens": True}, "max_tokens must be an integer"),
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"top_p": 2}, "top_p=2 is out of range"),
        ({"top_k": 1.5}, "top_k must be an integer"),
        ({"stop_sequences": [1]}, "stop_sequences must be a string or a list of strings"),
        ({"stop_sequences": [""]}, "stop_sequences: the empty string"),
        ({"stop_sequences": [str(i) for i in range(17)]}, "stop_sequences has 17 entries"),
        ({"stream": "yes"}, "stream must be true or false"),
        ({"system": 7}, "system must be a string or a list"),
        ({"thinking": True}, "thinking must be an object"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens=-1"),
        ({"output_config": []}, "output_config must be an object"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ],
)
def test_wrong_fields_are_named(context: Context, fields: Any, complaint: str) -> None:
    with pytest.raises(ParameterError, match=complaint):
        call(context, **fields)


def test_json_has_one_kind_of_number(context: Context) -> None:
    request = call(context, max_tokens=8.0, top_k=5.0).requests[0]
    assert (request.generation.max_tokens, request.sampling.top_k) == (8, 5)
    assert isinstance(request.generation.max_tokens, int)
    call(context, thinking={"type": "enabled", "budget_tokens": 100.0})
    with pytest.raises(ParameterError, match="max_tokens must be an integer"):
        call(context, max_tokens=8.5)


@pytest.mark.parametrize(
    "wanted", ["json", [1], {}, {"type": "xml"}, {"type": 7}, {"grammar": "x"}]
)
def test_formats_that_are_not_known_are_refused(context: Context, wanted: Any) -> None:
    for fields in ({"output_config": {"format": wanted}}, {"output_format": wanted}):
        with pytest.raises(ParameterError, match=r"output_(config\.)?format(\.type)? "):
            call(context, **fields)


def test_too_many_entries_are_refused(context: Context) -> None:
    with pytest.raises(ParameterError, match="tools has 3 entries, and 2 is the most"):
        read_call(
            context, {"messages": [HELLO], "tools": [WEATHER] * 3}, RequestLimits(max_tools=2), "m"
        )


# ---- prompts and requests ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "family", ["mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506"]
)
def test_words_behind_results_where_a_template_wants_the_assistant(
    vocab: Vocab, family: str
) -> None:
    """They become part of the result, and the next turn's prompt begins with this one's."""
    context = Context(vocab, families.load(family))
    use = {"type": "tool_use", "id": "toolu_abcdefghi", "name": "get_weather", "input": {}}
    given = {"type": "tool_result", "tool_use_id": "toolu_abcdefghi", "content": "It rains."}
    messages = [
        HELLO,
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [given, text("And tomorrow?")]},
    ]
    first = prompt(context, messages=messages, tools=[WEATHER])
    assert re.search(r"It rains\.(\\n\\n|\n\n)And tomorrow\?", first)
    turn = [*messages, {"role": "assistant", "content": "Sun."}, HELLO]
    assert prompt(context, messages=turn, tools=[WEATHER]).startswith(first)
    with pytest.raises(TemplateError):
        prompt(context, messages=[HELLO, {"role": "assistant", "content": [use]}, HELLO, *turn])


def test_unknown_fields_are_ignored(context: Context) -> None:
    fields = {
        "metadata": {"user_id": "u"},
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
        "service_tier": "auto",
        "mcp_servers": [],
        "cache_control": {"type": "ephemeral"},
        "something": {"new": 1},
    }
    assert prompt(context, **fields) == prompt(context)


def test_nulls_are_nothing(context: Context) -> None:
    names = ["system", "tools", "tool_choice", "thinking", "output_config", "stop_sequences"]
    names += ["temperature", "top_p", "top_k", "max_tokens", "stream", "metadata"]
    nothing = call(context, **dict.fromkeys(names))
    assert nothing.requests[0].prompt == call(context).requests[0].prompt
    assert nothing.requests[0].generation == call(context).requests[0].generation


def test_numbers_reach_the_engine(context: Context) -> None:
    fields = {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "max_tokens": 9}
    (request,) = call(context, **fields, stop_sequences=["x", "y", "x"], stream=True).requests
    sampling, generation = request.sampling, request.generation
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.25, 7)
    assert generation.max_tokens == 9
    assert generation.stop[:2] == ("x", "y")


def test_more_tokens_than_there_is_room_for_are_no_mistake(context: Context) -> None:
    assert call(context, max_tokens=10**15).requests[0].generation.max_tokens == 10**15


def test_the_last_assistant_message_goes_on(context: Context) -> None:
    opening = {"role": "assistant", "content": [text("The answer is")]}
    rendered = prompt(context, messages=[HELLO, opening])
    assert rendered.endswith("<|im_start|>assistant\nThe answer is")
    asked = {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f"}]}
    assert prompt(context, messages=[HELLO, asked]).endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        (None, (None, None)),
        ({"type": "adaptive", "display": "omitted"}, (True, None)),
        ({"type": "enabled", "budget_tokens": 2048}, (True, 2048)),
        ({"type": "enabled", "budget_tokens": 0}, (False, None)),
        ({"type": "disabled"}, (False, None)),
        ({"type": "between_tools"}, (True, None)),
    ],
)
def test_thinking(context: Context, thinking: Any, expected: Any) -> None:
    seen: list[Any] = []

    class Watching(Context):
        def render_chat(self, request: Any) -> Any:
            seen.append((request.enable_thinking, request.reasoning_budget))
            return super().render_chat(request)

    call(Watching(context.vocab, context.template), thinking=thinking)
    assert seen == [expected]


@pytest.mark.parametrize(
    ("effort", "expected"),
    [("low", "low"), ("high", "high"), ("max", "high"), ("extreme", None), (3, None)],
)
def test_effort(context: Context, effort: Any, expected: Any) -> None:
    seen: list[Any] = []

    class Watching(Context):
        def render_chat(self, request: Any) -> Any:
            seen.append(request.reasoning_effort)
            return super().render_chat(request)

    call(Watching(context.vocab, context.template), output_config={"effort": effort})
    assert seen == [expected]


@pytest.mark.parametrize("where", ["output_config", "output_format"])
def test_a_schema_for_the_text(context: Context, where: str) -> None:
    wanted: Any = {"type": "json_schema", "schema": SCHEMA}
    fields = {where: {"format": wanted} if where == "output_config" else wanted}
    (request,) = call(context, **fields).requests
    assert request.sampling.grammar is not None
    assert "city" in request.sampling.grammar.gbnf
