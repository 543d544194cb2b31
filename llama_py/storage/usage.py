"""``Usage``: bytes of a store's entries, where several entries may share segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set

from llama_py.memory.state import Key

__all__ = ["Usage"]


class Usage:
    """Counts each segment once, however many entries refer to it.

    Attributes:
        nbytes: bytes of all entries and segments.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._entries: Counter[Key] = Counter()  # segment -> entries that refer to it

    def __contains__(self, segment: object) -> bool:
        return segment in self._entries

    def keys(self) -> Set[Key]:
        """The segments of all entries."""
        return self._entries.keys()

    def copy(self) -> Usage:
        """An independent copy, to try things out."""
        other = Usage()
        other.nbytes, other._entries = self.nbytes, self._entries.copy()
        return other

    def add(self, nbytes: int, segments: Iterable[tuple[Key, int]] = ()) -> None:
        """Count an entry: its own bytes, and its segments' keys and bytes."""
        self.nbytes += nbytes
        for key, size in segments:
            if key not in self._entries:
                self.nbytes += size
            self._entries[key] += 1

    def remove(self, nbytes: int, segments: Iterable[tuple[Key, int]] = ()) -> list[Key]:
        """Count an entry no more; returns the segments that belong to no entry now."""
        self.nbytes -= nbytes
        free = []
        for key, size in segments:
            self._entries[key] -= 1
            if not self._entries[key]:
                del self._entries[key]
                self.nbytes -= size
                free.append(key)
        return free
