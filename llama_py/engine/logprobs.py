"""Log-probabilities of one row of logits: one pass in C, or several with numpy instead."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from llama_py.core.sampling.likeliest import likeliest
from llama_py.core.sampling.select import column_maxima, largest_sorted
from llama_py.engine.request import TokenLogprobs

__all__ = ["log_normalizer", "top_logprobs"]

Row = NDArray[np.float32]

#: Entries exponentiated at once: the buffer stays in the first-level caches.
_CHUNK = 16384


def log_normalizer(row: Row, highest: float | None = None) -> float:
    """``log(sum(exp(row)))``. ``highest`` is the row's maximum, if it is known."""
    if highest is None:
        highest = float(row.max())
    if not math.isfinite(highest):
        return highest
    buffer = np.empty(min(_CHUNK, len(row)), np.float32)
    total = 0.0
    for start in range(0, len(row), _CHUNK):
        chunk = row[start : start + _CHUNK]
        part = buffer[: len(chunk)]
        np.subtract(chunk, np.float32(highest), out=part)
        np.exp(part, out=part)
        total += float(part.sum())
    return highest + math.log(total)


def top_logprobs(row: Row, token: int, k: int) -> TokenLogprobs:
    """The log-probability of ``token`` and of the k most likely tokens.

    Args:
        row: float32 ``(n_vocab,)``, as the model gave it; it is only read.
        token: the token whose log-probability is wanted.
        k: how many of the most likely tokens; all of them if there are fewer. Equal
            log-probabilities are in the order of the token ids.
    """
    found = likeliest(row, k)
    if found is not None:
        normalizer, ids = found
    else:
        maxima = column_maxima(row)
        normalizer = log_normalizer(row, float(maxima.max()))
        largest = largest_sorted(row, k, maxima) if k > 0 else np.empty(0, np.intp)
        ids = largest.astype(np.int32)
    logprobs = (row[ids].astype(np.float64) - normalizer).astype(np.float32)
    chosen = float(np.float32(float(row[token]) - normalizer))  # the same number as in the list
    return TokenLogprobs(chosen, ids, logprobs)
