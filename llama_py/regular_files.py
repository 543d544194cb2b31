"""``open_regular``: opens a file that somebody else names, and nothing that makes the opener wait.

Opening a FIFO waits until somebody writes to it, and reading a device may never end. Who starts the
program may name a pipe (of a shell's ``<(...)``): ``read_short_text`` reads it, up to a limit.
"""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from pathlib import Path

__all__ = ["kind_of", "open_regular", "read_short_text", "read_text", "why_no_file"]

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}

#: Characters of a text that is short: keys, settings, grammars, schemas, templates.
_SHORT = 1 << 24

_CAREFULLY = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def kind_of(path: str | os.PathLike[str]) -> str:
    """The kind of anything but a file at a path: "a folder", "a pipe", ...; otherwise ""."""
    try:
        kind = stat.S_IFMT(Path(path).stat().st_mode)
    except (OSError, ValueError):
        return ""
    return "" if kind == stat.S_IFREG else _KINDS.get(kind, "no file")


def why_no_file(path: str | os.PathLike[str], noun: str = "file") -> str:
    """Why there is no such file at a path, in words; "" if there is one."""
    if kind := kind_of(path):
        return f"{path} is {kind}, not a {noun}"
    return "" if Path(path).is_file() else f"there is no {noun} at {path}"


def open_regular(path: str | os.PathLike[str], *, follow: bool = True) -> FileIO:
    """Open a regular file for reading.

    Args:
        follow: links, too.

    Raises:
        OSError: it is not a regular file, or cannot be read.
    """
    flags = os.O_RDONLY | _CAREFULLY | (0 if follow else getattr(os, "O_NOFOLLOW", 0))
    file = FileIO(os.open(path, flags))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def read_text(path: Path) -> str:
    """The text of a regular file, in UTF-8."""
    with open_regular(path) as file:
        return file.readall().decode("utf-8")


def read_short_text(path: str | os.PathLike[str], encoding: str = "utf-8") -> str:
    """The text of a file or pipe.

    Raises:
        OSError: it cannot be read, or has more than 16 million characters.
        UnicodeDecodeError: it is not text.
    """
    with Path(path).open(encoding=encoding) as file:
        text = file.read(_SHORT + 1)
    if len(text) > _SHORT:
        raise OSError(errno.EFBIG, f"it has more than {_SHORT} characters", str(path))
    return text
