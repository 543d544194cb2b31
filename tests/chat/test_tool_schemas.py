"""Parameters of tools: which arguments the grammar of a call takes, and which it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from llama_py import Llama, demo_model_path
from llama_py.chat.templates.template import ChatTemplate
from llama_py.core.model import Model
from llama_py.core.vocab import Vocab
from llama_py.errors import GrammarError
from tests.chat import families
from tests.chat.families import USER
from tests.chat.fitting import fits
from tests.chat.openai import chat_request
from tests.models import tiny_model

TEXT = {"type": "string"}
WHOLE = {"type": "integer"}


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def with_a(**schema: Any) -> dict[str, Any]:
    """Parameters of which there is one, and it is needed."""
    return {**object_of(a=schema), "required": ["a"]}


def tool(schema: Any, name: str = "f") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema}}


@pytest.fixture(scope="module")
def vocab() -> Iterator[Vocab]:
    with Model(tiny_model("full")) as model:
        yield model.vocab


@pytest.fixture(scope="module")
def qwen() -> ChatTemplate:
    return families.load("Qwen-Qwen2.5-7B-Instruct")


#: Parameters, arguments that they allow, and arguments (as text) that they do not.
Case = tuple[dict[str, Any], list[Any], list[str]]
EITHER = {**object_of(a=TEXT, b=WHOLE), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
CASES: dict[str, Case] = {
    "allOf of one text": (
        with_a(allOf=[{"type": "string", "maxLength": 3}], description="short"),
        [{"a": "xyz"}, {"a": ""}],
        ['{"a": {}}', '{"a": "wxyz"}', "{}"],
    ),
    "allOf of one reference": (
        {**with_a(allOf=[{"$ref": "#/$defs/Unit"}]), "$defs": {"Unit": {"enum": ["C", "F"]}}},
        [{"a": "C"}],
        ['{"a": {}}', '{"a": "K"}'],
    ),
    "allOf beside properties": (
        {**object_of(a=TEXT), "allOf": [{**object_of(b=WHOLE), "required": ["b"]}]},
        [{"a": "x", "b": 1}, {"b": 1}],
        ['{"a": "x"}', "{}", '{"a": 1, "b": 1}'],
    ),
    "allOf of all parameters": (
        {"allOf": [object_of(a=TEXT), {**object_of(b=WHOLE), "required": ["b"]}]},
        [{"a": "x", "b": 1}, {"b": 1}],
        ['{"a": "x"}'],
    ),
    "a bound from each part of allOf": (
        with_a(allOf=[{"type": "integer", "minimum": 3}, {"type": "number", "maximum": 5}]),
        [{"a": 3}, {"a": 5}],
        ['{"a": 2}', '{"a": 6}', '{"a": 3.5}'],
    ),
    "alternatives beside properties": (
        EITHER,
        [{"a": "x"}, {"b": 1}, {"a": "x", "b": 1}],
        ["{}", "[]", '"x"', "1", '{"a": 1}', '{"c": 1}'],
    ),
    "alternatives beside properties, further in": (
        {**object_of(x=EITHER), "required": ["x"]},
        [{"x": {"a": "x"}}, {"x": {"b": 1}}],
        ['{"x": {}}', '{"x": 1}', '{"x": {"a": 1}}'],
    ),
    "alternatives with values of their own": (
        {
            **object_of(op={"enum": ["get", "put"]}),
            "required": ["op"],
            "oneOf": [
                {"properties": {"op": {"const": "get"}}},
                {"properties": {"op": {"const": "put"}, "to": TEXT}, "required": ["to"]},
            ],
        },
        [{"op": "get"}, {"op": "put", "to": "x"}],
        ['{"op": "put"}', '{"op": "cut"}', "{}"],
    ),
    "more alternatives than are written out": (
        {
            **object_of(**{f"p{i}": WHOLE for i in range(40)}),
            "anyOf": [{"required": [f"p{i}"], **object_of(x=TEXT)} for i in range(40)],
        },
        [{"p0": 1}, {"p3": 1, "p7": 2}, {"p39": 1, "x": "y"}],
        ['{"p0": "x"}', "[]", '{"q": 1}'],
    ),
    "types beside alternatives": (
        with_a(type="string", anyOf=[{"maxLength": 1}, {"enum": ["all", "none"]}]),
        [{"a": "x"}, {"a": "none"}],
        ['{"a": "xy"}', '{"a": 1}'],
    ),
    "a reference with words beside it": (
        {
            **with_a(**{"$ref": "#/$defs/T", "maxLength": 2, "description": "short"}),
            "$defs": {"T": TEXT},
        },
        [{"a": "xy"}],
        ['{"a": "xyz"}', '{"a": 1}'],
    ),
    "all parameters by reference": (
        {"$ref": "#/definitions/A", "definitions": {"A": with_a(**TEXT)}},
        [{"a": "x"}],
        ["{}", '{"a": 1}'],
    ),
    "a name that is only required": (
        {**object_of(a=TEXT), "required": ["a", "z"]},
        [{"a": "x", "z": {"any": [1]}}, {"a": "x", "z": None}],
        ['{"a": "x"}'],
    ),
    "nothing but required names": (
        {"type": "object", "required": ["z"]},
        [{"z": [1]}, {"z": 1, "more": 2}],
        ["{}", '{"more": 2}'],
    ),
    "true is a schema": (
        {**object_of(a=True, b={"type": "array", "items": True}), "required": ["a"]},
        [{"a": 1}, {"a": {"x": [None]}, "b": [1, "x"]}],
        ["{}", '{"a": 1, "b": 2}', '{"a": 1, "c": 2}'],
    ),
    "true for what is not described": (
        {**object_of(a=TEXT), "additionalProperties": True},
        [{"a": "x", "more": [1]}, {"more": {}}],
        ['{"a": 1}'],
    ),
    "false is not a value": (
        object_of(a=TEXT, b=False),
        [{"a": "x"}, {}],
        ['{"b": 1}'],
    ),
    "nullable": (
        {**with_a(type="string", nullable=True)},
        [{"a": "x"}, {"a": None}],
        ['{"a": 1}', "{}"],
    ),
    "nullable values": (
        with_a(type="string", enum=["x", "y"], nullable=True),
        [{"a": "x"}, {"a": None}],
        ['{"a": "z"}'],
    ),
    "a nullable reference": (
        {**with_a(**{"$ref": "#/$defs/T", "nullable": True}), "$defs": {"T": WHOLE}},
        [{"a": 1}, {"a": None}],
        ['{"a": "x"}'],
    ),
    "a reference to the whole": (
        object_of(v=WHOLE, kids={"type": "array", "items": {"$ref": "#"}}),
        [{"v": 1, "kids": [{"v": 2, "kids": []}, {}]}],
        ['{"kids": [1]}', '{"kids": [{"v": "x"}]}'],
    ),
    "a combined reference to the whole": (
        object_of(v=WHOLE, kid={"allOf": [{"$ref": "#"}], "description": "the next one"}),
        [{"v": 1, "kid": {"kid": {"v": 2}}}],
        ['{"kid": 1}', '{"kid": {"kid": {"v": "x"}}}'],
    ),
    "a combination that contains itself": (
        object_of(v=WHOLE, kid={"allOf": [{"$ref": "#"}, {"required": ["v"]}]}),
        [{"kid": {"v": 1, "kid": {"v": 2}}}, {}],
        ['{"kid": {}}', '{"kid": {"v": 1, "kid": {}}}'],
    ),
    "a definition that nothing fits": (
        {
            **object_of(a={"anyOf": [{"$ref": "#/$defs/no"}, WHOLE]}, b={"$ref": "#/$defs/no"}),
            "$defs": {"no": {"allOf": [TEXT, WHOLE]}},
        },
        [{"a": 1}, {}],
        ['{"b": 1}', '{"a": "x"}'],
    ),
    "values of another type": (
        with_a(type="integer", anyOf=[{"const": "x"}, {"enum": [1, "y"]}]),
        [{"a": 1}],
        ['{"a": "x"}', '{"a": "y"}'],
    ),
    "required as in old schemas": (
        object_of(a={"type": "string", "required": True}),
        [{"a": "x"}, {}],
        ['{"a": 1}'],
    ),
    "a reference with escapes": (
        {**with_a(**{"$ref": "#/$defs/x~1y"}), "$defs": {"x/y": WHOLE}},
        [{"a": 1}],
        ['{"a": "x"}'],
    ),
    "names by pattern": (
        with_a(type="object", patternProperties={"^.*$": WHOLE}, additionalProperties=False),
        [{"a": {"x": 1, "y": 2}}, {"a": {}}],
        ['{"a": {"x": "y"}}'],
    ),
    "items behind listed ones": (
        with_a(type="array", prefixItems=[TEXT], items=WHOLE),
        [{"a": ["x", 1, 2]}],
        ['{"a": [{}]}'],
    ),
    "old exclusive bounds": (
        with_a(type="integer", minimum=3, exclusiveMinimum=True),
        [{"a": 4}],
        ['{"a": 3}'],
    ),
}


@pytest.mark.parametrize("choice", ["required", "auto"])
@pytest.mark.parametrize("name", CASES)
def test_arguments(name: str, choice: str, qwen: ChatTemplate, vocab: Vocab) -> None:
    schema, good, bad = CASES[name]
    asked = chat_request(USER, tools=[tool(schema)], tool_choice=choice)
    grammar = qwen.render(asked).grammar

    def takes(arguments: str) -> bool:
        call = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
        return fits(grammar, call, vocab)

    for arguments in good:
        assert takes(json.dumps(arguments)), arguments
    for text in bad:
        assert not takes(text), text


PATTERNS = (
    '^"$',
    "^.*$",
    "^[ -~]+$",
    "^[\\x00-\\xff]*$",
    "^[\\u0000-\\uffff]*$",
    "^[^a]*$",
    "^[\\s\\S]*$",
    '^[^b"]+$',
    '^["a]+$',
    "^\\S+$",
    "^[\\W]$",
    "^\\\\$",
    "^a\\nb$",
    "^\n$",
    "^[\n]$",
    "^(a$",
    "^a]$",
    "^.{2001}$",
    r"^[\x-z]$",
    r"^[a-\u]$",
    "a",
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_stays_within_its_text(
    pattern: str, qwen: ChatTemplate, vocab: Vocab, capfd: pytest.CaptureFixture[str]
) -> None:
    schema = with_a(type="string", pattern=pattern)
    grammar = qwen.render(chat_request(USER, tools=[tool(schema)], tool_choice="required")).grammar
    for inner in ('"', '""', "\\", "\n", "\t", "a\nb", "\x00", 'x"x', '", "b": "'):
        call = f'<tool_call>\n{{"name": "f", "arguments": {{"a": "{inner}"}}}}\n</tool_call>'
        assert not fits(grammar, call, vocab), inner
    assert capfd.readouterr() == ("", "")


def test_a_pattern_is_kept(qwen: ChatTemplate, vocab: Vocab) -> None:
    schema = with_a(type="string", pattern="^[ -~]{2}-\\d+$")
    grammar = qwen.render(chat_request(USER, tools=[tool(schema)], tool_choice="required")).grammar
    for value, good in (("x!-12", True), ("xx-", False), ("x-1", False)):
        call = f'<tool_call>\n{{"name": "f", "arguments": {{"a": "{value}"}}}}\n</tool_call>'
        assert fits(grammar, call, vocab) == good


def test_definitions_of_two_tools_are_apart(qwen: ChatTemplate, vocab: Vocab) -> None:
    tools = [
        tool({**with_a(**{"$ref": "#/$defs/Item"}), "$defs": {"Item": item}}, name)
        for name, item in (("f", {"enum": ["x", "y"]}), ("g", {"enum": [1, 2]}))
    ]
    grammar = qwen.render(chat_request(USER, tools=tools, tool_choice="required")).grammar
    for name, value, good in (("f", '"x"', 1), ("f", "1", 0), ("g", "1", 1), ("g", '"x"', 0)):
        call = f'<tool_call>\n{{"name": "{name}", "arguments": {{"a": {value}}}}}\n</tool_call>'
        assert fits(grammar, call, vocab) == bool(good)


@pytest.mark.parametrize("schema", [EITHER, CASES["all parameters by reference"][0]])
@pytest.mark.parametrize("family", ["GLM-4.6", "Qwen3-Coder"])
def test_families_that_mark_each_argument_know_them(
    family: str, schema: dict[str, Any], vocab: Vocab
) -> None:
    template = families.load(family)
    asked = {"tools": [tool(schema)], "enable_thinking": False}
    call = families.call("f", {"a": "Paris"})
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    opened = template.render(chat_request(USER, **asked)).prompt
    closed = chat_request([*USER, said], add_generation_prompt=False, **asked)
    text = template.render(closed).prompt.removeprefix(opened)
    for mark in families.EOG:
        text = text.partition(mark)[0]
    grammar = template.render(chat_request(USER, tool_choice="auto", **asked)).grammar
    assert "Paris" in text
    assert fits(grammar, text.rstrip(), vocab) or fits(grammar, text, vocab)


def test_the_model_is_shown_what_the_client_said(qwen: ChatTemplate) -> None:
    for _ in range(2):
        rendered = qwen.render(chat_request(USER, tools=[tool(EITHER)]))
        assert json.dumps(EITHER) in rendered.prompt
        assert rendered.prompt.endswith("<|im_start|>assistant\n")


BAD = {
    "no object": {"type": "array"},
    "an unknown type": with_a(type="objekt"),
    "a reference to nothing": with_a(**{"$ref": "#/nowhere"}),
    "a reference elsewhere": with_a(**{"$ref": "https://example.org/x"}),
    "no schema": with_a(type="array", items=3),
    "no alternatives": with_a(anyOf=[]),
    "no count": with_a(type="string", minLength=-1),
    "more than a grammar repeats": with_a(type="string", minLength=2001),
    "no properties": {"type": "object", "properties": None},
    "a bound that is not a number": with_a(type="integer", minimum="1", exclusiveMinimum=2),
    "a count that is not a number": with_a(type="array", prefixItems=[{}], minItems="1"),
    "nothing fits": with_a(allOf=[TEXT, WHOLE]),
    "contradictory bounds": with_a(type="integer", minimum=5, maximum=1),
}


@pytest.mark.parametrize("schema", BAD.values(), ids=BAD.keys())
def test_without_a_grammar_the_tool_is_named(schema: dict[str, Any]) -> None:
    good = tool(with_a(**TEXT), "good")
    with (
        Llama(demo_model_path(), n_ctx=512, n_threads=1) as llm,
        pytest.raises(GrammarError, match="'bad'"),
    ):
        llm.create_chat_completion(USER, tools=[good, tool(schema, "bad")], max_tokens=1)
