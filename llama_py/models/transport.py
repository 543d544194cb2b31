"""``fetch``: one file of a hub, gone on with where it stopped, and compared while it is written.

The file gets its name only when all of its bytes are there and have the digest that the hub names.
What other programs left half-done is gone on with as well: it is the digest that decides.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from time import monotonic, sleep

from llama_py.errors import DownloadError
from llama_py.models.connection import Again, HubConnection, Response

__all__ = ["Progress", "RemoteFile", "fetch", "hash_of"]

_log = logging.getLogger("llama_py")

#: Bytes that are read, written and hashed at once. No more are fetched a second time.
_PIECE = 1 << 18
#: Tries without this many new bytes, after which the connection is given up.
_TRIES = 5
_SOME_PROGRESS = 1 << 20
_LONGEST_PAUSE = 8.0
_STEP = 0.25
#: What is left free on a disk.
_MARGIN = 16 << 20
#: Bytes a second, and the seconds over which they are counted: fewer count as cut.
_SLOWEST, _WINDOW = 1024, 30.0

#: Called with the bytes that came (fewer than 0 where a file is begun again).
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file as a hub lists it.

    Attributes:
        path: its name in the repository.
        size: its bytes.
        digest: its SHA-256, or Git's SHA-1 of it; "" if the hub names neither.
        url: where it is.
    """

    path: str
    size: int
    digest: str
    url: str


class _Hash:
    """SHA-256; or SHA-1 as Git names a file, which begins with its length."""

    def __init__(self, size: int, digest: str) -> None:
        if len(digest) != 40:
            self._hashed = hashlib.sha256()
        else:
            self._hashed = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
        self.update, self.hexdigest = self._hashed.update, self._hashed.hexdigest


def hash_of(path: Path, digest: str, progress: Progress = lambda _: None) -> str:
    """The digest of a file, of the kind of another one."""
    hashed = _Hash(path.stat().st_size, digest)
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            hashed.update(piece)
            progress(len(piece))
    return hashed.hexdigest()


def fetch(
    connection: HubConnection,
    remote: RemoteFile,
    partial: Path,
    leftovers: Iterable[Path] = (),
    progress: Progress = lambda _: None,
) -> None:
    """Fetch a file. Nobody else may do so at the same time (see ``hub_cache.lock``).

    Args:
        partial: where its bytes are written; those that are there are the beginning.
        leftovers: beginnings of the file that other programs left; the longest one is taken.

    Raises:
        DownloadError: it cannot be had; what came of it is there still, for the next call.
    """
    left = {path: path.stat() for path in leftovers if path.is_file()}
    _take_over(remote, partial, left)
    download = _Download(connection, remote, partial, progress)
    _check_room(partial.parent, remote.size - download.begin())
    download.run()
    for path, before in left.items():  # one that grew meanwhile is somebody's
        with contextlib.suppress(OSError):
            if path.stat().st_mtime_ns == before.st_mtime_ns:
                path.unlink()


def _take_over(remote: RemoteFile, partial: Path, left: dict[Path, os.stat_result]) -> None:
    """Copy the longest beginning: its program may still be writing it."""
    have = partial.stat().st_size if partial.exists() else 0
    sizes = {path: facts.st_size for path, facts in left.items() if facts.st_size <= remote.size}
    longest = max(sizes, key=lambda path: sizes[path], default=None)
    if longest is not None and sizes[longest] > have and remote.digest:
        _check_room(partial.parent, sizes[longest])
        shutil.copyfile(longest, partial)
        _log.info("%s goes on with %s", remote.path, longest.name)


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed + _MARGIN > free:
        raise DownloadError(
            f"the disk of {folder} has {free:,} bytes free, and {needed + _MARGIN:,} are needed; "
            "make room, or name another folder with HF_HUB_CACHE"
        )


