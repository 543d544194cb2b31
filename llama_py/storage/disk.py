"""``LlamaDiskCache``: sequence states in a directory, across processes and restarts.

Each entry is one file (``payload.py``); the ledger says which of them are entries. A save is: write
the file; then, in one transaction, add its row and take away the rows of what it replaces and of
what has to go; then remove their files. Killed anywhere in between, what is left is a file without
a row, which nobody reads, and which the next process that opens the directory removes.

Finding does not touch the disk: the heads of a fingerprint's entries (tokens and text, a few
kilobytes each) are read into a prefix tree when the fingerprint is first asked for, and afterwards
only those of entries that are new. That gives exact longest matches by token and by text, which
hashes of blocks would only approximate. Ages are the files' times, so that marking an entry as just
used costs no transaction, and every process sees it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from llama_py.errors import ParameterTypeError, StateError, StorageError
from llama_py.memory.state import EntryInfo, Key, PendingPut, StoredState
from llama_py.storage.ledger import LEDGER_ERRORS, Ledger, Row
from llama_py.storage.payload import Payload, read_head, read_state
from llama_py.storage.ram import BaseLlamaCache, entry_info

__all__ = ["LlamaDiskCache"]

_log = logging.getLogger("llama_py")
_T = TypeVar("_T")

_SUFFIX = ".state"
#: A file without a row is removed when its writer is gone, or after this many seconds.
_ORPHAN_AGE = 3600.0


class LlamaDiskCache(BaseLlamaCache):
    """Keeps the states of sequences in ``cache_dir``, up to ``capacity_bytes``.

    Several models, ``Llama`` objects and processes may share a directory; each process keeps to its
    own ``capacity_bytes`` when it saves. Losing power may lose the last entries, and never brings
    back a damaged one.

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
        super().__init__(capacity_bytes)
        self.cache_dir = cache_dir
        # Its own folder: the directory may hold the pickles of another library.
        self._folder = Path(cache_dir) / "llama_py-1"
        self._ledger = _open_ledger(self._folder, cache_dir)
        self._listed: set[str] = set()  # fingerprints whose entries are in the catalog

    def _forked(self) -> None:
        self._pending.clear()

    @property
    def used_bytes(self) -> int:
        """Bytes of all entries' files."""
        with self._lock:
            self._refresh()
            return self._ledger.used_bytes

    def __len__(self) -> int:
        with self._lock:
            self._refresh()
            return len(self._ledger.rows)

    # --- saving -------------------------------------------------------------------------------

    def prepare(self, state: StoredState, *, replaces: Key | None = None) -> PendingPut | None:
        """Write the file; None if it is larger than the capacity or cannot be written."""
        key = _new_key()
        payload = Payload(key, state)
        with self._lock:
            self._check_open()
            if not self._fits(payload.file_bytes):
                return None
            self._pending.add(key)
        try:
            payload.write(self._path(key))
        except OSError as error:
            _log.warning("a state of %d bytes was not stored: %s", payload.file_bytes, error)
            self._pending.discard(key)
            return None
        row = Row(state.fingerprint, payload.file_bytes, payload.head_bytes)
        return PendingPut(
            lambda: self._confirm(key, row, state, replaces), lambda: self._abort(key)
        )

    def _confirm(self, key: Key, row: Row, state: StoredState, replaces: Key | None) -> Key | None:
        with self._lock:
            if self._closed:
                return None
            self._ready(state.fingerprint)
            gone = self._guarded(lambda: self._commit(key, row, state, replaces))
            self._pending.discard(key)
            if gone is None:
                self._unlink(key)
                return None
            self._forget(gone)
            info = entry_info(key, state, row.file_bytes)
            self._catalog.add(info, state.tokens, state.offsets, state.text, state.sources)
            self._counts["saved"] += 1
            return key

    def _commit(
        self, key: Key, row: Row, state: StoredState, replaces: Key | None
    ) -> list[Key] | None:
        """Add the row and take away those that have to go; None if the file is gone already."""
        with self._ledger.transaction():
            self._refresh()
            if not self._path(key).exists():
                return None
            gone = self._replaced(state, replaces)
            evicted = self._victims(row.file_bytes, gone)
            for old in gone + evicted:
                self._ledger.remove(old)
            self.touch(key)  # the kernel's own file times are too coarse to tell an order
            self._ledger.add(key, row)
        self._counts["evicted"] += len(evicted)
        return gone + evicted

    def _replaced(self, state: StoredState, replaces: Key | None) -> list[Key]:
        gone = set(self._catalog.twins(state.tokens, state.fingerprint, state.session))
        gone |= {replaces} if replaces is not None else set()
        return [key for key in gone if key in self._ledger.rows]

    def _victims(self, nbytes: int, gone: list[Key]) -> list[Key]:
        """The least recently used entries that have to go before ``nbytes`` more fit."""
        rows = self._ledger.rows
        used = self._ledger.used_bytes - sum(rows[key].file_bytes for key in gone)
        victims: list[Key] = []
        if used + nbytes <= self.capacity_bytes:
            return victims
        for key in sorted(rows.keys() - set(gone), key=self._age):
            if used + nbytes <= self.capacity_bytes:
                break
            used -= rows[key].file_bytes
            victims.append(key)
        return victims

    def _abort(self, key: Key) -> None:
        with self._lock:
            self._pending.discard(key)
            self._unlink(key)

    # --- reading ------------------------------------------------------------------------------

    def get(self, key: Key) -> StoredState | None:
        """The entry, marked as just used; None if it is not there, or not what was written."""
        with self._lock:
            self._check_open()
            if key not in self._ledger.rows:  # one that is here may be gone: its file will tell
                self._refresh()
            row = self._ledger.rows.get(key)
        state = self._read(key, row, read_state) if row else None
        if state is not None:
            self.touch(key)
            with self._lock:
                self._counts["restored"] += 1
        return state

    def info(self, key: Key) -> EntryInfo | None:
        """What is known of an entry without reading its state."""
        with self._lock:
            self._refresh()
            row = self._ledger.rows.get(key)
            if row:
                self._ready(row.fingerprint)
            return self._catalog.info(key)

    def touch(self, key: Key) -> None:
        """Mark an entry as just used, for every process."""
        now = time.time_ns()
        with contextlib.suppress(OSError):
            os.utime(self._path(key), ns=(now, now))

    def _read(self, key: Key, row: Row, read: Callable[[Path, Key, int, int], _T]) -> _T | None:
        """Read an entry's file, and drop an entry whose file is missing or damaged."""
        try:
            return read(self._path(key), key, row.head_bytes, row.file_bytes)
        except (StateError, FileNotFoundError) as error:
            self._drop_damaged(key, error)
        except (OSError, MemoryError) as error:  # too many open files: the entry may be all right
            _log.warning("a stored state could not be read: %s", error)
        return None

    def _drop_damaged(self, key: Key, error: Exception) -> None:
        with self._lock:
            self._refresh()
            if key in self._ledger.rows:  # else another process has just evicted it
                _log.warning("a stored state is dropped: %s", error)
                self._counts["damaged"] += 1
                self.discard(key)

    # --- forgetting ---------------------------------------------------------------------------

    def discard(self, key: Key) -> None:
        """Forget an entry, if it is there."""
        self._discard([key])

    def clear(self) -> None:
        """Forget every entry, also those of other models and processes."""
        with self._lock:
            self._check_open()
            self._refresh()
            self._discard(list(self._ledger.rows))

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_open()
        return type(self), (self.cache_dir, self.capacity_bytes)

    def close(self) -> None:
        """Close the database. Entries stay; what was prepared and not confirmed goes."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for key in list(self._pending):
                    self._abort(key)
                self._ledger.close()

    def _discard(self, keys: list[Key]) -> None:
        with self._lock:
            self._check_open()
            self._forget(self._guarded(lambda: self._take_away(keys)) or [])

    def _forget(self, gone: list[Key]) -> None:
        """Clean up after a transaction that took entries away."""
        for key in gone:
            self._catalog.remove(key)
            self._unlink(key)

    def _take_away(self, keys: list[Key]) -> list[Key]:
        with self._ledger.transaction():
            self._refresh()
            gone = [key for key in keys if key in self._ledger.rows]
            for key in gone:
                self._ledger.remove(key)
        return gone

    # --- keeping up ---------------------------------------------------------------------------

    def _ready(self, fingerprint: str | None) -> None:
        self._check_open()
        self._refresh()
        wanted = {row.fingerprint for row in self._ledger.rows.values()} - self._listed
        if fingerprint is not None:
            wanted &= {fingerprint}
            self._listed.add(fingerprint)
        self._listed |= wanted
        if wanted:
            self._list([k for k, row in self._ledger.rows.items() if row.fingerprint in wanted])

    def _refresh(self) -> None:
        """Take over changes of the ledger, and clean up when it is read for the first time."""
        if self._closed:
            return
        first = not self._ledger.loaded
        changed = self._guarded(self._ledger.refresh) or set()
        for key in changed - self._ledger.rows.keys():
            self._catalog.remove(key)
        new = changed & self._ledger.rows.keys()
        self._list([key for key in new if self._ledger.rows[key].fingerprint in self._listed])
        if first and self._ledger.loaded:
            self._sweep()

    def _list(self, keys: list[Key]) -> None:
        for key in keys:
            row = self._ledger.rows.get(key)
            head = self._read(key, row, read_head) if row else None
            if head is not None:
                self._catalog.add(head.info, head.tokens, head.offsets, head.text, head.sources)

    def _sweep(self) -> None:
        """Remove files of writers that were killed before their entry existed."""
        for path in self._folder.glob("*" + _SUFFIX):
            key = path.name.removesuffix(_SUFFIX)
            if key not in self._ledger.rows and self._is_orphan(path, key):
                self._guarded(partial(self._remove_orphan, key))

    def _is_orphan(self, path: Path, key: Key) -> bool:
        try:
            age = time.time() - path.stat().st_mtime
        except OSError:
            return False
        return key not in self._pending and (age > _ORPHAN_AGE or not _writer_lives(key))

    def _remove_orphan(self, key: Key) -> None:
        with self._ledger.transaction():  # so that it cannot become an entry meanwhile
            if not self._ledger.has(key):
                self._unlink(key)

    def _guarded(self, action: Callable[[], _T]) -> _T | None:
        """Run ``action``; a database that does not work costs entries, and never a request."""
        try:
            return action()
        except LEDGER_ERRORS as error:
            _log.warning("the cache index in %s does not work: %s", self._folder, error)
            return None

    # --- files --------------------------------------------------------------------------------

    def _path(self, key: Key) -> Path:
        return self._folder / (key + _SUFFIX)

    def _age(self, key: Key) -> int:
        try:
            return os.stat(f"{self._folder}/{key}{_SUFFIX}").st_mtime_ns  # noqa: PTH116 (3x faster)
        except OSError:
            return 0  # gone: the first to go

    def _unlink(self, key: Key) -> None:
        with contextlib.suppress(OSError):  # Windows keeps a file that is being read
            self._path(key).unlink()


def _open_ledger(folder: Path, cache_dir: str | os.PathLike[str]) -> Ledger:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # conversations are private
        return Ledger(folder)
    except LEDGER_ERRORS as error:
        reason = getattr(error, "strerror", None) or error
        raise StorageError(
            f"cache_dir={str(cache_dir)!r} cannot be used: {reason} ({folder}); name a directory "
            "that can be made and written",
            getattr(error, "errno", None),
            str(cache_dir),
        ) from error


def _new_key() -> Key:
    return f"{_this_host()}-{os.getpid()}-{secrets.token_hex(12)}"


def _this_host() -> str:
    """The host's name as far as it can be part of a file's name."""
    name = "".join(letter for letter in socket.gethostname() if letter.isalnum())
    return name[:32] or "host"


def _writer_lives(key: Key) -> bool:
    """Whether the process that began this entry may still be writing it."""
    host, _, rest = key.partition("-")
    process = rest.partition("-")[0]
    if host != _this_host() or not process.isdecimal() or os.name != "posix":
        return True  # nobody to ask: its age decides
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
