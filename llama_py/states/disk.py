"""``LlamaDiskCache``: sequence states in a directory, across processes and restarts.

Each entry is one file (``payload.py``), and the ledger lists the entries. Saving writes the file;
then, in one transaction, adds its row and removes the rows of the entries that it replaces or
evicts; then removes their files. A process that is killed in between leaves a file without a row,
which is never read, and which the next process that opens the directory removes.

A long conversation is an entry whose first cells are in segments (``segments.py``). They are
written once, before the first entry that refers to them; the rows say who refers to which, and
those that nobody refers to any more go with the last row that did, so that no process can come to
refer to one: their files are removed behind it.

What is to be written soon is written by a thread (``writer.py``), and found from memory until then.

Finding does not touch the disk: the heads of a fingerprint's entries (tokens and text, a few
kilobytes each) are read into a prefix tree when the fingerprint is first asked for, and afterwards
only those of entries that are new. That gives exact longest matches by token and by text, which
hashes of blocks would only approximate. Ages are the files' times, so that marking an entry as just
used costs no transaction, and every process sees it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import ParameterTypeError, StateError, StorageError
from llama_py.states.database import DATABASE_ERRORS
from llama_py.states.files import Files, new_key
from llama_py.states.ledger import OPENING, Ledger, Row
from llama_py.states.payload import Payload, read_head, read_state
from llama_py.states.prefix import common_tokens
from llama_py.states.segments import Segments, named
from llama_py.states.state import EntryInfo, Key, StoredState
from llama_py.states.store import BaseLlamaCache, PendingPut, entry_info
from llama_py.states.writer import Writer

__all__ = ["LlamaDiskCache", "database_of"]

_log = logging.getLogger("llama_py")
_T = TypeVar("_T")
#: Entries that are gone, and the segments that went with them.
_Away = dict[Key, list[Key]]

#: Seconds that ``close`` waits for what is still to be written.
_CLOSING = 10.0


def database_of(cache_dir: str | os.PathLike[str]) -> Path:
    """The database of a store in ``cache_dir``."""
    # Its own folder: the directory may hold the pickles of another library.
    return Path(cache_dir) / "llama_py-2" / "index.db"


class LlamaDiskCache(BaseLlamaCache):
    """Keeps the states of sequences in ``cache_dir``, up to ``capacity_bytes``.

    Several models, ``Llama`` objects and processes may share a directory; each process keeps to its
    own ``capacity_bytes`` when it saves. What calls leave behind is written beside later ones, by a
    thread: ``wait()`` returns when it is there; ``close()`` and the end of the process wait up to
    10 s. A crash loses at most what was not written; losing power may lose the last entries.
    Neither brings back a damaged one.

    Pickling it keeps the path and the capacity: the copy, in whatever process, opens the same
    directory.

    Raises:
        StorageError: the directory cannot be made or written; also an ``OSError``.
    """

    def __init__(
        self,
        cache_dir: str | os.PathLike[str] = ".cache/llama_cache",
        capacity_bytes: int = 2 << 30,
    ) -> None:
        if not isinstance(cache_dir, (str, os.PathLike)):
            raise ParameterTypeError(f"cache_dir must be a path, not {cache_dir!r}")
        self._pending: set[Key] = set()  # what this process has prepared
        self._soon: dict[Key, StoredState] = {}  # what it will write
        self._writer = Writer()
        self._failing = False
        super().__init__(capacity_bytes)
        self.cache_dir = cache_dir
        self._folder = database_of(cache_dir).parent
        self._ledger = _open_ledger(cache_dir)
        self._files = Files(self._folder, ".state")
        self._segments = Segments(self._folder)
        self._listed: set[str] = set()  # fingerprints whose entries are in the catalog

    def _forked(self) -> None:
        self._pending.clear()
        self._give_up_soon()
        self._segments.clear()
        self._writer = Writer()
        self._ledger.forked()

    @property
    def used_bytes(self) -> int:
        """Bytes of all entries' files; segments that several share count once."""
        with self._lock:
            self._refresh()
            return self._ledger.nbytes

    def __len__(self) -> int:
        with self._lock:
            self._refresh()
            return len(self._ledger.keys() | self._soon.keys())

    # --- saving -------------------------------------------------------------------------------

    def prepare(self, state: StoredState, *, replaces: Key | None = None) -> PendingPut | None:
        """Write the file; None if it is larger than the capacity or cannot be written."""
        if not self.accepts(state.nbytes):
            return None
        own = self._with_own_segments(state)
        if own is None:
            return None
        if own.segments:
            self._writer.wait(0, _CLOSING)
        return self._prepare(new_key(), own, replaces)

    def _prepare(self, key: Key, state: StoredState, replaces: Key | None) -> PendingPut | None:
        payload = Payload(key, state)
        opening = state.tokens[:OPENING].astype("<i4").tobytes()
        row = Row(state.fingerprint, payload.file_bytes, payload.head_bytes, opening, named(state))
        with self._lock:
            self._check_open()
            if not self._fits(row.nbytes):
                return None
            self._pending.add(key)
        try:
            payload.write(self._files.path(key))
        except OSError as error:
            _log.warning("a state of %d bytes was not stored: %s", row.nbytes, error)
            self._pending.discard(key)
            return None
        return PendingPut(
            lambda: self._confirm(key, row, state, replaces), lambda: self._abort(key)
        )

    def put_soon(self, state: StoredState, *, replaces: Key | None = None) -> Key | None:
        """Like ``put``, but written beside the caller; it can be found at once."""
        own = self._with_own_segments(state) if self.accepts(state.nbytes) else None
        if own is None:
            return None
        key = new_key()
        with self._lock:
            self._ready(own.fingerprint)
            self._soon[key] = own
            self._show(entry_info(key, own, own.nbytes), own)
        self._writer.submit(partial(self._write_soon, key, replaces), own.state.nbytes)
        return key

    def _write_soon(self, key: Key, replaces: Key | None) -> None:
        with self._lock:
            state = self._soon.get(key)
            if state is None or self._closed:
                return
        pending = self._prepare(key, state, replaces)
        with self._lock:
            if pending is not None and key not in self._soon:  # it was cleared meanwhile
                pending.abort()
            elif pending is None or pending.confirm() is None:
                self._soon.pop(key, None)
                self._catalog.remove(key)

    def _show(self, info: EntryInfo, state: StoredState) -> None:
        self._catalog.add(info, state.tokens, state.offsets, state.text, state.sources)

    def _confirm(self, key: Key, row: Row, state: StoredState, replaces: Key | None) -> Key | None:
        with self._lock:
            if self._closed:
                return None
            self._ready(state.fingerprint)
            away = self._guarded(lambda: self._commit(key, row, state, replaces))
            self._pending.discard(key)
            self._soon.pop(key, None)
            if away is not None:
                self._segments.waiting.difference_update(name for name, _ in row.segments)
                self._forget(away)
                self._show(entry_info(key, state, row.nbytes), state)
                self._counts["saved"] += 1
        if away is None:
            self._files.unlink([key])
            return None
        self._remove_files(away)
        return key

    def _commit(self, key: Key, row: Row, state: StoredState, replaces: Key | None) -> _Away | None:
        """Add the row and take away those that have to go; None if a file is gone already."""
        ledger, waiting = self._ledger, self._segments.waiting
        with ledger.transaction():
            self._refresh()
            shared = [name for name, _ in row.segments if name not in waiting]
            if not (self._files.path(key).exists() and ledger.has_segments(shared)):
                return None
            self.touch(key)  # the kernel's own file times are too coarse to tell an order
            ledger.add(key, row)  # first, so that segments which both have stay
            twins = self._catalog.twins(state.tokens, state.fingerprint, state.session)
            away = self._without({*twins, *([] if replaces is None else [replaces])} - {key})
            if ledger.nbytes > self.capacity_bytes:
                for oldest in sorted(ledger.keys() - {key}, key=self._files.age):
                    away.update(self._without({oldest}))
                    self._counts["evicted"] += 1
                    if ledger.nbytes <= self.capacity_bytes:
                        break
        return away

    def _without(self, keys: Iterable[Key]) -> _Away:
        """Inside of a transaction: remove those of these entries that exist."""
        there = [key for key in keys if self._ledger.has(key)]
        return {key: self._ledger.remove(key) for key in there}

    def _abort(self, key: Key) -> None:
        with self._lock:
            self._pending.discard(key)
            self._files.unlink([key])

    def wait(self, backlog: int = 0, timeout: float = 10.0) -> bool:
        """Wait until at most ``backlog`` bytes are still to be written; False if time is over."""
        return self._writer.wait(backlog, timeout)

    # --- segments -----------------------------------------------------------------------------

    def keep(self, state: NDArray[np.uint8]) -> Key:
        """Take over the bytes of a segment, which is written beside the caller."""
        key = new_key()
        with self._lock:
            self._check_open()
            self._segments.writing[key] = state
        self._writer.submit(partial(self._write_segment, key), state.nbytes)
        return key

    def _write_segment(self, key: Key) -> None:
        state = self._segments.writing.get(key)
        if state is None:  # it was released
            return
        try:
            self._segments.write(key, state)
        except OSError as error:
            if self._segments.writing.pop(key, None) is not None and not self._failing:
                self._failing = True  # said once, and not for each segment
                _log.warning("a conversation was not stored: %s", error)
            return
        with self._lock:
            self._failing = False
            wanted = self._segments.writing.pop(key, None) is not None
            if wanted:
                self._segments.waiting.add(key)
        if not wanted:
            self._segments.unlink([key])

    def holds(self, segments: Sequence[Key]) -> bool:
        """Whether the store (still) has all of these segments."""
        with self._lock:
            self._refresh()  # another process may have evicted their entries
            return self._ledger.has_segments([k for k in segments if k not in self._segments])

    def release(self, segments: Sequence[Key]) -> None:
        """Forget those of these segments that belong to no entry."""
        with self._lock:
            for key in segments:
                self._segments.writing.pop(key, None)
            free = self._segments.waiting.intersection(segments)
            self._segments.waiting -= free
        if free:
            self._writer.submit(partial(self._segments.unlink, list(free)))

    # --- reading ------------------------------------------------------------------------------

    def get(self, key: Key) -> StoredState | None:
        """The entry, marked as just used; None if it is not there, or not what was written."""
        with self._lock:
            self._check_open()
            state = self._soon.get(key)
            row = self._ledger.row(key) if state is None else None
        if state is not None or row is not None:
            state = self._read(key, partial(self._read_state, key, row, state))
        if state is not None:
            self.touch(key)
            with self._lock:
                self._counts["restored"] += 1
        return state

    def _read_state(self, key: Key, row: Row | None, state: StoredState | None) -> StoredState:
        if state is None and row is not None:
            state = read_state(self._files.path(key), key, row.head_bytes, row.file_bytes)
            if named(state) != row.segments:
                raise StateError(f"{self._files.path(key)} has other segments than its row says")
        assert state is not None
        return self._segments.fill(state)

    def info(self, key: Key) -> EntryInfo | None:
        """An entry's facts, without its state."""
        with self._lock:
            self._refresh()
            row = self._ledger.row(key)
            if row:
                self._ready(row.fingerprint)
            return self._catalog.info(key)

    def touch(self, key: Key) -> None:
        """Mark an entry as just used, for every process."""
        self._files.touch(key)

    def match_foreign(self, tokens: NDArray[np.int32], fingerprint: str) -> dict[str, int]:
        """How many leading tokens (of the first few) entries of other fingerprints share.

        Their rows say it: none of their files is opened.
        """
        with self._lock:
            self._check_open()
            self._refresh()
            others = self._ledger.foreign_openings(fingerprint)
        found: dict[str, int] = {}
        for name, opening in others:
            start = np.frombuffer(opening[: len(opening) // 4 * 4], "<i4")
            shared = common_tokens(tokens, start)
            if shared:
                found[name] = max(shared, found.get(name, 0))
        return found

    def _read(self, key: Key, read: Callable[[], _T]) -> _T | None:
        """Read an entry's files, and drop an entry of which one is missing or damaged."""
        try:
            return read()
        except (StateError, FileNotFoundError) as error:
            with self._lock:
                self._refresh()
                if self._ledger.has(key):  # else another process has just evicted it
                    _log.warning("a stored state is dropped: %s", error)
                    self._counts["damaged"] += 1
                    self.discard(key)
        except (OSError, MemoryError) as error:  # too many open files: the entry may be all right
            _log.warning("a stored state could not be read: %s", error)
        return None

    # --- forgetting ---------------------------------------------------------------------------

    def discard(self, key: Key) -> None:
        """Forget an entry, if it is there."""
        self._discard([key])

    def clear(self) -> None:
        """Forget every entry, also those of other models and processes."""
        with self._lock:
            self._check_open()
            self._give_up_soon()
            for key in list(self._segments.writing):
                self._segments.writing.pop(key, None)
            self._refresh()
            self._discard(self._ledger.keys())

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_open()
        return type(self), (self.cache_dir, self.capacity_bytes)

    def close(self) -> None:
        """Write what is still to be written, and close the database. Entries stay.

        What was prepared and not confirmed goes. It waits 10 s at most for slow disks.
        """
        if self._closed:
            return
        if not self._writer.wait(0, _CLOSING):
            _log.warning("the cache in %s is closed before all was written", self._folder)
        with self._lock:
            if not self._closed:
                self._closed = True
                for key in list(self._pending):
                    self._abort(key)
                self._give_up_soon()
                self._segments.unlink(list(self._segments.waiting))
                self._segments.clear()
                self._ledger.close()

    def _give_up_soon(self) -> None:
        for key in self._soon:
            if not self._ledger.has(key):
                self._catalog.remove(key)
        self._soon.clear()

    def _discard(self, keys: Iterable[Key]) -> None:
        with self._lock:
            self._check_open()
            for key in keys:
                if self._soon.pop(key, None) is not None:
                    self._catalog.remove(key)
            away = self._guarded(lambda: self._take_away(keys)) or {}
            self._forget(away)
        self._remove_files(away)

    def _take_away(self, keys: Iterable[Key]) -> _Away:
        with self._ledger.transaction():
            self._refresh()
            return self._without(keys)

    def _forget(self, gone: Iterable[Key]) -> None:
        for key in gone:
            self._catalog.remove(key)

    def _remove_files(self, away: _Away) -> None:
        self._files.unlink(away)
        for segments in away.values():
            self._segments.unlink(segments)

    # --- keeping up ---------------------------------------------------------------------------

    def _ready(self, fingerprint: str | None) -> None:
        self._check_open()
        self._refresh()
        asked = {fingerprint} if fingerprint else self._ledger.fingerprints()
        for new in asked - self._listed:
            self._listed.add(new)
            self._list(self._ledger.keys(new))

    def _refresh(self) -> None:
        """Take over changes of the ledger, and clean up when it is read for the first time."""
        if self._closed:
            return
        first = not self._ledger.loaded
        try:
            changed = self._ledger.refresh()
        except DATABASE_ERRORS as error:
            self._complain(error)
            return
        if changed is None:
            listed = (self._ledger.keys(fingerprint) for fingerprint in self._listed)
            changed = {*self._catalog}.union(*listed) - self._soon.keys()
        for key in changed:
            if not self._ledger.has(key):
                self._catalog.remove(key)
        self._list(changed)
        if first and self._ledger.loaded:
            # Files of writers that were killed before their entry existed are removed.
            own = self._pending | self._segments.waiting | self._segments.writing.keys()
            own |= self._ledger.keys() | self._ledger.segments()
            for files in (self._files, self._segments):
                for key in files.orphans(own):
                    self._guarded(partial(self._remove_orphan, files, key))

    def _list(self, keys: Iterable[Key]) -> None:
        """Take entries into the catalog, as far as their fingerprints were asked for."""
        for key in keys:
            row = self._ledger.row(key) if self._catalog.info(key) is None else None
            if row is None or row.fingerprint not in self._listed:
                continue
            read = partial(read_head, self._files.path(key), key, row.head_bytes, row.file_bytes)
            head = self._read(key, read)
            if head is not None:
                self._catalog.add(head.info, head.tokens, head.offsets, head.text, head.sources)

    def _remove_orphan(self, files: Files, key: Key) -> None:
        with self._ledger.transaction():  # so that it cannot become an entry meanwhile
            if not self._ledger.has(key) and not self._ledger.has_segments([key]):
                files.unlink([key])

    def _guarded(self, action: Callable[[], _T]) -> _T | None:
        """Run ``action``. If the database fails, entries are lost, but no request fails."""
        try:
            return action()
        except DATABASE_ERRORS as error:
            self._complain(error)
            return None

    def _complain(self, error: Exception) -> None:
        _log.warning("the cache index in %s does not work: %s", self._folder, error)


def _open_ledger(cache_dir: str | os.PathLike[str]) -> Ledger:
    path = database_of(cache_dir)
    folder = path.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # conversations are private
        return Ledger(path)
    except DATABASE_ERRORS as error:
        reason = getattr(error, "strerror", None) or error
        raise StorageError(
            f"cache_dir={str(cache_dir)!r} cannot be used: {reason} ({folder}); name a directory "
            "that can be made and written",
            getattr(error, "errno", None),
            str(cache_dir),
        ) from error
