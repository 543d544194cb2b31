"""``LlamaRAMCache``: sequence states in the process's memory, and what both stores share."""

from __future__ import annotations

import dataclasses
import logging
import secrets
import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from llama_py import forks
from llama_py.errors import ClosedError, ParameterError, ParameterTypeError
from llama_py.memory.prefix import TextPath
from llama_py.memory.state import (
    Checkpoint,
    EntryInfo,
    Key,
    PendingPut,
    StateStore,
    StoredMatch,
    StoredState,
    StoreStats,
)
from llama_py.storage.catalog import Catalog

__all__ = ["BaseLlamaCache", "LlamaRAMCache", "entry_info"]

_T = TypeVar("_T", bound=np.generic)
_log = logging.getLogger("llama_py")


def entry_info(key: Key, state: StoredState, nbytes: int) -> EntryInfo:
    """What is known of ``state`` once it is an entry of ``nbytes`` bytes."""
    positions = tuple(checkpoint.position for checkpoint in state.checkpoints)
    return EntryInfo(
        key,
        state.fingerprint,
        state.session,
        len(state.tokens),
        state.pos_min,
        positions,
        nbytes,
    )


class BaseLlamaCache(StateStore):
    """What the stores have in common: capacity, counters, lookups in the catalog."""

    def __init__(self, capacity_bytes: int) -> None:
        if isinstance(capacity_bytes, bool) or not isinstance(capacity_bytes, int):
            raise ParameterTypeError(f"capacity_bytes must be an integer, not {capacity_bytes!r}")
        if capacity_bytes < 0:
            raise ParameterError(f"capacity_bytes={capacity_bytes} must not be negative")
        self.capacity_bytes = capacity_bytes
        self._lock = threading.RLock()
        self._catalog = Catalog()
        self._closed = False
        self._counts = dict.fromkeys(("saved", "restored", "evicted", "refused", "damaged"), 0)
        forks.hold(self)

    def _forked(self) -> None:
        """In a forked child, which has this store too now: let go of what is the parent's."""

    @property
    def cache_size(self) -> int:
        """The same, by llama-cpp-python's name."""
        return self.used_bytes

    def put(self, state: StoredState, *, replaces: Key | None = None) -> Key | None:
        """Save, evicting the least recently used; None if it is larger than the capacity."""
        pending = self.prepare(state, replaces=replaces)
        return pending.confirm() if pending else None

    def put_soon(self, state: StoredState, *, replaces: Key | None = None) -> Key | None:
        """Like ``put``, but what takes time is done beside the caller."""
        return self.put(state, replaces=replaces)

    def accepts(self, nbytes: int) -> bool:
        """Whether a state of so many bytes can be saved at all."""
        with self._lock:
            self._check_open()
            return self._fits(nbytes)

    def wait(self, backlog: int = 0, timeout: float = 10.0) -> bool:
        """Wait until at most ``backlog`` bytes are still to be written; False if time is over.

        After ``wait()`` everything that was saved so far is where other processes find it.
        """
        return True

    def _with_own_segments(self, state: StoredState) -> StoredState | None:
        """The same; segments that came from another store are taken over, if they are there."""
        segments = list(state.segments)
        for number, segment in enumerate(segments):
            if not self.holds([segment.key]):
                if segment.state is None:
                    return None
                key = self.keep(segment.state)
                segments[number] = dataclasses.replace(segment, key=key, state=None)
        return dataclasses.replace(state, segments=tuple(segments)) if segments else state

    def find(self, tokens: NDArray[np.int32], fingerprint: str) -> list[StoredMatch]:
        """Entries of this fingerprint that share leading tokens, deepest first."""
        with self._lock:
            self._ready(fingerprint)
            return self._catalog.find(tokens, fingerprint)

    def find_text(self, text: bytes, fingerprint: str) -> TextPath | None:
        """The longest path of tokens of this fingerprint whose text ``text`` begins with."""
        with self._lock:
            self._ready(fingerprint)
            return self._catalog.find_text(text, fingerprint)

    def find_session(self, session: str, fingerprint: str | None) -> list[Key]:
        """Entries of one conversation, longest first.

        Args:
            fingerprint: that of the entries; None for those of any model and setting.
        """
        with self._lock:
            self._ready(fingerprint)
            return self._catalog.find_session(session, fingerprint)

    def match_foreign(self, tokens: NDArray[np.int32], fingerprint: str) -> int:
        """Leading tokens that entries of other fingerprints share."""
        with self._lock:
            self._ready(fingerprint)
            return self._catalog.match_foreign(tokens, fingerprint)

    def stats(self) -> StoreStats:
        """Counts and bytes."""
        with self._lock:
            return StoreStats(len(self), self.used_bytes, self.capacity_bytes, **self._counts)

    @property
    def closed(self) -> bool:
        """True after ``close()``."""
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ready(self, fingerprint: str | None) -> None:
        """Bring the catalog up to date for one fingerprint, or for all."""
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"this {type(self).__name__} was closed")

    def _fits(self, nbytes: int) -> bool:
        if nbytes <= self.capacity_bytes:
            return True
        self._counts["refused"] += 1
        _log.info(
            "a state of %d bytes is not stored: the capacity is %d bytes",
            nbytes,
            self.capacity_bytes,
        )
        return False


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
        kept = _read_only(own)
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
        """What is known of an entry."""
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
            return self._add(state)

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

    def _add(self, state: StoredState) -> Key:
        key = _new_key()
        self._states[key] = state
        self._counts["saved"] += 1
        info = entry_info(key, state, state.nbytes)
        self._catalog.add(info, state.tokens, state.offsets, state.text, state.sources)
        return key


def _new_key() -> Key:
    """A key that no other store has: states are passed from one to another, and name segments."""
    return f"ram-{secrets.token_hex(12)}"


def _read_only(state: StoredState) -> StoredState:
    """The same arrays, which nobody can change through what ``get`` returns."""
    return dataclasses.replace(
        state,
        tokens=_frozen(state.tokens),
        offsets=_frozen(state.offsets) if state.offsets is not None else None,
        state=_frozen(state.state),
        checkpoints=tuple(Checkpoint(c.position, _frozen(c.state)) for c in state.checkpoints),
        sources=_frozen(state.sources) if state.sources is not None else None,
        segments=tuple(dataclasses.replace(segment, state=None) for segment in state.segments),
    )


def _frozen(array: NDArray[_T]) -> NDArray[_T]:
    """A read-only view; a copy where the view would keep a much larger array in memory."""
    whole = array.base
    if isinstance(whole, np.ndarray) and whole.nbytes > array.nbytes + array.nbytes // 8 + 4096:
        array = array.copy()
    view: NDArray[_T] = array.view()
    view.flags.writeable = False
    return view
