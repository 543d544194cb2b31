"""``rehearse``: a file is loaded and used once in a process of its own, before it is loaded here.

libmtmd ends the process on projectors that lack a tensor or have an odd number in their header, and
no table of rules covers the thirty kinds that it knows. So each is tried elsewhere first. That
takes a second or two, and as long as it takes to load the file; what went well is remembered by the
content of the files, in ``rehearsed`` within the cache directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from llama_py._native.loader import search_directories
from llama_py.core.host.cache_folders import cache_directory
from llama_py.errors import InvalidModelError
from llama_py.version import __version__

__all__ = ["REFUSED", "rehearse"]

_log = logging.getLogger("llama_py")

#: How a trial ends that was told what is wrong with the file; it writes that on standard output.
REFUSED = 3
#: Seconds. Loading may read gigabytes, and a large encoder takes some seconds for a picture.
_LONGEST = 600.0
#: Results of this many trials are kept.
_MOST_KEPT = 1000


def rehearse(trial: str, arguments: Sequence[str], known_by: str, what: str) -> None:
    """Run a trial, unless it went well before.

    Args:
        trial: the module to be run.
        arguments: of its command line.
        known_by: identifies the contents of all files.
        what: the file, for errors.

    Raises:
        InvalidModelError: the trial refuses the file, ends with it, or does not end.
    """
    name = hashlib.sha256(f"{trial} {known_by} {__version__} {_library()}".encode()).hexdigest()
    done = cache_directory() / "rehearsed" / name
    if done.exists() or not sys.executable:
        return
    problem = _run([sys.executable, "-m", trial, *arguments])
    if problem:
        raise InvalidModelError(f"{what} cannot be used: {problem}")
    with contextlib.suppress(OSError):  # a folder that cannot be written: it is tried again
        done.parent.mkdir(parents=True, exist_ok=True)
        _forget_some(done.parent)
        done.touch()


def _run(command: Sequence[str]) -> str:
    """The fault; "" if there is none."""
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    _log.debug("rehearsing: %s", " ".join(command[2:]))
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=_LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"a process that loads and uses it does not end within {_LONGEST:g} s"
    if done.returncode == 0:
        return ""
    if done.returncode == REFUSED:
        return done.stdout.decode("utf-8", "replace").strip()
    return (
        f"a process that loaded and used it ended with {_how(done.returncode)}; the file is "
        "damaged, or was made for another version of llama.cpp"
    )


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"status {code}"


def _library() -> str:
    """Identifies the library that was built."""
    found = (path for folder in search_directories() for path in sorted(folder.glob("*mtmd*")))
    return ";".join(f"{path.stat().st_size} {path.stat().st_mtime_ns}" for path in found)


def _forget_some(folder: Path) -> None:
    kept = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    for path in kept[: max(0, len(kept) - _MOST_KEPT)]:
        path.unlink()
