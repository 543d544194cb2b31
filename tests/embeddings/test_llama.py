"""``Llama.embed`` and its relatives: on the weights that generate, in llama-cpp-python's shapes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_py import AsyncEmbedder, Embedder, Llama
from llama_py.errors import ClosedError, InputTooLongError, ParameterError
from tests.embeddings.models import encoder, with_metadata
from tests.models import tiny_model

TEXTS = ["the cat sleeps", "a dog", "the old king runs to the river"]


@pytest.fixture(scope="module")
def pooled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder whose file says that the last token stands for the text."""
    target = tmp_path_factory.mktemp("pooled") / "model.gguf"
    return with_metadata(tiny_model("full"), target, pooling_type=3)


@pytest.fixture(scope="module")
def llm(pooled: Path) -> Iterator[Llama]:
    with Llama(pooled, n_ctx=512, embedding=True) as llm:
        yield llm


def test_shapes_are_those_of_llama_cpp_python(llm: Llama) -> None:
    one: Any = llm.embed("the cat")
    assert isinstance(one, list)
    assert isinstance(one[0], float)
    assert len(one) == llm.n_embd()
    many: Any = llm.embed(TEXTS)
    assert [len(each) for each in many] == [llm.n_embd()] * 3
    vectors, count = llm.embed(TEXTS, normalize=True, return_count=True)
    assert count == sum(len(llm.tokenize(text)) for text in TEXTS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert llm.pooling_type() == 3


def test_an_embedding_is_in_the_form_of_openai(llm: Llama) -> None:
    response = llm.create_embedding(TEXTS, model="mine")
    assert response["object"] == "list"
    assert response["model"] == "mine"
    assert [each["index"] for each in response["data"]] == [0, 1, 2]
    assert response["data"][1]["embedding"] == llm.embed(TEXTS)[1]
    assert response["usage"]["prompt_tokens"] == response["usage"]["total_tokens"] > 0
    assert len(llm.create_embedding("one text")["data"]) == 1


def test_without_pooling_each_token_has_a_vector() -> None:
    with Llama(tiny_model("full"), n_ctx=512) as llm:
        assert llm.pooling_type() == 0
        vectors: Any = llm.embed(TEXTS)
        assert [len(each) for each in vectors] == [len(llm.tokenize(text)) for text in TEXTS]
        assert len(vectors[0][0]) == llm.n_embd()
        assert len(llm.embed(TEXTS[0])) == len(vectors[0])
    with Llama(tiny_model("full"), n_ctx=512, pooling_type="mean") as llm:
        assert llm.pooling_type() == 1
        mean = np.mean(vectors[0], axis=0)
        np.testing.assert_allclose(llm.embed(TEXTS[0]), mean, rtol=0, atol=1e-5)


def test_replies_are_the_same_before_and_after(llm: Llama) -> None:
    def reply() -> str:
        options: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
        completion: Any = llm.create_completion("the cat", **options)
        return str(completion["choices"][0]["text"])

    before = reply()
    llm.embed(TEXTS)
    assert reply() == before


def test_too_long_a_text_is_truncated_or_refused(llm: Llama) -> None:
    long = "a" * 2000
    assert len(llm.embed(long)) == llm.n_embd()
    with pytest.raises(InputTooLongError, match=r"input\[1\] has \d+ tokens.* at most 512"):
        llm.embed(["short", long], truncate=False)
    assert len(llm.embed("short")) == llm.n_embd()


def test_an_embedder_takes_the_weights_of_a_model(llm: Llama) -> None:
    with Embedder(llama=llm) as embedder:
        assert embedder.pooling == "last"
        vectors = embedder.embed(TEXTS, normalize=False)
    np.testing.assert_array_equal(vectors, np.array(llm.embed(TEXTS), np.float32))
    assert llm.tokenize("still open")


def test_an_encoder_loads_and_does_not_generate() -> None:
    with Llama(encoder(), embedding=True) as llm:
        assert repr(llm).endswith("an encoder)")
        assert llm.pooling_type() == 1
        with Embedder(encoder()) as embedder:
            wanted = embedder.embed(TEXTS, normalize=False)
        np.testing.assert_allclose(llm.embed(TEXTS), wanted, rtol=0, atol=1e-6)
        with pytest.raises(ParameterError, match=r"an encoder \(bert\), which does not generate"):
            llm.create_completion("the cat")
        with pytest.raises(ParameterError, match="has no classification head"):
            llm.rerank("the cat", TEXTS)


def test_a_closed_model_embeds_nothing(pooled: Path) -> None:
    llm = Llama(pooled, n_ctx=512)
    embedder = Embedder(llama=llm)
    embedder.embed("the cat")
    llm.close()
    for call in (lambda: llm.embed("the cat"), lambda: embedder.embed("the cat")):
        with pytest.raises(ClosedError):
            call()


async def embedded() -> tuple[np.ndarray, list[int]]:
    async with AsyncEmbedder(encoder(head=1)) as embedder:
        ranked = await embedder.rerank("the king", TEXTS)
        return await embedder.embed(TEXTS), [each.index for each in ranked]


def test_calls_can_be_awaited() -> None:
    import asyncio

    vectors, order = asyncio.run(embedded())
    with Embedder(encoder(head=1)) as embedder:
        np.testing.assert_allclose(vectors, embedder.embed(TEXTS), rtol=0, atol=1e-6)
        assert order == [each.index for each in embedder.rerank("the king", TEXTS)]
