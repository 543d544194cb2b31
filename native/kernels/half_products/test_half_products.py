"""Products of matrices in F16 (``half_products.h``)."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from llama_py._native import ggml_h as G
from tests.native.graphs import Graph

Halves = npt.NDArray[np.float16]

#: Weights that end where a page begins that nobody may read.
AT_THE_END = """
import ctypes, mmap
import numpy as np
from llama_py._native import ggml_h as G
from tests.native.graphs import Graph

ROWS, LENGTH, COLUMNS = 21, {length}, 13
size = 2 * ROWS * LENGTH
readable = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
pages = mmap.mmap(-1, readable + mmap.PAGESIZE)
start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
libc = ctypes.CDLL(None)
assert libc.mprotect(ctypes.c_void_p(start + readable), mmap.PAGESIZE, 0) == 0
place = (ctypes.c_uint16 * (size // 2)).from_address(start + readable - size)
weights = np.frombuffer(place, np.float16).reshape(ROWS, LENGTH)
weights[:] = 0.5

with Graph() as graph:
    rows = graph.tensor(weights)
    rows.contents.data = ctypes.addressof(place)
    columns = graph.tensor(np.ones((COLUMNS, LENGTH), np.float32))
    result = G.ggml_mul_mat(graph.context, rows, columns)
    print(bool((graph.compute(result, 1, (COLUMNS, ROWS)) == 0.5 * LENGTH).all()))
"""


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
        # no multiples of a vector, nor of the four numbers that are interleaved at once
        (33, 1),
        (15, 7),
        (4, 18),
        (40, 100),
        (70, 1543),
    ],
)
def test_products_are_those_of_float64(rows: int, length: int, columns: int, threads: int) -> None:
    weights, given = drawn(rows, length, rows), drawn(columns, length, 1000 + columns)
    right = given.astype(np.float64) @ weights.astype(np.float64).T
    error = np.abs(product(weights, given, threads) - right).max() / np.abs(right).max()
    assert error < 2e-6


@pytest.mark.parametrize("columns", [2, 13])
@pytest.mark.parametrize("length", [1, 7, 18, 67])
def test_a_row_has_no_part_of_the_next_one(length: int, columns: int) -> None:
    """Rows lie one behind the other: infinite numbers in the next one would be seen."""
    weights, given = drawn(32, length, 1), drawn(columns, length, 2)
    alone = product(weights, given, 1)
    weights[1::2], given[1::2] = np.inf, np.inf
    np.testing.assert_array_equal(product(weights, given, 1)[::2, ::2], alone[::2, ::2])


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system for a page without access")
@pytest.mark.parametrize("length", [1, 7, 18, 67, 384])
def test_nothing_is_read_behind_the_last_row(
    run_python: Callable[..., subprocess.CompletedProcess[str]], length: int
) -> None:
    """A file may end there."""
    done = run_python(AT_THE_END.format(length=length))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True\n"


@pytest.mark.parametrize("length", [384, 391])
def test_a_product_does_not_depend_on_what_is_computed_beside_it(length: int) -> None:
    weights, given = drawn(70, length, 1), drawn(60, length, 2)
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
