"""``check_digest``: whether a file that was downloaded is the one that its hub names.

The libraries that download compare lengths. A body of the right length that is another one (a
proxy's, half of it zeros) would be kept, and taken for the model from then on. So each file is read
once before it is used; that it was right is remembered, for as long as it does not change.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from pathlib import Path

from llama_py.core.host.cache_folders import cache_directory
from llama_py.errors import DownloadError

__all__ = ["check_digest"]

_log = logging.getLogger("llama_py")

_PIECE = 1 << 22


def check_digest(path: Path, named: str, what: str) -> None:
    """Compare a file with the digest that its hub names, unless that was done before.

    Args:
        path: the file, or a link to it.
        named: its SHA-256, or that of Git (SHA-1); another name says nothing, and is not compared.
        what: the file, for messages.

    Raises:
        DownloadError: it is another one. It is removed, so that the next call fetches it anew.
    """
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", named):
        _log.info("%s is not compared: the hub names no digest of it", what)
        return
    there = path.resolve()
    note = _note_of(there, named)
    if note.exists():
        return
    found = _digest(there, git=len(named) == 40)
    if found != named:
        for each in {path, there}:
            each.unlink(missing_ok=True)
        raise DownloadError(
            f"{what} is not the file that the hub names: its digest is {found}, and {named} was "
            "expected; it was removed, so that the next call downloads it again"
        )
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()
    except OSError as error:  # it is compared again the next time
        _log.debug("%s: %s", note, error)


def _note_of(path: Path, named: str) -> Path:
    """What is there when a file was right, as it is now."""
    found = path.stat()
    facts = f"{path}\0{named}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ino}"
    return cache_directory() / "verified" / hashlib.sha256(os.fsencode(facts)).hexdigest()


def _digest(path: Path, *, git: bool) -> str:
    """SHA-256 of a file; or SHA-1 as Git names it, which begins with its length."""
    if not git:
        hashed = hashlib.sha256()
    else:
        hashed = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            hashed.update(piece)
    return hashed.hexdigest()
