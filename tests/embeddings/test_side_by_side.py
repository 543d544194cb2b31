"""Batches that are computed side by side: the same vectors, and all of them at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from llama_py import Embedder
from llama_py.embeddings.computing import Computer
from llama_py.errors import ClosedError
from tests.embeddings.models import encoder
from tests.embeddings.test_reference import texts
from tests.patience import PATIENCE

THREADS = 3


def test_vectors_are_those_of_one_thread() -> None:
    groups = [texts(60, seed) for seed in range(4)]
    with Embedder(encoder(), n_threads=1) as single, Embedder(encoder(), n_threads=THREADS) as many:
        wanted = [single.embed(group) for group in groups]
        with ThreadPoolExecutor(4) as pool:
            found = [*pool.map(many.embed, groups)]
    for each, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(each, expected, rtol=0, atol=1e-5)


def test_scores_are_those_of_one_thread() -> None:
    path = encoder(head=3, labels=("good", "bad", "ugly"), pooling=4)
    given = texts(60)
    with Embedder(path, n_threads=1) as single, Embedder(path, n_threads=THREADS) as many:
        np.testing.assert_allclose(many.classify(given), single.classify(given), rtol=0, atol=1e-5)


def watched(monkeypatch: pytest.MonkeyPatch, wait: Any) -> list[int | None]:
    """The threads that each batch is computed with; ``wait()`` is called before it is."""
    used: list[int | None] = []
    compute = Computer.rows

    def rows(self: Computer, inputs: Sequence[Any]) -> Any:
        used.append(self.threads)
        wait()
        return compute(self, inputs)

    monkeypatch.setattr(Computer, "rows", rows)
    return used


def test_batches_of_one_call_are_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(THREADS)
    used = watched(monkeypatch, lambda: together.wait(PATIENCE))
    with Embedder(encoder(), n_threads=THREADS) as embedder:
        long = embedder.vocab.tokenize("the old king " * 40)
        assert len(long) * 2 > 128  # two of them are two batches
        assert embedder.embed([long] * 2 * THREADS).shape[0] == 2 * THREADS
    assert used[:2] == [1, 1]


def test_a_single_batch_gets_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    used = watched(monkeypatch, lambda: None)
    with Embedder(encoder(), n_threads=THREADS) as embedder:
        for _ in range(3):
            embedder.embed(["the cat", "a dog"])
    assert used == [THREADS] * 3


def test_one_that_fails_leaves_its_threads_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with Embedder(encoder(), n_threads=THREADS) as embedder:
        embedder.embed("the cat")
        with monkeypatch.context() as patch:
            patch.setattr(Computer, "_decode", fails)
            for _ in range(2 * THREADS):
                with pytest.raises(RuntimeError, match="no"):
                    embedder.embed(["the cat", "a dog"])
        used = watched(monkeypatch, lambda: None)
        embedder.embed("the cat")
    assert used == [THREADS]


def fails(*_: Any) -> None:
    raise RuntimeError("no")


def test_closing_ends_all_of_them() -> None:
    embedder = Embedder(encoder(), n_threads=THREADS)
    failures: list[BaseException] = []

    def call() -> None:
        try:
            embedder.embed(texts(100) * 100)
        except ClosedError as error:
            failures.append(error)

    callers = [threading.Thread(target=call) for _ in range(THREADS)]
    for each in callers:
        each.start()
    threads: list[threading.Thread] = []
    while len(threads) < THREADS:
        threads = embedder._port.embedding_queue._worker._threads
    embedder.close()
    for each in callers:
        each.join(PATIENCE)
    assert len(failures) == THREADS
    assert not any(thread.is_alive() for thread in threads)
