"""``Database``: the SQLite database of a directory, for every process that uses it.

``ledger`` keeps in it which entries there are, ``names`` what is called by a name. Changes are
transactions, so a process that is killed leaves the tables as they were before or after.

Whoever may write to the directory may also have written what is read here. So this is Python's own
``sqlite3`` and no library of objects on top of it, which would unpickle what it finds: there are
texts, numbers and bytes in columns, each is checked for its type, and no column names a file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

__all__ = ["DATABASE_ERRORS", "Database", "is_size"]

_log = logging.getLogger("llama_py")

#: What the database may raise when the disk is full, it is locked for long, damaged or gone (the
#: last one when SQLite quotes damaged text in its message).
DATABASE_ERRORS = (sqlite3.Error, OSError, UnicodeDecodeError)

#: Words in SQLite's messages about a database that may be all right.
_NO_DAMAGE = ("locked", "unable to open", "readonly", "full", "disk I/O")
#: Seconds to wait for another process's transaction, which takes milliseconds.
_PATIENCE = 10


def is_size(column: str) -> str:
    """The condition, in SQL, that a column has what may be the size of a file."""
    return f"(typeof({column}) = 'integer' AND {column} BETWEEN 0 AND {1 << 48})"


#: What cannot be the name of a file here, and so no key.
_NO_NAME = "(typeof({0}) != 'text' OR {0} NOT GLOB '*-*-*' OR {0} GLOB '*[^0-9A-Za-z-]*')"

_TABLES = f"""
CREATE TABLE IF NOT EXISTS entry (
    key TEXT PRIMARY KEY, fingerprint TEXT, file_bytes INTEGER, head_bytes INTEGER, opening BLOB);
CREATE TABLE IF NOT EXISTS segment (key TEXT PRIMARY KEY, bytes INTEGER);
CREATE TABLE IF NOT EXISTS part (
    entry TEXT, number INTEGER, segment TEXT, PRIMARY KEY (entry, number));
CREATE INDEX IF NOT EXISTS part_segment ON part (segment);
CREATE INDEX IF NOT EXISTS part_wrong ON part (entry) WHERE {_NO_NAME.format("segment")};
CREATE TABLE IF NOT EXISTS change (number INTEGER PRIMARY KEY, key TEXT);
CREATE TABLE IF NOT EXISTS name (
    owner TEXT, kind TEXT, name TEXT, used INTEGER, data TEXT, PRIMARY KEY (owner, kind, name));
CREATE INDEX IF NOT EXISTS name_used ON name (used);
"""
#: The entries that can have been written here. It is this connection's own.
_SOUND = f"""
CREATE TEMP VIEW IF NOT EXISTS sound AS
SELECT key, fingerprint, file_bytes, head_bytes, opening FROM main.entry
WHERE NOT {_NO_NAME.format("key")} AND typeof(fingerprint) = 'text' AND typeof(opening) = 'blob'
    AND typeof(head_bytes) = 'integer' AND {is_size("file_bytes")}
    AND NOT EXISTS (
        SELECT 1 FROM main.part WHERE entry = main.entry.key AND {_NO_NAME.format("segment")});
"""


class Database:
    """Opened when it is first used. Calls must not overlap: the owner locks.

    Args:
        path: the file; None for a database in memory. One that is damaged is begun anew.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._closer: Any = None

    def ask(self, sql: str, *values: object) -> list[Any]:
        """Execute a statement; the rows of its result.

        Raises:
            sqlite3.Error, OSError: as ``DATABASE_ERRORS``.
        """
        return self._opened().execute(sql, values).fetchall()

    def change(self, sql: str, *values: object) -> sqlite3.Cursor:
        """Execute a statement that changes something; how many rows, and the last one's number."""
        return self._opened().execute(sql, values)

    @property
    def in_transaction(self) -> bool:
        """Whether one is under way."""
        return self._connection is not None and self._connection.in_transaction

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction: other processes wait, and either all of its changes happen or none.

        A nested one joins the outer one.
        """
        if self.in_transaction:
            yield
            return
        self.change("BEGIN IMMEDIATE")
        try:
            yield
            self.change("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # a failure may have ended it
                self.change("ROLLBACK")
            raise

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = _open(self.path)
            self._closer = weakref.finalize(self, self._connection.close)
            self._closer.atexit = False  # what writes at the end of the process needs it
        return self._connection

    def close(self) -> None:
        """Close it; it is opened again if it is used again."""
        if self._connection is not None:
            self._closer()
            self._connection = None

    def forked(self) -> None:
        """In a forked child: a connection belongs to its process, and so do its locks."""
        if self.path is not None:
            with contextlib.suppress(sqlite3.Error):
                self.close()
            self._connection = None


def _open(path: Path | None) -> sqlite3.Connection:
    if path is None:
        return _connect(":memory:")
    problem = _damage(path)
    if not problem:
        try:
            return _connect(path)
        except OSError:
            raise
        except DATABASE_ERRORS as error:  # damage that is sound SQLite
            problem = str(error)
            if any(word in problem for word in _NO_DAMAGE):
                raise OSError(f"the cache index {path}: {problem}") from error
    _log.warning("the cache index %s is damaged (%s); starting empty", path, problem)
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink(missing_ok=True)
    return _connect(path)


def _damage(path: Path) -> str:
    """The fault of a database; the empty string if it is sound, new or busy."""
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


def _connect(path: Path | str) -> sqlite3.Connection:
    if isinstance(path, Path):  # conversations are private; SQLite's other files take after it
        # Not opened if it is there: closing it would end the locks that this process has on it.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    connection = sqlite3.connect(
        path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
    )
    try:
        connection.text_factory = partial(bytes.decode, errors="replace")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA synchronous = NORMAL")
        _use_journal(connection)
        for statement in (_TABLES + _SOUND).split(";\n"):
            connection.execute(statement)
        for table in ("sound", "segment", "part", "change", "name"):
            connection.execute(f"SELECT * FROM {table} LIMIT 1").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _use_journal(connection: sqlite3.Connection) -> None:
    """Let readers read while somebody writes. SQLite itself does not wait here for others."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.005)
        else:
            return
