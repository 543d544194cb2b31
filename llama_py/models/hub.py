"""``HuggingFace``: the files of a hub's repositories, in the cache that other programs share."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from time import sleep, time
from typing import Any
from urllib.parse import quote

from llama_py.errors import DownloadError, ModelNotFoundError
from llama_py.models.connection import Again, HubConnection, is_offline
from llama_py.models.digests import check_digest, is_digest, is_right, note_right
from llama_py.models.hub_cache import HubCache, cache_folder, lock
from llama_py.models.in_place import find_in_place
from llama_py.models.transport import Progress, RemoteFile, fetch

__all__ = ["HuggingFace", "Watch"]

_log = logging.getLogger("llama_py")

_AT_ONCE = 4
_LIST_TRIES = 3

#: Called with the bytes that are there, and all that are fetched.
Watch = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class _Listing:
    """The files of a revision; without a network, those that are in the cache."""

    commit: str
    files: dict[str, RemoteFile] = field(default_factory=dict)
    cached: dict[str, Path] = field(default_factory=dict)


class HuggingFace:
    """A hub, as ``MODEL_ENDPOINT`` or ``HF_ENDPOINT`` names it; by default the Hugging Face hub.

    Args:
        local_dir: where files are put, in place of the cache.
        cache_dir: the cache, in place of that of the environment.
        watch: is told how far a download is.
    """

    def __init__(
        self,
        local_dir: Path | None = None,
        cache_dir: Path | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._local = local_dir
        self._folder = cache_dir or cache_folder()
        self._watch = watch
        self._listings: dict[tuple[str, str], _Listing] = {}

    def list_files(self, repo: str, revision: str = "main") -> Sequence[str]:
        """The files of a repository; those in the cache if the hub cannot be reached.

        Raises:
            ModelNotFoundError, DownloadError: there is none, or it cannot be known.
        """
        listing = self._listing(repo, revision)
        return [*(listing.files or listing.cached)]

    def fetch(self, repo: str, names: Sequence[str], revision: str = "main") -> list[str]:
        """Download files, unless they are there already; their paths.

        Raises:
            ModelNotFoundError: the repository does not have one of them.
            DownloadError: one cannot be had, or is not the file that the hub names.
        """
        listing = self._listing(repo, revision)
        for name in names:
            if name not in (listing.files or listing.cached):
                raise ModelNotFoundError(f"there is no file {name} in {repo}")
        if not listing.files:
            return [str(listing.cached[name]) for name in names]
        wanted = [listing.files[name] for name in names]
        if self._local is None and (found := find_in_place(repo, wanted)):
            return [str(path) for path in found]
        shelf = self._shelf(repo, revision, listing.commit)
        return [str(path) for path in self._all(shelf, wanted)]

    def _shelf(self, repo: str, revision: str, commit: str) -> _CachedFiles | _LocalFiles:
        if self._local is not None:
            return _LocalFiles(self._local, commit)
        return _CachedFiles(HubCache(self._folder, repo), revision, commit)

    def _all(self, shelf: _CachedFiles | _LocalFiles, wanted: Sequence[RemoteFile]) -> list[Path]:
        """Several files at once. An interruption ends all of them."""
        missing = [each for each in wanted if not shelf.has(each)]
        count = _Count(self._watch, sum(each.size for each in missing))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            jobs = [pool.submit(self._one, shelf, each, count) for each in missing]
            try:
                for job in jobs:
                    job.result()
            finally:
                count.stopped = True
                pool.shutdown(cancel_futures=True)
        return [shelf.path(each) for each in wanted]

    def _one(self, shelf: _CachedFiles | _LocalFiles, remote: RemoteFile, count: _Count) -> None:
        shelf.add(remote, HubConnection(), count.add)

    # -- lists ----------------------------------------------------------------------------------

    def _listing(self, repo: str, revision: str) -> _Listing:
        key = (repo, revision)
        if key not in self._listings:
            self._listings[key] = self._ask(repo, revision)
        return self._listings[key]

    def _ask(self, repo: str, revision: str) -> _Listing:
        if is_offline():
            reason = "offline mode is enabled (HF_HUB_OFFLINE)"
            return self._from_cache(repo, revision, reason)
        try:
            return _patiently(lambda: _list(HubConnection(), repo, revision))
        except Again as error:
            reason = f"the hub cannot be reached ({error})"
            listing = self._from_cache(repo, revision, reason)
            _log.warning("the hub cannot be reached; files of %s come from the cache", repo)
            return listing

    def _from_cache(self, repo: str, revision: str, reason: str) -> _Listing:
        cache = HubCache(self._folder, repo)
        commit = cache.commit(revision)
        root = self._local or (cache.snapshot(commit) if commit else None)
        paths = root.rglob("*") if root is not None else ()
        found = {p.relative_to(root).as_posix(): p for p in paths if root and p.is_file()}
        if not found:
            raise DownloadError(
                f"{repo} cannot be downloaded: {reason}, and it is not in the cache"
            )
        return _Listing(commit or "", cached=found)


def _patiently(ask: Callable[[], _Listing]) -> _Listing:
    """Ask again where that may help; not where nobody answers."""
    for left in range(_LIST_TRIES - 1, -1, -1):
        try:
            return ask()
        except Again as error:
            if error.unreachable or not left:
                raise
            sleep(1.0 if error.pause is None else error.pause)
    raise AssertionError("not reached")  # pragma: no cover


def _list(connection: HubConnection, repo: str, revision: str) -> _Listing:
    commit = _commit(connection, repo, revision)
    path = f"/api/models/{repo}/tree/{commit}?recursive=true"
    files: dict[str, RemoteFile] = {}
    for page in connection.pages(path, f"repository {repo}"):
        for entry in page if isinstance(page, list) else ():
            found = _remote_file(entry, f"{connection.endpoint}/{repo}/resolve/{commit}/")
            if found is not None:
                files[found.path] = found
    return _Listing(commit, files)


def _commit(connection: HubConnection, repo: str, revision: str) -> str:
    """The commit of a branch, a tag, or itself."""
    refs = next(connection.pages(f"/api/models/{repo}/refs", f"repository {repo}"))
    known: dict[str, str] = {}
    for kind in ("tags", "branches"):
        named = refs.get(kind) if isinstance(refs, dict) else None
        for each in named if isinstance(named, list) else ():
            if isinstance(each, dict):
                known[str(each.get("name"))] = str(each.get("targetCommit"))
    commit = known.get(revision) or revision
    if not is_digest(commit):
        there = ", ".join(sorted(known)[:30]) or "none"
        raise ModelNotFoundError(f"{repo} has no revision {revision!r}; there are: {there}")
    return commit


def _remote_file(entry: Any, base: str) -> RemoteFile | None:
    """A file of a list; None for a folder, and for a name that would lead elsewhere."""
    if not isinstance(entry, dict) or entry.get("type") != "file":
        return None
    path, lfs = entry.get("path"), entry.get("lfs")
    size, digest = entry.get("size"), entry.get("oid")
    if isinstance(lfs, dict):
        size, digest = lfs.get("size", size), lfs.get("oid", lfs.get("sha256"))
    if not isinstance(path, str) or type(size) is not int or size < 0 or not _is_safe(path):
        return None
    named = digest if isinstance(digest, str) and is_digest(digest) and digest.strip("0") else ""
    return RemoteFile(path, size, named, base + quote(path))


def _is_safe(path: str) -> bool:
    parts = PurePosixPath(path)
    odd = any(each < " " or each in '\\:*?"<>|' or "\ud800" <= each <= "\udfff" for each in path)
    return not (odd or parts.is_absolute() or ".." in parts.parts or not parts.name)


class _Count:
    """The bytes of several downloads; ends them when the caller has gone."""

    def __init__(self, watch: Watch | None, total: int) -> None:
        self._watch, self._total = watch, total
        self._lock = threading.Lock()
        self._done = 0
        self.stopped = False

    def add(self, count: int) -> None:
        if self.stopped:
            raise DownloadError("the download was interrupted; the next call goes on with it")
        with self._lock:
            self._done += count
            if self._watch is not None:
                self._watch(self._done, self._total)


# ---- where files are put -----------------------------------------------------------------------


class _CachedFiles:
    """Files of a commit in a cache."""

    def __init__(self, cache: HubCache, revision: str, commit: str) -> None:
        self._cache, self._revision, self._commit = cache, revision, commit

    def path(self, remote: RemoteFile) -> Path:
        return self._cache.snapshot(self._commit) / remote.path

    def has(self, remote: RemoteFile) -> bool:
        """Whether a file is there, and right.

        Raises:
            DownloadError: it was changed.
        """
        path = self.path(remote)
        if not path.is_file():
            return False
        try:
            check_digest(path, remote.digest, remote.path)
            self._cache.remember(self._revision, self._commit)
        except FileNotFoundError:  # somebody removes it
            return False
        return True

    def add(self, remote: RemoteFile, connection: HubConnection, progress: Progress) -> None:
        name = remote.digest or hashlib.sha256(remote.url.encode()).hexdigest()[:32]
        with self._cache.locked(name, lambda: progress(0)):
            while not self._named(remote.path, name):
                partial = self._cache.begin(name)
                fetch(connection, remote, partial, self._cache.leftovers(name), progress)
                with self._cache.held():
                    partial.replace(self._cache.blob(name))
                    note_right(self._cache.blob(name), name)

    def _named(self, path: str, name: str) -> bool:
        """Give a file its name, if its bytes are there (somebody may remove them at any time)."""
        with self._cache.held():
            if not self._cache.blob(name).is_file():
                return False
            self._cache.place(self._commit, path, name)
            self._cache.remember(self._revision, self._commit)
        return True


class _LocalFiles:
    """Files in a folder of the caller's, with the notes of ``huggingface_hub`` about them."""

    def __init__(self, folder: Path, commit: str) -> None:
        self._folder, self._commit = folder, commit
        self._notes = folder / ".cache" / "huggingface" / "download"

    def path(self, remote: RemoteFile) -> Path:
        return self._folder / remote.path

    def has(self, remote: RemoteFile) -> bool:
        """Whether a file is there: the hub's, or one that its owner has changed."""
        path = self.path(remote)
        if not path.is_file():
            return False
        named, since = self._noted(remote)
        if path.stat().st_mtime <= since + 1:
            if named == remote.digest and remote.digest and not is_right(path, named):
                raise DownloadError(
                    f"{path} is not the file that the hub names: its digest is not {named}; remove "
                    "it, and the next call downloads it again"
                )
            return named == remote.digest
        if not remote.digest or not is_right(path, remote.digest):
            _log.warning("%s is another file than the hub's, and is taken as it is", path)
        return True

    def _noted(self, remote: RemoteFile) -> tuple[str, float]:
        """The digest that a note names, and when the note was written."""
        note = self._notes / f"{remote.path}.metadata"
        try:
            lines = note.read_text(encoding="utf-8").splitlines()
            return lines[1], float(lines[2])
        except (OSError, IndexError, ValueError):
            return "", 0.0

    def add(self, remote: RemoteFile, connection: HubConnection, progress: Progress) -> None:
        path, note = self.path(remote), self._notes / f"{remote.path}.metadata"
        note.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock(note.with_suffix(".lock"), lambda: progress(0)):
            if self.has(remote):  # another process was quicker
                return
            partial = note.with_suffix(f".{remote.digest[:16]}.incomplete")
            fetch(connection, remote, partial, (), progress)
            partial.replace(path)
            note_right(path, remote.digest)
            text = f"{self._commit}\n{remote.digest}\n{time()}\n"
            note.write_text(text, encoding="utf-8")
