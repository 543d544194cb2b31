"""``Ledger``: which entries a directory has, for every process that uses it.

A small SQLite database (``diskcache``) of one row per entry; an entry exists when its row does.
Changes are transactions, so a process that is killed leaves the rows as they were before or after.

Each process keeps the rows in memory. A counter says whether anybody changed them, and a journal of
the last changes says what: looking for news costs one read of one row (30 µs), and news cost what
they are. A process that comes back after more changes than the journal holds reads all rows again.
Whoever may write to the directory may also have written what is read here. Keys are text and values
JSON: nothing is ever unpickled. Names of files are made from keys, so that what does not look like
a key is no entry; and no column of the database names a file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from diskcache import DEFAULT_SETTINGS, UNKNOWN, Cache, Disk, Timeout

from llama_py.memory.state import Key
from llama_py.storage.usage import Usage

__all__ = ["LEDGER_ERRORS", "OPENING", "Ledger", "Row", "is_key"]

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
_KEY = re.compile(r"[A-Za-z0-9]{1,32}-[0-9]{1,20}-[0-9a-f]{2,64}")
#: What diskcache counts in its table of settings, beside the settings.
_COUNTERS = {"count", "size", "hits", "misses"}
#: Tokens of an entry's beginning that its row repeats.
OPENING = 16


def is_key(text: object) -> bool:
    """Whether this can be the key of an entry or a segment, and so a part of a file's name."""
    return isinstance(text, str) and _KEY.fullmatch(text) is not None


class Row(NamedTuple):
    """One entry of the ledger: everything about it that is not in its file.

    Attributes:
        opening: its first tokens, at most ``OPENING``.
        segments: keys and sizes (in bytes) of the files of its segments.
    """

    fingerprint: str
    file_bytes: int
    head_bytes: int
    opening: tuple[int, ...] = ()
    segments: tuple[tuple[Key, int], ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all its files."""
        return self.file_bytes + sum(size for _, size in self.segments)


_Changes = dict[Key, Row | None]


class _JSONDisk(Disk):  # type: ignore[misc]
    """Keys as they are and values as JSON text, always in the database.

    What is something else, which somebody may have put there, reads as None. diskcache would
    unpickle it, and read and remove whatever file the row names.
    """

    def put(self, key: Any) -> tuple[Any, bool]:
        return str(key), True

    def get(self, key: Any, raw: bool) -> Any:
        return key if raw and isinstance(key, str) else None

    def store(self, value: Any, read: bool, key: Any = UNKNOWN) -> Any:
        return super().store(json.dumps(value), False, key)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        try:
            return json.loads(value)
        except (TypeError, ValueError, RecursionError):
            return None

    def remove(self, file_path: Any) -> None:
        """No row of ours has a file."""


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
        usage: bytes of their files, and who refers to which segment.
    """

    def __init__(self, directory: Path) -> None:
        self._opened = _open(directory)
        self._per_thread = _PerThread(self._opened)
        self.rows: dict[Key, Row] = {}
        self.usage = Usage()
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
        with contextlib.suppress(*LEDGER_ERRORS):  # it has none, and the directory is gone
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
        """Changes since the last refresh; None if the journal is too short for them."""
        if self._seen is None or not 0 < version - self._seen <= _JOURNAL:
            return None
        changes: _Changes = {}
        for number in range(self._seen + 1, version + 1):
            record = self._cache.get(_slot(number))
            if not isinstance(record, list) or record[:1] != [number]:
                return None
            changes.update({key: _row(item) for key, item in _noted(record)})
        return changes

    def _everything(self) -> _Changes:
        names = [name for name in self._cache.iterkeys() if _is_entry(name)]
        changes: _Changes = dict.fromkeys(self.rows)
        changes.update({name[len(_ENTRY) :]: _row(self._cache.get(name)) for name in names})
        return changes

    def _apply(self, changes: _Changes) -> set[Key]:
        changed = {key for key, row in changes.items() if self.rows.get(key) != row}
        for key in changed:
            old, new = self.rows.pop(key, None), changes[key]
            if new:  # first, so that segments which both have stay
                self.rows[key] = new
                self.usage.add(new.file_bytes, new.segments)
            if old:
                self.usage.remove(old.file_bytes, old.segments)
        return changed

    def forked(self) -> None:
        """In a forked child: what another thread of the parent was doing is the parent's."""
        self._seen = self._changes = self._opened._txn_id = None

    # --- changing -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction: other processes wait, and either all of its changes happen or none.

        Call ``refresh`` first inside it. A nested transaction joins the outer one.
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


def _noted(record: list[Any]) -> list[tuple[Key, Any]]:
    changes = record[1] if len(record) == 2 and isinstance(record[1], dict) else {}
    return [(key, item) for key, item in changes.items() if is_key(key)]


def _is_entry(name: Any) -> bool:
    return isinstance(name, str) and name.startswith(_ENTRY) and is_key(name[len(_ENTRY) :])


def _row(item: Any) -> Row | None:
    """A row as it was written; None for anything else."""
    if not isinstance(item, list) or [type(part) for part in item] != [str, int, int, list, list]:
        return None
    fingerprint, file_bytes, head_bytes, opening, segments = item
    sound = all(type(token) is int for token in opening)
    sound = sound and all(
        isinstance(part, list) and len(part) == 2 and is_key(part[0]) and type(part[1]) is int
        for part in segments
    )
    if not sound or file_bytes < 0 or any(size < 0 for _, size in segments):
        return None
    parts = tuple((key, size) for key, size in segments)
    return Row(fingerprint, file_bytes, head_bytes, tuple(opening), parts)


def _open(directory: Path) -> Any:
    """Open the database; one that is damaged goes, and the store starts empty."""
    problem = _damage(directory / "cache.db")
    if not problem:
        try:
            return _connect(directory)
        except (*LEDGER_ERRORS, TypeError, ValueError, LookupError, AttributeError) as error:
            # Damage that is sound SQLite.
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
            found = found if found != "ok" else _foreign_settings(database)
    except sqlite3.OperationalError:
        return ""
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        return str(error)
    return "" if found == "ok" else str(found)


def _foreign_settings(database: sqlite3.Connection) -> str:
    """ "ok", unless somebody added settings: diskcache makes each an attribute of its objects."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'Settings'").fetchone():
        return "ok"
    known = DEFAULT_SETTINGS.keys() | _COUNTERS
    names = [name for (name,) in database.execute("SELECT key FROM Settings")]
    foreign = [name for name in names if name not in known]
    return f"it has a setting {foreign[0]!r}" if foreign else "ok"


def _connect(directory: Path) -> Any:
    wanted = {
        **DEFAULT_SETTINGS,  # all of them, so that none is read from the database
        "eviction_policy": "none",  # the store decides what goes: the rows are not the bytes
        "cull_limit": 0,
        "size_limit": 2**62,
        "disk_min_file_size": 2**30,  # always in the database
    }
    return Cache(str(directory), timeout=_PATIENCE, disk=_JSONDisk, **wanted)
