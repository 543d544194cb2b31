"""``Pins``: beginnings of prompts that are evicted only when nothing else is left.

A pin belongs to tokens, and not to the sequence that happens to hold them. Of each pinned beginning
one sequence is kept as long as there is room for anything else (its *keeper*): the one that holds
this and nothing else, or, if there is none and no copy of it is offloaded, the shortest one that
begins with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llama_py.memory.index import CacheIndex
from llama_py.memory.sequences import LiveSequence, Namespace, ResolvedPrompt
from llama_py.states.state import Key
from llama_py.states.store import StateStore

__all__ = ["Pin", "Pins"]


@dataclass(slots=True, eq=False)
class Pin:
    """One pinned beginning.

    Attributes:
        tokens: int32 ``(n,)``.
        text: their key (``text_keys.py``), or None if they were given as tokens.
        offloaded_key: its entry in the offload store, if a copy was put there.
    """

    tokens: NDArray[np.int32]
    text: bytes | None
    namespace: Namespace
    offloaded_key: Key | None = None

    def is_for(self, prompt: ResolvedPrompt) -> bool:
        """Whether it pins this prompt: the same tokens, or the same text."""
        if self.namespace != prompt.namespace:
            return False
        same_text = self.text is not None and self.text == prompt.text
        return same_text or np.array_equal(self.tokens, prompt.tokens)

    def is_all_of(self, sequence: LiveSequence) -> bool:
        """Whether a sequence that begins with it holds hardly anything else."""
        return len(sequence.tokens) <= len(self.tokens) + 1


class Pins:
    """The pinned beginnings, and the sequence that keeps each of them.

    Args:
        offload_store: the store that offloaded copies are in, or None.
    """

    def __init__(self, index: CacheIndex, offload_store: StateStore | None) -> None:
        self._index = index
        self._store = offload_store
        self._pins: list[Pin] = []

    def __iter__(self) -> Iterator[Pin]:
        return iter([*self._pins])

    def __len__(self) -> int:
        return len(self._pins)

    def add(self, prompt: ResolvedPrompt) -> Pin:
        """Pin a prompt; the pin that there is, if it is pinned."""
        for pin in self._pins:
            if pin.is_for(prompt):
                return pin
        self._pins.append(Pin(prompt.tokens.copy(), prompt.text, prompt.namespace))
        return self._pins[-1]

    def remove(self, prompt: ResolvedPrompt) -> list[Pin]:
        """Unpin a prompt; the pins that there were."""
        gone = [pin for pin in self._pins if pin.is_for(prompt)]
        self._pins = [pin for pin in self._pins if pin not in gone]
        return gone

    def clear(self) -> None:
        """Unpin everything."""
        self._pins = []

    def keeper(self, pin: Pin) -> LiveSequence | None:
        """The sequence that is kept for a pin; None if none is needed, or there is none."""
        found = self._index.holders(pin.tokens, pin.namespace)
        holders = [sequence for sequence, matched in found if matched == len(pin.tokens)]
        best = min(holders, key=lambda each: (len(each.tokens), each.number), default=None)
        if best is None or pin.is_all_of(best):
            return best
        key, store = pin.offloaded_key, self._store
        offloaded = key is not None and store is not None and store.info(key) is not None
        return None if offloaded else best

    def keepers(self) -> dict[LiveSequence, Pin]:
        """Each sequence that is kept, and a pin that it is kept for."""
        kept = [(self.keeper(pin), pin) for pin in self._pins]
        return {sequence: pin for sequence, pin in kept if sequence is not None}

    def lengths_along(self, tokens: NDArray[np.int32], namespace: Namespace) -> set[int]:
        """After how many of ``tokens`` a pinned beginning ends."""
        return {
            len(pin.tokens)
            for pin in self._pins
            if pin.namespace == namespace and np.array_equal(pin.tokens, tokens[: len(pin.tokens)])
        }
