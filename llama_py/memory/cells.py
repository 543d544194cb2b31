"""Which cells a sequence has, and which segments of a store hold them.

Equal tokens are no proof of equal cells: what was evaluated twice was rounded twice. Two sequences
have the same cells only where one is a fork of the other, and where both were restored from the
same copy. So each stretch of cells that was evaluated in one go gets a number (``Runs``), which
forks take over, and a store keeps one copy of what has the same numbers (``Kept``).
"""

from __future__ import annotations

import itertools
import sys
from bisect import bisect_left, bisect_right
from itertools import takewhile

from llama_py.memory.state import Segment, StateStore

__all__ = ["Kept", "Runs", "cells_of", "cut_at", "first_run"]

#: The first cell of each stretch, ascending, and the number of the stretch. The last one is open:
#: what is evaluated next belongs to it.
Runs = tuple[tuple[int, int], ...]

_numbers = itertools.count(1)
_LAST = sys.maxsize
#: Places at which segments begin that are remembered: 64 GiB of them, or what is gone.
_MANY = 16_384


def first_run() -> Runs:
    """Of a sequence that has no cells yet."""
    return ((0, next(_numbers)),)


def cut_at(runs: Runs, count: int) -> Runs:
    """Only the first ``count`` cells are still the same: after a cut, and of a fork."""
    return (*(run for run in runs if run[0] < count), (count, next(_numbers)))


def cells_of(runs: Runs, start: int, end: int) -> Runs:
    """The name of the cells ``[start, end)``: equal only for cells that are the same."""
    first, last = bisect_right(runs, (start, _LAST)), bisect_left(runs, (end, 0))
    return ((start, runs[first - 1][1]), *runs[first:last])


class Kept:
    """The segments that a store has of cells which are in memory, or were.

    The store may have lost them meanwhile: ``chain`` asks it.
    """

    def __init__(self, store: StateStore) -> None:
        self.store = store
        #: By the first cell and its stretch: the cells of a segment, and the segment.
        self._known: dict[tuple[int, int], dict[Runs, Segment]] = {}

    def add(self, runs: Runs, segment: Segment) -> None:
        """The store has these cells of a sequence."""
        cells = cells_of(runs, segment.start, segment.end)
        self._known.setdefault(cells[0], {})[cells] = segment
        while len(self._known) > _MANY:
            del self._known[next(iter(self._known))]  # the oldest: it is copied once more

    def chain(self, runs: Runs, start: int, length: int) -> tuple[Segment, ...]:
        """Segments that follow each other from ``start`` on, as far as the store has them.

        The last one ends before ``length``: an entry has cells of its own behind its segments.
        """
        found: list[Segment] = []
        while segment := self._longest(runs, start, length):
            found.append(segment)
            start = segment.end
        if not self.store.holds([segment.key for segment in found]):
            found = [*takewhile(lambda each: self.store.holds([each.key]), found)]
        return tuple(found)

    def _longest(self, runs: Runs, start: int, length: int) -> Segment | None:
        known = self._known.get(cells_of(runs, start, start + 1)[0], {})
        found = (
            segment
            for cells, segment in known.items()
            if segment.end < length and cells_of(runs, start, segment.end) == cells
        )
        return max(found, key=lambda segment: segment.end, default=None)
