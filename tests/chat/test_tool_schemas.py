"""A tool's schema is enforced as far as a grammar can, shown as it is, and never refused."""

from __future__ import annotations

from typing import Any

import pytest

from llama_py.chat.conversation import Message, Text, Tool, ToolChoice
from llama_py.chat.messages import ChatRequest
from llama_py.chat.tool_schemas import any_arguments, enforceable, render_leniently
from llama_py.core.gbnf_check import check_gbnf
from llama_py.errors import GrammarError
from tests.chat import families

HELLO = (Message("user", (Text("Hello."),)),)
LIMITED = {"type": "integer", "minimum": 3}


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def enforced(schema: dict[str, Any]) -> Any:
    (tool,) = enforceable([Tool("f", "", schema)])
    assert tool.parameters is schema
    return tool.enforced


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        object_of(a=LIMITED, b={"type": "string", "format": "uri"}),
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            **object_of(a={"type": "number", "exclusiveMinimum": 0}),
            "additionalProperties": False,
        },
        {**object_of(a={"$ref": "#/$defs/x"}), "$defs": {"x": LIMITED}},
    ],
)
def test_what_can_be_enforced_is_left_alone(schema: Any) -> None:
    assert enforced(schema) is None


@pytest.mark.parametrize(
    ("part", "free"),
    [
        ({"$ref": "#/nowhere"}, {}),
        ({"$ref": "https://example.com/schema.json"}, {}),
        ({"type": "nonsense"}, {}),
        ({"anyOf": []}, {}),
        ({"enum": []}, {}),
        (True, {}),
        (7, {}),
        ({"type": "array", "minItems": 5, "maxItems": 2}, {"type": "array"}),
        ({"type": "string", "minLength": -1}, {"type": "string"}),
    ],
)
def test_an_argument_that_cannot_be_enforced_is_free(part: Any, free: Any) -> None:
    assert enforced(object_of(a=part, b=LIMITED)) == object_of(a=free, b=LIMITED)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": [1]},
        object_of(a=LIMITED) | {"$defs": {"x": {"$ref": 1}}, "allOf": 3},
        {"type": "object", "properties": {f"a{i}": {} for i in range(300)}},
        {"type": "object", "properties": {"a": {"const": "x" * 9000}}, "required": [1, "a", "b"]},
    ],
)
def test_what_remains_is_always_a_schema(schema: Any) -> None:
    found = enforced(schema)
    request = ChatRequest(HELLO, tools=(Tool("f", "", schema, found),))
    rendered = families.load("Qwen-Qwen3-0.6B").render(request)
    assert rendered.grammar is not None
    check_gbnf(rendered.grammar.gbnf)


def test_many_large_schemas_are_enforced_together_or_not_at_all() -> None:
    wide = object_of(**{f"a{i}": {"enum": [f"{i} {j}" for j in range(20)]} for i in range(60)})
    tools = enforceable([Tool(f"f{i}", "", wide) for i in range(30)])
    assert {tool.enforced is None for tool in tools} == {False}
    ChatRequest(HELLO, tools=tools)
    with pytest.raises(GrammarError):
        ChatRequest(HELLO, tools=tuple(Tool(f"f{i}", "", wide) for i in range(30)))


BROKEN = object_of(city={"$ref": "#/nowhere", "description": "Which city"}, days=LIMITED)
FAMILIES = (
    "Qwen-Qwen3-0.6B",
    "GLM-4.6",
    "Kimi-K2-Instruct",
    "MiniMax-M2",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "openai-gpt-oss-120b",
)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("choice", [ToolChoice(), ToolChoice("required"), ToolChoice("named", "g")])
def test_the_prompt_shows_the_schema_as_it_was_given(family: str, choice: ToolChoice) -> None:
    template = families.load(family)
    given = (Tool("f", "", BROKEN), Tool("g", "", BROKEN))
    rendered = template.render(ChatRequest(HELLO, tools=enforceable(given), tool_choice=choice))
    assert "#/nowhere" in rendered.prompt or "Which city" in rendered.prompt
    assert rendered.calls_tools
    assert rendered.grammar is not None
    assert "city" in rendered.grammar.gbnf
    check_gbnf(rendered.grammar.gbnf, rendered.grammar.root)


def test_a_template_that_cannot_write_a_schema_gets_what_is_enforced() -> None:
    schema = {"type": "object", "properties": [1]}
    tools = enforceable([Tool("f", "", schema)])
    rendered = families.load("openai-gpt-oss-120b").render(ChatRequest(HELLO, tools=tools))
    assert "type f" in rendered.prompt


def test_any_arguments() -> None:
    (tool,) = any_arguments([Tool("f", "", BROKEN)])
    assert tool.schema == {"type": "object"}
    assert tool.parameters is BROKEN


@pytest.mark.parametrize(("count", "arguments"), [(512, 1), (100, 15)])
def test_grammars_that_are_too_large_together_allow_any_arguments(
    count: int, arguments: int
) -> None:
    schema = object_of(**{f"a{i}": {"enum": ["one", "two", "three"]} for i in range(arguments)})
    tools = enforceable([Tool(f"f{i}", "", schema) for i in range(count)])
    assert all(tool.enforced is None for tool in tools)
    template = families.load("Qwen-Qwen3-0.6B")
    rendered = render_leniently(ChatRequest(HELLO, tools=tools), template.render)
    assert rendered.grammar is not None
    check_gbnf(rendered.grammar.gbnf, rendered.grammar.root)
    assert rendered.prompt.count('"three"') == count * arguments
