"""``StateStore``: the protocol of a store, and what the two stores have in common."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from llama_py import forks
from llama_py.errors import ClosedError, ParameterError, ParameterTypeError
from llama_py.states.prefix import PrefixIndex, TextPath
from llama_py.states.state import EntryInfo, Key, StoredMatch, StoredState

__all__ = ["BaseLlamaCache", "Catalog", "PendingPut", "StateStore", "StoreStats", "entry_info"]

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
        """Whether a state of this many bytes can be saved at all: ask before copying one."""

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
        """An entry's facts, without its state."""

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
    """The facts of ``state`` once it is an entry of ``nbytes`` bytes."""
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
    """The base of the stores: capacity, counters, lookups in the catalog."""

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
        """Whether a state of this many bytes can be saved at all."""
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


# ---- catalog -------------------------------------------------------------------------------------
#
# ``Catalog``: which entries a store has, by fingerprint, tokens, text and session.


#: Entries listed of those that leave a prompt at the same place: they serve it equally well.
_ALIKE = 8


class Catalog:
    """One prefix tree per fingerprint, so that an entry never serves another context."""

    def __init__(self) -> None:
        self._infos: dict[Key, EntryInfo] = {}
        self._trees: dict[str, PrefixIndex[Key]] = {}

    def __len__(self) -> int:
        return len(self._infos)

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._infos))

    def add(
        self,
        info: EntryInfo,
        tokens: NDArray[np.int32],
        offsets: NDArray[np.int64] | None,
        text: bytes | None,
        sources: NDArray[np.uint8] | None,
    ) -> None:
        """List an entry. Adding it again only brings what is known of it up to date."""
        if info.key not in self._infos:
            tree = self._trees.setdefault(info.fingerprint, PrefixIndex())
            tree.insert(info.key, tokens, offsets, text, sources)
        self._infos[info.key] = info

    def remove(self, key: Key) -> None:
        """Forget an entry, if it is listed."""
        info = self._infos.pop(key, None)
        if info is not None:
            tree = self._trees.get(info.fingerprint)
            if tree is not None:
                tree.remove(key)
                if not len(tree):
                    del self._trees[info.fingerprint]

    def clear(self) -> None:
        """Forget all."""
        self._infos.clear()
        self._trees.clear()

    def info(self, key: Key) -> EntryInfo | None:
        """An entry's facts."""
        return self._infos.get(key)

    def find(self, tokens: NDArray[np.int32], fingerprint: str) -> list[StoredMatch]:
        """Entries that share leading tokens, deepest first."""
        return self._matches(tokens, fingerprint, _ALIKE)

    def find_text(self, text: bytes, fingerprint: str) -> TextPath | None:
        """The longest path whose text ``text`` begins with."""
        tree = self._trees.get(fingerprint)
        return tree.match_text(text) if tree else None

    def find_session(self, session: str, fingerprint: str | None) -> list[Key]:
        """Entries of one conversation, longest first; None: of every fingerprint."""
        own = [
            info
            for info in self._infos.values()
            if info.session == session and fingerprint in (None, info.fingerprint)
        ]
        return [info.key for info in sorted(own, key=lambda info: -info.length)]

    def match_foreign(self, tokens: NDArray[np.int32], fingerprint: str) -> dict[str, int]:
        """The most leading tokens shared with an entry of each other fingerprint, if there are."""
        shared = {
            name: tree.match_depth(tokens)
            for name, tree in list(self._trees.items())
            if name != fingerprint
        }
        return {name: depth for name, depth in shared.items() if depth}

    def twins(self, tokens: NDArray[np.int32], fingerprint: str, session: str | None) -> list[Key]:
        """Entries of exactly these tokens, fingerprint and session."""
        return [
            found.key
            for found in self._matches(tokens, fingerprint, 0)
            if found.length == len(tokens) and found.session == session
        ]

    def _matches(
        self, tokens: NDArray[np.int32], fingerprint: str, alike: int
    ) -> list[StoredMatch]:
        tree = self._trees.get(fingerprint)
        found = tree.match_tokens(tokens, side=alike) if tree else []
        # An interrupt may have come between the two: a key without an entry is not an entry.
        infos = ((self._infos.get(key), shared) for key, shared in found)
        return [
            StoredMatch(info.key, shared, info.length, info.pos_min, info.checkpoints, info.session)
            for info, shared in infos
            if info is not None
        ]
