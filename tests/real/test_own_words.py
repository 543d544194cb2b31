"""The law of own words on real models: a schema leaves a reply that fits token for token as it is.

Each prompt is answered greedily under its schema, while what the model itself would have said next
is written down at every step, before the schema is applied. As long as the two agree, the free
reply is the same, for the model read the same tokens. Where they part, what the model wanted has to
be a token that no reply which fits could go on with: a reading of JSON of this test's own decides
that. Some prompts are answered without the schema as well, to see that the free reply is the one
that was concluded.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jsonschema
import numpy as np
import pytest

from llama_py import Llama, LlamaGrammar

PROMPTS = 300
MOST = 48
#: Every so many prompts the free reply is generated, too.
CHECKED = 10

TEXT = {"type": "string"}
NUMBER = {"type": "integer"}
SWITCH = {"type": "boolean"}
LIST = {"type": "array", "items": TEXT}
#: What is asked for: a subject, an example and its answer, and what else is asked for.
SUBJECTS: list[tuple[str, dict[str, Any], dict[str, Any], list[str]]] = [
    ("city", {"name": TEXT, "country": TEXT, "population": NUMBER},
     {"name": "Oslo", "country": "Norway", "population": 700000},
     ["Paris", "Tokyo", "Cairo", "Lima", "Rome", "Madrid", "Berlin", "Delhi", "Boston", "Kyiv"]),
    ("animal", {"animal": TEXT, "legs": NUMBER, "can_fly": SWITCH},
     {"animal": "cat", "legs": 4, "can_fly": False},
     ["dog", "eagle", "ant", "spider", "horse", "shark", "bee", "hen", "bat", "snake"]),
    ("recipe", {"dish": TEXT, "ingredients": LIST},
     {"dish": "toast", "ingredients": ["bread", "butter"]},
     ["soup", "salad", "pizza", "omelette", "sushi", "curry", "pancake", "taco", "stew", "pie"]),
    ("translation", {"word": TEXT, "language": TEXT, "translation": TEXT},
     {"word": "house", "language": "German", "translation": "Haus"},
     ["tree", "water", "bread", "night", "sun", "friend", "book", "green", "milk", "snow"]),
    ("person", {"person": {"type": "object", "properties": {"name": TEXT, "born": NUMBER},
                           "required": ["name", "born"], "additionalProperties": False},
                "field": TEXT},
     {"person": {"name": "Marie Curie", "born": 1867}, "field": "physics"},
     ["Einstein", "Mozart", "Newton", "Picasso", "Darwin", "Gandhi", "Plato", "Goethe", "Bach",
      "Turing"]),
]  # fmt: skip
#: How it is asked for; the languages of the questions.
ASKED = [
    "Give me the {subject} {of} as JSON.",
    "Answer with one JSON object and nothing else: {subject} {of}.",
    "Donne-moi en JSON: {subject} {of}.",
    "Gib mir als JSON: {subject} {of}.",
    "JSON ({subject}): {of}",
    "What do you know about the {subject} {of}?",
]
INDENTS: list[dict[str, Any]] = [
    {},
    {"separators": (",", ":")},
    {"indent": 2},
    {"indent": 4},
    {"indent": "\t"},
]


@dataclass(frozen=True)
class Asked:
    """A prompt, and the schema of its answer."""

    messages: list[dict[str, str]]
    text: str
    schema: dict[str, Any]


def prompts() -> list[Asked]:
    rng = random.Random(7)
    ways = list(itertools.product(SUBJECTS, ASKED, INDENTS, range(10)))
    return [_prompt(*each) for each in rng.sample(ways, PROMPTS)]


def _prompt(
    of: tuple[str, dict[str, Any], dict[str, Any], list[str]],
    way: str,
    indent: Mapping[str, Any],
    number: int,
) -> Asked:
    subject, properties, example, others = of
    first = next(iter(example.values()))
    first = first["name"] if isinstance(first, dict) else first
    question, wanted = (way.format(subject=subject, of=each) for each in (first, others[number]))
    shown = json.dumps(example, **indent)
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    messages = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": shown},
        {"role": "user", "content": wanted},
    ]
    return Asked(messages, f"Q: {question}\nA: {shown}\n\nQ: {wanted}\nA: ", schema)


# ---- what fits, read by this test ----------------------------------------------------------------


def fits(text: str, schema: dict[str, Any]) -> bool:
    """Whether a text is an answer by the schema, or the beginning of one."""
    return not text.strip() or any(_valid(text + tail, schema) for tail in _tails(text))


def _tails(text: str) -> Iterator[str]:
    """What could make JSON of the beginning of one, as far as these schemas need it."""
    closing, quoted, escaped = "", False, False
    for letter in text:
        if quoted:
            quoted = escaped or letter != '"'
            escaped = letter == "\\" and not escaped
        elif letter == '"':
            quoted = True
        elif letter in "{[":
            closing = ("}" if letter == "{" else "]") + closing
        elif letter in "}]" and closing.startswith(letter):
            closing = closing[1:]
    words = [word[cut:] for word in ("true", "false") for cut in range(1, len(word))]
    values = ['""', "0", "false", '[""]', '{"name": "", "born": 0}']
    names = {name for _, properties, _, _ in SUBJECTS for name in (*properties, "name", "born")}
    keys = {name[cut:] for name in names for cut in range(len(name) + 1)}
    middle = ["", '"', '""', "0", *words, *values, *(f":{value}" for value in values)]
    middle += [f'{key}":{value}' for key in keys for value in values]
    if closing.startswith("}"):
        middle += [f'"{key}":{value}' for key in keys for value in values]
    escapes = ("", "\\", "n", "0", "00", "000", "0000")
    yield from (escape + each + closing for escape in escapes[: 7 if "\\" in text[-6:] else 1]
                for each in middle)  # fmt: skip


def _valid(text: str, schema: dict[str, Any]) -> bool:
    try:
        # An integer is not written with a point: parse_float makes something that never fits.
        value = json.loads(text, object_pairs_hook=_ordered, parse_float=lambda _: None)
    except (ValueError, RecursionError):
        return False
    return _follows(value, schema)


class _Pairs(list[tuple[str, Any]]):
    """An object as its pairs, in their order."""


def _ordered(pairs: list[tuple[str, Any]]) -> _Pairs:
    return _Pairs(pairs)


def _follows(value: Any, schema: dict[str, Any]) -> bool:
    """The schema, but for members that are still missing; in the order of the schema."""
    if schema["type"] == "object":
        names = list(schema["properties"])
        if not isinstance(value, _Pairs) or [key for key, _ in value] != names[: len(value)]:
            return False
        return all(_follows(each, schema["properties"][key]) for key, each in value)
    if schema["type"] == "array":
        plain = isinstance(value, list) and not isinstance(value, _Pairs)
        return plain and all(_follows(each, schema["items"]) for each in value)
    try:
        jsonschema.validate(value, schema)
    except jsonschema.ValidationError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ('{"name": "Paris", "country": "Fra', True),
        ('{"name": "Paris", "country": "France", "population": 2', True),
        ('{"name": "Paris", "coun', True),
        ('{"name": "Paris", "country"', True),
        ('{\n  "name": "Par\\', True),
        ('{"name": "Paris", "country": "France", "population": 2}', True),
        ('{"country": "Fr', False),
        ('{"name": 2', False),
        ("The city", False),
        ("```json", False),
        ('{"name": "Paris"}}', False),
        ('{"name": "Paris", "country": "France", "population": 2.', False),
    ],
)
def test_what_fits(text: str, expected: bool) -> None:
    schema = {"type": "object", "properties": SUBJECTS[0][1]}
    assert fits(text, schema) is expected


# ---- replies -------------------------------------------------------------------------------------


@dataclass
class Reply:
    """A reply under a schema, and what the model wanted at each of its steps."""

    tokens: list[int]
    wishes: list[int]
    text: str
    steps: int = field(init=False)

    def __post_init__(self) -> None:
        self.steps = len(self.tokens)

    @property
    def parting(self) -> int | None:
        """The step at which the model got another token than it wanted; None if there is none."""
        steps = zip(self.tokens, self.wishes, strict=True)
        return next((number for number, (got, own) in enumerate(steps) if got != own), None)


def answer(llm: Llama, asked: Asked, chats: bool, held: bool = True) -> Reply:
    wishes: list[int] = []

    def write_down(tokens: Any, scores: Any) -> Any:
        wishes.append(int(np.argmax(scores)))
        return scores

    options: dict[str, Any] = {
        "temperature": 0, "max_tokens": MOST, "logits_processor": [write_down], "reuse": False,
    }  # fmt: skip
    if chats:
        if held:
            body = {"name": "x", "schema": asked.schema}
            options["response_format"] = {"type": "json_schema", "json_schema": body}
        whole = llm.create_chat_completion(asked.messages, **options)
        text = str(whole["choices"][0]["message"]["content"])
    else:
        grammar = LlamaGrammar.from_json_schema(asked.schema) if held else None
        done = llm.create_completion(asked.text, grammar=grammar, **options)
        text = str(done["choices"][0]["text"])
    tokens = list(llm.runtime.last.record.generated)[: len(wishes)]
    return Reply(tokens, wishes[: len(tokens)], text)


def judge(llm: Llama, asked: Asked, reply: Reply) -> tuple[Counter[str], list[str]]:
    """What there is to count in a reply, and what is wrong with it."""
    found: Counter[str] = Counter(replies=1)
    wrong: list[str] = []
    eog = {*llm.vocab.eog_tokens()}

    def piece(token: int) -> bytes:
        return b"" if token in eog else bytes(llm.vocab.piece(token))

    at, said = reply.parting, [piece(token) for token in reply.tokens]
    found["free reply fits, and is the same"] += at is None
    if at is not None:
        wanted = b"".join([*said[:at], piece(reply.wishes[at])]).decode(errors="ignore")
        ended = reply.wishes[at] in eog
        whole = ended and fits(wanted, asked.schema) and _complete(wanted, asked.schema)
        if whole or (not ended and fits(wanted, asked.schema)):
            found["free reply may fit, and was changed"] += 1
            got = piece(reply.tokens[at])
            wrong.append(f"{wanted!r} was not allowed, {got!r} came instead")
    white = [bool(each) and not each.strip() for each in said]
    own_white = [bool(piece(wish)) and not piece(wish).strip() for wish in reply.wishes]
    if said and said[0][:1].isspace():
        own = piece(reply.wishes[0])[:1].isspace()
        found["begins with white space, the model's" if own else "begins with white space"] += 1
        if not own:
            wrong.append(f"white space first: {reply.text!r}")
    alien = [n for n, one in enumerate(white) if one and not own_white[n]
             and reply.tokens[n] != reply.wishes[n]]  # fmt: skip
    found["white space that the model did not want"] += bool(alien)
    found["cut off"] += reply.steps == MOST
    end = next((n for n in range(len(said)) if _complete(b"".join(said[: n + 1]).decode(
        errors="ignore"), asked.schema)), None)  # fmt: skip
    if end is not None:
        behind = [n for n in range(end + 1, len(said)) if said[n]]
        found["ends in white space, the model's"] += bool(behind) and not set(behind) & set(alien)
        if set(behind) & set(alien):
            found["ends in white space"] += 1
            wrong.append(f"white space last: {reply.text!r}")
    return found, wrong


def _complete(text: str, schema: dict[str, Any]) -> bool:
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("model", ["smollm2", "qwen05", "gemma3"])
def test_replies_that_fit_are_the_models_own(model: str, request: pytest.FixtureRequest) -> None:
    llm: Llama = request.getfixturevalue(model)
    chats = model != "gemma3"  # a base model
    total: Counter[str] = Counter()
    wrong: list[str] = []
    for number, asked in enumerate(prompts()):
        reply = answer(llm, asked, chats)
        found, faults = judge(llm, asked, reply)
        total += found
        wrong += faults
        for fault in faults:
            print(number, fault, flush=True)
        if number % CHECKED == 0:
            free = answer(llm, asked, chats, held=False)
            at = reply.steps if reply.parting is None else reply.parting
            total["checked without the schema"] += 1
            assert free.tokens[:at] == reply.tokens[:at]
            assert free.tokens[at : at + 1] == reply.wishes[at : at + 1]
        if number % 25 == 0:
            print(number, repr(reply.text[:90]), dict(total), flush=True)
    print(model, dict(total), flush=True)
    assert total["replies"] == PROMPTS
    assert not wrong, "\n".join(wrong)
