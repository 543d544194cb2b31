"""What a constrained reply may look like: spellings that are allowed, and floods that are not."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from llama_py import Llama, LlamaGrammar, demo_model_path
from llama_py.chat import constraints
from llama_py.chat.constraints import compile_schema
from llama_py.chat.grammars import guidance
from llama_py.chat.grammars.converter import gbnf_of_schema
from llama_py.chat.grammars.guidance import SchemaConstraint, guide_for
from llama_py.chat.schemas.json_forms import levels_of
from llama_py.core.model import Model
from llama_py.core.sampling.sampler import Sampler
from llama_py.core.vocab import Vocab
from llama_py.errors import GrammarError
from llama_py.params import SamplingParams
from tests.chat.fitting import follows
from tests.models import tiny_model
from tests.steering import vocabulary_model

BACKENDS: tuple[Any, ...] = ("llguidance", "gbnf")
LABELS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "label": {"enum": ["good", "bad"]},
        "score": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
    },
    "required": ["label", "score", "tags"],
    "additionalProperties": False,
}
ANSWER = '{"label": "good", "score": 0.5, "tags": ["a", "b"]}'


@pytest.fixture(scope="module")
def vocab() -> Iterator[Vocab]:
    with Model(tiny_model("full")) as model:
        yield model.vocab


def accepts(schema: Any, text: str, vocab: Vocab, backend: Any) -> bool:
    """Whether a reply may be this text, byte by byte, and end there."""
    compiled = compile_schema(schema, vocab, backend)
    params = SamplingParams(temperature=0, grammar=compiled.grammar, constraint=compiled.constraint)
    tokens = [token for byte in text.encode() for token in byte_tokens(vocab)[byte]]
    return follows(tokens, vocab, params)


def byte_tokens(vocab: Vocab) -> list[list[int]]:
    single = {vocab.piece(token): token for token in range(vocab.n_tokens)}
    return [[single[bytes([byte])]] for byte in range(256)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "text",
    [
        ANSWER,
        ANSWER.replace(" ", ""),
        json.dumps(json.loads(ANSWER), indent=1),
        json.dumps(json.loads(ANSWER), indent=4) + "\n",
        json.dumps(json.loads(ANSWER), indent="\t"),
        " " + ANSWER,
        "\n\n" + ANSWER,
        ANSWER.replace("{", "{ ").replace("}", " }").replace(":", " :"),
        ANSWER.replace("0.5", "5E-1").replace('"a"', '"\\u00e9\\/\\ud83d\\ude00"'),
        ANSWER.replace(", ", ",\n "),
        json.dumps(json.loads(ANSWER), indent=2).replace("\n", "\r\n"),
    ],
)
def test_the_styles_of_models(text: str, backend: Any, vocab: Vocab) -> None:
    assert accepts(LABELS, text, vocab, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "text",
    [
        ANSWER.replace("{", "{\n\n\n"),
        ANSWER.replace("{", "{\n" + 17 * " "),
        ANSWER.replace("{", "{   "),
        ANSWER.replace("}", "\n}"),
        ANSWER.replace(":", ":\n"),
        ANSWER + "\n\n\n",
        ANSWER.replace("0.5", "0." + 40 * "5"),
        ANSWER.replace('"a"', '"\\ud83d"'),
    ],
)
def test_what_nobody_writes(text: str, backend: Any, vocab: Vocab) -> None:
    assert not accepts(LABELS, text, vocab, backend)


#: Tokens that a model may be fond of.
FOND_OF = {"line breaks": b"\n", "tabs": b"\n\t", "spaces": b"\n ", "digits": b"0123456789."}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("liked", FOND_OF)
def test_a_model_cannot_flood(liked: str, backend: Any) -> None:
    with Model(vocabulary_model("llama-spm")) as model:
        vocab = model.vocab
        compiled = compile_schema(LABELS, vocab, backend)
        params = SamplingParams(
            temperature=0, grammar=compiled.grammar, constraint=compiled.constraint
        )
        pieces = [vocab.piece(token) for token in range(vocab.n_tokens)]
        fond = [t for t, piece in enumerate(pieces) if piece and not piece.strip(FOND_OF[liked])]
        rng = np.random.default_rng(0)
        sampler = Sampler(vocab, params)
        out: list[int] = []
        while len(out) < 120:
            row = rng.normal(size=vocab.n_tokens).astype(np.float32)
            row[fond] += 50
            row[vocab.eog_tokens()] += 20
            token = sampler.sample(row)
            if vocab.is_eog(token):
                break
            out.append(token)
        sampler.close()
        text = b"".join(pieces[token] for token in out)
        assert vocab.is_eog(token), text
        assert set(json.loads(text)) == {"label", "score", "tags"}


# ---- numbers -------------------------------------------------------------------------------------

LONG = [
    *("9" * 19, "-" + "9" * 19, "0." + "1" * 17, "1." + "2" * 16, "1" * 16 + ".5", "1e308"),
    *("0.0000000" + "3" * 17, "1" * 19 + "E-5"),
]
TOO_LONG = [
    *("9" * 20, "0." + "1" * 18 + "2" * 7, "1." + "2" * 17, "1" * 17 + ".5", "1e1000"),
    *("0." + "0" * 26, "2" * 25 + "." + "2" * 25),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("schema", [{"type": "number"}, {}, {"type": ["number", "null"]}], ids=str)
def test_numbers_have_the_digits_that_are_told_apart(
    schema: Any, backend: Any, vocab: Vocab
) -> None:
    for text in LONG:
        assert accepts(schema, text, vocab, backend), text
    for text in TOO_LONG:
        assert not accepts(schema, text, vocab, backend), text


def test_bounds_ask_for_more_digits(vocab: Vocab) -> None:
    for backend in BACKENDS:
        large = {"type": "integer", "maximum": 10**22}
        assert accepts(large, "9" * 22, vocab, backend)
        assert not accepts(large, "9" * 23, vocab, backend)
        assert accepts({"const": 12345678901234567890}, "12345678901234567890", vocab, backend)


def digits_of(random_: random.Random) -> str:
    """The text of a number, mostly one near what is allowed."""
    sign = random_.choice(["", "", "-"])
    whole = "".join(random_.choices("0123456789", k=random_.choice([1, 1, 2, 3, 16, 17, 19, 20])))
    fraction = random_.choice(["", "", ".", ".5", "." + "7" * random_.randint(1, 19)])
    exponent = random_.choice(["", "", "", "e5", "E-07", "e+1000"])
    return f"{sign}{whole}{fraction}{exponent}"


def test_both_engines_take_the_same_numbers(vocab: Vocab) -> None:
    random_ = random.Random(int(os.environ.get("LLAMA_PY_SEED", "5")))
    for _ in range(int(os.environ.get("LLAMA_PY_EXAMPLES", "40"))):
        low, high = sorted(
            random_.randint(-(10**size), 10**size) for size in random_.choices((1, 2, 5, 18), k=2)
        )
        bounds = {"minimum": low, "exclusiveMaximum": high + 1}
        schema: dict[str, Any] = {"type": random_.choice(["integer", "number"])}
        if schema["type"] == "integer":
            schema |= {key: bounds[key] for key in bounds if random_.random() < 0.6}
        if random_.random() < 0.3:
            schema["type"] = [schema["type"], "null"]
        texts = [digits_of(random_) for _ in range(8)] + [str(low), str(high), str(high + 1), "-0"]
        for text in texts:
            guided, gbnf = (accepts(schema, text, vocab, backend) for backend in BACKENDS)
            assert guided == gbnf, (schema, text, guided)


def test_numbers_in_parts_that_llguidance_writes_end(vocab: Vocab) -> None:
    schema = {
        "type": "object",
        "patternProperties": {"^a$": {"type": "number"}},
        "minProperties": 1,
    }
    constraint = compile_schema(schema, vocab, "llguidance").constraint
    assert constraint is not None
    sampler = Sampler(vocab, SamplingParams(temperature=0, constraint=constraint))
    wanted = [byte_tokens(vocab)[byte][0] for byte in b'{"a": ' + b"2" * 200]
    for number in range(120):
        row = np.zeros(vocab.n_tokens, np.float32)
        row[wanted[number]] = 9
        row[byte_tokens(vocab)[ord("}")][0]] = 8
        if vocab.is_eog(sampler.sample(row)):
            break
    sampler.close()
    assert number < 40


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("never", [{"not": {}}, False])
def test_an_alternative_that_nothing_fits_is_left_out(
    never: Any, backend: Any, vocab: Vocab
) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"anyOf": [{"type": "string"}, never]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert accepts(schema, '{"a": "x"}', vocab, backend)
    assert not accepts(schema, '{"a": 1}', vocab, backend)


# ---- order, names, values ------------------------------------------------------------------------

FIRST_OPTIONAL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "unit": {"type": "string"},
        "city": {"type": "string"},
        "days": {"type": "integer"},
    },
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_properties_come_in_the_order_of_the_schema(backend: Any, vocab: Vocab) -> None:
    def fits(*names: str) -> bool:
        values = {"unit": "C", "city": "Paris", "days": 3}
        return accepts(
            FIRST_OPTIONAL, json.dumps({name: values[name] for name in names}), vocab, backend
        )

    assert fits("unit", "city", "days")
    assert fits("unit", "city")
    assert fits("city", "days")
    assert fits("city")
    assert not fits("unit", "days")
    assert not fits("city", "unit")
    assert not fits()


@pytest.mark.parametrize("backend", BACKENDS)
def test_names_and_values_in_other_spellings(backend: Any, vocab: Vocab) -> None:
    schema = {
        "type": "object",
        "properties": {"café": {"enum": ["a/b", "line\u2028end", "😀"]}},
        "required": ["café"],
        "additionalProperties": {"type": "null"},
    }
    for value in ("a/b", "a\\/b", "line\\u2028end", "line\u2028end", "😀", "\\uD83D\\uDE00"):
        assert accepts(schema, f'{{"café": "{value}"}}', vocab, backend)
        assert accepts(schema, f'{{"caf\\u00e9":"{value}", "x": null}}', vocab, backend)
    assert not accepts(schema, '{"café": "a/b", "caf\\u00e9": null}', vocab, backend)
    assert not accepts(schema, '{"café": "a/c"}', vocab, backend)


def test_how_deep_a_schema_goes() -> None:
    assert levels_of({"type": "string"}) == 0
    assert levels_of(LABELS) == 2
    assert levels_of({"anyOf": [LABELS, {"type": "array", "items": LABELS}]}) == 3
    deepest = levels_of({})
    assert levels_of({"type": "object"}) == levels_of({"$ref": "#/$defs/x"}) == deepest > 3


def test_a_property_of_any_name_keeps_the_rules_apart() -> None:
    names = ["text", "joint-line", "space", "char", "a-inside", "a", "in-order-first-0"]
    inner = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    schema = {**FIRST_OPTIONAL, "properties": {**FIRST_OPTIONAL["properties"], "root": inner}}
    rules = [line.split(" ::=")[0] for line in gbnf_of_schema(schema).split("\n")]
    assert len(rules) == len(set(rules))


# ---- the two examples of the documentation -------------------------------------------------------

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stream", [False, True])
def test_alice_is_30(backend: str, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraints, "available", lambda: backend == "llguidance")
    ask = [{"role": "user", "content": "Give me a JSON object with name Alice and age 30."}]
    simple = {**PERSON, "properties": {**PERSON["properties"], "age": {"type": "integer"}}}
    with Llama(demo_model_path(), n_threads=1) as llm:
        for schema in (PERSON, simple):
            form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
            answer: Any = llm.create_chat_completion(
                ask, response_format=form, temperature=0, stream=stream
            )
            if stream:
                parts = [chunk["choices"][0]["delta"].get("content") or "" for chunk in answer]
                text = "".join(parts)
            else:
                text = answer["choices"][0]["message"]["content"]
            assert text == '{"name": "Alice", "age": 30}'
            assert len(llm.runtime.last.record.generated) == 12  # the one that ends it included


def test_alice_in_a_completion() -> None:
    with Llama(demo_model_path(), n_threads=1) as llm:
        rules = LlamaGrammar.from_json_schema(json.dumps(PERSON))
        prompt = (
            "<|im_start|>user\nGive me a JSON object with name Alice and age 30.<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
        for given in (rules, rules.grammar):
            answer: Any = llm.create_completion(prompt, grammar=given, temperature=0)
            assert answer["choices"][0]["text"] == '{"name": "Alice", "age": 30}'


# ---- masks that another thread computes ----------------------------------------------------------


class Watched:
    """A matcher that notices when two threads are in it at once."""

    def __init__(self) -> None:
        self.inside = threading.Lock()
        self.clashes = 0

    def _work(self, seconds: float) -> bool:
        if not self.inside.acquire(blocking=False):
            self.clashes += 1
            return True
        time.sleep(seconds)
        self.inside.release()
        return True

    def unsafe_compute_mask_ptr(self, address: int, size: int) -> None:
        self._work(0.05)

    def consume_token(self, token: int) -> bool:
        return self._work(0)

    def get_capture(self, name: str) -> bytes | None:
        self._work(0)
        return None

    def is_error(self) -> bool:
        return False

    def is_accepting(self) -> bool:
        return False

    def is_stopped(self) -> bool:
        return False


def test_a_matcher_has_one_thread_at_a_time(vocab: Vocab) -> None:
    """Tokens may be accepted without a mask between them, while one is still being computed."""
    watched = Watched()
    constraint = SchemaConstraint(watched, guide_for(vocab))
    constraint.mask(np.zeros(vocab.n_tokens, np.float32))
    for token in (1, 2, 3):
        constraint.accept(token)
    constraint.mask(np.zeros(vocab.n_tokens, np.float32))
    assert watched.clashes == 0


def test_masks_ahead_are_those_of_the_moment(vocab: Vocab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guidance, "_SLOW", -1.0)  # every mask is handed over
    make = compile_schema(LABELS, vocab, "llguidance").constraint
    assert make is not None
    tokens = vocab.tokenize(ANSWER, add_special=False)
    ahead = make()
    for count, token in enumerate(tokens):
        if count % 3 == 0:
            row = np.zeros(vocab.n_tokens, np.float32)
            ahead.mask(row)
            fresh = make()
            for earlier in tokens[:count]:
                fresh.accept(earlier)
            expected = np.zeros(vocab.n_tokens, np.float32)
            fresh.mask(expected)
            assert np.array_equal(row, expected)
        ahead.accept(token)


def test_a_schema_is_compiled_once(vocab: Vocab, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = guidance.Guide(vocab)
    compiled: list[Any] = []
    original = guidance.Guide._compile

    def counted(self: Any, body: Any, frame: Any) -> Any:
        compiled.append(body)
        return original(self, body, frame)

    monkeypatch.setattr(guidance.Guide, "_compile", counted)
    for number in (1, 2, 1, 2):
        constraint = guide.compile({"const": number})()
        constraint.accept(vocab.tokenize(str(number), add_special=False)[0])
    assert compiled == [{"const": 1}, {"const": 2}]
    for number in range(100):
        guide.compile({"const": number})
    assert len(guide._compiled) == guidance._KEPT


def nested(levels: int, width: int) -> dict[str, Any]:
    node: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        others = {f"p{number}": {"type": "integer"} for number in range(width)}
        node = {"type": "object", "properties": {**others, "n": node}}
    return node


@pytest.mark.parametrize(
    "schema",
    [
        nested(25, 9),
        nested(55, 1),
        nested(1, 1000),
        {**nested(1, 10_000), "required": [f"p{number}" for number in range(10_000)]},
        {"type": "object", "properties": {100_000 * "x": {}}},
        {"type": "string", "enum": [100_000 * "x"]},
    ],
    ids=["levels", "more levels", "optional", "required", "a long name", "a long value"],
)
def test_large_schemas_do_not_end_the_process(schema: Any, vocab: Vocab) -> None:
    """Rules within rules: llguidance reads them recursively, and its stack has an end."""
    try:
        compiled = compile_schema(schema, vocab, "llguidance")
    except GrammarError:
        return  # more than the limits allow
    assert compiled.constraint is not None
    compiled.constraint()
