"""White space that a schema allows is for replies that fit; indentation goes as deep as they do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from llama_py.chat.constraints import Backend, compile_schema
from llama_py.core.model import Model
from llama_py.core.sampling.sampler import Sampler
from llama_py.core.vocab import Vocab
from llama_py.params import ModelParams, SamplingParams
from tests.steering import spelled, vocabulary_model

BACKENDS = ("llguidance", "gbnf")
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "integer"}}},
    "required": ["a"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "v": {"type": "integer"},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["v", "kids"],
            "additionalProperties": False,
        }
    },
}


@pytest.fixture(scope="module")
def vocab() -> Iterator[Vocab]:
    with Model(vocabulary_model("qwen2"), ModelParams(vocab_only=True)) as model:
        yield model.vocab


def sampling_of(vocab: Vocab, schema: Any, backend: Backend) -> SamplingParams:
    made = compile_schema(schema, vocab, backend)
    return SamplingParams(temperature=0, grammar=made.grammar, constraint=made.constraint)


def say(vocab: Vocab, sampling: SamplingParams, wishes: Sequence[Sequence[int]]) -> str:
    """The text of a model that prefers tokens in these orders, one order for each token."""
    sampler, said = Sampler(vocab, sampling), []
    try:
        for wish in wishes:
            row = np.zeros(vocab.n_tokens, np.float32)
            row[list(wish)] = np.arange(len(wish), 0, -1)
            said.append(sampler.sample(row))
            if vocab.is_eog(said[-1]):
                break
    finally:
        sampler.close()
    return vocab.detokenize(said).decode()


def ids(vocab: Vocab, *texts: str) -> list[int]:
    """The single tokens that are these texts."""
    return [pieces(vocab)[text.encode()] for text in texts]


@cache
def pieces(vocab: Vocab) -> dict[bytes, int]:
    return {vocab.piece(token): token for token in range(vocab.n_tokens)}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_reply_that_would_be_prose_does_not_begin_with_white_space(
    vocab: Vocab, backend: Backend
) -> None:
    wishes = [
        ids(vocab, "Sure", "\n", " ", '{"', "{"),
        ids(vocab, "a"),
        ids(vocab, '":'),
        ids(vocab, " ["),
        ids(vocab, "None", "\n", " ", "1"),  # nor does a value
        ids(vocab, "]"),
        ids(vocab, "None", "}\n", "}\n\n", "}"),
        [*ids(vocab, " Hope", "\n", "\n\n"), vocab.eos],  # nor does it end with any
    ]
    assert say(vocab, sampling_of(vocab, SCHEMA, backend), wishes) == '{"a": [1]}'


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("text", ['\n{"a": [1]}\n', ' { "a" : [ 1 ] } '])
def test_white_space_of_a_reply_that_fits_is_left(
    vocab: Vocab, backend: Backend, text: str
) -> None:
    wishes = [[token] for token in [*spelled(vocab, text.encode()), vocab.eos]]
    assert say(vocab, sampling_of(vocab, SCHEMA, backend), wishes) == text


def tree(levels: int) -> dict[str, Any]:
    return {"v": levels, "kids": [tree(levels - 1)] if levels else []}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("indent", [2, 4, "\t"])
def test_indentation_is_as_deep_as_the_tree(vocab: Vocab, backend: Backend, indent: Any) -> None:
    text = json.dumps(tree(14), indent=indent)
    wishes = [[token] for token in [*spelled(vocab, text.encode()), vocab.eos]]
    assert say(vocab, sampling_of(vocab, TREE, backend), wishes) == text


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_that_likes_spaces_cannot_go_on_with_them(vocab: Vocab, backend: Backend) -> None:
    space, eight = ids(vocab, " ", "        ")
    for token in (space, eight):
        wishes = [ids(vocab, "{"), ids(vocab, "\n"), *[[token, *ids(vocab, '"')]] * 40]
        said = say(vocab, sampling_of(vocab, TREE, backend), wishes)
        assert said.startswith('{\n        "'), said


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wish", [(",\n", "0", "\n"), (",\n", "\n", "0"), ("?", "0", "}")])
def test_a_number_that_the_model_would_end_has_no_further_digits(
    wish: tuple[str, ...], backend: Backend, vocab: Vocab
) -> None:
    """Here it would go on with another property, which the schema does not have."""
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer"}},
        "required": ["age"],
        "additionalProperties": False,
    }
    begun = vocab.tokenize('{"age": 41', add_special=False)
    wishes = [*([token] for token in begun), ids(vocab, *wish), ids(vocab, "}"), vocab.eog_tokens()]
    said = say(vocab, sampling_of(vocab, schema, backend), wishes)
    assert json.loads(said) == {"age": 41}
