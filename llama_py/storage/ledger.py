"""``Ledger``: which entries a directory has, for every process that uses it.

A small SQLite database (``diskcache``) of one row per entry; an entry exists when its row does.
Changes are transactions, so a process that is killed leaves the rows as they were before or after.

Each process keeps the rows in memory. A counter says whether anybody changed them, and a journal of
the last changes says what: looking for news costs one read of one row (30 µs), and news cost what
they are. A process that comes back after more changes than the journal holds reads all rows again.
Keys are text and values JSON: nothing that is read here is ever unpickled.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from diskcache import UNKNOWN, Cache, Disk, Timeout

from llama_py.memory.state import Key

__all__ = ["LEDGER_ERRORS", "Ledger", "Row"]

_log = logging.getLogger("llama_py")

#: What the database may raise when the disk is full, it is locked for long, damaged or gone (the
#: last one when SQLite quotes damaged text in its message).
LEDGER_ERRORS = (sqlite3.Error, Timeout, OSError, UnicodeDecodeError)

#: Words in SQLite's messages about a database that may be all right.
_NO_DAMAGE = ("locked", "unable to open", "readonly", "full", "disk I/O")

#: Seconds to wait for another process's transaction, which takes milliseconds.
_PATIENCE = 10
_JOURNAL = 512
_ENTRY = "entry:"
_VERSION = "version"


class Row(NamedTuple):
    """What is known of an entry before its file is opened."""

    fingerprint: str
    file_bytes: int
    head_bytes: int


_Changes = dict[Key, Row | None]


class _JSONDisk(Disk):  # type: ignore[misc]
    """Keys as they are and values as JSON text.

    What is something else, which somebody may have put there, reads as None. diskcache would
    unpickle it.
    """

    def get(self, key: Any, raw: bool) -> Any:
        return super().get(key, raw) if raw else None

    def store(self, value: Any, read: bool, key: Any = UNKNOWN) -> Any:
        return super().store(json.dumps(value), read, key)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        try:
            return json.loads(value)
        except (TypeError, ValueError):
            return None


class _PerThread(threading.local):
    """Closes a thread's connection when the thread ends.

    diskcache leaves it to the garbage collector, which Python 3.13 complains about.
    """

    def __init__(self, cache: Any) -> None:
        self.closer = _Closer(cache._con)


class _Closer:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._close = connection.close

    def __del__(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # dropped by another thread
            self._close()


class Ledger:
    """The rows of one directory, which must exist. Calls must not overlap: the owner locks.

    Attributes:
        rows: the entries as of the last ``refresh`` or transaction.
        used_bytes: the sum of their files' sizes.
    """

    def __init__(self, directory: Path) -> None:
        self._opened = _open(directory)
        self._per_thread = _PerThread(self._opened)
        self.rows: dict[Key, Row] = {}
        self.used_bytes = 0
        self._seen: int | None = None
        self._changes: dict[Key, Row | None] | None = None  # of the transaction under way

    @property
    def _cache(self) -> Any:
        _ = self._per_thread.closer  # made on a thread's first way through here
        return self._opened

    @property
    def loaded(self) -> bool:
        """True once the rows were read."""
        return self._seen is not None

    def close(self) -> None:
        """Close this thread's connection; those of other threads close when these end."""
        self._cache.close()

    # --- reading ------------------------------------------------------------------------------

    def refresh(self) -> set[Key]:
        """Take over what other processes changed; the keys that are new or gone."""
        version = self._version()
        if version == self._seen:
            return set()
        changes = self._news(version)
        if changes is None:
            changes = self._everything()
        self._seen = version
        return self._apply(changes)

    def has(self, key: Key) -> bool:
        """Whether the entry exists right now, in the database."""
        return _ENTRY + key in self._cache

    def _version(self) -> int:
        version = self._cache.get(_VERSION)
        return version if isinstance(version, int) else 0

    def _news(self, version: int) -> _Changes | None:
        """The last change of each entry since the last look; None if the journal is too short."""
        if self._seen is None or not 0 < version - self._seen <= _JOURNAL:
            return None
        changes: _Changes = {}
        for number in range(self._seen + 1, version + 1):
            record = self._cache.get(_slot(number))
            if not isinstance(record, list) or record[:1] != [number]:
                return None
            changes.update({key: _row(item) for key, item in record[1].items()})
        return changes

    def _everything(self) -> _Changes:
        names = [name for name in self._cache.iterkeys() if str(name).startswith(_ENTRY)]
        changes: _Changes = dict.fromkeys(self.rows)
        changes.update({name[len(_ENTRY) :]: _row(self._cache.get(name)) for name in names})
        return changes

    def _apply(self, changes: _Changes) -> set[Key]:
        changed = {key for key, row in changes.items() if self.rows.get(key) != row}
        for key in changed:
            old, new = self.rows.pop(key, None), changes[key]
            self.used_bytes -= old.file_bytes if old else 0
            if new:
                self.rows[key] = new
                self.used_bytes += new.file_bytes
        return changed

    # --- changing -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Nobody else changes anything meanwhile; all of it happens, or nothing.

        Call ``refresh`` first thing inside. One in another joins it.
        """
        if self._changes is not None:
            yield
            return
        try:
            with self._cache.transact():
                self._changes = {}
                yield
                self._note()
        except BaseException:
            self._seen = None  # what was read in it may not be so
            raise
        finally:
            self._changes = None

    def add(self, key: Key, row: Row) -> None:
        """Make an entry exist. Call inside of a transaction."""
        self._cache.set(_ENTRY + key, list(row))
        self._change(key, row)

    def remove(self, key: Key) -> None:
        """Make an entry not exist. Call inside of a transaction."""
        self._cache.delete(_ENTRY + key)
        self._change(key, None)

    def _change(self, key: Key, row: Row | None) -> None:
        assert self._changes is not None
        self._changes[key] = row
        self._apply({key: row})

    def _note(self) -> None:
        """Tell other processes, as the last act of a transaction."""
        if not self._changes:
            return
        version = self._version() + 1
        self._cache.set(_slot(version), [version, self._changes])
        self._cache.set(_VERSION, version)
        if self._seen == version - 1:
            self._seen = version


def _slot(version: int) -> str:
    return f"log:{version % _JOURNAL}"


def _row(item: Any) -> Row | None:
    sound = isinstance(item, list) and [type(part) for part in item] == [str, int, int]
    return Row(*item) if sound else None


def _open(directory: Path) -> Any:
    """Open the database; one that is damaged goes, and the store starts empty."""
    problem = _damage(directory / "cache.db")
    if not problem:
        try:
            return _connect(directory)
        except (*LEDGER_ERRORS, TypeError, ValueError) as error:  # damage that is sound SQLite
            problem = str(error)
            if any(word in problem for word in _NO_DAMAGE):
                raise OSError(f"the cache index in {directory}: {problem}") from error
    _log.warning("the cache index in %s is damaged (%s); starting empty", directory, problem)
    for path in directory.glob("cache.db*"):
        path.unlink(missing_ok=True)
    return _connect(directory)


def _damage(path: Path) -> str:
    """What is wrong with a database; the empty string if it is sound, new or busy."""
    if not path.exists():
        return ""
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=_PATIENCE)) as database:
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError:
        return ""
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        return str(error)
    return "" if found == "ok" else str(found)


def _connect(directory: Path) -> Any:
    return Cache(
        str(directory),
        timeout=_PATIENCE,
        disk=_JSONDisk,
        eviction_policy="none",  # the store decides what goes: the rows are not the bytes
        cull_limit=0,
        size_limit=2**62,
        disk_min_file_size=2**30,  # always in the database
    )
