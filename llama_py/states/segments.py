"""``Segments``: the parts of conversations that entries share, each a file of its own.

A segment is written before the entry that refers to it, and removed when no entry does any more. In
between it belongs to the process that wrote it: ``writing`` are those that only memory has yet,
``waiting`` those that have a file and no entry.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import StateError
from llama_py.states.files import Files
from llama_py.states.payload import read_segment, segment_file_bytes, write_segment
from llama_py.states.state import Key, StoredState

__all__ = ["Segments", "named"]


def named(state: StoredState) -> tuple[tuple[Key, int], ...]:
    """Keys and file sizes of a state's segments, as the ledger notes them."""
    return tuple((each.key, segment_file_bytes(each.nbytes)) for each in state.segments)


class Segments(Files):
    """The files of one directory. Calls must not overlap, but for ``write`` and ``fill``."""

    def __init__(self, folder: Path) -> None:
        self.writing: dict[Key, NDArray[np.uint8]] = {}
        self.waiting: set[Key] = set()
        super().__init__(folder, ".segment")

    def __contains__(self, key: object) -> bool:
        return key in self.writing or key in self.waiting

    def clear(self) -> None:
        """Know nothing of files that are being written."""
        self.writing.clear()
        self.waiting.clear()

    def write(self, key: Key, state: NDArray[np.uint8]) -> None:
        """Write its file. Raises ``OSError``."""
        write_segment(self.path(key), key, state)

    def fill(self, state: StoredState) -> StoredState:
        """The same with the bytes of its segments.

        Raises:
            StateError: a file is not what was written.
            OSError: it cannot be read.
            MemoryError: there is no room for it.
        """
        if not state.segments:
            return state
        filled = []
        for segment in state.segments:
            kept = self.writing.get(segment.key)
            if kept is None:
                kept = read_segment(self.path(segment.key), segment.key, segment.nbytes)
            elif kept.nbytes != segment.nbytes:
                raise StateError(f"segment {segment.key} has {kept.nbytes} bytes")
            filled.append(dataclasses.replace(segment, state=kept))
        return dataclasses.replace(state, segments=tuple(filled))
