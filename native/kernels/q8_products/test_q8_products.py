"""Products of matrices in Q8_0 (``q8_products.h``)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from llama_py._native import ggml_h as G
from tests.native.graphs import Graph

BLOCK = 32
_Q8_0 = np.dtype([("scale", np.float16), ("numbers", np.int8, (BLOCK,))])


def rows_of_q8(count: int, length: int, random: np.random.Generator) -> npt.NDArray[Any]:
    """Random ``(count, length / 32)`` blocks, the least and the greatest number among them."""
    rows = np.zeros((count, length // BLOCK), _Q8_0)
    rows["scale"] = random.uniform(0.001, 0.1, rows.shape)
    rows["numbers"] = random.integers(-128, 128, (*rows.shape, BLOCK))
    return rows


def exact_columns(count: int, length: int, random: np.random.Generator) -> npt.NDArray[np.float32]:
    """Columns that Q8_0 represents as they are: integers up to 127 times a power of two."""
    blocks = random.integers(-127, 128, (count, length // BLOCK, BLOCK))
    blocks[..., 0] = 127
    scales = 2.0 ** random.integers(-6, 3, (count, length // BLOCK, 1))
    return np.asarray((blocks * scales).reshape(count, length), np.float32)


def product(
    rows: npt.NDArray[Any], columns: npt.NDArray[np.float32], threads: int
) -> npt.NDArray[np.float32]:
    """By ggml: ``(columns, rows)``."""
    with Graph() as graph:
        weights = graph.tensor(rows, G.GGML_TYPE_Q8_0, (rows.shape[0], columns.shape[1]))
        result = G.ggml_mul_mat(graph.context, weights, graph.tensor(columns))
        return graph.compute(result, threads, (columns.shape[0], rows.shape[0]))


def expected(rows: npt.NDArray[Any], columns: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    weights = rows["numbers"] * rows["scale"].astype(np.float64)[..., None]
    return np.asarray(columns.astype(np.float64) @ weights.reshape(rows.shape[0], -1).T)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("columns", [1, 2, 3, 7, 8, 9, 17, 255, 256, 257, 300])
@pytest.mark.parametrize(
    ("rows", "length"),
    [
        (1, 32),
        (5, 64),
        (15, 96),
        (80, 96),
        (16, 576),
        (17, 576),
        (200, 576),
        (48, 1536),
        (40, 16384),
    ],
)
def test_products_are_those_of_float64(rows: int, length: int, columns: int, threads: int) -> None:
    random = np.random.default_rng(rows + columns)
    weights = rows_of_q8(rows, length, random)
    given = exact_columns(columns, length, random)
    right = expected(weights, given)
    error = np.abs(product(weights, given, threads) - right).max() / np.abs(right).max()
    assert error < 2e-6


def test_a_product_does_not_depend_on_what_is_computed_beside_it() -> None:
    random = np.random.default_rng(1)
    weights, given = rows_of_q8(70, 576, random), exact_columns(30, 576, random)
    whole = product(weights, given, 1)
    for threads in (2, 3):
        np.testing.assert_array_equal(product(weights, given, threads), whole)
    for few in (1, 2, 5, 8, 13):
        np.testing.assert_array_equal(product(weights, given[:few], 1), whole[:few])
    np.testing.assert_array_equal(product(weights[:33], given, 1), whole[:, :33])


def test_what_the_rule_specializes_is_still_there(llama_cpp: Path) -> None:
    """When this fails, llamafile's template has changed, and the specialization must as well."""
    path = llama_cpp / "ggml" / "src" / "ggml-cpu" / "llamafile" / "sgemm.cpp"
    text = " ".join(path.read_text(encoding="utf-8").split())
    assert "template <typename TA, typename TB, typename TC> class tinyBLAS_Q0_AVX {" in text
    assert re.search(
        r"tinyBLAS_Q0_AVX<block_q8_0, block_q8_0, float> tb\{ k, \(const block_q8_0 \*\)A, lda, "
        r"\(const block_q8_0 \*\)B, ldb, \(float \*\)C, ldc, params->ith, params->nth\}; "
        r"tb.matmul\(m, n\);",
        text,
    )
    assert "if (n < 2) return false;" in text, "a single column is multiplied here, like several"
