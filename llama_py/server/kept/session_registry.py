"""``SessionRegistry``: which sessions there are, whose they are, and when they were used.

It has names and counts, and nothing that was said. With a path it is written to a file, at most
once in a while, and read again when the server starts. Several servers may share the file: whoever
writes takes over what the others have changed.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import logging
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

__all__ = ["SessionEntry", "SessionRegistry"]

_log = logging.getLogger("llama_py.server")

#: Held by the server that reads, merges and writes, on Windows.
_LOCK = ".sessions.lock"
_TRIES = 3
_FORMAT = "llama_py.sessions"
_VERSION = 1
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
#: Seconds between two writes: what a crash may cost.
_PAUSE = 1.0

#: The owner of a session, and its name.
_Name = tuple[str, str]


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


class SessionRegistry:
    """See the module. May be used by any thread.

    Args:
        path: the file, or None.
        most: sessions that are remembered; of whoever has the most, the one longest unused goes.
    """

    def __init__(self, path: Path | None, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._entries: OrderedDict[_Name, SessionEntry] = OrderedDict()
        #: What was in the file when it was last read or written.
        self._known: dict[_Name, SessionEntry] = {}
        self._writer: _RegistryWriter | None = None
        if path is not None:
            for entry in (_read(path) or [])[-most:]:
                self._entries[entry.owner, entry.id] = entry
            self._known = dict(self._entries)
            self._writer = _RegistryWriter(path, self._merged)

    def note(self, owner: str, name: str, model: str, tokens: int) -> None:
        """A reply of a session has ended."""
        with self._lock:
            entry = self._used(owner, name, model)
            self._put(replace(entry, turns=entry.turns + 1, tokens=tokens))

    def touch(self, owner: str, name: str, model: str, tokens: int | None = None) -> None:
        """A session was used, and has no reply more.

        Args:
            tokens: of the conversation, if it is another one now.
        """
        with self._lock:
            entry = self._used(owner, name, model)
            self._put(entry if tokens is None else replace(entry, tokens=tokens))

    def _used(self, owner: str, name: str, model: str) -> SessionEntry:
        now = time.time()
        known = self._entries.get((owner, name))
        entry = known or SessionEntry(owner, name, model, now, now)
        return replace(entry, model=model, last_used=now)

    def fork(self, owner: str, name: str, new: str) -> SessionEntry | None:
        """A session that begins like another one; None if that does not exist.

        Raises:
            FileExistsError: there is one of the new name. Looking and making are one step: of two
                that ask at once, one gets it.
        """
        now = time.time()
        with self._lock:
            entry = self._entries.get((owner, name))
            if entry is None:
                return None
            if (owner, new) in self._entries:
                raise FileExistsError(errno.EEXIST, "there is such a session", new)
            fork = replace(
                entry, id=new, created=now, last_used=now, inherited=entry.turns, parent=name
            )
            self._put(fork)
            return fork

    def _put(self, entry: SessionEntry) -> None:
        key = entry.owner, entry.id
        self._entries[key] = entry
        self._entries.move_to_end(key)
        self._trim()
        self._changed()

    def _trim(self) -> None:
        while len(self._entries) > self._most:
            del self._entries[self._least_needed()]

    def _least_needed(self) -> _Name:
        """Of the owner who has the most, so that nobody drives out those of others."""
        counts = Counter(owner for owner, _ in self._entries)
        largest = max(counts, key=counts.__getitem__)
        return next(key for key in self._entries if key[0] == largest)

    def get(self, owner: str, name: str) -> SessionEntry | None:
        """The session of this owner and name, or None."""
        with self._lock:
            return self._entries.get((owner, name))

    def owned_by(self, owner: str) -> list[SessionEntry]:
        """The sessions of an owner, the one that was used last first."""
        with self._lock:
            return [each for each in reversed(self._entries.values()) if each.owner == owner]

    def silent_forks(self, owner: str, name: str) -> list[SessionEntry]:
        """Forks of a session that have no reply of their own yet, the latest first."""
        return [
            each for each in self.owned_by(owner) if each.parent == name and not each.has_spoken
        ]

    def remove(self, owner: str, name: str) -> bool:
        """Forget a session; False if there was none."""
        with self._lock:
            found = self._entries.pop((owner, name), None) is not None
            if found:
                self._changed()
            return found

    def _changed(self) -> None:
        if self._writer is not None:
            self._writer.soon()

    def _merged(self, found: list[SessionEntry] | None) -> list[SessionEntry]:
        """What is to be written.

        Args:
            found: what the file has, None if it has nothing that can be read.
        """
        with self._lock:
            if found is not None:
                self._take_over({(entry.owner, entry.id): entry for entry in found})
                self._trim()
            self._known = dict(self._entries)
            return list(self._entries.values())

    def _take_over(self, found: Mapping[_Name, SessionEntry]) -> None:
        """Do what another server has done since the file was last read or written."""
        for key in found.keys() | self._known.keys():
            theirs, known, ours = found.get(key), self._known.get(key), self._entries.get(key)
            if theirs == known:
                continue
            if theirs is None and ours == known:
                self._entries.pop(key, None)
            elif theirs is not None and (ours is None or ours.last_used < theirs.last_used):
                self._entries[key] = theirs
        by_age = sorted(self._entries.items(), key=lambda each: each[1].last_used)
        self._entries = OrderedDict(by_age)

    def close(self) -> None:
        """Write what is not written yet."""
        if self._writer is not None:
            self._writer.close()


# ---- the file --------------------------------------------------------------------------------


class _RegistryWriter:
    """Writes the file beside whoever changes the sessions, once for many changes."""

    def __init__(
        self, path: Path, merged: Callable[[list[SessionEntry] | None], list[SessionEntry]]
    ) -> None:
        self._path = path
        self._merged = merged
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="llama_py-sessions", daemon=True)
        self._thread.start()

    def soon(self) -> None:
        """The sessions have changed."""
        self._wanted.set()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            if self._closing.is_set():
                return
            self._wanted.clear()
            self._write()
            self._closing.wait(_PAUSE)

    def _write(self) -> None:
        try:
            with _alone(self._path.parent):
                _write(self._path, self._merged(_read(self._path)))
        except OSError as error:
            _log.warning("the sessions could not be written: %s", error)

    def close(self) -> None:
        """Write once more, and end."""
        if not self._closing.is_set():
            self._closing.set()
            self._wanted.set()
            self._thread.join()
            self._write()


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Keep other servers from writing to a directory at the same time."""
    try:
        import fcntl
    except ImportError:  # Windows, where a directory cannot be locked
        with open(directory / _LOCK, "ab") as file, _locked(file.fileno()):  # noqa: PTH123
            yield
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # not every file system has locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    """Hold the first byte of a file, as Windows does it."""
    msvcrt = importlib.import_module("msvcrt")
    held = False
    for _ in range(_TRIES):  # each of them waits for ten seconds
        with contextlib.suppress(OSError):
            os.lseek(descriptor, 0, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)
            held = True
            break
    if not held:
        raise OSError(errno.EDEADLK, "another server keeps the list of sessions locked")
    try:
        yield
    finally:
        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)


def _write(path: Path, entries: list[SessionEntry]) -> None:
    """In place of an older file, when it is complete."""
    content = {"format": _FORMAT, "version": _VERSION, "sessions": [asdict(e) for e in entries]}
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with open(os.open(new, _NEW, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(content, file, separators=(",", ":"))
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _read(path: Path) -> list[SessionEntry] | None:
    """What was written; None if there is no such file, or a damaged one, which costs only the
    list."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT or content["version"] != _VERSION:
            raise ValueError("it is not of this version")
        return [_entry(each) for each in content["sessions"]]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        _log.warning("%s is not used: %s", path, error)
        return None


def _entry(saved: Mapping[str, Any]) -> SessionEntry:
    entry = SessionEntry(**{each.name: saved[each.name] for each in fields(SessionEntry)})
    texts = (entry.owner, entry.id, entry.model, entry.parent or "")
    numbers = (entry.created, entry.last_used, entry.turns, entry.inherited, entry.tokens)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a name is no text")
    if not all(isinstance(number, (int, float)) for number in numbers):
        raise TypeError("a count is no number")
    return entry
