"""What crosses between the processes of a model, and what is refused."""

from __future__ import annotations

import os
import pickle
from typing import Any

import numpy as np
import pytest

from llama_py import Llama, demo_model_path, errors
from llama_py.api.isolation.codec import Codec
from llama_py.chat.constraints import compile_schema
from llama_py.chat.reasoning import Reasoning
from llama_py.dialects.budget import BudgetMaker
from llama_py.engine.request import GenerationRequest, Prompt
from llama_py.errors import ContextOverflowError, IsolationError, LlamaError, StorageError
from llama_py.params import GenerationParams, SamplingParams
from llama_py.states.state import StoredState


def over(value: Any) -> Any:
    codec = Codec()
    return codec.decode(codec.encode(value))


def test_requests_arrive_as_they_were() -> None:
    sampling = SamplingParams(temperature=0.5, logit_bias={3: -1.5}, samplers=("top_k",))
    generation = GenerationParams(max_tokens=5, stop=("a",), stop_tokens=frozenset({4}))
    prompt = Prompt(b"\xff\x00text", boundaries=(0, 3), plain=((1, 2),))
    sent = GenerationRequest(prompt, sampling, generation, "me", 2, namespace=((), "tenant"))
    found = over([sent, sent])
    assert found[0] is found[1]
    assert (found[0].prompt, found[0].sampling, found[0].generation) == (
        prompt,
        sampling,
        generation,
    )
    assert found[0].namespace == ((), "tenant")


def test_arrays_and_states_arrive_as_they_were() -> None:
    tokens = np.arange(5, dtype=np.int32)
    state = StoredState(tokens, None, None, np.zeros(7, np.uint8), (), 0, "print", None)
    found = over(state)
    assert found.tokens.tolist() == tokens.tolist()
    assert found.state.dtype == np.uint8
    table = np.arange(6, dtype=np.float32).reshape(2, 3)
    for array in (table, table.T, table[:, 1], np.float32(2.5), np.empty((0, 3), np.int64)):
        there = over(array)
        assert np.array_equal(there, array)
        assert there.dtype == array.dtype
        assert there.shape == array.shape
    there = over(tokens)
    there[0] = 9  # it is the receiver's own


def test_errors_arrive_with_what_they_know() -> None:
    found = over(ContextOverflowError(7, 5))
    assert (type(found), found.prompt_tokens, found.limit) == (ContextOverflowError, 7, 5)
    found = over(StorageError("full", 28, "/a"))
    assert (found.errno, str(found)) == (28, "full")
    found = over(errors.EngineDeadError("it died", -9, "SIGKILL", ("a", "b"), 4.0, "public"))
    assert (found.signal, found.log, found.retry_after) == ("SIGKILL", ("a", "b"), 4.0)

    class Own(Exception):
        pass

    found = over(Own("mine"))
    assert (type(found), str(found)) == (LlamaError, "Own: mine")


def test_constraints_are_made_of_the_vocabulary_of_who_reads_them() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    reasoning = Reasoning("<think>", "</think>", inside=True)
    with (
        Llama(demo_model_path(), vocab_only=True) as here,
        Llama(demo_model_path(), vocab_only=True) as there,
    ):
        inner = compile_schema(schema, here.vocab, "llguidance").constraint
        maker = BudgetMaker(here.vocab, reasoning, (4, 5), 2, inner, False)
        spec = compile_schema(schema, here.vocab, "gbnf", reasoning).grammar
        sent = Codec(here.vocab).encode((maker, inner, spec))
        found, schema_maker, grammar = Codec(there.vocab, builds=True).decode(sent)
        with pytest.raises(LlamaError, match="no business"):
            Codec(there.vocab).decode(sent)  # in the process that calls, nothing is made of it
        assert found.vocab is there.vocab
        assert (found.closing, found.budget, found.reasoning) == ((4, 5), 2, reasoning)
        assert grammar == spec
        assert grammar.watch == spec.watch  # type: ignore[union-attr]
        assert inner is not None
        row = np.zeros(here.vocab.n_tokens, np.float32)
        same = row.copy()
        inner().mask(row)
        schema_maker().mask(same)
        assert np.array_equal(row, same)
        assert np.isinf(row).any()


def test_functions_and_objects_of_a_program_are_refused_by_name() -> None:
    for value, name in (
        (lambda: None, "function"),
        (os.system, "system"),
        (open, "open"),
        (object(), "object"),
        (Codec(), "Codec"),
        (os.path, "module"),
        ([{"a": print}], "print"),
        (np.array([object()]), "array"),
    ):
        with pytest.raises(IsolationError, match=name):
            Codec().encode(value)


class Evil:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(pickle.dumps(Evil(os.system, "true")), id="a command"),
        pytest.param(pickle.dumps(Evil(eval, "1")), id="an expression"),
        pytest.param(pickle.dumps(Evil(getattr, "a", "upper")), id="an attribute"),
        pytest.param(pickle.dumps(np.array([1, "a"], object)), id="an array of objects"),
        pytest.param(pickle.dumps(np.zeros(2)), id="numpy's own way"),
        pytest.param(b"cllama_py.errors\nshown\n.", id="a function of a module on the list"),
        pytest.param(b"\x80\x05\x8c\x0fllama_py.errors\x8c\x0bshown.__name\x93.", id="dotted"),
        pytest.param(b"cllama_py.api.isolation.codec\nLlamaDiskCache\n.", id="a name of its own"),
        pytest.param(b"\x80\x05K", id="cut off"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xff" * 100, id="garbage"),
    ],
)
def test_nothing_but_data_of_the_list_is_read(message: bytes) -> None:
    with pytest.raises(LlamaError):
        Codec().decode(message)
