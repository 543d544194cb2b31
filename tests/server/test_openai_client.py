"""The official client of OpenAI's against the server: what it sends, and what it makes of the
answers. Whole replies, streams, and the client's own helpers for streams agree in every case."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import openai
import pydantic
import pytest

from tests.server.serving import Server, demo_settings, serving

SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
SUM = {"role": "user", "content": "What is 2 + 3?"}
WEATHER = {"role": "user", "content": "What is the weather in Paris?"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {argument: {"type": "string"}},
                "required": [argument],
            },
        },
    }
    for name, description, argument in (
        ("get_weather", "Get the weather of a city", "city"),
        ("send_message", "Send a message to a person", "name"),
    )
]
HOSTED = {"type": "file_search"}
NAMED = {"type": "function", "function": {"name": "send_message"}}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "sum",
        "schema": {
            "type": "object",
            "properties": {"sum": {"type": "integer"}},
            "required": ["sum"],
            "additionalProperties": False,
        },
    },
}
ALLOWED: Any = {
    "type": "allowed_tools",
    "allowed_tools": {
        "mode": "required",
        "tools": [{"type": "function", "function": {"name": "get_weather"}}],
    },
}


def part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def called(name: str, arguments: str) -> list[dict[str, Any]]:
    """A turn in which the assistant has called a tool, and what the tool has said."""
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"weather": "sunny"}'},
    ]


@dataclass
class Case:
    """A conversation, the options of a call, and what the reply has to be."""

    name: str
    messages: list[dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)
    content: str | None = None
    finish: str = "stop"
    call: tuple[str, dict[str, Any]] | None = None


PARIS = ("get_weather", {"city": "Paris"})
CASES = [
    Case("text", [SUM], content="2 + 3 = 5."),
    Case("system", [SYSTEM, SUM], content="2 + 3 = 5."),
    Case("developer", [{**SYSTEM, "role": "developer"}, SUM], content="2 + 3 = 5."),
    Case("parts", [{"role": "user", "content": [part("What is "), part("2 + 3?")]}]),
    Case(
        "several turns",
        [
            {"role": "user", "content": "My name is Ruth."},
            {"role": "assistant", "content": "Nice to meet you, Ruth."},
            {"role": "user", "content": "What is my name?"},
        ],
        content="Your name is Ruth.",
    ),
    Case("stop", [SUM], {"stop": [" =", "never"]}, content="2 + 3"),
    Case("one stop", [SUM], {"stop": "="}, content="2 + 3 "),
    Case("length", [SUM], {"max_tokens": 3}, content="2 + 3", finish="length"),
    Case("length, newer", [SUM], {"max_completion_tokens": 3}, "2 + 3", "length"),
    Case("no room for all of it", [SUM], {"max_tokens": 1_000_000}, content="2 + 3 = 5."),
    Case("a number with a point", [SUM], {"max_tokens": 3.0}, "2 + 3", "length"),
    Case("tools, auto", [WEATHER], {"tools": TOOLS}, None, "tool_calls", PARIS),
    Case("tools, not needed", [SUM], {"tools": TOOLS}, content="2 + 3 = 5."),
    Case(
        "tools, required",
        [WEATHER],
        {"tools": TOOLS, "tool_choice": "required"},
        None,
        "tool_calls",
        PARIS,
    ),
    Case(
        "tools, one at a time",
        [WEATHER],
        {"tools": TOOLS, "parallel_tool_calls": False},
        None,
        "tool_calls",
        PARIS,
    ),
    Case(
        "tools, allowed",
        [WEATHER],
        {"tools": TOOLS, "tool_choice": ALLOWED},
        None,
        "tool_calls",
        PARIS,
    ),
    Case("tools, none", [WEATHER], {"tools": TOOLS, "tool_choice": "none"}),
    Case("tools, those of others", [SUM], {"tools": [{"type": "web_search"}]}),
    Case(
        "tools, those of others required",
        [SUM],
        {"tools": [HOSTED], "tool_choice": "required"},
    ),
    Case(
        "tools, one of others",
        [SUM],
        {"tools": [*TOOLS, HOSTED], "tool_choice": HOSTED},
        content="2 + 3 = 5.",
    ),
    Case(
        "tools, an answer from a result",
        [WEATHER, *called("get_weather", '{"city": "Paris"}')],
        {"tools": TOOLS},
    ),
    Case("schema", [SUM], {"response_format": SCHEMA}),
    Case("grammar", [SUM], {"extra_body": {"grammar": 'root ::= "yes" | "no"'}}),
    Case("several", [SUM], {"n": 3}, content="2 + 3 = 5."),
    Case("greedy again", [SUM], {"seed": 7, "top_p": 0.9, "user": "ruth"}, content="2 + 3 = 5."),
    Case("what nobody knows", [SUM], {"extra_body": {"frobnicate": [1]}}, content="2 + 3 = 5."),
]


def options_of(case: Case) -> dict[str, Any]:
    defaults = {"model": "whatever", "temperature": 0, "max_tokens": 60}
    if "max_completion_tokens" in case.options:
        del defaults["max_tokens"]
    return {**defaults, "messages": case.messages, **case.options}


def check(case: Case, reply: Any) -> None:
    """The reply is what the case says."""
    for choice in reply.choices:
        message = choice.message
        if case.content is not None:
            assert message.content == case.content
        assert choice.finish_reason == case.finish
        if case.call is not None:
            (call,) = message.tool_calls
            name, arguments = case.call
            assert (call.function.name, json.loads(call.function.arguments)) == (name, arguments)
            assert (call.type, bool(call.id)) == ("function", True)
        else:
            assert not message.tool_calls


def comparable(reply: Any) -> Any:
    """What two replies to the same must have in common."""
    usage = reply.usage.to_dict()
    usage.pop("prompt_tokens_details")  # the second one reuses the first one's prompt
    return [
        (
            choice.index,
            choice.finish_reason,
            choice.message.content or "",
            [
                (call.function.name, call.function.arguments)
                for call in choice.message.tool_calls or ()
            ],
        )
        for choice in reply.choices
    ], usage


def final(stream: Any) -> Any:
    """The whole reply, put together by the client; it takes one that was cut off for an error."""
    try:
        return stream.get_final_completion()
    except openai.LengthFinishReasonError as error:
        return error.completion


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_whole_and_streamed(client: Any, case: Case) -> None:
    whole = client.chat.completions.create(**options_of(case))
    check(case, whole)
    assert whole.model == "demo"  # whatever name the client used
    assert whole.timings["predicted_n"] == whole.usage.completion_tokens
    options = {**options_of(case), "stream_options": {"include_usage": True}}
    with client.chat.completions.stream(**options) as stream:
        for _ in stream:
            pass
        streamed = final(stream)
    check(case, streamed)
    assert comparable(streamed) == comparable(whole)


def test_asyncio(server: Server) -> None:
    cases = [case for case in CASES if case.name in ("text", "stop", "tools, auto", "several")]

    async def one(client: Any, case: Case) -> None:
        whole, chunks = await asyncio.gather(
            client.chat.completions.create(**options_of(case)),
            client.chat.completions.create(**options_of(case), stream=True),
        )
        check(case, whole)
        text = ""
        async for chunk in chunks:
            choice = chunk.choices[0]
            text += (choice.delta.content or "") if choice.index == 0 else ""
        assert text == (whole.choices[0].message.content or "")

    async def main() -> None:
        async with server.async_openai() as client:
            await asyncio.gather(*(one(client, case) for case in cases))

    asyncio.run(main())


def test_a_named_tool(client: Any) -> None:
    reply = client.chat.completions.create(
        model="x", messages=[WEATHER], tools=TOOLS, tool_choice=NAMED, temperature=0
    )
    (call,) = reply.choices[0].message.tool_calls
    assert call.function.name == "send_message"
    assert json.loads(call.function.arguments).keys() == {"name"}


def test_allowed_tools_leave_the_prompt_as_it_is(client: Any) -> None:
    """So what was evaluated with all of the tools is reused."""
    options: Any = {"model": "demo", "messages": [WEATHER], "tools": TOOLS, "temperature": 0}
    whole = client.chat.completions.create(**options).usage
    some = client.chat.completions.create(**options, tool_choice=ALLOWED).usage
    assert some.prompt_tokens == whole.prompt_tokens
    assert some.prompt_tokens_details.cached_tokens >= whole.prompt_tokens - 1
    for_others = {**ALLOWED["allowed_tools"], "tools": [NAMED]}
    other = {"type": "allowed_tools", "allowed_tools": for_others}
    (call,) = (
        client.chat.completions.create(**options, tool_choice=other).choices[0].message.tool_calls
    )
    assert call.function.name == "send_message"


def test_a_reply_as_an_object_of_the_callers(client: Any) -> None:
    class Sum(pydantic.BaseModel):
        sum: int

    reply = client.chat.completions.parse(
        model="x", messages=[SUM], response_format=Sum, temperature=0
    )
    assert isinstance(reply.choices[0].message.parsed, Sum)


def test_log_probabilities(client: Any) -> None:
    reply = client.chat.completions.create(
        model="x", messages=[SUM], logprobs=True, top_logprobs=2, temperature=0
    )
    entries = reply.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries) == reply.choices[0].message.content
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in entries)


def test_the_second_turn_reuses_the_first(client: Any) -> None:
    messages = [{"role": "user", "content": "Please repeat: red, blue, seven, tree."}]
    first = client.chat.completions.create(model="x", messages=messages, temperature=0)
    answer = first.choices[0].message.content
    messages += [{"role": "assistant", "content": answer}, SUM]
    second = client.chat.completions.create(model="x", messages=messages, temperature=0)
    known = first.usage.total_tokens
    assert second.usage.prompt_tokens_details.cached_tokens >= known - 1


THINKING = """{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\n' -}}
{%- if message.reasoning_content -%}
{{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' -}}
{%- endif -%}
{{- message.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n<think>\n' -}}
{%- if enable_thinking is defined and not enable_thinking -%}{{- '\n</think>\n\n' -}}{%- endif -%}
{%- endif -%}"""


def test_reasoning_is_a_field_of_its_own() -> None:
    """The bundled model does not reason, but its template may say that it does."""
    with serving(demo_settings(chat_template=THINKING)) as server, server.openai() as client:
        options: dict[str, Any] = {"model": "x", "messages": [SUM], "temperature": 0}
        thought = client.chat.completions.create(**options).choices[0].message
        assert thought.reasoning_content
        assert not thought.content
        none = client.chat.completions.create(**options, reasoning_effort="none")
        assert none.choices[0].message.content
        assert not hasattr(none.choices[0].message, "reasoning_content")
        options |= {"extra_body": {"reasoning_budget": 4}, "max_tokens": 30}
        both = client.chat.completions.create(**options)
        assert both.usage.completion_tokens_details.reasoning_tokens >= 4
        deltas = [
            chunk.choices[0].delta
            for chunk in client.chat.completions.create(**options, stream=True)
        ]
        reasoning = [getattr(delta, "reasoning_content", None) for delta in deltas]
        assert "".join(filter(None, reasoning)) == both.choices[0].message.reasoning_content
        first_content = next(i for i, delta in enumerate(deltas) if delta.content)
        assert not any(reasoning[first_content:])


# ---- completions -------------------------------------------------------------------------------

COMPLETIONS: list[tuple[dict[str, Any], int]] = [
    ({"prompt": "one two three"}, 1),
    ({"prompt": ["one two", "three four"]}, 2),
    ({"prompt": [[5, 6, 7], [8, 9]]}, 2),
    ({"prompt": [5, 6, 7]}, 1),
    ({"prompt": "one two three", "n": 2}, 2),
    ({"prompt": ["one", "two"], "n": 2}, 4),
    ({"prompt": "one two three", "echo": True}, 1),
    ({"prompt": "one two three", "logprobs": 2}, 1),
    ({"prompt": "one two three", "echo": True, "logprobs": 1}, 1),
    ({"prompt": "one two three", "stop": ["five"]}, 1),
]


@pytest.mark.parametrize(("options", "choices"), COMPLETIONS, ids=lambda value: str(value))
def test_completions(client: Any, options: dict[str, Any], choices: int) -> None:
    options = {"model": "x", "max_tokens": 6, "temperature": 0, **options}
    whole = client.completions.create(**options)
    assert [choice.index for choice in whole.choices] == [*range(choices)]
    texts = [""] * choices
    usage = None
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    for chunk in client.completions.create(**options, **stream):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
    assert usage.completion_tokens == whole.usage.completion_tokens  # type: ignore[union-attr]
    if options.get("echo"):
        assert whole.choices[0].text.startswith("one two three")
    if options.get("logprobs") is not None:
        assert whole.choices[0].logprobs.tokens


def test_the_best_of_several(client: Any) -> None:
    reply = client.completions.create(model="x", prompt="one", best_of=3, n=1, max_tokens=4)
    assert len(reply.choices) == 1
    assert reply.usage.completion_tokens <= 12


# ---- what the client raises --------------------------------------------------------------------


def test_a_conversation_that_is_too_long(client: Any) -> None:
    messages = [{"role": "user", "content": "one two three " * 3000}]
    for stream in (False, True):
        with pytest.raises(openai.APIStatusError) as failure:
            client.chat.completions.create(model="x", messages=messages, stream=stream)
        assert failure.value.status_code == 413
        assert failure.value.code == "context_length_exceeded"
        assert "prompt is too long" in failure.value.message
    assert client.chat.completions.create(model="x", messages=[SUM], max_tokens=2).choices


def test_a_wrong_argument(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as failure:
        client.chat.completions.create(model="x", messages=[{"role": "user", "content": 3}])
    assert failure.value.param == "messages[0].content"


def test_a_picture(client: Any) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    message = {"role": "user", "content": [part("What is this?"), picture]}
    with pytest.raises(openai.BadRequestError) as failure:
        client.chat.completions.create(model="x", messages=[message])
    assert failure.value.param == "messages[0].content[1]"
