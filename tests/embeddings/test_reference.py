"""Vectors and scores are those of the same architecture in numpy, however inputs are packed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_py import Embedder
from tests.embeddings.models import WORDS, encoder, with_metadata
from tests.embeddings.reference import Reference
from tests.models import tiny_model

CAUSAL = "causal"
POOLINGS = ("mean", "cls", "last")


def texts(count: int = 40, seed: int = 3) -> list[str]:
    chosen = random.Random(seed)
    lengths = [*range(1, 9), 30, 60, 100]
    return [" ".join(chosen.choices(WORDS, k=chosen.choice(lengths))) for _ in range(count)]


def model_path(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if kind != CAUSAL:
        return encoder(kind)
    target = tmp_path_factory.mktemp("causal") / "causal.gguf"
    return with_metadata(tiny_model("full"), target, pooling_type=3)


@pytest.fixture(scope="module", params=["bert", "nomic-bert", "modern-bert", CAUSAL])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_path(request.param, tmp_path_factory)


@pytest.fixture(scope="module")
def embedder(path: Path) -> Iterator[Embedder]:
    with Embedder(path) as made:
        yield made


def expected(embedder: Embedder, reference: Reference, text: str, pooling: str) -> Any:
    rows = reference.rows(embedder.vocab.tokenize(text))
    pooled = {"mean": rows.mean(0), "cls": rows[0], "last": rows[-1]}[pooling]
    return pooled / np.linalg.norm(pooled)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_are_those_of_the_reference(path: Path, pooling: str) -> None:
    reference = Reference(path)
    with Embedder(path, pooling=pooling) as embedder:  # type: ignore[arg-type]
        given = texts(12)
        vectors = embedder.embed(given)
        assert vectors.shape == (12, embedder.n_embd)
        assert vectors.dtype == np.float32
        for text, vector in zip(given, vectors, strict=True):
            np.testing.assert_allclose(
                vector, expected(embedder, reference, text, pooling), rtol=0, atol=1e-4
            )


def test_one_by_one_is_all_at_once_in_any_order_and_packing(path: Path, embedder: Embedder) -> None:
    given = texts()
    at_once = embedder.embed(given)
    for text, vector in zip(given, at_once, strict=True):
        np.testing.assert_allclose(embedder.embed(text), vector, rtol=0, atol=1e-5)
    order = random.Random(5).sample(range(len(given)), len(given))
    shuffled = embedder.embed([given[index] for index in order])
    np.testing.assert_allclose(shuffled, at_once[order], rtol=0, atol=1e-5)
    for n_ubatch in (1, 7, 2048):
        with Embedder(path, n_ubatch=n_ubatch) as other:
            np.testing.assert_allclose(other.embed(given), at_once, rtol=0, atol=1e-5)


def test_vectors_of_tokens_are_those_of_the_reference(path: Path, embedder: Embedder) -> None:
    reference = Reference(path)
    given = texts(6)
    found = embedder.embed_tokens(given, normalize=False)
    for text, rows in zip(given, found, strict=True):
        wanted = reference.rows(embedder.vocab.tokenize(text))
        assert rows.shape == wanted.shape
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(rows / scale, wanted / scale, rtol=0, atol=1e-4)


def test_the_file_says_how_vectors_are_pooled(embedder: Embedder) -> None:
    causal = embedder.metadata["general.architecture"] == "llama"
    assert embedder.pooling == ("last" if causal else "mean")


def test_scores_of_a_head_are_those_of_the_reference() -> None:
    path = encoder(head=3, labels=("good", "bad", "ugly"), pooling=4)
    reference = Reference(path)
    with Embedder(path) as embedder:
        assert embedder.labels == ("good", "bad", "ugly")
        given = texts(9)
        scores = embedder.classify(given)
        assert scores.shape == (9, 3)
        for text, row in zip(given, scores, strict=True):
            wanted = reference.scores(embedder.vocab.tokenize(text))
            np.testing.assert_allclose(row, wanted, rtol=0, atol=1e-4)
            np.testing.assert_allclose(embedder.classify(text), row, rtol=0, atol=1e-5)


def test_documents_are_ranked_by_the_scores_of_the_pairs() -> None:
    path = encoder(head=1, pooling=4)
    reference = Reference(path)
    with Embedder(path) as embedder:
        documents = texts(7)
        vocab = embedder.vocab
        query = vocab.tokenize("the old king", add_special=False)
        wanted = [
            float(reference.scores([2, *query, 3, *vocab.tokenize(each, add_special=False)])[0])
            for each in documents
        ]
        found = embedder.rerank("the old king", documents)
        assert [each.index for each in found] == sorted(range(7), key=lambda i: -wanted[i])
        for each in found:
            assert each.score == pytest.approx(wanted[each.index], abs=1e-4)
            assert each.document == documents[each.index]
        best = embedder.rerank("the old king", documents, top_n=2, normalize=True)
        assert [each.index for each in best] == [each.index for each in found[:2]]
        assert best[0].score == pytest.approx(1 / (1 + np.exp(-found[0].score)), abs=1e-5)
