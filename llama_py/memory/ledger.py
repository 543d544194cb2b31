"""``Ledger``: which entries a directory has, for every process that uses it.

A small SQLite database (``diskcache``) of one row per entry; an entry exists when its row does.
Changes are transactions, so a process that is killed leaves the rows as they were before or after.

Each process keeps the rows in memory. A counter says whether anybody changed them, and a journal of
the last changes says what: looking for news costs one read of one row (30 µs), and news cost what
they are. A process that comes back after more changes than the journal holds reads all rows again.
Values are JSON: nothing that is read here is ever unpickled.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from diskcache import Cache, JSONDisk, Timeout

from llama_py.memory.state import Key

__all__ = ["LEDGER_ERRORS", "Ledger", "Row"]

_log = logging.getLogger("llama_py")

#: What the database may raise when the disk is full, locked for long, or gone.
LEDGER_ERRORS = (sqlite3.Error, Timeout, OSError)

#: Seconds to wait for another process's transaction, which takes milliseconds.
_PATIENCE = 10
_JOURNAL = 512
_ENTRY = "entry:"


class Row(NamedTuple):
    """What is known of an entry before its file is opened."""

    fingerprint: str
    file_bytes: int
    head_bytes: int


class Ledger:
    """The rows of one directory, which must exist.

    Attributes:
        rows: the entries as of the last ``refresh``.
        used_bytes: the sum of their files' sizes.
    """

    def __init__(self, directory: Path) -> None:
        self._cache = _open(directory)
        self.rows: dict[Key, Row] = {}
        self.used_bytes = 0
        self._seen: int | None = None

    @property
    def loaded(self) -> bool:
        """True once the rows were read."""
        return self._seen is not None

    def close(self) -> None:
        """Close this thread's connection."""
        self._cache.close()

    # --- reading ------------------------------------------------------------------------------

    def refresh(self) -> set[Key]:
        """Take over what other processes (and this one) changed; the keys that are new or gone."""
        version = int(self._read("version") or 0)
        if version == self._seen:
            return set()
        changes = self._news(version)
        if changes is None:
            changes = self._everything()
        self._seen = version
        return {key for key, row in changes.items() if self._apply(key, row)}

    def has(self, key: Key) -> bool:
        """Whether the entry exists right now, in the database."""
        return self._read(_ENTRY + key) is not None

    def _news(self, version: int) -> dict[Key, Row | None] | None:
        """The last change of each entry since the last look; None if the journal is too short."""
        if self._seen is None or not 0 < version - self._seen < _JOURNAL:
            return None
        changes: dict[Key, Row | None] = {}
        for number in range(self._seen + 1, version + 1):
            record = self._read(f"log:{number}")
            if record is None:
                return None
            key, row = record
            changes[key] = Row(*row) if row else None
        return changes

    def _everything(self) -> dict[Key, Row | None]:
        names = [name for name in self._cache.iterkeys() if str(name).startswith(_ENTRY)]
        found = {name[len(_ENTRY) :]: self._read(name) for name in names}
        changes: dict[Key, Row | None] = dict.fromkeys(self.rows)
        changes.update({key: Row(*row) if row else None for key, row in found.items()})
        return changes

    def _apply(self, key: Key, row: Row | None) -> bool:
        old = self.rows.pop(key, None)
        self.used_bytes -= old.file_bytes if old else 0
        if row:
            self.rows[key] = row
            self.used_bytes += row.file_bytes
        return old != row

    # --- changing -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Nobody else changes anything meanwhile; all of it happens, or nothing."""
        try:
            with self._cache.transact():
                yield
        except BaseException:
            self._seen = None  # what was read in it may not be so
            raise

    def add(self, key: Key, row: Row) -> None:
        """Make an entry exist. Call inside of a transaction."""
        self._cache.set(_ENTRY + key, list(row))
        self._record(key, row)

    def remove(self, key: Key) -> None:
        """Make an entry not exist. Call inside of a transaction."""
        self._cache.delete(_ENTRY + key)
        self._record(key, None)

    def _record(self, key: Key, row: Row | None) -> None:
        version = int(self._read("version") or 0) + 1
        self._cache.set(f"log:{version}", [key, list(row) if row else None])
        self._cache.delete(f"log:{version - _JOURNAL}")
        self._cache.set("version", version)

    def _read(self, name: str) -> Any:
        return self._cache.get(name)


def _open(directory: Path) -> Any:
    """Open the database; one that cannot be read is put away, and the store starts empty."""
    try:
        return _connect(directory)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        _log.warning("the cache index in %s is damaged (%s); starting empty", directory, error)
    for path in directory.glob("cache.db*"):
        path.unlink(missing_ok=True)
    return _connect(directory)


def _connect(directory: Path) -> Any:
    cache = Cache(
        str(directory),
        timeout=_PATIENCE,
        disk=JSONDisk,
        disk_compress_level=1,
        eviction_policy="none",  # the store decides what goes: the rows are not the bytes
        cull_limit=0,
        size_limit=2**62,
    )
    cache.get("version")
    return cache
