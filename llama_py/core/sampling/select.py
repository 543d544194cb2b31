"""The k largest entries of a row, or those that top-p keeps, without sorting the whole row.

A row of logits has 30 000 to 260 000 entries, of which a handful is wanted. The row is looked at as
a table of ``_DEPTH`` lines; the maxima of its columns, which one vectorized pass finds, say which
columns can hold them: the k-th largest maximum is a lower bound of the k-th largest entry, so that
a look into about k columns is enough.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["column_maxima", "largest", "largest_sorted", "nucleus"]

Row = NDArray[np.float32]
Ids = NDArray[np.intp]

_DEPTH = 32
#: Rows with fewer columns per wanted entry than this are partitioned directly.
_WORTH_IT = 4


def column_maxima(row: Row) -> Row:
    """The maximum of each column of the table; the entries left over stand for themselves."""
    whole = len(row) // _DEPTH * _DEPTH
    maxima: Row = row[:whole].reshape(_DEPTH, -1).max(axis=0)
    return maxima if whole == len(row) else np.concatenate([maxima, row[whole:]])


def largest(row: Row, k: int, maxima: Row | None = None) -> Ids:
    """Indices of the k largest entries, in no order; among equal entries the lowest indices.

    Args:
        row: ``(n,)``. NaN counts as the largest if there are k or more, and may be left out else.
        k: at least 1; all indices if it is ``n`` or more.
        maxima: ``column_maxima(row)``, if the caller has it already.
    """
    if k >= len(row):
        return np.arange(len(row))
    if len(row) < k * _DEPTH * _WORTH_IT:
        return _exactly(row, np.arange(len(row)), k)
    if maxima is None:
        maxima = column_maxima(row)
    bound = np.partition(maxima, len(maxima) - k)[len(maxima) - k]
    if np.isnan(bound):
        return _exactly(row, np.arange(len(row)), k)
    return _exactly(*_candidates(row, np.flatnonzero(maxima >= bound), bound), k)


def largest_sorted(row: Row, k: int, maxima: Row | None = None) -> Ids:
    """``largest``, the largest entry first and equal entries by index."""
    ids = largest(row, k, maxima)
    return ids[np.lexsort((ids, -row[ids]))]


def nucleus(row: Row, p: float, least: int = 1, most: int = 256) -> Ids | None:
    """The fewest likeliest entries whose probabilities reach ``p`` together, likeliest first.

    Args:
        row: logits, ``(n,)``; the largest must be finite.
        least: as many at least.
        most: None is returned if it takes more than these.
    """
    ids = largest_sorted(row, most)
    top = row[ids[0]]
    reached = np.exp(row[ids] - top).cumsum() / np.exp(row - top).sum()
    count = max(int(np.searchsorted(reached, p)) + 1, least)
    return ids[:count] if count <= len(ids) else None


def _candidates(row: Row, columns: Ids, bound: np.float32) -> tuple[Row, Ids]:
    """Entries of these columns that are not below the bound, and their indices (ascending)."""
    width = len(row) // _DEPTH
    full = columns[columns < width]
    table = row[: width * _DEPTH].reshape(_DEPTH, width)
    lines, places = np.nonzero(table[:, full] >= bound)
    ids = lines * width + full[places]
    if len(full) < len(columns):  # entries that the table does not cover
        ids = np.concatenate([ids, columns[len(full) :] + (_DEPTH - 1) * width])
    return row[ids], ids


def _exactly(values: Row, ids: Ids, k: int) -> Ids:
    """The k largest of ``values``, whose indices ``ids`` ascend; ties go to the lowest."""
    if len(values) <= k:
        return ids
    threshold = np.partition(values, len(values) - k)[len(values) - k]
    if np.isnan(threshold):  # the caller has to find them in what it gets
        return ids[np.argpartition(values, len(values) - k)[len(values) - k :]]
    above = np.flatnonzero(values > threshold)
    equal = np.flatnonzero(values == threshold)[: k - len(above)]
    chosen: Ids = ids[np.concatenate([above, equal])]
    return chosen
