"""Products of matrices in F16 (``half_products.h``)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from llama_py._native import ggml_h as G
from tests.native.graphs import Graph

Halves = npt.NDArray[np.float16]


def product(rows: Halves, columns: Halves, threads: int) -> npt.NDArray[np.float32]:
    """By ggml: ``(columns, rows)``."""
    with Graph() as graph:
        weights = graph.tensor(rows.astype(np.float16))
        given = graph.tensor(columns.astype(np.float32))
        result = G.ggml_mul_mat(graph.context, weights, given)
        return graph.compute(result, threads, (columns.shape[0], rows.shape[0]))


def drawn(count: int, length: int, seed: int) -> Halves:
    return np.random.default_rng(seed).normal(size=(count, length)).astype(np.float16)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 12, 13, 25, 100, 300])
@pytest.mark.parametrize(
    ("rows", "length"),
    [
        (1, 16),
        (4, 64),
        (15, 96),
        (16, 384),
        (33, 384),
        (200, 64),
        (48, 1536),
        (64, 440),
        (36, 8192),
    ],
)
def test_products_are_those_of_float64(rows: int, length: int, columns: int, threads: int) -> None:
    weights, given = drawn(rows, length, rows), drawn(columns, length, 1000 + columns)
    right = given.astype(np.float64) @ weights.astype(np.float64).T
    # Lengths that are no multiple of a vector are left to ggml, which may sum in half precision.
    tolerance = 2e-6 if length % 16 == 0 else 1e-2
    error = np.abs(product(weights, given, threads) - right).max() / np.abs(right).max()
    assert error < tolerance


def test_a_product_does_not_depend_on_what_is_computed_beside_it() -> None:
    weights, given = drawn(70, 384, 1), drawn(60, 384, 2)
    whole = product(weights, given, 1)
    for threads in (2, 3):
        np.testing.assert_array_equal(product(weights, given, threads), whole)
    for few in (2, 3, 4, 5, 13):
        np.testing.assert_array_equal(product(weights, given[:few], 1), whole[:few])
    np.testing.assert_array_equal(product(weights[:33], given, 1), whole[:, :33])


def test_what_the_rule_specializes_is_still_there(llama_cpp: Path) -> None:
    """When this fails, llamafile's template has changed, and the specialization must as well."""
    path = llama_cpp / "ggml" / "src" / "ggml-cpu" / "llamafile" / "sgemm.cpp"
    text = " ".join(path.read_text(encoding="utf-8").split())
    template = "template <int KN, typename D, typename V, typename TA, typename TB, typename TC> "
    assert template + "class tinyBLAS {" in text
    for width, vector in ((16, "__m512"), (8, "__m256")):
        assert re.search(
            rf"tinyBLAS<{width}, {vector}, {vector}, ggml_fp16_t, ggml_fp16_t, float> "
            r"tb\{ ?params, k, \(const ggml_fp16_t \*\)A, lda, \(const ggml_fp16_t \*\)B, ldb, "
            r"\(float \*\)C, ldc\}; return tb.matmul\(m, n\);",
            text,
        )
