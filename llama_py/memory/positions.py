"""Tokens and positions: how many cells a sequence has, and which positions they take.

The memory counts by positions. Text has one for each token, so the two are the same number there. A
picture of a model with M-RoPE has one position for all of its cells, and what follows it goes on
behind its longer side. What is stored, matched and cut is counted in tokens, and what is asked of a
context in positions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from llama_py.memory.media_tokens import flat_spans

__all__ = ["TEXT", "Positions"]


class Positions:
    """The positions of the tokens of one sequence, and of all sequences that begin with these.

    Args:
        flat: ``(start, cells, positions)`` of each picture whose cells share one position,
            ascending (``media_tokens.flat_spans``).
    """

    __slots__ = ("_flat", "_shifts", "_starts")

    def __init__(self, flat: Sequence[tuple[int, int, int]] = ()) -> None:
        self._flat = [*flat]
        self._starts = [start for start, _, _ in flat]
        #: What is added to positions behind the first, second, ... of these pictures.
        self._shifts = [0, *accumulate(positions - cells for _, cells, positions in flat)]

    @classmethod
    def of(cls, tokens: NDArray[np.int32]) -> Positions:
        """Those of a prompt."""
        spans = flat_spans(tokens) if len(tokens) and int(tokens.min()) < 0 else []
        return cls(spans) if spans else TEXT

    @property
    def as_tokens(self) -> bool:
        """Whether each token has the position of its number."""
        return not self._flat

    def after(self, count: int) -> int:
        """The position of what follows the first ``count`` tokens. Not for cuts in a picture."""
        if not self._flat:
            return count
        passed = bisect_left(self._starts, count)
        if passed and count < (end := self._starts[passed - 1] + self._flat[passed - 1][1]):
            raise ValueError(f"a sequence cannot be cut at {count}, within a picture up to {end}")
        return count + self._shifts[passed]

    def last(self, count: int) -> int:
        """The largest position that the first ``count`` tokens take; -1 if there are none.

        Behind a picture that is not the one before ``after``.
        """
        if self._flat and count:
            passed = bisect_left(self._starts, count)
            if passed and count == self._starts[passed - 1] + self._flat[passed - 1][1]:
                return self._starts[passed - 1] + self._shifts[passed - 1]
        return self.after(count) - 1


#: Text: each token has the position of its number.
TEXT = Positions()
