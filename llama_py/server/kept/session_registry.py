"""``SessionRegistry``: which sessions there are, whose they are, and when they were used.

It has names and counts, and nothing that was said: rows of the database that also lists the stored
states. Several servers may share it; what one of them does, the others see.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
import threading
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from llama_py.errors import StorageError
from llama_py.states.database import DATABASE_ERRORS
from llama_py.states.names import Names
from llama_py.states.writer import Writer

__all__ = ["SessionEntry", "SessionRegistry"]

_log = logging.getLogger("llama_py.server")

#: Seconds that ``close`` waits for the disk.
_PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """A session.

    Attributes:
        owner: the name of the key that it belongs to; empty where no key is asked for.
        id: its name.
        model: who answered last.
        created, last_used: in seconds since 1970.
        turns: replies so far, with those before a fork.
        inherited: those before the fork.
        tokens: of the conversation, after the last reply.
        parent: the session that it was forked from, or None.
    """

    owner: str
    id: str
    model: str
    created: float
    last_used: float
    turns: int = 0
    inherited: int = 0
    tokens: int = 0
    parent: str | None = None

    @property
    def has_spoken(self) -> bool:
        """Whether it has a reply of its own since it was forked."""
        return self.parent is None or self.turns > self.inherited


@dataclass(frozen=True, slots=True)
class _Use:
    """What a request has done with a session: one more of its ``turns``, or none."""

    owner: str
    name: str
    model: str
    tokens: int | None
    turns: int
    when: float


class SessionRegistry:
    """See the module. May be used by any thread.

    Args:
        path: the database, or None.
        most: sessions that are remembered; of whoever has the most, the one longest unused goes.
    """

    def __init__(self, path: Path | None, most: int) -> None:
        self._most = most
        self._names = Names(path, "session")
        self._lock = threading.Lock()
        self._noted: list[_Use] = []
        self._writer = Writer() if path is not None else None

    def note(self, owner: str, name: str, model: str, tokens: int) -> None:
        """A reply of a session has ended. Nobody waits for the disk here."""
        self._note(_Use(owner, name, model, tokens, 1, time.time()))

    def touch(self, owner: str, name: str, model: str, tokens: int | None = None) -> None:
        """A session was used, and has no reply more.

        Args:
            tokens: of the conversation, if it is another one now.
        """
        self._note(_Use(owner, name, model, tokens, 0, time.time()))

    def _note(self, use: _Use) -> None:
        with self._lock:
            self._noted.append(use)
            first = len(self._noted) == 1
        if self._writer is None:
            self._write()
        elif first:
            self._writer.submit(self._write)

    def _write(self) -> None:
        """Enter what was noted. Before that is done, nobody else gets at the names."""
        with self._lock:
            if not self._noted:
                return
        noted: list[_Use] = []
        try:
            with self._names.transaction():
                with self._lock:
                    noted, self._noted = self._noted, []
                for use in noted:
                    known = _entries(self._names.find(use.owner, use.name))
                    new = SessionEntry(use.owner, use.name, use.model, use.when, use.when)
                    entry = next(iter(known), new)
                    tokens = entry.tokens if use.tokens is None else use.tokens
                    turns = entry.turns + use.turns
                    used = replace(
                        entry, model=use.model, last_used=use.when, turns=turns, tokens=tokens
                    )
                    self._names.put(use.owner, use.name, asdict(used))
                self._names.trim(self._most)
        except DATABASE_ERRORS as error:
            _log.warning("the sessions could not be written: %s", error)
            with self._lock:
                self._noted = [*noted, *self._noted][-self._most :]

    def fork(self, owner: str, name: str, new: str) -> SessionEntry | None:
        """A session that begins like another one; None if that does not exist.

        Raises:
            FileExistsError: there is one of the new name. Of two threads or servers that ask at
                once, one gets it.
            StorageError: it could not be written.
        """
        self._write()
        now = time.time()
        try:
            with self._names.transaction():
                known = _entries(self._names.find(owner, name))
                if not known:
                    return None
                entry = known[0]
                fork = replace(
                    entry, id=new, created=now, last_used=now, inherited=entry.turns, parent=name
                )
                self._names.put(owner, new, asdict(fork), new=True)
                self._names.trim(self._most)
                return fork
        except sqlite3.IntegrityError:
            raise FileExistsError(errno.EEXIST, "there is such a session", new) from None
        except DATABASE_ERRORS as error:
            raise StorageError(f"the session could not be written: {error}") from error

    def get(self, owner: str, name: str) -> SessionEntry | None:
        """The session of this owner and name, or None."""
        return next(iter(self._find(owner, name)), None)

    def owned_by(self, owner: str) -> list[SessionEntry]:
        """The sessions of an owner, the one that was used last first."""
        return self._find(owner)

    def _find(self, owner: str, name: str | None = None) -> list[SessionEntry]:
        self._write()
        try:
            return _entries(self._names.find(owner, name))
        except DATABASE_ERRORS as error:
            _log.warning("the sessions cannot be read: %s", error)
            return []

    def silent_forks(self, owner: str, name: str) -> list[SessionEntry]:
        """Forks of a session that have no reply of their own yet, the latest first."""
        return [
            each for each in self.owned_by(owner) if each.parent == name and not each.has_spoken
        ]

    def remove(self, owner: str, name: str) -> bool:
        """Forget a session; False if there was none.

        Raises:
            StorageError: it could not be forgotten.
        """
        self._write()
        try:
            return self._names.drop(owner, name)
        except DATABASE_ERRORS as error:
            raise StorageError(f"the session could not be forgotten: {error}") from error

    def close(self) -> None:
        """Write what is not written yet."""
        self._write()
        if self._writer is not None:
            self._writer.wait(0, _PATIENCE)
        self._names.close()


def _entries(saved: list[dict[str, Any]]) -> list[SessionEntry]:
    """Sessions as they were written; nothing else."""
    names = [each.name for each in fields(SessionEntry)]
    entries = []
    for data in saved:
        if {*names} <= {*data}:
            entry = SessionEntry(**{name: data[name] for name in names})
            texts = (entry.owner, entry.id, entry.model, entry.parent or "")
            numbers = (entry.created, entry.last_used, entry.turns, entry.inherited, entry.tokens)
            if all(isinstance(each, str) for each in texts) and all(
                isinstance(each, (int, float)) for each in numbers
            ):
                entries.append(entry)
    return entries
