"""Grammars: what they accept fits the schema, and what they cannot express is an error."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from llama_py.chat.constraints import LlamaGrammar, compile_schema, render_constrained
from llama_py.chat.grammars import guidance
from llama_py.chat.grammars.converter import check_schema, gbnf_of_schema
from llama_py.chat.grammars.gbnf import rename_rules
from llama_py.chat.stream import parse_reply
from llama_py.chat.templates.template import ChatTemplate
from llama_py.core.model import Model
from llama_py.core.sampling.sampler import Sampler
from llama_py.core.vocab import Vocab
from llama_py.errors import GrammarError, ParameterError
from llama_py.params import GrammarSpec, SamplingParams, TokenConstraint
from tests.chat import families
from tests.chat.families import TOOLS, USER
from tests.chat.fitting import fits as takes
from tests.chat.openai import chat_request
from tests.models import tiny_model

BACKENDS = ("gbnf", "llguidance")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", 3]}, "maxItems": 3},
        "home": {"$ref": "#/$defs/place"},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"city": {"const": "Paris"}, "zip": {"type": ["string", "null"]}},
            "required": ["city"],
            "additionalProperties": False,
        }
    },
}

#: Schemas that both engines express.
SCHEMAS: dict[str, Any] = {
    "person": PERSON,
    "any object": {"type": "object"},
    "number": {"type": "number"},
    "integer bounds": {"type": "integer", "minimum": -3, "exclusiveMaximum": 1200},
    "boolean or null": {"type": ["boolean", "null"]},
    "anyOf": {"anyOf": [{"type": "integer"}, {"const": "none"}]},
    "oneOf": {"oneOf": [{"type": "integer"}, {"type": "boolean"}]},
    "pattern": {"type": "string", "pattern": "^[a-f]{2,4}-\\d{3}$"},
    "dots": {"type": "string", "pattern": "^.{3}[^a]\\s?\\w$"},
    "date": {"type": "string", "format": "date"},
    "uuid": {"type": "string", "format": "uuid"},
    "tuple": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}]}
    | {"minItems": 2, "maxItems": 2},
    "nested arrays": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        "minItems": 1,
        "maxItems": 2,
    },
    "allOf": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ]
    },
    "not ASCII": {"enum": ["é", "日本", 'a "quote"', "new\nline"]},
}

#: Schemas that the converter of llama.cpp would silently weaken: (schema, word in the message).
UNSUPPORTED: dict[str, tuple[Any, str]] = {
    "number bounds": ({"type": "number", "minimum": 1}, "minimum"),
    "multipleOf": ({"type": "integer", "multipleOf": 3}, "multipleOf"),
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    "contains": ({"type": "array", "contains": {"type": "null"}}, "contains"),
    "patternProperties": ({"type": "object", "patternProperties": {"^a": {}}}, "patternProperties"),
    "propertyNames": ({"type": "object", "propertyNames": {"maxLength": 2}}, "propertyNames"),
    "minProperties": ({"type": "object", "minProperties": 2}, "minProperties"),
    "dependentRequired": ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependent"),
    "required without a property": ({"type": "object", "required": ["a"]}, "required"),
    "not": ({"not": {"type": "string"}}, "not"),
    "if": ({"type": "string", "if": {"minLength": 2}, "then": {"maxLength": 3}}, "if"),
    "format": ({"type": "string", "format": "email"}, "email"),
    "format and length": (
        {"type": "string", "format": "date", "maxLength": 3},
        "together with",
    ),
    "pattern without anchors": ({"type": "string", "pattern": "abc"}, "pattern"),
    "look-ahead": ({"type": "string", "pattern": "^(?=a)b$"}, "pattern"),
    "not a shorthand in a class": ({"type": "string", "pattern": "^[^\\s\\S]$"}, "escape"),
    "quotes in a pattern": ({"type": "string", "pattern": '^"$'}, "pattern"),
    "line breaks in a pattern": ({"type": "string", "pattern": "^a\\nb$"}, "pattern"),
    "both bounds": ({"type": "integer", "minimum": 1, "exclusiveMinimum": 0}, "together"),
    "words beside a reference": (
        {"$ref": "#/$defs/x", "minLength": 2, "$defs": {"x": {"type": "string"}}},
        "minLength",
    ),
    "words beside anyOf": ({"anyOf": [{"type": "string"}], "minLength": 2}, "minLength"),
    "overlapping oneOf": (
        {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 2}]},
        "overlap",
    ),
    "enum of another type": ({"type": "string", "enum": ["a", None]}, "None"),
    "guessed type": ({"minLength": 2, "minimum": 3}, "minimum"),
    "bare keyword": ({"minimum": 3}, "minimum"),
    "remote reference": ({"$ref": "https://example.org/x"}, "leaves"),
    "reference to an odd digit": (
        {"anyOf": [{"type": "null"}, {"$ref": "#/anyOf/²"}]},
        "does not exist",
    ),
    "false": ({"type": "array", "items": False}, "False"),
    "allOf of strings": ({"allOf": [{"type": "string"}, {"minLength": 2}]}, "allOf"),
    "items and prefixItems": (
        {"type": "array", "prefixItems": [{}], "items": {"type": "null"}},
        "prefixItems",
    ),
}


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model(tiny_model("full")) as model:
        yield model


@pytest.fixture(scope="module")
def vocab(model: Model) -> Vocab:
    return model.vocab


def sampling(schema: Any, vocab: Vocab, backend: Any) -> SamplingParams:
    compiled = compile_schema(schema, vocab, backend)
    return SamplingParams(
        temperature=1.0, seed=1, grammar=compiled.grammar, constraint=compiled.constraint
    )


def generate(params: SamplingParams, vocab: Vocab, seed: int, limit: int = 300) -> str | None:
    """A reply of random logits, in which what closes a value is likely; None if it does not end."""
    rng = np.random.default_rng(seed)
    sampler = Sampler(vocab, params)
    closing = [t for t in range(vocab.n_tokens) if vocab.piece(t) in (b'"', b"}", b"]")]
    closing += vocab.eog_tokens()
    out: list[int] = []
    try:
        for _ in range(limit):
            row = rng.normal(size=vocab.n_tokens).astype(np.float32)
            row[closing] += 4
            token = sampler.sample(row)
            if vocab.is_eog(token):
                text = vocab.detokenize(out, special=True).decode("utf-8", "replace")
                # Random tokens write bytes that are not UTF-8, which llama.cpp counts otherwise.
                return None if "\ufffd" in text else text
            out.append(token)
    finally:
        sampler.close()
    return None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SCHEMAS)
def test_replies_fit_the_schema(name: str, backend: str, vocab: Vocab) -> None:
    schema = SCHEMAS[name]
    params = sampling(schema, vocab, backend)
    validator = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    replies = [generate(params, vocab, seed) for seed in range(12)]
    ended = [reply for reply in replies if reply is not None]
    assert len(ended) >= 6
    for reply in ended:
        validator.validate(json.loads(reply))


TREE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "c": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["v"],
    "additionalProperties": False,
}
#: Within a node that has to be left to llguidance as it is.
BESIDE = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "b": {
            "type": "object",
            "properties": {"id": {"type": "string"}, "k": {"$ref": "#/properties/id"}},
            "required": ["id", "k"],
            "minProperties": 1,
            "additionalProperties": False,
        },
    },
    "required": ["id", "b"],
    "additionalProperties": False,
}
NOT_NULL = {
    "$ref": "#/$defs/n",
    "type": "string",
    "$defs": {"n": {"type": ["string", "null"]}},
}


@pytest.mark.parametrize(
    ("schema", "text", "fits"),
    [
        (TREE, '{"v":1,"c":[{"v":2}]}', True),
        (TREE, '{"v":1,"c":[{"v":2,"c":[{"v":3,"c":[]}]}]}', True),
        (TREE, '{"v":1,"c":[{}]}', False),
        (TREE, '{"v":1,"c":[3]}', False),
        (BESIDE, '{"id":1,"b":{"id":"a","k":2}}', True),
        (BESIDE, '{"id":1,"b":{"id":"a","k":"b"}}', False),
        (NOT_NULL, '"a"', True),
        (NOT_NULL, "null", False),
    ],
)
def test_references_mean_the_place_that_they_name(
    schema: dict[str, Any], text: str, fits: bool, vocab: Vocab
) -> None:
    compiled = compile_schema(schema, vocab, "llguidance")
    assert compiled.constraint is not None
    matcher: Any = compiled.constraint()
    tokens = vocab.tokenize(text.encode(), add_special=False, parse_special=False)
    taken = all(matcher._matcher.try_consume_tokens([token]) for token in tokens)
    assert (taken and matcher._matcher.is_accepting()) is fits


NULLABLE = {"type": "string", "minLength": 1, "nullable": True}
NULLABLE_ITEM: dict[str, Any] = {
    "type": "array",
    "items": {"$ref": "#/$defs/nullable", "nullable": True},
    "$defs": {"nullable": {"type": "integer"}},
}
NAMED_NULLABLE = {
    "type": "object",
    "properties": {"nullable": {"const": True}, "any": True},
    "required": ["nullable", "any"],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("schema", "text", "fits"),
    [
        (TREE, '{"v":1,"c":[{"v":2,"c":[{"v":3,"c":[]}]}]}', True),
        (TREE, '{"v":1,"c":[3]}', False),
        (TREE, '{"v":1,"c":[{}]}', False),
        ({"anyOf": [{"const": 1}, {"type": "array", "items": {"$ref": "#"}}]}, "[1,[1]]", True),
        ({"anyOf": [{"const": 1}, {"type": "array", "items": {"$ref": "#"}}]}, "[2]", False),
        (NULLABLE, "null", True),
        (NULLABLE, '"a"', True),
        (NULLABLE, '""', False),
        (NULLABLE, "1", False),
        ({"enum": ["a"], "nullable": True}, "null", True),
        ({"type": "string", "const": "a", "nullable": True}, "null", True),
        ({"type": "string", "const": "a", "nullable": True}, '"b"', False),
        ({"type": "string", "nullable": False}, "null", False),
        (NULLABLE_ITEM, "[1,null]", True),
        (NULLABLE_ITEM, '["a"]', False),
        (NAMED_NULLABLE, '{"nullable":true,"any":[{}]}', True),
        (NAMED_NULLABLE, '{"nullable":null,"any":1}', False),
        ({"type": "array", "items": True}, '[1,"a"]', True),
    ],
)
def test_both_engines_take(schema: Any, text: str, fits: bool, backend: str, vocab: Vocab) -> None:
    compiled = compile_schema(schema, vocab, backend)  # type: ignore[arg-type]
    assert takes(compiled.grammar, text, vocab, compiled.constraint) is fits


def test_a_bound_of_zero_is_a_bound() -> None:
    for bound in ("minimum", "exclusiveMaximum"):
        with pytest.raises(GrammarError, match=bound):
            gbnf_of_schema({"type": "number", bound: 0})
    gbnf_of_schema({"type": "number", "minimum": None, "uniqueItems": False})


def test_alternatives_whose_types_are_lists() -> None:
    def union(*kinds: list[str]) -> dict[str, Any]:
        return {"oneOf": [{"type": kind} for kind in kinds]}

    gbnf_of_schema(union(["string", "null"], ["integer", "boolean"]))
    for shared in (union(["string", "null"], ["integer", "null"]), union(["integer"], ["number"])):
        with pytest.raises(GrammarError, match="oneOf"):
            gbnf_of_schema(shared)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_a_grammar_cannot_express_is_an_error(name: str) -> None:
    schema, word = UNSUPPORTED[name]
    nested = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    if "$defs" in schema:
        nested["$defs"] = schema["$defs"]
    for given, place in ((schema, "#"), (nested, "#/properties/x")):
        with pytest.raises(GrammarError) as raised:
            gbnf_of_schema(given)
        assert word in str(raised.value)
        assert place in str(raised.value)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_check_lets_through_what_works(name: str) -> None:
    check_schema(SCHEMAS[name])


def test_llguidance_names_what_it_cannot_express(vocab: Vocab) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(GrammarError, match=r"uniqueItems.*#/properties/x"):
        compile_schema(schema, vocab, "llguidance")
    with pytest.raises(GrammarError, match="uniqueItems"):
        compile_schema(schema, vocab, "auto")


@pytest.mark.parametrize(
    ("part", "word", "place"),
    [
        ({"type": "string", "format": "nonsense"}, "nonsense", "#/properties/b/items"),
        ({"type": "string", "pattern": "(a"}, "unclosed group", "#/properties/b/items"),
        ({"type": "objekt"}, "objekt", "#/properties/b/items"),
        ({"not": {"const": 1}}, "not", "#/properties/b/items"),
        ({"anyOf": [{"const": 1}, {"type": "objekt"}]}, "objekt", "#/properties/b/items/anyOf/1"),
        ({"$ref": "#/$defs/c"}, "format", "#/$defs/c/properties/d"),
    ],
)
def test_llguidance_names_the_place(part: Any, word: str, place: str, vocab: Vocab) -> None:
    shelf = {"c": {"type": "object", "properties": {"d": {"type": "string", "format": "x"}}}}
    lists = {"type": "array", "items": part}
    properties = {"objekt": {"type": "string"}, "b": lists}
    schema = {"type": "object", "properties": properties, "$defs": shelf}
    with pytest.raises(GrammarError, match=word) as raised:
        compile_schema(schema, vocab, "llguidance")
    assert str(raised.value).endswith(f"(at {place})")


def test_backends(vocab: Vocab) -> None:
    assert compile_schema(PERSON, vocab).constraint is not None
    assert compile_schema(PERSON).grammar is not None
    assert compile_schema(json.dumps(PERSON), vocab, "gbnf").constraint is None
    with pytest.raises(ParameterError, match="backend"):
        compile_schema(PERSON, vocab, "other")  # type: ignore[arg-type]
    with pytest.raises(GrammarError, match="vocabulary"):
        compile_schema(PERSON, None, "llguidance")
    with pytest.raises(GrammarError, match="not JSON"):
        compile_schema("{", vocab)


def test_auto_takes_llama_cpp_where_llguidance_is_missing(
    vocab: Vocab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_py.chat.constraints.available", lambda: False)
    assert compile_schema(PERSON, vocab).grammar is not None


def test_guides_are_kept(vocab: Vocab) -> None:
    assert guidance.guide_for(vocab) is guidance.guide_for(vocab)


def test_llama_grammar(tmp_path: Path, vocab: Vocab) -> None:
    text = 'root ::= "yes" | "no"'
    (tmp_path / "g.gbnf").write_text(text)
    for grammar in (LlamaGrammar.from_string(text), LlamaGrammar.from_file(tmp_path / "g.gbnf")):
        assert grammar.spec == GrammarSpec(text)
        params = SamplingParams(grammar=grammar.spec, temperature=1.0, seed=3)
        assert generate(params, vocab, 0) in ("yes", "no")
    with pytest.raises(GrammarError, match="cannot be read"):
        LlamaGrammar.from_file(tmp_path / "missing")
    with pytest.raises(GrammarError, match="no rule"):
        LlamaGrammar.from_string("")
    grammar = LlamaGrammar.from_json_schema(json.dumps(PERSON), verbose=False)
    assert grammar.schema == PERSON
    assert grammar.compile(vocab).constraint is not None
    assert grammar.compile(None).grammar == grammar.spec


def test_a_grammar_of_a_schema_that_only_llguidance_knows(
    vocab: Vocab, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = {"type": "integer", "multipleOf": 3}
    grammar = LlamaGrammar.from_json_schema(schema)
    constraint = grammar.compile(vocab).constraint
    assert takes(None, "9", vocab, constraint)
    assert not takes(None, "8", vocab, constraint)
    for _ in range(2):
        with pytest.raises(GrammarError, match="multipleOf"):
            _ = grammar.grammar
    with pytest.raises(GrammarError, match="multipleOf"):
        grammar.compile(None)
    monkeypatch.setattr("llama_py.chat.constraints.available", lambda: False)
    with pytest.raises(GrammarError, match="multipleOf"):
        LlamaGrammar.from_json_schema(schema)


# ---- in a chat --------------------------------------------------------------------------------


def maker(template: ChatTemplate, vocab: Vocab, **options: Any) -> TokenConstraint:
    request = chat_request(USER, response_format=_FORMAT, **options)
    rendered = render_constrained(template, request, vocab)
    assert rendered.constraint is not None
    return rendered.constraint()


_FORMAT = {"type": "json_schema", "json_schema": {"schema": PERSON}}
_ANSWER = '{"name": "x", "age": 3}'


def follow(constraint: TokenConstraint, vocab: Vocab, text: str) -> bool:
    """Whether a constraint lets a text through that a model wants to write."""
    for token in vocab.tokenize(text, add_special=False, parse_special=True):
        logits = np.zeros(vocab.n_tokens, dtype=np.float32)
        logits[token] = 1
        constraint.mask(logits)
        if np.isneginf(logits[token]):
            return False
        constraint.accept(token)
    return True


def may_end(constraint: TokenConstraint, vocab: Vocab) -> bool:
    logits = np.zeros(vocab.n_tokens, dtype=np.float32)
    constraint.mask(logits)
    return bool(np.isfinite(logits[vocab.eog_tokens()]).any())


def test_reason_freely_then_constrain(vocab: Vocab) -> None:
    template = families.load("Qwen-QwQ-32B")  # its prompt ends with <think>
    constraint = maker(template, vocab)
    assert follow(constraint, vocab, 'I {"think" <b>\n')
    assert not may_end(constraint, vocab)
    assert follow(constraint, vocab, "</think>\n\n" + _ANSWER)
    assert may_end(constraint, vocab)
    assert not follow(maker(template, vocab), vocab, "hm</think>\n\nSure! ")


def test_optional_reasoning(vocab: Vocab) -> None:
    template = families.load("Qwen-Qwen3-0.6B")
    assert follow(maker(template, vocab), vocab, _ANSWER)
    assert follow(maker(template, vocab), vocab, "<think>\nhm\n</think>\n\n" + _ANSWER)
    assert not follow(maker(template, vocab), vocab, "Sure")
    closed = maker(template, vocab, enable_thinking=False)
    assert not follow(closed, vocab, "<think>")


def test_tools_and_a_schema_in_one_request(vocab: Vocab) -> None:
    template = families.load("Qwen-Qwen3-0.6B")
    assert follow(maker(template, vocab, tools=TOOLS), vocab, _ANSWER)
    calling = maker(template, vocab, tools=TOOLS)
    assert follow(calling, vocab, "<think>hm</think>\n\n<tool_call>\n")
    assert follow(calling, vocab, '{"name": anything goes here: the tools\' grammar decides')
    assert not calling.finished
    assert not follow(maker(template, vocab, tools=TOOLS), vocab, "Sure")


@pytest.mark.parametrize("backend", BACKENDS)
def test_constrained_chat_parses(backend: Any, vocab: Vocab) -> None:
    template = families.load("Qwen-Qwen2.5-7B-Instruct")
    request = chat_request(USER, response_format=_FORMAT)
    rendered = render_constrained(template, request, vocab, backend)
    assert (rendered.constraint is None) == (backend == "gbnf")
    params = SamplingParams(
        grammar=rendered.grammar, constraint=rendered.constraint, temperature=1.0, seed=1
    )
    replies = [reply for seed in range(8) if (reply := generate(params, vocab, seed))]
    assert replies
    for reply in replies:
        content = parse_reply(rendered, reply).content
        jsonschema.validate(json.loads(content), PERSON)


def test_gbnf_for_tools_and_a_schema(vocab: Vocab) -> None:
    template = families.load("Qwen-Qwen2.5-7B-Instruct")
    request = chat_request(USER, tools=TOOLS, response_format=_FORMAT)
    rendered = render_constrained(template, request, vocab, "gbnf")
    assert rendered.grammar is not None
    assert not rendered.grammar.lazy
    assert rendered.grammar.prefill == rendered.generation_prompt
    params = SamplingParams(grammar=rendered.grammar, temperature=1.0, seed=1)
    kinds = set()
    for seed in range(30):
        text = generate(params, vocab, seed, limit=200)
        reply = parse_reply(rendered, text) if text is not None else None
        if reply is None or not reply.complete:
            continue
        if reply.tool_calls:
            kinds.add("call")
        else:
            kinds.add("answer")
            jsonschema.validate(json.loads(reply.content), PERSON)
    assert kinds == {"answer", "call"}


@pytest.mark.parametrize("name", families.names())
def test_every_template_constrains_a_schema(name: str, vocab: Vocab) -> None:
    """Either engine, but one of them; without a schema nobody."""
    template = families.load(name)
    request = chat_request(USER, response_format={"type": "json_object"})
    rendered = render_constrained(template, request, vocab)
    assert (rendered.constraint is None) != (rendered.grammar is None)
    free = render_constrained(template, chat_request(USER), vocab)
    assert free.constraint is None
    assert free.grammar is None


def test_renaming_rules() -> None:
    grammar = 'root ::= "a-b" item [a-z] # a comment\nitem ::= <[12]> root-x?\nroot-x ::= "\\"x"'
    assert rename_rules(grammar, "p-") == (
        'p-root ::= "a-b" p-item [a-z] # a comment\n'
        'p-item ::= <[12]> p-root-x?\np-root-x ::= "\\"x"'
    )


# ---- cost ---------------------------------------------------------------------------------------


class BigVocab:
    """A vocabulary of the size of Qwen's, of bytes and random words."""

    def __init__(self, n_tokens: int = 152_064) -> None:
        rng = np.random.default_rng(0)
        letters = np.frombuffer(b'abcdefghijklmnopqrstuvwxyz ,:"{}0123456789', dtype=np.uint8)
        words = [bytes([byte]) for byte in range(256)]
        known = set(words)
        while len(words) < n_tokens - 1:
            word = rng.choice(letters, size=rng.integers(2, 9)).tobytes()
            if word not in known:
                known.add(word)
                words.append(word)
        self.pieces = [*words, b"<|end|>"]
        self.n_tokens = n_tokens
        self.eos = n_tokens - 1

    def token_to_piece(self, token: int, special: bool = True) -> bytes:
        return self.pieces[token]

    def eog_tokens(self) -> list[int]:
        return [self.eos]

    def is_special(self, token: int) -> bool:
        return token == self.eos

    def is_control(self, token: int) -> bool:
        return token == self.eos


def test_a_mask_costs_microseconds() -> None:
    vocab: Any = BigVocab(30_000)
    compiled = compile_schema(PERSON, vocab, "llguidance")
    assert compiled.constraint is not None
    constraint = compiled.constraint()
    logits = np.zeros(vocab.n_tokens, dtype=np.float32)
    times = []
    for byte in b'{"name": "hello", "age": 42, "tags": ["a", 3]}':
        row = logits.copy()
        row[byte] = 1
        start = time.thread_time()
        constraint.mask(row)
        times.append(time.thread_time() - start)
        assert np.isfinite(row[byte])
        constraint.accept(byte)
    constraint.accept(vocab.eos)
    assert constraint.finished
    assert np.median(times) < 1e-3  # measured: about 15 microseconds
