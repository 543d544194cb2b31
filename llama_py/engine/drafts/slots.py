"""``SlotSet``: the sequences of a drafter's context, and which one a stream goes on with.

Every drafter that computes has a context of its own, with a sequence for each stream. Whatever was
evaluated in one namespace is never gone on with in another: the time of a draft would tell what
others have asked.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from llama_py.states.prefix import common_tokens

__all__ = ["NoRoomError", "Slot", "SlotSet", "sure_token"]


class NoRoomError(Exception):
    """There are no free cells in a drafter's context."""


@dataclass(slots=True, eq=False)
class Slot:
    """A sequence of a drafter's context.

    Attributes:
        number: its id there.
        tokens: int32, room for all that it can hold; ``count`` of them are those of a stream.
        namespace: in which they were evaluated.
        used: when a stream began with it last.
    """

    number: int
    tokens: NDArray[np.intc]
    count: int = 0
    namespace: Hashable = None
    used: int = 0


SlotT = TypeVar("SlotT", bound=Slot)


class SlotSet(Generic[SlotT]):
    """All sequences of a drafter.

    Args:
        slots: one for each stream that there may be.
        own: a sequence with more tokens than these behind what a stream has is that of another
            stream, and is copied rather than cut.
    """

    def __init__(self, slots: Sequence[SlotT], own: int) -> None:
        self._slots = slots
        self._own = own
        self._clock = 0

    def __iter__(self) -> Iterator[SlotT]:
        return iter(self._slots)

    def begin(
        self, namespace: Hashable, tokens: NDArray[np.intc], taken: Container[int]
    ) -> tuple[SlotT, SlotT, int]:
        """The sequence to go on with, and what it can begin with.

        Args:
            tokens: what it should hold in the end.
            taken: numbers of the sequences that other streams need as they are.

        Returns:
            The sequence; the one to take a beginning from, which may be the same; and how many
            tokens of that are those of ``tokens``.
        """
        shared = {
            each.number: common_tokens(each.tokens[: each.count], tokens)
            if each.namespace == namespace
            else 0
            for each in self._slots
        }
        best = max(
            self._slots,
            key=lambda each: (shared[each.number], each.number not in taken, -each.used),
        )
        keep = shared[best.number]
        slot = best
        if best.number in taken or best.count - keep > self._own or not keep:
            free = (each for each in self._slots if each.number not in taken)
            slot = min(free, key=lambda each: each.used)
        self._clock += 1
        slot.used, slot.namespace = self._clock, namespace
        return slot, best, keep


def sure_token(row: NDArray[np.float32], p_min: float) -> int | None:
    """The most likely token of a row of logits; None if it is less likely than ``p_min``."""
    token = int(row.argmax())
    if p_min > 0 and 1 / np.exp(row - row[token]).sum() < p_min:
        return None
    return token
