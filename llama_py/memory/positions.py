"""Tokens and positions: how many cells a sequence has, and which positions they take.

The memory counts by positions. Text has one for each token, so the two are the same number there. A
picture of a model with M-RoPE has one position for all of its cells, and what follows it goes on
behind its longer side. What is stored, matched and cut is counted in tokens, and what is asked of a
context in positions.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "TEXT",
    "Positions",
    "any_media",
    "border",
    "flat_spans",
    "is_first",
    "media_length",
    "media_tokens",
]


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


# ---- media tokens --------------------------------------------------------------------------------
#
# Pictures and sounds among the tokens of a prompt.
#
# An encoder turns a picture into *n* vectors, which take *n* cells of the memory like *n* tokens.
# In a prompt they are *n* negative token ids, made from what the vectors depend on: a digest of the
# picture, of the encoder and of its settings. Equal ids mean equal vectors, in every process, so a
# picture is found, forked, stored and restored like words. What a cut or a position has to know
# lies in the ids as well:
#
# * the first id of a picture is marked: a prompt is never cut behind it before the picture ends;
# * a picture may take fewer positions than cells (M-RoPE: all of its cells have the position of the
#   first one, and what follows goes on behind the longer side). So many of its ids are marked.
#
# Layout of an id ``-2 - v`` (``-1`` is llama.cpp's "no token"): bit 29 of ``v`` is set in the first
# one of a picture, bit 28 in those that a position belongs to, bit 27 in those that share the
# position of the first; 27 bits are of the digest. A picture of four cells has 108 bits of it.


_FIRST, _STEP, _FLAT = 1 << 29, 1 << 28, 1 << 27
_DIGEST = _FLAT - 1


def media_tokens(
    digest: bytes, cells: int, positions: int | None = None, *, flat: bool = False
) -> NDArray[np.int32]:
    """The ids of a picture or a sound, int32 ``(cells,)``.

    Args:
        digest: of everything that its vectors depend on.
        positions: how many positions it takes; by default one for each cell.
        flat: all of its cells have the position of the first one.
    """
    drawn = np.frombuffer(hashlib.shake_256(digest).digest(4 * cells), "<u4").astype(np.int64)
    values = drawn & _DIGEST
    values[: cells if positions is None else positions] |= _STEP
    if flat:
        values |= _FLAT
    values[:1] |= _FIRST
    return (-2 - values).astype(np.int32)


def any_media(tokens: NDArray[np.int32]) -> bool:
    """Whether there is a picture or a sound among the tokens."""
    return bool((tokens < 0).any())


def is_first(token: int) -> bool:
    """Whether a picture or a sound begins with this token."""
    return token < 0 and bool((-2 - token) & _FIRST)


def media_length(tokens: NDArray[np.int32], start: int) -> int:
    """How many tokens the picture or sound has that begins at ``start``; 0 if a word does."""
    if tokens[start] >= 0:
        return 0
    rest = tokens[start + 1 :]
    ends = (rest >= 0) | (((-2 - rest.astype(np.int64)) & _FIRST) != 0)
    found = np.flatnonzero(ends)
    return 1 + (int(found[0]) if len(found) else len(rest))


def border(tokens: NDArray[np.int32], count: int) -> int:
    """The largest number of leading tokens, ``count`` at most, that ends in no picture."""
    while 0 < count < len(tokens) and tokens[count] < 0 and not is_first(int(tokens[count])):
        count -= 1
    return count


def flat_spans(tokens: NDArray[np.int32]) -> list[tuple[int, int, int]]:
    """``(start, cells, positions)`` of each picture whose cells share one position, ascending."""
    values = -2 - tokens.astype(np.int64)
    flat = (tokens < 0) & ((values & _FLAT) != 0)
    starts = np.flatnonzero(flat & ((values & _FIRST) != 0))
    spans: list[tuple[int, int, int]] = []
    for start in starts.tolist():
        cells = media_length(tokens, start)
        steps = int(((values[start : start + cells] & _STEP) != 0).sum())
        spans.append((start, cells, steps))
    return spans
