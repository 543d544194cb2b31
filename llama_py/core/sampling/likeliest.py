"""One pass over a row of logits, in C: its normalizer and the ids of its largest entries.

A row is read just after the weights of a step have passed through the caches. Several passes with
numpy, each with buffers and code of its own, take a few times as long there as when they are
measured alone.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_py._native import chat_h
from llama_py.errors import SymbolNotFoundError

__all__ = ["likeliest", "likeliest_ids"]

#: With more wanted entries than this, keeping them in order takes longer than partitioning.
_MOST = 64


def likeliest(row: NDArray[np.float32], k: int) -> tuple[float, NDArray[np.int32]] | None:
    """``log(sum(exp(row)))`` and the ids of the ``k`` largest entries.

    The largest is first, and equal entries are in the order of their ids.

    Args:
        row: float32 ``(n,)``; only read.
        k: from 0 on; all ids if there are fewer.

    Returns:
        None if numpy has to do it: ``k`` is large, the row is strided, its largest entry is not
        finite or one is NaN, or the library is of an older build.
    """
    normalizer = ctypes.c_double()
    ids = _scan(row, k, ctypes.byref(normalizer))
    return None if ids is None else (normalizer.value, ids)


def likeliest_ids(row: NDArray[np.float32], k: int) -> NDArray[np.int32] | None:
    """``likeliest`` without the logarithm, which takes most of its time."""
    return _scan(row, k, None)


def _scan(row: NDArray[np.float32], k: int, normalizer: Any) -> NDArray[np.int32] | None:
    k = min(k, len(row))
    scan = _function()
    if scan is None or k > _MOST or row.dtype != np.float32 or not row.flags.c_contiguous:
        return None
    ids = np.empty(k, np.int32)
    code = scan(_address(row), len(row), k, _address(ids), normalizer)
    return ids if code == chat_h.LLAMA_PY_LOGITS_OK else None


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


@cache
def _function() -> Any:
    """The function, or None in a library that was built before there was one."""
    try:
        return chat_h.llama_py_logits_top
    except SymbolNotFoundError:
        return None
