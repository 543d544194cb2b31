"""``LlamaRAMCache``: sequence states in the process's memory."""

from __future__ import annotations

import dataclasses
import secrets
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from llama_py.states.state import Checkpoint, EntryInfo, Key, StoredState
from llama_py.states.store import BaseLlamaCache, PendingPut, entry_info

__all__ = ["LlamaCache", "LlamaRAMCache"]

_T = TypeVar("_T", bound=np.generic)


class LlamaRAMCache(BaseLlamaCache):
    """Keeps the states of sequences in memory, up to ``capacity_bytes``.

    A state is kept as it is handed over, not copied: saving costs the one copy that took it out of
    the context, and restoring the one that puts it back.

    It belongs to its process: pickling keeps the capacity, and the copy is empty.
    """

    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        super().__init__(capacity_bytes)
        self._states: OrderedDict[Key, StoredState] = OrderedDict()  # least recently used first
        self._segments: dict[Key, NDArray[np.uint8]] = {}
        self._shared: Counter[Key] = Counter()  # segment -> entries that refer to it
        self._used = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of all entries."""
        return self._used

    def __len__(self) -> int:
        return len(self._states)

    def prepare(self, state: StoredState, *, replaces: Key | None = None) -> PendingPut | None:
        """Hold ``state`` until it is confirmed; None if it is larger than the capacity."""
        with self._lock:
            self._check_open()
            if not self._fits(state.nbytes):
                return None
            own = self._with_own_segments(state)
        if own is None:
            return None
        # The same arrays, which nobody can change through what ``get`` returns.
        kept = dataclasses.replace(
            own,
            tokens=_frozen(own.tokens),
            offsets=_frozen(own.offsets) if own.offsets is not None else None,
            state=_frozen(own.state),
            checkpoints=tuple(Checkpoint(c.position, _frozen(c.state)) for c in own.checkpoints),
            sources=_frozen(own.sources) if own.sources is not None else None,
            segments=tuple(dataclasses.replace(segment, state=None) for segment in own.segments),
        )
        return PendingPut(lambda: self._confirm(kept, replaces), lambda: None)

    def keep(self, state: NDArray[np.uint8]) -> Key:
        """Hold the bytes of a segment for an entry that is to come; returns its key."""
        with self._lock:
            self._check_open()
            key = _new_key()
            self._segments[key] = _frozen(state)
            return key

    def holds(self, segments: Sequence[Key]) -> bool:
        """Whether the store (still) has all of these segments."""
        with self._lock:
            return all(key in self._segments for key in segments)

    def release(self, segments: Sequence[Key]) -> None:
        """Forget those of these segments that belong to no entry."""
        with self._lock:
            for key in segments:
                if not self._shared[key]:
                    self._segments.pop(key, None)

    def get(self, key: Key) -> StoredState | None:
        """The entry, marked as just used; its arrays are the store's own, read-only."""
        with self._lock:
            self._check_open()
            state = self._states.get(key)
            if state is None:
                return None
            self._states.move_to_end(key)
            self._counts["restored"] += 1
            segments = (
                dataclasses.replace(segment, state=self._segments[segment.key])
                for segment in state.segments
            )
            return dataclasses.replace(state, segments=tuple(segments))

    def info(self, key: Key) -> EntryInfo | None:
        """An entry's facts."""
        with self._lock:
            return self._catalog.info(key)

    def touch(self, key: Key) -> None:
        """Mark an entry as just used."""
        with self._lock:
            if key in self._states:
                self._states.move_to_end(key)

    def discard(self, key: Key) -> None:
        """Forget an entry, if it is there."""
        with self._lock:
            self._catalog.remove(key)
            state = self._states.pop(key, None)
            if state is not None:
                self._count(state, -1)

    def clear(self) -> None:
        """Forget every entry."""
        with self._lock:
            self._states.clear()
            self._catalog.clear()
            self._segments.clear()
            self._shared.clear()
            self._used = 0

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_open()
        return type(self), (self.capacity_bytes,)

    def close(self) -> None:
        """Forget every entry, for good."""
        with self._lock:
            self.clear()
            self._closed = True

    def _confirm(self, state: StoredState, replaces: Key | None) -> Key | None:
        with self._lock:
            if self._closed or not self.holds([each.key for each in state.segments]):
                return None
            gone = self._catalog.twins(state.tokens, state.fingerprint, state.session)
            self._count(state, 1)  # first, so that what it shares with them stays
            for old in [*gone, *([] if replaces is None else [replaces])]:
                self.discard(old)
            while self._states and self._used > self.capacity_bytes:
                self.discard(next(iter(self._states)))
                self._counts["evicted"] += 1
            key = _new_key()
            self._states[key] = state
            self._counts["saved"] += 1
            info = entry_info(key, state, state.nbytes)
            self._catalog.add(info, state.tokens, state.offsets, state.text, state.sources)
            return key

    def _count(self, state: StoredState, entries: int) -> None:
        """An entry more, or one less. What several share counts once, and goes with the last."""
        self._used += entries * (state.nbytes - sum(each.nbytes for each in state.segments))
        for segment in state.segments:
            before = self._shared[segment.key] > 0
            self._shared[segment.key] += entries
            after = self._shared[segment.key] > 0
            self._used += (after - before) * segment.nbytes
            if not after:
                del self._shared[segment.key], self._segments[segment.key]


#: llama-cpp-python's name for the default cache.
LlamaCache = LlamaRAMCache


def _new_key() -> Key:
    """A key that no other store has: states are passed from one to another, and name segments."""
    return f"ram-{secrets.token_hex(12)}"


def _frozen(array: NDArray[_T]) -> NDArray[_T]:
    """A read-only view; a copy where the view would keep a much larger array in memory."""
    whole = array.base
    if isinstance(whole, np.ndarray) and whole.nbytes > array.nbytes + array.nbytes // 8 + 4096:
        array = array.copy()
    view: NDArray[_T] = array.view()
    view.flags.writeable = False
    return view
