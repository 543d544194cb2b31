"""From the vectors of tokens to those of texts: pooling, truncation, length. Pure numpy."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import ParameterError
from llama_py.params import check_number

__all__ = ["POOLINGS", "Rows", "check_dimensions", "max_similarity", "pool", "shorten"]

Rows = NDArray[np.float32]

#: The ways of pooling, and llama.cpp's numbers for them.
POOLINGS: Final = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}


def pool(rows: Rows, how: str) -> Rows:
    """One vector of a text's rows: float32 ``(n_tokens, d)`` to ``(d,)``; "none" leaves the rows.

    "cls" is the first row: encoders begin their texts with a token that stands for the whole.
    """
    pooled: Rows = rows
    if how == "mean":
        pooled = rows.mean(axis=0, dtype=np.float32)
    elif how in ("cls", "last"):
        pooled = rows[0 if how == "cls" else -1]
    return pooled


def check_dimensions(dimensions: int | None, width: int) -> None:
    """Raise ``ParameterError`` unless vectors of ``width`` can be cut to this many dimensions."""
    if dimensions is None:
        return
    check_number("dimensions", dimensions, 1, integer=True)
    if dimensions > width:
        raise ParameterError(
            f"dimensions={dimensions} is more than the {width} that this model's vectors have"
        )


def shorten(vectors: Rows, dimensions: int | None, normalize: bool) -> Rows:
    """The first ``dimensions`` of each vector, and then of length 1, if that is wanted.

    Models that were trained for it (matryoshka) have the most important dimensions first. A vector
    that is zero stays so.
    """
    if dimensions is not None:
        vectors = np.ascontiguousarray(vectors[..., :dimensions])
    if not normalize:
        return vectors
    lengths = np.sqrt(np.einsum("...i,...i->...", vectors, vectors, dtype=np.float64))
    lengths = np.where(lengths > 0, lengths, 1.0)[..., None]
    return (vectors / lengths).astype(np.float32)


def max_similarity(query: Rows, document: Rows) -> float:
    """How well a document fits a query, by late interaction (ColBERT's MaxSim).

    Args:
        query, document: the vectors of their tokens, of length 1, ``(n_tokens, d)``.

    Returns:
        The sum, over the tokens of the query, of the cosine with the nearest token of the document.
    """
    if not len(query) or not len(document):
        return 0.0
    return float((query @ document.T).max(axis=1).sum())
