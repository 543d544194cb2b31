"""Calls that were asked for are calls, in every family, with arguments that fit their schemas.

Replies are drawn at random from what the grammar allows, with the tokens of a real model, and
parsed whole and in pieces.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import jsonschema
import pytest

from llama_py.chat.rendered import RenderedChat
from llama_py.chat.stream import ChatStream, ParsedReply, ParsedToolCall, parse_reply
from llama_py.core.grammar.sampler import GrammarSampler
from llama_py.core.vocab import Vocab
from tests.chat import families
from tests.chat.generated import Writer, vocabulary
from tests.chat.openai import chat_request
from tests.chat.test_general_tools import TEXTS, template_of

#: All templates that llama.cpp ships, and some in the manner of others that have no form for tools.
FAMILIES = [*families.names(), *TEXTS]
#: One family for each form of calls, for the run of every day.
SOME = families.ONE_OF_EACH | {next(iter(TEXTS))}
#: All families, of which the others are in the long variant.
EACH = [
    pytest.param(number, id=name, marks=() if name in SOME else pytest.mark.long)
    for number, name in enumerate(FAMILIES)
]
#: Replies of each family, for each way of asking, in the long variant: about 2,500 arguments.
TURNS = 4
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
    tool("paint", PAINT, ["colour", "code", "note", "day"]),
    tool("count_up", COUNT, ["number", "exact", "steps"]),
    tool("order", ORDER, ["customer", "status", "urgency"]),
    tool("nothing", {}, []),
    tool("choose", {"status": ORDER["status"], "mode": COUNT["mode"]}, []),
]
#: Templates that cannot write a schema without a type, and fail.
TYPED = ("ByteDance-Seed-OSS", "CohereForAI-c4ai-command-r-plus-tool_use")
SIMPLE = ("string", "integer", "number", "boolean")
SCHEMAS = {entry["function"]["name"]: entry["function"]["parameters"] for entry in TOOLS}
#: How a call begins where that is not a fixed text.
BEGINS = {
    "llm-jp-llm-jp-4.1-8b-thinking": "<|channel|> commentary to=functions",
    "openai-gpt-oss-120b": "<|channel|>commentary to=functions",
    "muse-glimmer": " to=paint<|message|>",
    "meetkai-functionary-medium-v3.2": "paint\n",
    "meta-llama-Llama-3.1-8B-Instruct": '{"name": "paint"',
    "meta-llama-Llama-3.2-3B-Instruct": '{"type": "function", "name": "order"',
    "meta-llama-Llama-3.3-70B-Instruct": '{"name":"count_up"',
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


@dataclass
class Totals:
    """What was seen: replies, and those without the call that was asked for; arguments."""

    replies: int = 0
    asked: int = 0
    missing: int = 0
    calls: int = 0
    arguments: int = 0
    outside: int = 0
    streamed_otherwise: int = 0


@pytest.fixture(scope="module")
def totals(request: pytest.FixtureRequest) -> Iterator[Totals]:
    found = Totals()
    yield found
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print("\ngenerated calls:", ", ".join(f"{k} {v}" for k, v in asdict(found).items()))


def beginning(family: str, rendered: RenderedChat) -> str:
    """What a reply begins with that calls a tool of its own accord."""
    begin = BEGINS.get(family) or rendered.call_marks[0]
    if rendered.thinking_ends and parse_reply(rendered, "Hm.").reasoning:
        return f"Hm.{rendered.thinking_ends[0]}{begin}"
    return begin


def check(
    family: str, asked: str, parallel: bool, writer: Writer, chance: random.Random, totals: Totals
) -> None:
    """Write a reply and check it."""
    rendered = rendered_for(family, asked, parallel, chance)
    reply = writer.write(rendered, beginning(family, rendered) if asked == "auto" else "")
    assert reply.ended, reply.text
    parsed = parse_reply(rendered, reply.text)
    pieces = streamed(rendered, reply.text, chance)
    problems = [problem for call in parsed.tool_calls for problem in misfits(call, family)]
    one_too_many = not parallel and len(parsed.tool_calls) > 1
    words = asked != "auto" and bool(parsed.content.strip())
    totals.replies += 1
    totals.asked += 1
    totals.missing += not parsed.tool_calls or words or one_too_many
    totals.calls += len(parsed.tool_calls)
    totals.arguments += sum(len(json.loads(call.arguments)) for call in parsed.tool_calls)
    totals.outside += len(problems)
    totals.streamed_otherwise += calls_of(parsed) != calls_of(pieces)
    assert parsed.tool_calls, reply.text
    assert not words, reply.text
    assert not one_too_many, reply.text
    assert not problems, reply.text
    assert calls_of(pieces) == calls_of(parsed), reply.text


def calls_of(reply: ParsedReply) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in reply.tool_calls]


def misfits(call: ParsedToolCall, family: str) -> list[str]:
    """What is wrong with the arguments of a call."""
    found: list[str] = []

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        found.extend(f"{name} twice" for name in set(names) if names.count(name) > 1)
        return dict(pairs)

    given = json.loads(call.arguments, object_pairs_hook=once)
    schema = SCHEMAS[call.name]
    if family in TYPED:
        parts = schema["properties"]
        shown = [name for name in schema["required"] if parts[name].get("type") in SIMPLE]
        schema = {**schema, "required": shown}
    errors = jsonschema.Draft202012Validator(schema).iter_errors(given)
    return found + [error.message for error in errors]


@pytest.mark.parametrize("number", EACH)
def test_replies_at_random_are_calls_that_fit(number: int, writer: Writer, totals: Totals) -> None:
    chance = random.Random(number)
    check(FAMILIES[number], ASKED[number % 3], number % 2 == 0, writer, chance, totals)


@pytest.mark.long
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("family", FAMILIES)
def test_many_replies_at_random_are_calls_that_fit(
    family: str, asked: str, writer: Writer, totals: Totals
) -> None:
    chance = random.Random(f"{family} {asked}")
    wrong = []
    for turn in range(TURNS):
        try:
            check(family, asked, turn % 2 == 0, writer, chance, totals)
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)


def test_one_family_of_each_form_is_there() -> None:
    assert set(FAMILIES) >= SOME


@pytest.mark.parametrize("number", EACH)
def test_a_required_call_begins_at_once(number: int, vocab: Vocab) -> None:
    """No word may come where a call has to, except in a block of reasoning that is open."""
    family = FAMILIES[number]
    rendered = template_of(family).render(
        chat_request(
            families.USER,
            tools=tools_of(family)[:1],
            tool_choice="required",
            enable_thinking=False,
        )
    )
    assert rendered.grammar is not None
    parsed = parse_reply(rendered, "Hello")
    thought = ""
    if parsed.reasoning and not parsed.content:  # the template opens a block of it in any case
        thought = f"Hm.{rendered.thinking_ends[0]}"
    grammar = GrammarSampler(vocab, rendered.grammar)
    try:
        for token in vocab.tokenize(thought, add_special=False, parse_special=True):
            assert grammar.accept(token) is None
        words = [token for text in ("Hello", " I", "The") for token in vocab.tokenize(text)]
        assert not any(grammar.allows(token) for token in words)
        assert not any(grammar.allows(token) for token in vocab.eog_tokens())
    finally:
        grammar.close()


@pytest.mark.parametrize(
    ("begin", "taken"),
    [
        ('order(customer={"name":"x","extras":["tea","milk"', True),
        ('order(customer={"name":"x","extras":["tea" ,"milk"', False),
        (
            "order(customer={'name': 'a\"b', 'extras': ['tea', \"milk\"]}, status='open', urg",
            True,
        ),
        ("order(customer={'name': 'it\\'s\\n'}, status='lost', urgency=False)", True),
        ("order(customer={'name': 'x\"}, status='lost', urgency=False)", False),
        ("paint(colour='green', size='big', note='ab', day='2024-01-02'", True),
        ("paint(colour='yellow'", False),
        ("paint(note='longer than nine'", False),
    ],
)
def test_calls_in_pythons_notation(vocab: Vocab, begin: str, taken: bool) -> None:
    """As llama.cpp's parser reads it: it would end the call at white space before a comma."""
    rendered = template_of("LFM2.5-8B-A1B").render(
        chat_request(families.USER, tools=TOOLS, tool_choice="required")
    )
    assert rendered.grammar is not None
    grammar = GrammarSampler(vocab, rendered.grammar)
    try:
        text = f"<|tool_call_start|>[{begin}"
        tokens = vocab.tokenize(text, add_special=False, parse_special=True)
        assert all(grammar.accept(token) is None for token in tokens) is taken
    finally:
        grammar.close()


def test_what_is_said_in_pythons_notation_is_json() -> None:
    rendered = template_of("LFM2.5-8B-A1B").render(
        chat_request(families.USER, tools=TOOLS, tool_choice="required")
    )
    said = "order(customer={'name': 'a\"\\'b'}, status='open', urgency=True, text=None)"
    parsed = parse_reply(rendered, f"<|tool_call_start|>[{said}]<|tool_call_end|>")
    customer = {"name": "a\"'b"}
    wanted = {"customer": customer, "status": "open", "urgency": True, "text": None}
    assert calls_of(parsed) == [("order", wanted)]
