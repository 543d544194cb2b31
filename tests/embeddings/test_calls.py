"""What can be wrong, what ends a call, and what is left afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from llama_py import AsyncEmbedder, Embedder, demo_model_path, max_similarity
from llama_py.errors import (
    ClosedError,
    ContextOverflowError,
    ForkedProcessError,
    GenerationTimeout,
    InputTooLongError,
    InvalidModelError,
    ParameterError,
    ParameterTypeError,
    RequestCancelled,
    TokenizationError,
    UnknownParameterError,
)
from tests.embeddings.models import encoder
from tests.models import tiny_model
from tests.patience import PATIENCE

WRONG: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (None, {}, ParameterTypeError, "inputs must be texts"),
    (5, {}, ParameterTypeError, "inputs must be texts"),
    ({"a": 1}, {}, ParameterTypeError, "inputs must be texts"),
    (["a", None], {}, ParameterTypeError, r"inputs\[1\] must be a text"),
    (["a", 5], {}, ParameterTypeError, r"inputs\[1\] must be a text"),
    (["a", ["b"]], {}, ParameterTypeError, r"inputs\[1\] must be a text"),
    (["a", [True]], {}, ParameterTypeError, r"inputs\[1\] must be a text"),
    (["a", []], {}, ParameterError, r"inputs\[1\] has no tokens"),
    (["a", [10**6]], {}, TokenizationError, r"inputs\[1\]: .* outside of the vocabulary"),
    ([-1, 2], {}, TokenizationError, r"inputs\[0\]: .* outside of the vocabulary"),
    (["a", b"\xf7\xbf\xbf\xbf"], {}, TokenizationError, r"inputs\[1\]: .*not a character"),
    (["a", "a " * 511], {}, InputTooLongError, r"inputs\[1\] has 513 tokens.* at most 512"),
    ("a", {"dimensions": 0}, ParameterError, "dimensions=0"),
    ("a", {"dimensions": 65}, ParameterError, "dimensions=65 is more than the 64"),
    ("a", {"dimensions": "8"}, ParameterTypeError, "dimensions"),
    ("a", {"normalize": 1}, ParameterTypeError, "normalize"),
    ("a", {"truncate": "no"}, ParameterTypeError, "truncate"),
]


@pytest.fixture(scope="module")
def embedder() -> Iterator[Embedder]:
    with Embedder(encoder()) as made:
        yield made


@pytest.mark.parametrize(("inputs", "options", "error", "words"), WRONG)
def test_what_is_wrong_is_named_and_the_next_call_works(
    embedder: Embedder, inputs: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        embedder.embed(inputs, **options)
    assert embedder.embed("the cat").shape == (64,)


def test_too_long_an_input_says_where_and_how_long(embedder: Embedder) -> None:
    with pytest.raises(ContextOverflowError) as failure:
        embedder.embed(["a", "b", "a " * 600])
    assert isinstance(failure.value, InputTooLongError)
    assert (failure.value.index, failure.value.prompt_tokens, failure.value.limit) == (2, 602, 512)
    tokens = embedder.vocab.tokenize("a " * 600)
    cut = [*tokens[:511], tokens[-1]]  # which is [SEP]
    vector = embedder.embed("a " * 600, truncate=True)
    np.testing.assert_allclose(vector, embedder.embed(cut), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["recurrent", "hybrid", "hybrid_swa", "iswa", "learned"])
def test_every_kind_of_decoder_embeds_however_inputs_are_packed(kind: str) -> None:
    given = ["the cat", "a dog runs to the old river", "x", "the " * 90]
    with Embedder(tiny_model(kind), n_ctx=256, n_ubatch=32) as few, \
            Embedder(tiny_model(kind), n_ctx=256) as many:  # fmt: skip
        vectors = many.embed(given)
        np.testing.assert_allclose([many.embed(text) for text in given], vectors, atol=1e-4)
        np.testing.assert_allclose(few.embed(given), vectors, rtol=0, atol=1e-4)


def test_inputs_of_no_and_of_many_kinds(embedder: Embedder) -> None:
    assert embedder.embed([]).shape == (0, 64)
    assert embedder.embed_tokens([]) == []
    tokens = embedder.vocab.tokenize("the cat")
    same: list[Any] = ["the cat", b"the cat", tokens, tuple(tokens), np.array(tokens)]
    rows = embedder.embed(same)
    np.testing.assert_allclose(rows, np.repeat(rows[:1], 5, axis=0), rtol=0, atol=1e-6)
    assert embedder.embed(np.array(tokens)).shape == (64,)  # type: ignore[arg-type]
    assert embedder.embed(text for text in ("a", "b")).shape == (2, 64)  # type: ignore[arg-type]


def test_a_file_that_would_end_the_process_is_refused() -> None:
    with Embedder(encoder(quant="f16")) as embedder, Embedder(encoder()) as exact:
        found, wanted = embedder.embed("the cat"), exact.embed("the cat")
        np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-3)
    with pytest.raises(InvalidModelError, match=r"'token_types.weight' has the type F16"):
        Embedder(encoder(quant="f16_types"))


def test_options_and_models_that_do_not_fit() -> None:
    with pytest.raises(UnknownParameterError, match="did you mean 'pooling'"):
        Embedder(encoder(), poling="mean")  # type: ignore[call-arg]
    with pytest.raises(ParameterError, match="pooling='max': expected one of"):
        Embedder(encoder(), pooling="max")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="n_ctx=513 is more than the 512 positions"):
        Embedder(encoder(), n_ctx=513)
    with pytest.raises(ParameterError, match="give a model_path, or llama="):
        Embedder()
    with (
        Embedder(encoder(pooling=4, head=1)) as reranker,
        pytest.raises(ParameterError, match="is a reranker: call rerank"),
    ):
        reranker.embed("a")
    with Embedder(encoder()) as plain, pytest.raises(ParameterError, match="no classification"):
        plain.rerank("a", ["b"])


# -- what ends a call --------------------------------------------------------------------------

MANY = ["the old king runs to the river and eats bread"] * 20_000


def test_progress_is_told_and_ends_a_call(embedder: Embedder) -> None:
    told: list[tuple[int, int]] = []
    embedder.embed(MANY[:200], progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (200, 200)
    with pytest.raises(RequestCancelled, match="progress returned False"):
        embedder.embed(MANY, progress=lambda done, total: False)
    with pytest.raises(ZeroDivisionError):
        embedder.embed(MANY, progress=lambda done, total: bool(1 / 0))
    with pytest.raises(GenerationTimeout, match="of 20000 inputs"):
        embedder.embed(MANY, timeout=0.001)
    assert embedder.embed("the cat").shape == (64,)


def test_calls_take_turns(embedder: Embedder) -> None:
    """A single text does not wait for the end of a long list."""
    ended: list[str] = []

    def long() -> None:
        with contextlib.suppress(RequestCancelled):
            embedder.embed(MANY, progress=lambda *_: not ended)
        ended.append("long")

    thread = threading.Thread(target=long)
    thread.start()
    while not embedder._port.embedding_queue._worker._jobs:
        time.sleep(0.001)
    embedder.embed("the cat")
    ended.append("short")
    thread.join()
    assert ended == ["short", "long"]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
def test_ctrl_c_ends_a_call_and_nothing_else(embedder: Embedder) -> None:
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            embedder.embed(MANY * 10)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert embedder.embed("the cat").shape == (64,)


def test_close_ends_calls_of_other_threads() -> None:
    embedder = Embedder(encoder())
    failures: list[BaseException] = []

    def call() -> None:
        try:
            embedder.embed(MANY)
        except ClosedError as error:
            failures.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    while not embedder._port.embedding_queue._worker._jobs:
        time.sleep(0.001)
    embedder.close()
    thread.join(PATIENCE)
    assert len(failures) == 1
    embedder.close()
    with pytest.raises(ClosedError):
        embedder.embed("the cat")


def test_an_embedder_that_is_dropped_frees_its_model_and_ends_its_thread() -> None:
    embedder = Embedder(encoder())
    embedder.embed("the cat")
    model = weakref.ref(embedder._port.model)
    (thread,) = embedder._port.embedding_queue._worker._threads
    gc.disable()
    try:
        del embedder
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert model() is None
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_is_told(embedder: Embedder) -> None:
    embedder.embed("the cat")
    child = os.fork()
    if child == 0:
        try:
            embedder.embed("the cat")
        except ForkedProcessError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert embedder.embed("the cat").shape == (64,)


async def cancelled() -> tuple[int, ...]:
    async with AsyncEmbedder(encoder()) as embedder:
        task = asyncio.create_task(embedder.embed(MANY))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(GenerationTimeout):
            await embedder.embed(MANY, timeout=0.001)
        return (await embedder.embed("the cat")).shape


def test_a_cancelled_task_ends_its_call() -> None:
    assert asyncio.run(cancelled()) == (64,)


def test_in_place_no_thread_is_started() -> None:
    before = threading.active_count()
    with Embedder(encoder(), in_place=True) as embedder, Embedder(encoder()) as other:
        vectors = embedder.embed(["the cat", "a dog"])
        assert threading.active_count() == before
        np.testing.assert_allclose(vectors, other.embed(["the cat", "a dog"]), rtol=0, atol=1e-6)


# -- meaning -----------------------------------------------------------------------------------

#: A text, one that is nearer to it, and one that is farther away.
TRIPLES = [
    ("What is 2 + 3?", "What is 4 + 1?", "What is the weather in Paris?"),
    ("What is the capital of France?", "What is the capital of Spain?", "What is 2 + 3?"),
    ("What is the weather in Paris?", "What is the weather in Rome?", "Count to 5."),
    ("My name is Alice.", "My name is Bob.", "What is the capital of France?"),
    ("Count to 5.", "Count to 8.", "What is the weather in Rome?"),
    ("What is 2 + 3?", "What is 7 + 2?", "My name is Alice."),
]


def test_texts_of_the_same_kind_are_nearer() -> None:
    """The bundled model is not an embedding model: its states show a text's kind of question."""
    with Embedder(demo_model_path()) as embedder:
        for text, near, far in TRIPLES:
            vectors = embedder.embed([text, near, far])
            assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.02, (text, near, far)
            tokens = embedder.embed_tokens([text, near, far])
            assert max_similarity(tokens[0], tokens[1]) > max_similarity(tokens[0], tokens[2])
