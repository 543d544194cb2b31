"""Tools with schemas that no grammar can be made of, and calls of only some tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from llama_py.chat.conversation import Message, Text, Tool, ToolChoice
from llama_py.chat.enforceable import enforceable, render_leniently
from llama_py.chat.formats.tools import CHATML_TOOLS
from llama_py.chat.messages import ChatRequest
from llama_py.chat.rendered import RenderedChat
from llama_py.chat.templates.template import ChatTemplate
from llama_py.core.grammar.gbnf_check import check_gbnf
from llama_py.errors import ParameterError
from tests.chat import families

GOOD = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


#: Families of which each writes calls in a way of its own, with the names of the arguments.
FAMILIES = (
    "Qwen-Qwen3-0.6B",
    "GLM-4.6",
    "Kimi-K2-Instruct",
    "MiniMax-M2",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "openai-gpt-oss-120b",
)
HELLO = (Message("user", (Text("hi"),)),)
LIMITED = {"type": "integer", "minimum": 3}


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def with_property(**schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


def deep(levels: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": deep(levels - 1)}} if levels else {}


BAD = {
    "a reference to nothing": {"$ref": "#/nowhere"},
    "a reference elsewhere": with_property(**{"$ref": "https://example.org/x"}),
    "an unknown type": {"type": "objekt"},
    "an unknown type inside": with_property(type="objekt"),
    "no object": {"type": "array"},
    "a contradiction": with_property(type="integer", minimum=5, maximum=1),
    "no choice": with_property(enum=[]),
    "too deep": deep(60),
    "too many that are optional": {
        "type": "object",
        "properties": {f"p{i}": {"type": "string"} for i in range(300)},
    },
    "too long": with_property(const="x" * 5000),
    "nothing where much is": {"properties": None},
    "no schemas": {"allOf": [3]},
    "no schema": with_property(type="array", items=3),
}


@pytest.mark.parametrize("schema", BAD.values(), ids=BAD.keys())
def test_what_cannot_be_enforced_is_not(schema: dict[str, Any], template: ChatTemplate) -> None:
    tools = [Tool("bad", "", schema), Tool("good", "", GOOD)]
    bad, good = enforceable(tools)
    assert bad.parameters == schema
    assert bad.enforced is not None
    assert bad.enforced["type"] == "object"
    assert good == tools[1]
    grammar = render(template, bad, good).grammar
    assert grammar is not None
    check_gbnf(grammar.gbnf)


@pytest.mark.parametrize(
    ("part", "free"),
    [
        ({"$ref": "#/nowhere"}, {}),
        ({"$ref": "https://example.com/schema.json"}, {}),
        ({"type": "nonsense"}, {}),
        ({"anyOf": []}, {}),
        ({"enum": []}, {}),
        (7, {}),
        ({"type": "array", "minItems": 5, "maxItems": 2}, {"type": "array"}),
        ({"type": "string", "minLength": -1}, {"type": "string"}),
    ],
)
def test_an_argument_that_cannot_be_enforced_is_free(part: Any, free: Any) -> None:
    """And the others are not."""
    (tool,) = enforceable([Tool("f", "", object_of(a=part, b=LIMITED))])
    assert tool.enforced == object_of(a=free, b=LIMITED)


def test_definitions_stay_for_those_who_refer_to_them() -> None:
    schema = {**object_of(a={"$ref": "#/$defs/x"}, b=7), "$defs": {"x": LIMITED}}
    (tool,) = enforceable([Tool("f", "", schema)])
    assert tool.enforced == {**schema, **object_of(a={"$ref": "#/$defs/x"}, b={})}


@pytest.mark.parametrize(
    "schema",
    [
        GOOD,
        {},
        {"type": None},
        with_property(type=None),
        with_property(type="string", pattern="^(?!x)"),
        object_of(a=True, b={"allOf": [{"type": "string"}]}),
        {**object_of(a={}), "required": ["b"], "anyOf": [{"required": ["a"]}, True]},
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "n": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
                "u": {"anyOf": [{"type": "string", "format": "uri"}, {"type": "null"}]},
                "r": {"type": "object", "propertyNames": {"type": "string"}},
            },
            "additionalProperties": False,
        },
    ],
    ids=str,
)
def test_what_can_be_is(schema: dict[str, Any], template: ChatTemplate) -> None:
    tools = enforceable([Tool("f", "", schema)])
    assert tools[0].enforced is None
    assert render(template, *tools).grammar is not None


def test_the_largest_go_where_there_is_too_much() -> None:
    def tool(number: int) -> Tool:
        names = [f"p{i}" for i in range(10 + number * 10)]
        schema = {"type": "object", "properties": {n: {} for n in names}, "required": names}
        return Tool(f"f{number}", "", schema)

    tools = enforceable([tool(number) for number in range(30)])
    loose = [number for number, each in enumerate(tools) if each.enforced is not None]
    assert loose == [*range(loose[0], 30)]
    assert 10 < loose[0] < 29


@pytest.mark.parametrize(("count", "arguments"), [(512, 1), (100, 15)])
def test_a_grammar_that_is_too_large_allows_any_arguments(count: int, arguments: int) -> None:
    schema = object_of(**{f"a{i}": {"enum": ["one", "two", "three"]} for i in range(arguments)})
    tools = enforceable([Tool(f"f{i}", "", schema) for i in range(count)])
    assert all(tool.enforced is None for tool in tools)
    qwen = families.load("Qwen-Qwen3-0.6B")
    rendered = render_leniently(ChatRequest(HELLO, tools=tools), qwen.render)
    assert rendered.grammar is not None
    check_gbnf(rendered.grammar.gbnf)
    assert rendered.prompt.count('"three"') == count * arguments


# ---- prompts and grammars --------------------------------------------------------------------


@pytest.fixture(scope="module")
def template() -> Iterator[ChatTemplate]:
    template = ChatTemplate.from_text(CHATML_TOOLS, eos="<|im_end|>")
    yield template
    template.close()


def render(template: ChatTemplate, *tools: Tool, **choice: Any) -> RenderedChat:
    return template.render(ChatRequest(HELLO, tools=tools, tool_choice=ToolChoice(**choice)))


def test_the_model_is_shown_what_the_client_said(template: ChatTemplate) -> None:
    for _ in range(2):  # what was rendered before may be rendered by Python
        for choice in ("auto", "required"):
            tools = enforceable([Tool("bad", "", BAD["an unknown type inside"])])
            rendered = render(template, *tools, mode=choice)
            assert "objekt" in rendered.prompt
            assert rendered.prompt.endswith("<|im_start|>assistant\n")
            assert rendered.grammar is not None
            assert rendered.grammar.lazy == (choice == "auto")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("choice", [{}, {"mode": "required"}, {"mode": "named", "name": "g"}])
def test_every_family_is_shown_it(family: str, choice: dict[str, Any]) -> None:
    broken = object_of(city={"$ref": "#/nowhere", "description": "Which city"}, days=LIMITED)
    tools = enforceable([Tool("f", "", broken), Tool("g", "", broken)])
    rendered = render(families.load(family), *tools, **choice)
    assert "#/nowhere" in rendered.prompt or "Which city" in rendered.prompt
    assert rendered.prompt.count("days") >= 2
    assert rendered.grammar is not None
    assert "city" in rendered.grammar.gbnf
    check_gbnf(rendered.grammar.gbnf)


def test_a_template_that_cannot_write_a_schema_writes_what_is_enforced() -> None:
    tools = enforceable([Tool("f", "", {"type": "object", "properties": [1]})])
    assert "type f" in render(families.load("openai-gpt-oss-120b"), *tools).prompt


def test_only_allowed_tools_can_be_called(template: ChatTemplate) -> None:
    tools = [Tool(name, "", GOOD) for name in ("red", "green", "blue")]
    prompts = set()
    for choice in (
        {},
        {"mode": "required", "allowed": ("red", "blue")},
        {"mode": "auto", "allowed": ("blue", "red")},
        {"mode": "named", "name": "green"},
    ):
        rendered = render(template, *tools, **choice)
        prompts.add(rendered.prompt)
        assert rendered.grammar is not None
        found = {name for name in ("red", "green", "blue") if name in rendered.grammar.gbnf}
        allowed = choice.get("allowed", (choice.get("name", "green"),))
        assert found == ({*allowed} if choice else {"red", "green", "blue"})
    assert len(prompts) == 1, "all are listed, so that what is cached fits"


def test_what_is_allowed_has_to_be_there(template: ChatTemplate) -> None:
    with pytest.raises(ParameterError, match="'yellow'"):
        render(template, Tool("red", "", GOOD), allowed=("red", "yellow"))
