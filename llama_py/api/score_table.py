"""``ScoreTable``: the logits of the tokens that were evaluated by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["ScoreTable"]

Rows = NDArray[np.float32]


class ScoreTable:
    """Rows of logits by position. What it gives out is a view that later rows do not change."""

    def __init__(self) -> None:
        self._table: Rows = np.zeros((0, 0), np.float32)
        #: For each position, whether its row is known.
        self._known = bytearray()
        self._view: tuple[int, Rows | None, Rows] | None = None

    def put(self, start: int, rows: Sequence[Rows]) -> None:
        """The rows of the positions from ``start`` on, each ``(n_vocab,)``."""
        end = start + len(rows)
        if end > len(self._table):
            # Pages of zeros take no memory before they are written.
            larger = np.zeros((max(64, 2 * end), len(rows[0])), np.float32)
            if len(self._known):
                larger[: len(self._known)] = self._table[: len(self._known)]
            self._table = larger
        self._table[len(self._known) : start] = 0
        self._table[start:end] = rows
        self._known[start:] = bytes(max(0, start - len(self._known))) + b"\x01" * len(rows)

    def row(self, position: int) -> Rows | None:
        """A copy of one row, or None if it is not known."""
        known = 0 <= position < len(self._known) and self._known[position]
        return self._table[position].copy() if known else None

    def rows(self, count: int, n_vocab: int, last: Rows | None) -> Rows:
        """The first ``count`` rows, float32 ``(count, n_vocab)``, read-only; zeros where nothing is
        known.

        Args:
            last: the row at the end, if it is known.
        """
        if self._view is not None and self._view[0] == count and self._view[1] is last:
            return self._view[2]
        if count and len(self._known) == count:
            table = self._table[:count]
        else:
            table = np.zeros((count, n_vocab), np.float32)
            known = min(count, len(self._known))
            if known:
                table[:known] = self._table[:known]
            if count and last is not None:
                table[-1] = last
        table.flags.writeable = False
        self._view = count, last, table
        return table
