"""``is_right``: whether a file is the one that its hub names.

Libraries that download compare lengths. A body of the right length that is another one (a proxy's,
half of it zeros) would be kept, and taken for the model from then on. So each file that is in a
cache is read once before it is used; that it was right is remembered until it changes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from pathlib import Path

from llama_py.core.host.cache_folders import cache_directory
from llama_py.errors import DownloadError
from llama_py.models.transport import Progress, hash_of

__all__ = ["check_digest", "is_digest", "is_right", "note_right"]

_log = logging.getLogger("llama_py")


def is_digest(text: str) -> bool:
    """Whether a text is a SHA-256, or Git's SHA-1."""
    return re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text) is not None


def is_right(path: Path, named: str, progress: Progress = lambda _: None) -> bool:
    """Whether a file has that digest; it is read unless that was done before."""
    there = path.resolve()
    if _note_of(there, named).exists():
        return True
    right = hash_of(there, named, progress) == named
    if right:
        note_right(there, named)
    return right


def note_right(path: Path, named: str) -> None:
    """Remember that a file has that digest, as it is now."""
    note = _note_of(path.resolve(), named)
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()
    except OSError as error:  # it is compared again the next time
        _log.debug("%s: %s", note, error)


def check_digest(path: Path, named: str, what: str) -> None:
    """Compare a file with the digest that its hub names, unless that was done before.

    Args:
        path: the file, or a link to it.
        named: its SHA-256, or that of Git (SHA-1); another name says nothing, and is not compared.
        what: the file, for messages.

    Raises:
        DownloadError: it is another one. It is removed, so that the next call fetches it anew.
    """
    if not is_digest(named):
        _log.info("%s is not compared: the hub names no digest of it", what)
    elif not is_right(path, named):
        for each in {path, path.resolve()}:
            each.unlink(missing_ok=True)
        raise DownloadError(
            f"{what} is not the file that the hub names: its digest is not {named}; it was "
            "removed, so that the next call downloads it again"
        )


def _note_of(path: Path, named: str) -> Path:
    """The note that a file was right, as it is now."""
    found = path.stat()
    facts = f"{path}\0{named}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ino}"
    return cache_directory() / "verified" / hashlib.sha256(os.fsencode(facts)).hexdigest()
