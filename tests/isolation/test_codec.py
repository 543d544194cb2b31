"""What crosses between the processes of a model, and what is refused."""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

import msgpack
import numpy as np
import pytest

from llama_py import Llama, demo_model_path, errors
from llama_py.api.isolation.child import _Outbox
from llama_py.api.isolation.codec import _CLASSES, Codec
from llama_py.api.isolation.connection import Frame, MessageSocket
from llama_py.api.isolation.messages import USUAL, Ended
from llama_py.chat.constraints import compile_schema
from llama_py.chat.reasoning import Reasoning
from llama_py.dialects.budget import BudgetMaker
from llama_py.engine.metrics import Metrics
from llama_py.engine.request import GenerationRequest, Prompt, TokenLogprobs
from llama_py.errors import ContextOverflowError, IsolationError, LlamaError, StorageError
from llama_py.params import GenerationParams, SamplingParams
from llama_py.states.state import StoredState


def arrived(frame: Frame) -> tuple[bytes, bytearray]:
    """A frame, as the other process receives it."""
    return bytes(frame[0]), bytearray(b"".join(frame[1:]))


def over(value: Any, *, builds: bool = False) -> Any:
    codec = Codec(builds=builds)
    return codec.decode(arrived(codec.encode(value)))


def test_requests_arrive_as_they_were() -> None:
    sampling = SamplingParams(temperature=0.5, logit_bias={3: -1.5}, samplers=("top_k",))
    generation = GenerationParams(max_tokens=5, stop=("a",), stop_tokens=frozenset({4}))
    prompt = Prompt(b"\xff\x00text", boundaries=(0, 3), plain=((1, 2),))
    sent = GenerationRequest(prompt, sampling, generation, "me", 2, namespace=((), "tenant"))
    found = over([sent, sent], builds=True)
    assert found[0].prompt == found[1].prompt
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
        sent = arrived(Codec(here.vocab).encode((maker, inner, spec)))
        found, schema_maker, grammar = Codec(there.vocab, builds=True).decode(sent)
        with pytest.raises(LlamaError, match="VOCAB is not allowed here"):
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


def test_long_byte_strings_cross_once_and_as_they_were() -> None:
    text = os.urandom(10_000)
    frame = Codec().encode(([Prompt(text), Prompt(text)], text, b"short"))
    assert sum(map(len, frame)) < 11_000
    prompts, plain, short = Codec().decode(arrived(frame))
    assert prompts == [Prompt(text), Prompt(text)]
    assert (plain, short) == (text, b"short")


def extension(kind: int, *contents: Any) -> Any:
    return msgpack.ExtType(kind, msgpack.packb([*contents]))


def nested(depth: int) -> Any:
    value = extension(0)
    for _ in range(depth):
        value = extension(0, value)
    return value


OBJECT, ERROR, ARRAY, BYTES, VOCAB, SCHEMA, STORE = range(3, 10)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(extension(OBJECT, 10_000), id="a class that is not on the list"),
        pytest.param(extension(OBJECT, 0, 1), id="too few fields"),
        pytest.param(extension(OBJECT, "Metrics"), id="a class by its name"),
        pytest.param(extension(ERROR, 10_000, [], {}), id="no error of the list"),
        pytest.param(extension(ARRAY, 0, 2, [2**40]), id="an array longer than what came"),
        pytest.param(extension(ARRAY, 0, 2, [-1]), id="an array of minus one"),
        pytest.param(extension(ARRAY, 2**62, 2, [4]), id="an array elsewhere"),
        pytest.param(extension(ARRAY, 0, "O", [1]), id="an array of objects"),
        pytest.param(extension(BYTES, 0, 2**40), id="bytes that did not come"),
        pytest.param(extension(BYTES, -8, 4), id="bytes before the first"),
        pytest.param(extension(VOCAB), id="a vocabulary"),
        pytest.param(extension(SCHEMA, {}, None, []), id="a schema to be compiled"),
        pytest.param(extension(STORE, "/tmp/nowhere", 1), id="a store to be opened"),
        pytest.param(extension(99), id="an unknown kind"),
        pytest.param(nested(200), id="nested deeply"),
        pytest.param({(1, 2): 3}, id="keys that are not texts"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc1" * 100, id="garbage"),
        pytest.param(b"\xdd" + struct.pack(">I", 2**32 - 1), id="four thousand million items"),
        pytest.param(b"\xc6" + struct.pack(">I", 2**32 - 1), id="four thousand million bytes"),
        pytest.param(b"\x91" * 5000 + b"\xc0", id="lists in lists"),
    ],
)
def test_nothing_but_data_of_the_list_is_read(message: Any) -> None:
    data = message if isinstance(message, bytes) else msgpack.packb(message, strict_types=False)
    with pytest.raises(LlamaError):
        Codec().decode((data, bytearray(64)))


def test_one_reference_repeated_takes_no_memory() -> None:
    part = [extension(BYTES, 0, 60_000)] * 10_000
    found = Codec().decode((msgpack.packb(part), bytearray(60_000)))
    assert len({id(each) for each in found}) == 1
    shifted = [extension(BYTES, where, 60_000) for where in range(1000)]
    with pytest.raises(LlamaError):
        Codec().decode((msgpack.packb(shifted), bytearray(61_000)))


def test_a_reply_too_long_for_the_process_that_calls_ends_with_an_error() -> None:
    some = TokenLogprobs(-1.0, np.arange(4, dtype=np.int32), np.zeros(4, np.float32))
    record = {"prompt_logprobs": [some] * 200_000, "reason": "stop"}
    rows: list[Any] = [(1, Ended(("stop", "end", None, None), record)), (2, 7, "text")]
    near, far = socket.socketpair()
    receiving = MessageSocket(far, USUAL)
    _Outbox(MessageSocket(near, USUAL), Codec()).send_ends(rows, None)
    message = receiving.receive()
    assert message is not None
    _, ((number, ended), other), _ = Codec().decode(message)
    near.close()
    receiving.close()
    assert (number, ended.event[0], ended.record["prompt_logprobs"]) == (1, "error", None)
    assert isinstance(ended.event[3], IsolationError)
    assert "ask for less" in str(ended.event[3])
    assert other == (2, 7, "text")


def test_what_is_read_changes_no_class() -> None:
    before = vars(Metrics).copy()
    index = _CLASSES.index(Metrics)
    with pytest.raises(LlamaError):
        Codec().decode((msgpack.packb(extension(OBJECT, index, {"__add__": 1})), bytearray()))
    assert vars(Metrics) == before
