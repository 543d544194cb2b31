"""``StateStore``: the protocol of a store, and what the two stores have in common."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from llama_py import forks
from llama_py.errors import ClosedError, ParameterError, ParameterTypeError
from llama_py.states.catalog import Catalog
from llama_py.states.prefix import TextPath
from llama_py.states.state import EntryInfo, Key, StoredMatch, StoredState

__all__ = ["BaseLlamaCache", "PendingPut", "StateStore", "StoreStats", "entry_info"]

_log = logging.getLogger("llama_py")


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Entries and bytes now; saved, restored, evicted, refused (too large) and damaged so far."""

    entries: int
    used_bytes: int
    capacity_bytes: int
    saved: int = 0
    restored: int = 0
    evicted: int = 0
    refused: int = 0
    damaged: int = 0


class PendingPut:
    """An entry that is written and not yet there: ``confirm`` shows it, ``abort`` forgets it.

    Until it is confirmed nothing is evicted or replaced, so an aborted request costs nobody an
    entry. As a context manager it aborts what was not confirmed.
    """

    __slots__ = ("_abort", "_confirm", "_done", "_key")

    def __init__(self, confirm: Callable[[], Key | None], abort: Callable[[], None]) -> None:
        self._confirm = confirm
        self._abort = abort
        self._done = False
        self._key: Key | None = None

    def confirm(self) -> Key | None:
        """Make it visible, in place of what it replaces; its key, or None if it was lost.

        It may be lost when it was aborted before, or when another process emptied the store.
        """
        if not self._done:
            self._done = True
            self._key = self._confirm()
        return self._key

    def abort(self) -> None:
        """Forget it. What it would have replaced stays. Nothing happens after ``confirm``."""
        if not self._done:
            self._done = True
            self._abort()

    def __enter__(self) -> PendingPut:
        return self

    def __exit__(self, *error: object) -> None:
        self.abort()


class StateStore(Protocol):
    """A tier of memory below the context. Safe to call from any thread.

    A store never fails a request: what cannot be saved is not there (None, and a line in the log),
    and what cannot be read back whole is dropped and absent. One that is closed raises
    ``ClosedError``, and is not asked any more.
    """

    capacity_bytes: int

    @property
    def closed(self) -> bool:
        """True after ``close()``."""

    @property
    def used_bytes(self) -> int:
        """Bytes of all entries."""

    def put(self, state: StoredState, *, replaces: Key | None = None) -> Key | None:
        """Save, evicting the least recently used; None if it is larger than the capacity.

        The arrays of ``state`` must not change afterwards. An entry with the same tokens,
        fingerprint and session is replaced as well.
        """

    def prepare(self, state: StoredState, *, replaces: Key | None = None) -> PendingPut | None:
        """Write without showing or evicting anything; None where ``put`` would say None."""

    def put_soon(self, state: StoredState, *, replaces: Key | None = None) -> Key | None:
        """Like ``put``, but what takes time is done beside the caller.

        The entry can be found at once. It is gone again if it cannot be written after all.
        """

    def accepts(self, nbytes: int) -> bool:
        """Whether a state of so many bytes can be saved at all: ask before copying one."""

    def keep(self, state: NDArray[np.uint8]) -> Key:
        """Take over the bytes of a segment, for an entry that is to come; returns its key.

        It is written beside the caller, and the array must not change.
        """

    def holds(self, segments: Sequence[Key]) -> bool:
        """Whether the store (still) has all of these segments."""

    def release(self, segments: Sequence[Key]) -> None:
        """Forget those of these segments that belong to no entry: none will come."""

    def wait(self, backlog: int, timeout: float) -> bool:
        """Wait until at most ``backlog`` bytes are still to be written; False if time is over."""

    def get(self, key: Key) -> StoredState | None:
        """The entry, marked as just used; None if it is not there (any more)."""

    def info(self, key: Key) -> EntryInfo | None:
        """What is known of an entry without reading its state."""

    def discard(self, key: Key) -> None:
        """Forget an entry, if it is there."""

    def touch(self, key: Key) -> None:
        """Mark an entry as just used."""

    def find(self, tokens: NDArray[np.int32], fingerprint: str) -> list[StoredMatch]:
        """Entries of this fingerprint that share leading tokens, deepest first.

        Of those that leave ``tokens`` at the same place, a few are listed.
        """

    def find_text(self, text: bytes, fingerprint: str) -> TextPath | None:
        """The longest path of tokens of this fingerprint whose key the key ``text`` begins with."""

    def find_session(self, session: str, fingerprint: str | None) -> list[Key]:
        """Entries of one conversation, longest first; None: of every fingerprint."""

    def match_foreign(self, tokens: NDArray[np.int32], fingerprint: str) -> dict[str, int]:
        """The *other* fingerprints of entries that share leading tokens: why nothing was found.

        Returns:
            How many tokens, of each of them; of long beginnings, a store may count the first few.
        """

    def clear(self) -> None:
        """Forget every entry."""

    def close(self) -> None:
        """Release what the store holds open. Entries on disk stay."""

    def stats(self) -> StoreStats:
        """Counts and bytes."""

    def __len__(self) -> int: ...


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

    def match_foreign(self, tokens: NDArray[np.int32], fingerprint: str) -> dict[str, int]:
        """How many leading tokens entries of other fingerprints share, of each that does."""
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
