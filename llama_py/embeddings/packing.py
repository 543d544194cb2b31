"""Which inputs are computed together. Pure Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["by_length", "room_beside"]

#: Tokens of a batch from which on a CPU computes more of them no faster.
_ENOUGH = 128
#: How many times longer than its longest input a batch may get on a GPU.
_TIMES = 4


def by_length(lengths: Sequence[int]) -> Iterator[int]:
    """The indices of inputs, shortest first: neighbours in this order suit the same batch."""
    return iter(sorted(range(len(lengths)), key=lengths.__getitem__))


def room_beside(longest: int, most: int, *, gpu: bool = False) -> int:
    """Tokens of a batch that contains an input of ``longest`` tokens.

    llama.cpp computes the attention of each token of a batch to all others, and then masks those of
    other inputs: what that costs grows with the square of the whole batch. So short inputs are
    computed together only as far as matrix products get faster by that, and long ones alone. A GPU
    needs more of them.

    Args:
        most: tokens that the context takes at once.
    """
    return max(longest, min(most, max(_ENOUGH, _TIMES * longest if gpu else 0)))
