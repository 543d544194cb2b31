"""``HubCache``: the folder in which huggingface_hub, transformers and llama.cpp keep a hub's files.

``models--OWNER--NAME/{blobs/<digest>, refs/<revision>, snapshots/<commit>/<path>}``: the files of
snapshots are links to the blobs, or the blobs themselves where the system has no links.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

from llama_py.errors import DownloadError

__all__ = ["HubCache", "cache_folder", "cache_folders", "lock"]

_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_PREFIX = "models--"
#: Seconds after which a lock that another process has is tried again.
_INTERVAL = 0.1


def cache_folder() -> Path:
    """The folder that files of a hub are written to (the order is llama.cpp's)."""
    return cache_folders()[0]


def cache_folders() -> list[Path]:
    """The folder that files are written to, and the others in which programs look."""
    home = os.environ.get("HF_HOME")
    shared = os.environ.get("XDG_CACHE_HOME")
    named = [
        os.environ.get("LLAMA_CACHE"),
        os.environ.get("HF_HUB_CACHE"),
        os.environ.get("HUGGINGFACE_HUB_CACHE"),
        home and f"{home}/hub",
        shared and f"{shared}/huggingface/hub",
        "~/.cache/huggingface/hub",
    ]
    found = [Path(os.path.expandvars(each)).expanduser() for each in named if each]
    return [*dict.fromkeys(found)]


class HubCache:
    """The files of one repository in a cache."""

    def __init__(self, folder: Path, repo: str) -> None:
        self.repo = repo
        self.folder = folder / (_PREFIX + repo.replace("/", "--"))
        self._locks = folder / ".locks" / self.folder.name
        self._blobs = self.folder / "blobs"

    @staticmethod
    def repositories(folder: Path) -> Iterator[tuple[str, HubCache]]:
        """The repositories that a cache has files of."""
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(_PREFIX):
                    repo = entry.name.removeprefix(_PREFIX).replace("--", "/", 1)
                    yield repo, HubCache(folder, repo)

    def commit(self, revision: str) -> str | None:
        """The commit that a revision was when it was asked for last."""
        if _COMMIT.fullmatch(revision) and (self.folder / "snapshots" / revision).is_dir():
            return revision
        try:
            found = (self.folder / "refs" / revision).read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            return None
        return found if _COMMIT.fullmatch(found) else None

    def remember(self, revision: str, commit: str) -> None:
        """Write down which commit a revision is."""
        if revision != commit:
            place = self.folder / "refs" / revision
            place.parent.mkdir(parents=True, exist_ok=True)
            draft = _draft(place)
            draft.write_text(commit, encoding="utf-8")
            draft.replace(place)

    def commits(self) -> list[str]:
        """The commits that have files here; that of ``main`` first."""
        try:
            found = sorted(p.name for p in (self.folder / "snapshots").iterdir())
        except OSError:
            return []
        main = self.commit("main")
        return sorted(found, key=lambda each: each != main)

    def files(self, commit: str) -> list[str]:
        """The files of a commit that are whole, as paths in the repository."""
        root = self.snapshot(commit)
        return sorted(
            path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()
        )

    def snapshot(self, commit: str) -> Path:
        """The folder of a commit."""
        return self.folder / "snapshots" / commit

    def blob(self, digest: str) -> Path:
        """Where the bytes of a file are."""
        return self._blobs / digest

    def partial(self, digest: str) -> Path:
        """Where the bytes of a file are until all of them are there."""
        return self._blobs / f"{digest}.incomplete"

    def leftovers(self, digest: str) -> list[Path]:
        """Beginnings of a file that huggingface_hub and llama.cpp left."""
        mine = self.partial(digest)
        found = [*self._blobs.glob(f"{digest}.*.incomplete")]
        return [
            *(path for path in found if path != mine),
            self.blob(f"{digest}.downloadInProgress"),
        ]

    def place(self, commit: str, path: str, digest: str) -> Path:
        """Give the bytes of a file their name in a commit."""
        place, blob = self.snapshot(commit) / path, self.blob(digest)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():
            return place
        draft = _draft(place)
        try:
            draft.unlink(missing_ok=True)
            draft.symlink_to(os.path.relpath(blob, place.parent))
            draft.replace(place)
        except OSError:  # Windows, without the right to make links
            blob.replace(place)
        return place

    @contextmanager
    def locked(self, digest: str, waits: Callable[[], None]) -> Iterator[None]:
        """Only this process fetches a file (``huggingface_hub`` uses the same lock)."""
        with lock(self._locks / f"{digest}.lock", waits):
            yield

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing is removed or named meanwhile; for moments only."""
        with lock(self._locks / "names.lock", lambda: None):
            yield

    def begin(self, digest: str) -> Path:
        """Make the place for the bytes of a file; from then on its folder is not empty."""
        partial = self.partial(digest)
        try:
            with self.held():
                self._blobs.mkdir(parents=True, exist_ok=True)
                partial.touch()
        except OSError as error:
            raise DownloadError(f"{self._blobs} cannot be written to: {error}") from error
        return partial

    def remove(self, commit: str, names: list[str]) -> int:
        """Remove files of a commit, and of the others where they are the same; the freed bytes.

        What another file still links to stays, and so do other versions of the files.
        """
        with self.held():
            return self._remove(commit, names)

    def _remove(self, commit: str, names: list[str]) -> int:
        here = {name: (self.snapshot(commit) / name).resolve() for name in names}
        freed = 0
        for each in self.commits():
            for name, blob in here.items():
                place = self.snapshot(each) / name
                if place.is_symlink() or place.exists():
                    freed += self._unlink(place) if place.resolve() == blob else 0
        _remove_empty(self.folder / "snapshots")
        if not self.commits():
            _remove_empty(self.folder, including_files=("refs", ".no_exist"))
        return freed

    def _unlink(self, place: Path) -> int:
        blob = place.resolve()
        place.unlink()
        if not blob.is_file() or blob.parent != self._blobs.resolve():
            return 0
        links = (p for p in (self.folder / "snapshots").rglob("*") if p.is_symlink())
        if any(link.resolve() == blob for link in links):
            return 0
        size = blob.stat().st_size
        blob.unlink()
        return size


def _draft(place: Path) -> Path:
    """A name that no other thread writes to."""
    return place.with_name(f".{place.name}.{os.getpid()}.{threading.get_ident()}")


def _remove_empty(folder: Path, including_files: tuple[str, ...] = ()) -> None:
    for name in including_files:
        for path in sorted((folder / name).rglob("*"), reverse=True):
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):
                path.rmdir()
    with contextlib.suppress(OSError):
        folder.rmdir()


@contextmanager
def lock(path: Path, waits: Callable[[], None]) -> Iterator[None]:
    """Hold a lock between processes; it ends with the process that has it.

    Args:
        waits: is called again and again while another one has it; it may raise.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
    except OSError as error:
        raise DownloadError(f"{path.parent} cannot be written to: {error}") from error
    with file:
        while not _is_mine(file.fileno()):
            waits()
            sleep(_INTERVAL)
        yield


def _is_mine(file: int) -> bool:
    """Take the lock of a file, unless another one has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
