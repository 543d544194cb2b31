"""``Names``: what somebody has under a name, in the database of a directory or in memory.

A name belongs to an owner and is of a kind ("session"); its data is JSON.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llama_py import forks
from llama_py.states.database import Database

__all__ = ["Names"]

_log = logging.getLogger("llama_py")


class Names:
    """The names of one kind. May be used by any thread.

    All methods but ``close`` raise ``DATABASE_ERRORS`` where the database fails.

    Args:
        path: the database; None for one in memory.
    """

    def __init__(self, path: Path | None, kind: str) -> None:
        self._kind = kind
        self._database = Database(path)
        self._lock = threading.RLock()
        forks.hold(self)

    def of_kind(self, kind: str) -> Names:
        """Names of another kind in the same database, for the same transactions."""
        other = copy.copy(self)
        other._kind = kind
        return other

    def _forked(self) -> None:
        self._database.forked()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See ``Database.transaction``; other threads wait as well."""
        with self._lock, self._database.transaction():
            yield

    def find(self, owner: str, name: str | None = None) -> list[dict[str, Any]]:
        """The data of a name, if it is there; or of all of an owner, the last used first."""
        with self._lock:
            sql, asked = "SELECT data FROM name WHERE kind = ? AND owner = ?", (self._kind, owner)
            if name is None:
                rows = self._database.ask(f"{sql} ORDER BY used DESC", *asked)
            else:  # by its key, whatever else there is
                rows = self._database.ask(f"{sql} AND name = ?", *asked, name)
        found = []
        for (data,) in rows:
            try:
                found.append(dict(json.loads(data)))
            except (TypeError, ValueError, RecursionError) as error:
                _log.warning("a %s in %s is not used: %s", self._kind, self._database.path, error)
        return found

    def put(self, owner: str, name: str, data: Mapping[str, Any], *, new: bool = False) -> None:
        """Give a name data, and mark it as just used.

        Args:
            new: raise ``sqlite3.IntegrityError`` if the name is taken, by whatever process.
        """
        with self._lock:
            self._database.change(
                f"INSERT {'' if new else 'OR REPLACE '}INTO name (owner, kind, name, used, data)"
                " VALUES (?, ?, ?, (SELECT ifnull(max(used), 0) + 1 FROM name), ?)",
                *(owner, self._kind, name, json.dumps(data)),
            )

    def drop(self, owner: str, name: str) -> bool:
        """Forget a name; False if there was none."""
        with self._lock:
            sql = "DELETE FROM name WHERE kind = ? AND owner = ? AND name = ?"
            return self._database.change(sql, self._kind, owner, name).rowcount > 0

    def trim(self, most: int) -> None:
        """Forget names until there are ``most``: of the owner who has the most, so that nobody
        drives out those of others, the one that was not used for longest."""
        with self._lock:
            counts = self._database.ask(
                "SELECT count(*), owner FROM name WHERE kind = ? GROUP BY owner", self._kind
            )
            while sum(count for count, _ in counts) > most:
                counts.sort(key=lambda each: each[0])
                count, owner = counts[-1]
                self._database.change(
                    "DELETE FROM name WHERE rowid = (SELECT rowid FROM name"
                    " WHERE kind = ? AND owner = ? ORDER BY used LIMIT 1)",
                    *(self._kind, owner),
                )
                counts[-1] = count - 1, owner

    def close(self) -> None:
        """Close the database; it is opened again if it is used again."""
        with self._lock:
            if self._database.path is not None:
                self._database.close()
