"""The pass over a row of logits in C, against numpy in double precision."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from llama_py.core.sampling import likeliest as module
from llama_py.core.sampling.likeliest import likeliest
from llama_py.engine.logprobs import top_logprobs
from llama_py.errors import SymbolNotFoundError

Row = NDArray[np.float32]


def logits(n: int, scale: float, seed: int = 1) -> Row:
    """Random logits, some of them equal."""
    draw = np.random.default_rng(seed)
    row = draw.normal(0, scale, n).astype(np.float32)
    row[draw.integers(0, n, n // 3)] = row.max()
    row[draw.integers(0, n, n // 9)] = -np.inf
    return row


@pytest.mark.parametrize("scale", [0.1, 3.0, 300.0])
@pytest.mark.parametrize("n", [1, 5, 31, 32, 33, 100, 2047, 2048, 2049, 2081, 50_000])
def test_it_finds_what_numpy_finds(n: int, scale: float) -> None:
    row = logits(n, scale)
    for k in (0, 1, 5, 64):
        found = likeliest(row, k)
        assert found is not None
        normalizer, ids = found
        exact = row.astype(np.float64)
        expected = exact.max() + np.log(np.exp(exact - exact.max()).sum())
        assert normalizer == pytest.approx(expected, rel=3e-7, abs=3e-7)
        assert ids.tolist() == np.lexsort((np.arange(n), -row))[:k].tolist()


def test_what_is_far_from_the_largest_counts_in_any_order() -> None:
    for row in (np.arange(0, -40, -0.01), np.arange(-40, 0, 0.01), np.arange(-4000, 0.0)):
        given = row.astype(np.float32)
        found = likeliest(given, 1)
        assert found is not None
        assert found[0] == pytest.approx(np.log(np.exp(given.astype(np.float64)).sum()), rel=3e-7)


@pytest.mark.parametrize("odd", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 2500, 4999])
def test_rows_without_probabilities_are_left_to_numpy(odd: float, place: int) -> None:
    row = logits(5000, 3.0)
    row[place] = odd
    assert likeliest(row, 5) is None
    assert likeliest(np.full(100, -np.inf, np.float32), 5) is None


def test_what_the_pass_cannot_read_is_left_to_numpy() -> None:
    row = logits(5000, 3.0)
    assert likeliest(row[::2], 5) is None
    assert likeliest(row.astype(np.float64), 5) is None
    assert likeliest(row, 65) is None


def test_a_library_without_the_function_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        def __getattr__(self, name: str) -> object:
            raise SymbolNotFoundError(name)

    row = logits(50_000, 3.0)
    with_it = top_logprobs(row, 7, 5)
    monkeypatch.setattr(module, "chat_h", Old())
    module._function.cache_clear()
    try:
        assert likeliest(row, 5) is None
        without = top_logprobs(row, 7, 5)
    finally:
        module._function.cache_clear()
    assert without.ids.tolist() == with_it.ids.tolist()
    assert without.logprobs == pytest.approx(with_it.logprobs, abs=1e-5)
    assert without.logprob == pytest.approx(with_it.logprob, abs=1e-5)
