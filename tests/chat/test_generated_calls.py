"""Calls that were asked for are calls, in every family, with arguments that fit their schemas.

Replies are drawn at random from what the grammar allows, with the tokens of a real model, and
parsed whole and in pieces.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from llama_py.chat.stream import ChatStream, ParsedReply, parse_reply
from llama_py.chat.template import RenderedChat
from llama_py.core.grammar import GrammarSampler
from llama_py.core.vocab import Vocab
from tests.chat import families
from tests.chat.forging import NO_TOOLS, template_of
from tests.chat.generated import Writer, vocabulary
from tests.chat.openai import chat_request

FAMILIES = [name for name in families.names() if name not in NO_TOOLS]
ASKED = ("required", "named", "auto")

PAINT = {
    "colour": {"type": "string", "enum": ["red", "green", "sky blue", "<b>"]},
    "size": {"const": "big"},
    "code": {"type": "string", "pattern": "^[A-Z]{2}-\\d{1,3}$"},
    "note": {"type": "string", "minLength": 2, "maxLength": 9},
    "day": {"type": "string", "format": "date"},
}
COUNT = {
    "number": {"type": "integer", "minimum": 3, "maximum": 40},
    "exact": {"type": "boolean"},
    "ratio": {"type": "number"},
    "steps": {
        "type": "array",
        "items": {"type": "integer", "minimum": 1, "maximum": 9},
        "minItems": 1,
        "maxItems": 3,
    },
    "mode": {"enum": ["up", "down", "none", "1"]},
}
ORDER = {
    "customer": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 6},
            "level": {"type": "integer", "enum": [1, 2, 3]},
            "extras": {
                "type": "array",
                "items": {"type": "string", "enum": ["tea", "milk"]},
                "maxItems": 2,
            },
        },
        "required": ["name"],
        "additionalProperties": False,
    },
    "status": {"anyOf": [{"enum": ["open", "done"]}, {"const": "lost"}]},
    "urgency": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 5}, {"type": "boolean"}]},
    "reason": {"type": ["string", "null"], "enum": ["late", "broken"]},
    "text": {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 6}, {"type": "null"}]},
    "remark": {"type": "string"},
}


def tool(name: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    parameters["additionalProperties"] = False
    function = {"name": name, "description": name, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [
    tool("paint", PAINT, ["colour", "code"]),
    tool("count_up", COUNT, ["number"]),
    tool("order", ORDER, ["customer", "status"]),
    tool("nothing", {}, []),
    tool("choose", {"status": ORDER["status"], "mode": COUNT["mode"]}, []),
]
#: Templates that cannot write a schema without a type, and fail.
TYPED = ("ByteDance-Seed-OSS", "CohereForAI-c4ai-command-r-plus-tool_use")
SIMPLE = ("string", "integer", "number", "boolean")
SCHEMAS = {entry["function"]["name"]: entry["function"]["parameters"] for entry in TOOLS}
#: Families whose calls have no beginning that llama.cpp could wait for (the last one's is never
#: followed by what its grammar begins with).
UNMARKED = (
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
    "meta-llama-Llama-3.3-70B-Instruct",
    "meetkai-functionary-medium-v3.2",
)
#: How a call begins where that is no fixed text.
BEGINS = {
    "openai-gpt-oss-120b": "<|channel|>commentary to=functions",
    "muse-glimmer": " to=paint<|message|>",
}


@pytest.fixture(scope="module")
def vocab() -> Iterator[Vocab]:
    with vocabulary() as found:
        yield found


@pytest.fixture(scope="module")
def writer(vocab: Vocab) -> Writer:
    return Writer(vocab, random.Random(7))


def tools_of(family: str) -> list[dict[str, Any]]:
    """The tools, without arguments that the family's template cannot show."""
    if family not in TYPED:
        return TOOLS
    out = []
    for entry in TOOLS:
        schema = entry["function"]["parameters"]
        parts = schema["properties"].items()
        typed = {name: part for name, part in parts if part.get("type") in SIMPLE}
        required = [name for name in schema["required"] if name in typed]
        out.append(tool(entry["function"]["name"], typed, required))
    return out


