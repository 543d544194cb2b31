"""``Ledger``: which entries a directory has, for every process that uses it.

An entry exists when its row does. SQLite says by itself whether another process has changed
anything (``PRAGMA data_version``, some microseconds), and a table of the last changes says what:
news cost what they are. A process that comes back after more of them compares everything.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from llama_py.states.database import DATABASE_ERRORS, Database, is_size
from llama_py.states.state import Key

__all__ = ["OPENING", "Ledger", "Row"]

_log = logging.getLogger("llama_py")

#: Changes that are listed for other processes.
_CHANGES = 512
#: Tokens of an entry's beginning that its row repeats.
OPENING = 16


class Row(NamedTuple):
    """One entry: everything about it that is not in its file.

    Attributes:
        opening: its first tokens, at most ``OPENING``, as int32 in the order of little endian.
        segments: keys and sizes (in bytes) of the files of its segments.
    """

    fingerprint: str
    file_bytes: int
    head_bytes: int
    opening: bytes = b""
    segments: tuple[tuple[Key, int], ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all its files."""
        return self.file_bytes + sum(size for _, size in self.segments)


class Ledger:
    """The rows of one database. Calls must not overlap: the owner locks.

    Where the database fails, ``refresh`` and everything inside of a transaction raise
    ``DATABASE_ERRORS``; other questions are answered as if nothing were there.
    """

    def __init__(self, path: Path) -> None:
        self._database = Database(path)
        self._version: int | None = None  # of the database, as this connection counts
        self._seen: int | None = None  # the last change that is known
        self._database.ask("SELECT 1")

    @property
    def loaded(self) -> bool:
        """True once ``refresh`` has succeeded."""
        return self._seen is not None

    def close(self) -> None:
        """Close the database."""
        with contextlib.suppress(*DATABASE_ERRORS):
            self._database.close()

    def forked(self) -> None:
        """In a forked child: what another thread of the parent was doing is the parent's."""
        self._seen = None
        self._database.forked()

    # --- reading ------------------------------------------------------------------------------

    def refresh(self) -> set[Key] | None:
        """The keys of what other processes have changed since the last time; None for anything."""
        ask = self._database.ask
        ((version,),) = ask("PRAGMA data_version")
        if version == self._version and self._seen is not None:
            return set()
        ((first, now),) = ask(
            "SELECT CAST(ifnull(min(number), 1) AS INTEGER),"
            " CAST(ifnull(max(number), 0) AS INTEGER) FROM change"
        )
        seen, changes = self._seen, None
        if seen is not None and first - 1 <= seen <= now:
            changes = {key for (key,) in ask("SELECT key FROM change WHERE number > ?", seen)}
        self._version, self._seen = version, now
        return changes

    def _ask(self, sql: str, *values: object) -> list[Any]:
        try:
            return self._database.ask(sql, *values)
        except DATABASE_ERRORS as error:
            if self._database.in_transaction:
                raise
            _log.warning("the cache index %s does not work: %s", self._database.path, error)
            return []

    def row(self, key: Key) -> Row | None:
        """The row of an entry; None if there is none."""
        found = self._ask(
            "SELECT fingerprint, file_bytes, head_bytes, opening FROM sound WHERE key = ?", key
        )
        if not found:
            return None
        parts = self._ask(
            "SELECT part.segment, ifnull(segment.bytes, -1) FROM part LEFT JOIN segment"
            f" ON segment.key = part.segment AND {is_size('segment.bytes')}"
            " WHERE part.entry = ? ORDER BY part.number",
            key,
        )
        fingerprint, file_bytes, head_bytes, opening = found[0]
        return Row(fingerprint, file_bytes, head_bytes, opening, tuple(parts))

    def has(self, key: Key) -> bool:
        """Whether an entry exists."""
        return bool(self._ask("SELECT 1 FROM sound WHERE key = ?", key))

    def keys(self, fingerprint: str | None = None) -> set[Key]:
        """The entries of a fingerprint; None: of all."""
        if fingerprint is None:
            return {key for (key,) in self._ask("SELECT key FROM sound")}
        found = self._ask("SELECT key FROM sound WHERE fingerprint = ?", fingerprint)
        return {key for (key,) in found}

    def fingerprints(self) -> set[str]:
        """Those of all entries."""
        return {each for (each,) in self._ask("SELECT DISTINCT fingerprint FROM sound")}

    def foreign_openings(self, fingerprint: str) -> list[tuple[str, bytes]]:
        """The other fingerprints, and how their entries begin."""
        sql = "SELECT DISTINCT fingerprint, opening FROM sound WHERE fingerprint != ?"
        return self._ask(sql, fingerprint)

    def has_segments(self, keys: Sequence[Key]) -> bool:
        """Whether entries refer to all of these segments."""
        return all(self._ask("SELECT 1 FROM segment WHERE key = ?", key) for key in keys)

    def segments(self) -> set[Key]:
        """The segments that entries refer to."""
        return {key for (key,) in self._ask("SELECT key FROM segment")}

    @property
    def nbytes(self) -> int:
        """Bytes of all files; segments that several entries share count once."""
        sums: list[tuple[int | None]] = self._ask(
            f"SELECT sum(file_bytes) FROM entry WHERE {is_size('file_bytes')}"
            f" UNION ALL SELECT sum(bytes) FROM segment WHERE {is_size('bytes')}"
        )
        return sum(each or 0 for (each,) in sums)

    # --- changing -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See ``Database.transaction``. Call ``refresh`` first inside it."""
        try:
            with self._database.transaction():
                yield
        except BaseException:
            self._seen = None  # what was read in it may not be so
            raise

    def add(self, key: Key, row: Row) -> None:
        """Make an entry exist. Call inside of a transaction."""
        change = self._database.change
        change("INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?, ?)", key, *row[:4])
        for number, (segment, nbytes) in enumerate(row.segments):
            change("INSERT OR REPLACE INTO segment VALUES (?, ?)", segment, nbytes)
            change("INSERT OR REPLACE INTO part VALUES (?, ?, ?)", key, number, segment)
        self._note(key)

    def remove(self, key: Key) -> list[Key]:
        """Make an entry not exist; the segments to which no other one refers, which are gone too.

        Call inside of a transaction.
        """
        change = self._database.change
        parts = self._database.ask("SELECT segment FROM part WHERE entry = ?", key)
        change("DELETE FROM entry WHERE key = ?", key)
        change("DELETE FROM part WHERE entry = ?", key)
        free = [
            segment
            for (segment,) in parts
            if change(
                "DELETE FROM segment WHERE key = ?"
                " AND NOT EXISTS (SELECT 1 FROM part WHERE part.segment = segment.key)",
                segment,
            ).rowcount
        ]
        self._note(key)
        return free

    def _note(self, key: Key) -> None:
        """Tell other processes."""
        number = self._database.change("INSERT INTO change (key) VALUES (?)", key).lastrowid or 0
        self._database.change("DELETE FROM change WHERE number <= ?", number - _CHANGES)
        self._seen = number
