"""Calls in plain JSON: which replies are some, and what of them is held back in a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from llama_py import Llama, demo_model_path
from llama_py.chat.calls.plain_calls import PlainCalls, with_vocab
from llama_py.chat.constraints import render_constrained
from llama_py.chat.conversation import Tool
from llama_py.chat.schemas.fits import fits
from llama_py.chat.stream import ChatStream, Delta, ParsedReply, fold
from llama_py.core.grammar.sampler import spells
from llama_py.errors import GrammarError, TemplateError
from llama_py.params import GrammarSpec
from tests.chat import families
from tests.chat.openai import chat_request

QWEN = "Qwen-Qwen2.5-7B-Instruct"
CALL = '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}'
ADD = '{"name": "add", "arguments": {"a": 1, "b": -2.5e3}}'
WEATHER = ("get_weather", {"city": "Paris", "days": 3})

#: Replies -> the calls that they are.
CALLS: dict[str, list[tuple[str, Any]]] = {
    CALL: [WEATHER],
    f"\n {CALL} \n": [WEATHER],
    f"```json\n{CALL}\n```": [WEATHER],
    f"```\n{CALL}```\n": [WEATHER],
    f"```python\n{CALL}\n```": [WEATHER],
    json.dumps(json.loads(CALL), indent=4): [WEATHER],
    '{"arguments": {"days": 3, "city": "P\\u0061ris"}, "name": "get_weather"}': [WEATHER],
    '{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}': [WEATHER],
    '{"function": "get_weather", "args": {"city": "Paris", "days": 3}}': [WEATHER],
    f'{{"type": "function", "function": {CALL}}}': [WEATHER],
    f'{{"id": "x1", "type": "function", "function": {CALL}}}': [WEATHER],
    f"[{CALL}]": [WEATHER],
    f"[{CALL}, {ADD}]": [WEATHER, ("add", {"a": 1, "b": -2500})],
    f"{CALL}\n{ADD}": [WEATHER, ("add", {"a": 1, "b": -2500})],
}

ANSWERS = [
    "It is sunny.",
    "",
    " \n",
    "{}",
    "[]",
    "{",
    "```",
    "```json\n```",
    f"The call is: {CALL}",
    f"{CALL}\nThat is the call.",
    f"```json\n{CALL}\n```\nThat was the call.",
    f"```json\n{CALL}",
    f"```json\n{CALL}\n``` ```json\n{CALL}\n```",
    f"```rust\n{CALL}\n```",
    CALL[:-1],
    CALL + "}",
    f"[{CALL}",
    f"[{CALL},]",
    f"[{CALL} {CALL}]",
    f"{CALL}; {CALL}",
    CALL.replace("get_weather", "get_weather2"),
    CALL.replace("get_weather", "get"),
    CALL.replace("3", '"3"'),
    CALL.replace("3", "03"),
    CALL.replace(', "days": 3', ""),
    CALL.replace(', "days": 3', ', "days": 3, "days": 4'),
    CALL.replace('"arguments": {', '"arguments": [{').replace("}}", "}]}"),
    CALL.replace("}}", '}, "comment": "x"}'),
    CALL.replace("}}", '}, "name": "add"}'),
    CALL.replace("Paris", "Pa\nris"),
    '{"name": "get_weather"}',
    '{"name": "Bob", "age": 3}',
    '{"city": "Paris"}',
    '{"name": "get_weather", "arguments": "{}"}',
    '{"name": "get_weather", "arguments": ' + "[" * 5000,
    '{"name": "get_weather", "arguments": ' + '{"a":' * 5000,
    "[1, 2, 3]",
]


def stream_of(name: str = QWEN, **options: Any) -> ChatStream:
    request = chat_request(messages=families.USER, tools=families.TOOLS, **options)
    return ChatStream(families.load(name).render(request), new_id=lambda: "id")


def told(stream: ChatStream, text: str, step: int) -> tuple[ParsedReply, list[Delta]]:
    """A reply that comes in pieces: the sum of its deltas, and those before its end."""
    early = [d for i in range(0, len(text), step) for d in stream.feed(text[i : i + step])]
    reply, whole = fold([*early, *stream.flush()]), stream.finish()
    assert (reply.content, reply.tool_calls) == (whole.content, whole.tool_calls)
    return reply, early


def calls_of(reply: ParsedReply) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in reply.tool_calls]


@pytest.mark.parametrize("step", [1, 2, 7, 10_000])
@pytest.mark.parametrize("text", CALLS)
def test_a_reply_that_is_a_call_becomes_one(text: str, step: int) -> None:
    reply, early = told(stream_of(), text, step)
    assert calls_of(reply) == CALLS[text]
    assert reply.content == ""
    assert early == []


@pytest.mark.parametrize("step", [1, 3, 10_000])
@pytest.mark.parametrize("text", ANSWERS, ids=lambda text: repr(text[:60]))
def test_any_other_reply_is_its_text(text: str, step: int) -> None:
    reply, _ = told(stream_of(), text, step)
    assert reply.content == text
    assert reply.tool_calls == []


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("It is", 0),
        ("{}", 1),
        ('{"city": "Paris"}', 2),
        ('{"name": "Bob"}', len('{"name": "')),
        ("```rust\nfn main() {}", 3),
        ("```python\nprint()", len("```python\n")),
        ("[1, 2]", 1),
        (f"{CALL} So", len(CALL) + 1),
        ('{"name": "get_weather", "arguments": {"a": tru_', len(CALL) - 20),
    ],
)
def test_text_is_held_back_only_while_it_may_be_a_call(text: str, held: int) -> None:
    stream = stream_of()
    for end in range(1, held + 1):
        assert stream.feed(text[end - 1 : end]) == []
    for at in range(held, len(text)):
        deltas = stream.feed(text[at])
        if deltas:
            break
    assert fold(deltas).content == text[: at + 1]
    assert at <= held + 4  # "tru_" may go on as "true" for three letters


@pytest.mark.parametrize(
    "options",
    [
        {"json_calls": False},
        {"tool_choice": "none"},
        {"response_format": {"type": "json_object"}},
    ],
    ids=str,
)
def test_where_no_call_is_looked_for(options: dict[str, Any]) -> None:
    reply, _ = told(stream_of(**options), CALL, 5)
    assert reply.content == CALL
    assert not reply.tool_calls


def test_only_tools_that_may_be_called_count() -> None:
    choice = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "name": "add"}]},
    }
    reply, _ = told(stream_of(tool_choice=choice), CALL, 5)
    assert reply.content == CALL
    assert not reply.tool_calls
    assert calls_of(told(stream_of(tool_choice=choice), ADD, 5)[0])


SEVERAL = [f"[{CALL}, {ADD}]", f"{CALL}\n{ADD}", f"{CALL}, {ADD}", f"{CALL} ,\n\n{ADD}\n"]


@pytest.mark.parametrize("text", SEVERAL)
def test_several_calls(text: str) -> None:
    reply, _ = told(stream_of(), text, 4)
    assert [name for name, _ in calls_of(reply)] == [WEATHER[0], "add"]
    assert not reply.content.strip()


@pytest.mark.parametrize("text", [f"{CALL},", f"{CALL},,{ADD}", f",{CALL}", f"[{CALL}],{ADD}"])
def test_commas_that_separate_no_calls(text: str) -> None:
    reply, _ = told(stream_of(), text, 4)
    assert reply.content == text
    assert not reply.tool_calls


@pytest.mark.parametrize("text", SEVERAL)
def test_several_calls_only_where_several_are_allowed(text: str) -> None:
    assert told(stream_of(parallel_tool_calls=False), text, 4)[0].content == text
    one, _ = told(stream_of(parallel_tool_calls=False), f"[{CALL}]", 4)
    assert calls_of(one) == [WEATHER]


def test_the_templates_own_calls_are_left_alone() -> None:
    own = f"\n<tool_call>\n{ADD}\n</tool_call>"
    reply, _ = told(stream_of(), own, 1)
    assert [name for name, _ in calls_of(reply)] == ["add"]


def test_reasoning_before_a_call_in_plain_json() -> None:
    reply, early = told(
        stream_of("Qwen-QwQ-32B", enable_thinking=True), f"Hm.\n</think>\n{CALL}", 1
    )
    assert calls_of(reply) == [WEATHER]
    assert reply.reasoning.strip() == "Hm."
    assert not reply.content.strip()
    assert all(not delta.content.strip() for delta in early)


def test_what_is_held_back_behind_reasoning_is_none() -> None:
    stream = stream_of("Qwen-QwQ-32B", enable_thinking=True)
    stream.feed("Hm.")
    assert stream.thinks
    stream.feed("\n</think>\n")
    stream.feed(CALL)
    assert not stream.thinks


#: Templates whose replies have a beginning of their own, without which such a text is none.
OTHERS = {"Apriel-1.6-15b-Thinker-fixed", "Cohere2MoE"}


def test_in_every_template_with_tools() -> None:
    """Beside whatever form of its own a template has; nothing is lost where it is none."""
    others = {name for name in families.names() if not _becomes_a_call(name)}
    assert others == OTHERS


def _becomes_a_call(name: str) -> bool:
    request = chat_request(messages=families.USER, tools=families.TOOLS, enable_thinking=False)
    try:
        rendered = families.load(name).render(request)
    except TemplateError:
        return False
    opened = rendered.thinking_start and rendered.generation_prompt.rstrip().endswith(
        rendered.thinking_start
    )
    text = (f"{rendered.thinking_ends[0]}\n" if opened else "") + f"```json\n{CALL}\n```"
    reply, _ = told(ChatStream(rendered, new_id=lambda: "id"), text, 3)
    if [call.name for call in reply.tool_calls] == ["get_weather"]:
        return True
    assert CALL in reply.content + reply.reasoning
    return False


# ---- arguments that fit -------------------------------------------------------------------------


def _fits(value: Any, schema: Any) -> bool:
    return fits(value, schema, lambda pattern, text: pattern in text)


_TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"sub": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
            "additionalProperties": False,
        }
    },
}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, [1, 2.0], [1.5, "1", True, None]),
        ({"type": ["string", "null"]}, ["", None], [0, [], {}]),
        ({"type": "string", "nullable": True}, [None], [1]),
        ({"enum": [1, "a", None, [1]]}, [1, 1.0, "a", None, [1]], [True, "b", [2]]),
        ({"const": {"a": 1}}, [{"a": 1.0}], [{"a": 2}, {}]),
        ({"minimum": 0.5, "exclusiveMaximum": 2}, [0.5, 1.9], [0.4, 2]),
        ({"minimum": 1, "exclusiveMinimum": True}, [2], [1]),
        ({"multipleOf": 0.1}, [0.3, 0], [0.35]),
        ({"multipleOf": 2}, [-4, 2.0], [1_000_000_001, 3]),
        ({"minLength": 1, "maxLength": 2}, ["a", "ab"], ["", "abc"]),
        ({"pattern": "x"}, ["axb"], ["ab"]),
        ({"minItems": 1, "items": {"type": "null"}}, [[None]], [[], [1]]),
        ({"prefixItems": [{"type": "null"}], "items": False}, [[None], []], [[1], [None, 1]]),
        ({"items": [{"type": "null"}], "additionalItems": False}, [[None]], [[None, 1]]),
        ({"uniqueItems": True}, [[1, True, "1"]], [[1, 1.0], [{}, {}]]),
        ({"contains": {"const": 1}}, [[0, 1]], [[0]]),
        ({"required": ["a"]}, [{"a": 1}], [{}]),
        ({"additionalProperties": False, "properties": {"a": {}}}, [{"a": 1}], [{"b": 1}]),
        ({"patternProperties": {"a": {"type": "null"}}}, [{"ab": None, "b": 1}], [{"ab": 1}]),
        ({"propertyNames": {"maxLength": 1}}, [{"a": 1}], [{"ab": 1}]),
        ({"maxProperties": 1}, [{}], [{"a": 1, "b": 2}]),
        ({"anyOf": [{"const": 1}, {"const": 2}]}, [1, 2], [3]),
        ({"oneOf": [{"minimum": 1}, {"minimum": 2}]}, [1], [2, 0]),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, [1, 2], [0, 3]),
        ({"not": {"const": 1}}, [2], [1]),
        ({"if": {"minimum": 2}, "then": {"const": 3}, "else": {"const": 0}}, [3, 0], [2, 1]),
        (_TREE, [{"sub": [{"sub": []}, {}]}], [{"sub": [{"x": 1}]}, {"sub": {}}]),
        ({"$ref": "https://example.com/schema"}, [1], []),
        ({"$ref": "#/anyOf/²", "anyOf": [{"const": 1}]}, [1], [2]),
        (True, [1], []),
        (False, [], [1]),
    ],
    ids=str,
)
def test_what_fits_a_schema(schema: Any, good: list[Any], bad: list[Any]) -> None:
    assert [value for value in good if not _fits(value, schema)] == []
    assert [value for value in bad if _fits(value, schema)] == []


def test_numbers_without_a_double() -> None:
    assert _fits(10**400, {"multipleOf": 2})
    assert not _fits(10**400 + 1, {"multipleOf": 2})
    assert not _fits(1.5, {"multipleOf": 2**1024 - 1})
    half = {"type": "object", "properties": {"n": {"type": "number", "multipleOf": 0.5}}}
    text = f'{{"name": "count", "arguments": {{"n": {10**400}}}}}'
    assert PlainCalls((Tool("count", "", half),)).find(text) == ()


def test_schemas_without_an_end_fit_nothing() -> None:
    doubled: dict[str, Any] = {
        f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)
    }
    assert not _fits(1, {"$ref": "#/$defs/d0", "$defs": {**doubled, "d60": False}})
    assert not _fits(1, {"$ref": "#"})
    assert not _fits(list(range(5000)), {"uniqueItems": True})


_NAMED: dict[str, Any] = {"type": "object", "properties": {"a": {}}}
_OTHER: dict[str, Any] = {"type": "object", "properties": {"b": {}}}


@pytest.mark.parametrize(
    ("schema", "fits_too"),
    [
        (_NAMED, False),
        ({"$ref": "#/$defs/x", "$defs": {"x": _NAMED}}, False),
        ({"anyOf": [_NAMED, {"type": "null"}]}, False),
        ({"allOf": [_NAMED]}, False),
        ({"type": "object"}, True),
        ({**_NAMED, "additionalProperties": True}, True),
        ({**_NAMED, "additionalProperties": {"type": "integer"}}, True),
        ({**_NAMED, "patternProperties": {"b": {}}}, True),
        ({"allOf": [_NAMED, _OTHER]}, True),
        ({**_NAMED, "anyOf": [_OTHER, {"required": ["c"]}]}, True),
        ({**_NAMED, "not": {"type": "object", "properties": {"a": {}}, "required": ["z"]}}, True),
        ({"if": _NAMED, "then": _OTHER}, True),
    ],
    ids=str,
)
def test_names_that_a_tool_does_not_declare(schema: Any, fits_too: bool) -> None:
    """They are none of its arguments unless it allows for others: no call between marks has any."""
    assert _fits({"a": 1, "b": 2}, schema)
    calls = PlainCalls((Tool("f", "", schema),))
    text = '{"name": "f", "arguments": {"a": 1, "b": 2}}'
    assert bool(calls.find(text)) is fits_too
    within = PlainCalls((Tool("f", "", {"properties": {"x": {"items": schema}}}),))
    if "$ref" not in schema:
        text = '{"name": "f", "arguments": {"x": [{"a": 1, "b": 2}]}}'
        assert bool(within.find(text)) is fits_too


def test_a_tool_without_parameters_is_called_without() -> None:
    """Small models repeat its schema, or make something up."""
    nothing = {"type": "object", "properties": {}, "required": []}
    for written in ('{"type": "object", "properties": {}}', '{"zone": "UTC"}', "{}"):
        text = f'{{"name": "f", "arguments": {written}}}'
        (call,) = PlainCalls((Tool("f", "", nothing),)).find(text)
        assert call.arguments == "{}"
        for free in ({"type": "object"}, {**nothing, "additionalProperties": True}):
            (call,) = PlainCalls((Tool("f", "", free),)).find(text)
            assert call.arguments == written


# ---- patterns -----------------------------------------------------------------------------------


def _with_pattern(pattern: str) -> PlainCalls:
    return PlainCalls(
        (Tool("f", "", {"type": "object", "properties": {"a": {"pattern": pattern}}}),)
    )


def _call_with(text: str) -> str:
    return json.dumps({"name": "f", "arguments": {"a": text}}, ensure_ascii=False)


def test_patterns_are_not_looked_at_without_a_vocabulary() -> None:
    assert _with_pattern("^x+$").find(_call_with("y"))


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(demo_model_path(), n_ctx=512, verbose=False) as llm:
        yield llm


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("^x+$", ["x", "xxx"], ["", "y", "xy", "yx"]),
        ("^[0-9]{4}-[0-9]{2}$", ["2024-07"], ["2024-7", "24-07", "2024-07-01"]),
        ("^(red|green)$", ["red", "green"], ["re", "reds", "blue"]),
        ("(?<=x)y", ["anything: no grammar knows this"], []),
    ],
)
def test_patterns_are_looked_at_where_there_is_a_vocabulary(
    llm: Llama, pattern: str, good: list[str], bad: list[str]
) -> None:
    calls = with_vocab(_with_pattern(pattern), llm.vocab)
    assert [text for text in good if not calls.find(_call_with(text))] == []
    assert [text for text in bad if calls.find(_call_with(text))] == []


def test_a_reply_of_a_model_is_looked_at_with_its_vocabulary(llm: Llama) -> None:
    tool = {"type": "object", "properties": {"code": {"type": "string", "pattern": "^[A-Z]{3}$"}}}
    request = chat_request(messages=families.USER, tools=[families.tool("f", code="string")])
    request = replace(request, tools=(Tool("f", "", tool),))
    for code, count in (("PAR", 1), ("Paris", 0)):
        template = families.load(QWEN)
        stream = ChatStream(render_constrained(template, request, llm.vocab))
        stream.feed(f'{{"name": "f", "arguments": {{"code": "{code}"}}}}')
        assert len(stream.finish().tool_calls) == count


def test_what_a_grammar_spells(llm: Llama) -> None:
    spec = GrammarSpec('root ::= "ab" [0-9]* | "é" | "x" y\ny ::= "z"')
    whole = ["ab", "ab1", "ab123", "é", "xz"]
    other = ["", "a", "b", "ab1c", "é1", "x", "xzz", "abab", " ab"]
    assert [text for text in whole if not spells(llm.vocab, spec, text)] == []
    assert [text for text in other if spells(llm.vocab, spec, text)] == []
    with pytest.raises(GrammarError):
        spells(llm.vocab, GrammarSpec("root ::= ("), "")
