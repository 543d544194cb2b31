"""``Files``: the files of a store, one per key, and those that are left over."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Container, Iterable
from pathlib import Path

from llama_py.states.state import Key

__all__ = ["Files", "new_key"]

#: A file without a row is removed when its writer is gone, or after this many seconds.
_ORPHAN_AGE = 3600.0


class Files:
    """The files of one kind in a folder."""

    def __init__(self, folder: Path, suffix: str) -> None:
        self._folder = folder
        self._suffix = suffix

    def path(self, key: Key) -> Path:
        """Where the file of a key is."""
        return self._folder / (key + self._suffix)

    def unlink(self, keys: Iterable[Key]) -> None:
        """Remove files, as far as they are there."""
        for key in keys:
            with contextlib.suppress(OSError):  # Windows keeps a file that is being read
                self.path(key).unlink()

    def touch(self, key: Key) -> None:
        """Mark as just used. The kernel's own file times are too coarse to tell an order."""
        now = time.time_ns()
        with contextlib.suppress(OSError):
            os.utime(self.path(key), ns=(now, now))

    def age(self, key: Key) -> int:
        """When it was used last; 0 if it is gone: the first to go."""
        try:
            return os.stat(f"{self._folder}/{key}{self._suffix}").st_mtime_ns  # noqa: PTH116 (3x faster)
        except OSError:
            return 0

    def orphans(self, known: Container[Key]) -> list[Key]:
        """Keys of files that are not known, and that nobody can still be writing."""
        found = []
        for path in self._folder.glob("*" + self._suffix):
            key = path.name.removesuffix(self._suffix)
            if key in known:
                continue
            try:
                age = time.time() - path.stat().st_mtime
            except OSError:
                continue
            if age > _ORPHAN_AGE or not _writer_lives(key):
                found.append(key)
        return found


def new_key() -> Key:
    """A unique key that contains the host and process that made it."""
    return f"{_this_host()}-{os.getpid()}-{secrets.token_hex(12)}"


def _this_host() -> str:
    """The host's name as far as it can be part of a file's name."""
    name = "".join(
        letter for letter in socket.gethostname() if letter.isascii() and letter.isalnum()
    )
    return name[:32] or "host"


def _writer_lives(key: Key) -> bool:
    """Whether the process that began this file may still be writing it."""
    host, _, rest = key.partition("-")
    process = rest.partition("-")[0]
    if host != _this_host() or not process.isdecimal() or os.name != "posix":
        return True  # nobody to ask: its age decides
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True