class _Download:
    """The bytes of one file on their way."""

    def __init__(
        self, connection: HubConnection, remote: RemoteFile, partial: Path, progress: Progress
    ) -> None:
        self._connection, self._remote = connection, remote
        self._partial, self._progress = partial, progress
        self._hashed = _Hash(remote.size, remote.digest)
        self._have = 0
        self._etag = ""
        #: Whether all bytes came through this process, and from one version of the file.
        self._trusted = True

    def begin(self) -> int:
        """Hash what is there; how many bytes that are."""
        if self._partial.exists():
            if self._partial.stat().st_size > self._remote.size or not self._remote.digest:
                self._partial.unlink()
            else:
                self._hash_beginning()
        return self._have

    def _hash_beginning(self) -> None:
        with self._partial.open("rb") as file:
            while piece := file.read(1 << 22):
                self._add(piece)
        self._trusted = self._have == 0

    def run(self) -> None:
        """Fetch the rest, and compare.

        Raises:
            DownloadError: see ``fetch``.
        """
        self._fill()
        found = self._hashed.hexdigest()
        if self._remote.digest and found != self._remote.digest and not self._trusted:
            _log.warning("the beginning of %s was wrong: it is fetched anew", self._remote.path)
            self._start_over()
            self._fill()
            found = self._hashed.hexdigest()
        if self._remote.digest and found != self._remote.digest:
            self._partial.unlink(missing_ok=True)
            raise DownloadError(
                f"{self._remote.path} is not the file that the hub names: its digest is {found}, "
                f"and {self._remote.digest} was expected; it was removed, so that the next call "
                "downloads it again"
            )

    def _start_over(self) -> None:
        self._progress(-self._have)
        os.truncate(self._partial, 0)
        self._hashed = _Hash(self._remote.size, self._remote.digest)
        self._have, self._trusted, self._etag = 0, True, ""

    def _fill(self) -> None:
        """Try until all bytes are there, or no more of them come."""
        tries, before = 0, self._have
        self._partial.touch()
        while self._have < self._remote.size:
            reason, pause = self._try_once()
            if self._have >= self._remote.size:
                break
            tries = 1 if self._have - before >= _SOME_PROGRESS else tries + 1
            before = self._have if tries == 1 else before
            if tries >= _TRIES:
                raise DownloadError(
                    f"{self._remote.path} cannot be downloaded: {reason}; {self._have:,} of "
                    f"{self._remote.size:,} bytes are there, and the next call goes on with them"
                )
            wait = min(2.0 ** (tries - 2), _LONGEST_PAUSE) if pause is None else pause
            _log.info("%s: %s; next try in %.1f s", self._remote.path, reason, wait)
            self._pause(wait)

    def _pause(self, seconds: float) -> None:
        """Wait, in short steps: an interruption ends it."""
        for _ in range(math.ceil(seconds / _STEP)):
            self._progress(0)
            sleep(_STEP)

    def _try_once(self) -> tuple[str, float | None]:
        """Fetch what comes; why no more came, and the pause that the hub asks for."""
        try:
            with self._connection.get(self._remote.url, self._remote.path, self._have) as response:
                self._check(response)
                self._read(response)
        except Again as error:
            if error.from_start and self._have:
                self._start_over()
            return str(error), error.pause
        return "the connection was cut", None

    def _read(self, response: Response) -> None:
        """Write a body as far as it comes."""
        since, before = monotonic(), self._have
        with self._partial.open("ab", 0) as file:
            while self._have < self._remote.size:
                piece = response.read1(min(_PIECE, self._remote.size - self._have))
                if not piece:
                    return
                self._write(file, piece)
                self._add(piece)
                if monotonic() - since > _WINDOW:
                    if self._have - before < _WINDOW * _SLOWEST:
                        raise Again("almost nothing comes")
                    since, before = monotonic(), self._have

    def _write(self, file: FileIO, piece: bytes) -> None:
        try:
            if file.write(piece) != len(piece):
                raise OSError(errno.ENOSPC, "the disk is full")
        except OSError as error:
            raise DownloadError(f"{self._remote.path} cannot be written: {error}") from error

    def _check(self, response: Response) -> None:
        """Whether an answer goes on where we are; begins again where it does not.

        Raises:
            DownloadError: it is another file.
            Again: it is another part of it.
        """
        start, total = _range(response)
        if total is not None and total != self._remote.size:
            raise DownloadError(
                f"{self._remote.path} is not the file that the hub names: it has {total:,} bytes, "
                f"and {self._remote.size:,} were expected"
            )
        etag = response.headers.get("ETag", "")
        changed = bool(self._etag and etag and etag != self._etag)
        self._etag = etag
        if start == self._have and not changed:
            return
        if self._have:
            self._start_over()
        if start:
            raise Again("the file changed" if changed else "another part of the file came")

    def _add(self, piece: bytes) -> None:
        self._hashed.update(piece)
        self._have += len(piece)
        self._progress(len(piece))


def _range(response: Response) -> tuple[int, int | None]:
    """The first byte of an answer, and how many the whole file has (None: it does not say)."""
    if response.status != 206:
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isdigit() else None
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if found is None:
        return -1, None
    return int(found[1]), None if found[2] == "*" else int(found[2])