def rendered_for(family: str, asked: str, parallel: bool, chance: random.Random) -> RenderedChat:
    choice: Any = asked
    if asked == "named":
        name = chance.choice(sorted(SCHEMAS))
        choice = {"type": "function", "function": {"name": name}}
    request = chat_request(
        families.USER, tools=tools_of(family), tool_choice=choice, parallel_tool_calls=parallel
    )
    return template_of(family).render(request)


def streamed(rendered: RenderedChat, text: str, chance: random.Random) -> ParsedReply:
    stream = ChatStream(rendered)
    while text:
        size = chance.randint(1, 9)
        stream.feed(text[:size])
        text = text[size:]
    return stream.finish()


def check(family: str, asked: str, parallel: bool, writer: Writer, chance: random.Random) -> int:
    """Write a reply and check it; how many arguments it had."""
    asked = "required" if asked == "auto" and family in UNMARKED else asked
    rendered = rendered_for(family, asked, parallel, chance)
    begin = ""
    if asked == "auto":
        begin = BEGINS.get(family) or rendered.call_marks[0]
        if rendered.thinking_ends and parse_reply(rendered, "Hm.").reasoning:
            begin = f"Hm.{rendered.thinking_ends[0]}{begin}"
    reply = writer.write(rendered, begin)
    assert reply.ended, reply.text
    parsed = parse_reply(rendered, reply.text)
    assert parsed.tool_calls, reply.text
    if asked != "auto":
        assert not parsed.content.strip(), reply.text
    if not parallel:
        assert len(parsed.tool_calls) == 1, reply.text
    for call in parsed.tool_calls:
        given = json.loads(call.arguments, object_pairs_hook=once)
        schema = SCHEMAS[call.name]
        if family in TYPED:
            schema = {**schema, "required": []}
        jsonschema.validate(given, schema)
    pieces = streamed(rendered, reply.text, chance)
    assert [(c.name, json.loads(c.arguments)) for c in pieces.tool_calls] == [
        (c.name, json.loads(c.arguments)) for c in parsed.tool_calls
    ], reply.text
    return sum(len(json.loads(call.arguments)) for call in parsed.tool_calls)


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose names are all different."""
    assert len({name for name, _ in pairs}) == len(pairs), pairs
    return dict(pairs)


@pytest.mark.parametrize("number", range(len(FAMILIES)), ids=FAMILIES)
def test_replies_at_random_are_calls_that_fit(number: int, writer: Writer) -> None:
    chance = random.Random(number)
    check(FAMILIES[number], ASKED[number % 3], number % 2 == 0, writer, chance)


@pytest.mark.long
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("family", FAMILIES)
def test_many_replies_at_random_are_calls_that_fit(family: str, asked: str, writer: Writer) -> None:
    chance = random.Random(f"{family} {asked}")
    for turn in range(12):
        check(family, asked, turn % 2 == 0, writer, chance)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_required_call_begins_at_once(family: str, vocab: Vocab) -> None:
    """No word may come where a call has to, except in a block of reasoning that is open."""
    rendered = template_of(family).render(
        chat_request(
            families.USER,
            tools=tools_of(family),
            tool_choice="required",
            enable_thinking=False,
        )
    )
    assert rendered.grammar is not None
    parsed = parse_reply(rendered, "Hello")
    if parsed.reasoning and not parsed.content:
        pytest.skip("the template opens a block of reasoning in any case")
    grammar = GrammarSampler(vocab, rendered.grammar)
    try:
        words = [token for text in ("Hello", " I", "The") for token in vocab.tokenize(text)]
        assert not any(grammar.allows(token) for token in words)
        assert not any(grammar.allows(token) for token in vocab.eog_tokens())
    finally:
        grammar.close()


def test_a_list_in_pythons_notation_has_no_space_before_a_comma(vocab: Vocab) -> None:
    """llama.cpp's parser would end the call there."""
    rendered = template_of("LFM2.5-8B-A1B").render(
        chat_request(families.USER, tools=TOOLS, tool_choice="required")
    )
    assert rendered.grammar is not None
    begin = '<|tool_call_start|>[order(customer={"name":"x","extras":["tea"'
    for end, taken in ((',"milk"', True), (' ,"milk"', False)):
        grammar = GrammarSampler(vocab, rendered.grammar)
        try:
            tokens = vocab.tokenize(begin + end, add_special=False, parse_special=True)
            assert all(grammar.accept(token) is None for token in tokens) is taken
        finally:
            grammar.close()
