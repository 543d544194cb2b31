"""Selection of the largest entries and log-probabilities, against slow references."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import log_softmax

from llama_py.core.sampling.select import largest, largest_sorted
from llama_py.engine.logprobs import log_normalizer, top_logprobs

SIZES = (1, 31, 32, 33, 1000, 4095, 4096, 4097, 32000, 151_936)


def reference_order(row: NDArray[np.float32], k: int) -> list[int]:
    """The k largest by a full stable sort: equal entries by index."""
    order: list[int] = np.argsort(-row, kind="stable")[:k].tolist()
    return order


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", [1, 5, 40, 1000])
def test_largest_equals_a_full_sort(size: int, k: int) -> None:
    row = np.random.default_rng(size + k).normal(size=size).astype(np.float32)
    assert largest_sorted(row, k).tolist() == reference_order(row, k)
    assert sorted(largest(row, k).tolist()) == sorted(reference_order(row, k))


@given(
    st.integers(1, 3000),
    st.integers(1, 3100),
    st.integers(1, 6),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_equal_entries_go_by_index(n: int, k: int, levels: int, seed: int, low: bool) -> None:
    row = np.random.default_rng(seed).integers(0, levels, n).astype(np.float32)
    if low:
        row[row == 0] = -np.inf
    assert largest_sorted(row, k).tolist() == reference_order(row, k)


def test_ties_beyond_the_table_are_found() -> None:
    row = np.zeros(32_017, np.float32)
    row[[5, 32_001, 32_016]] = 1
    assert largest_sorted(row, 3).tolist() == [5, 32_001, 32_016]
    assert largest_sorted(row, 5).tolist() == [5, 32_001, 32_016, 0, 1]


@pytest.mark.parametrize("size", [50, 32_000, 151_936])
@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0, 3000.0])
def test_log_probabilities_equal_a_float64_reference(size: int, scale: float) -> None:
    row = (np.random.default_rng(7).normal(size=size) * scale).astype(np.float32)
    expected = log_softmax(row.astype(np.float64))
    for token in (0, size // 2, int(row.argmax())):
        entry = top_logprobs(row, token, 5)
        assert entry.ids.tolist() == reference_order(row, 5)
        np.testing.assert_allclose(entry.logprobs, expected[entry.ids], rtol=1e-6, atol=1e-5)
        assert entry.logprob == pytest.approx(expected[token], rel=1e-6, abs=1e-5)
    likeliest = top_logprobs(row, int(row.argmax()), 1)
    assert likeliest.logprob == likeliest.logprobs[0]


def test_no_alternatives_and_more_than_the_vocabulary() -> None:
    row = np.array([0.0, 2.0, 1.0], np.float32)
    assert len(top_logprobs(row, 0, 0).ids) == 0
    everything = top_logprobs(row, 0, 10)
    assert everything.ids.tolist() == [1, 2, 0]
    assert everything.ids.dtype == np.int32
    assert everything.logprobs.dtype == np.float32
    assert np.exp(everything.logprobs).sum() == pytest.approx(1.0)


def test_the_row_is_only_read() -> None:
    row = np.linspace(-3, 3, 40_000, dtype=np.float32)
    row.flags.writeable = False
    assert top_logprobs(row, 3, 5).ids[0] == 39_999


def test_forbidden_tokens_have_no_probability() -> None:
    row = np.full(9000, -np.inf, np.float32)
    row[17] = 4.0
    assert log_normalizer(row) == pytest.approx(4.0)
    entry = top_logprobs(row, 3, 2)
    assert entry.logprob == -np.inf
    assert entry.ids.tolist() == [17, 0]
    assert entry.logprobs.tolist() == [0.0, -np.inf]


@pytest.mark.parametrize("size", [100, 40_000])
@pytest.mark.parametrize("broken", [1, 50, None])
def test_rows_that_are_not_numbers_give_something(size: int, broken: int | None) -> None:
    row = np.zeros(size, np.float32)
    row[:broken] = np.nan
    assert len(largest(row, 40)) > 0
