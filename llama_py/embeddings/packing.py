"""Which inputs are computed together. Pure Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["by_length", "room_beside"]

#: Tokens of a batch from which on more of them are hardly computed any faster.
_ENOUGH = 128
#: How many times longer than its longest input a batch may get.
_TIMES = 4


def by_length(lengths: Sequence[int]) -> Iterator[int]:
    """The indices of inputs, shortest first: neighbours in this order suit the same batch."""
    return iter(sorted(range(len(lengths)), key=lengths.__getitem__))


def room_beside(longest: int, most: int) -> int:
    """Tokens of a batch that contains an input of ``longest`` tokens.

    llama.cpp computes the attention of each token of a batch to all others, and then masks those of
    other inputs: what that costs grows with the square of the whole batch. So batches of short
    inputs are small ones, as far as matrix products do not get slower by that.

    Args:
        most: tokens that the context takes at once.
    """
    return max(longest, min(most, max(_ENOUGH, _TIMES * longest)))
