"""Items and positions: how many things a sequence holds, and which positions they take.

An *item* is what a prompt consists of: a token, or (for models that read images) a whole image. Its
*position* is the number that the model and the context's memory count by. Text has one position per
token, so the two are the same number there; an image takes more or fewer positions than one. What
is stored, matched and cut is counted in items, and what is asked of a context in positions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

__all__ = ["TEXT", "Positions"]


class Positions:
    """The positions of the items of one sequence.

    Args:
        wide: ``(item, positions)`` of each item that does not take exactly one position, ascending.
    """

    __slots__ = ("_items", "_shifts")

    def __init__(self, wide: Sequence[tuple[int, int]] = ()) -> None:
        self._items = [item for item, _ in wide]
        #: What is added to positions behind the first, second, ... of these items.
        self._shifts = [0, *accumulate(width - 1 for _, width in wide)]

    def after(self, items: int) -> int:
        """The position of what follows the first ``items`` items."""
        if not self._items:
            return items
        return items + self._shifts[bisect_left(self._items, items)]

    def items(self, position: int) -> int:
        """How many items lie completely before ``position``."""
        if not self._items:
            return position
        starts = [self.after(item + 1) for item in self._items]
        passed = bisect_right(starts, position)
        count = position - self._shifts[passed]
        return min(count, self._items[passed]) if passed < len(self._items) else count


#: Text: item and position are the same number.
TEXT = Positions()
