"""``find_in_place``: files of a hub that another program has here already. They are only read."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from llama_py.models.digests import is_right
from llama_py.models.hub_cache import HubCache, cache_folders
from llama_py.models.stores.places import llama_cpp_folder, lm_studio_folders, ollama_folders
from llama_py.models.transport import RemoteFile

__all__ = ["find_in_place"]

_log = logging.getLogger("llama_py")


def find_in_place(repo: str, wanted: Sequence[RemoteFile]) -> list[Path] | None:
    """The files of one store that have the wanted content, or None.

    All of them come from one store: the parts of a split model must lie beside each other.
    """
    if not all(len(each.digest) == 64 for each in wanted):
        return None
    for paths in _candidates(repo, wanted):
        if all(_is(path, each) for path, each in zip(paths, wanted, strict=True)):
            _log.info("%s is here already: %s", repo, paths[0])
            return paths
    return None


def _candidates(repo: str, wanted: Sequence[RemoteFile]) -> Iterator[list[Path]]:
    for folder in cache_folders()[1:]:
        cache = HubCache(folder, repo)
        for commit in cache.commits():
            yield [cache.snapshot(commit) / each.path for each in wanted]
    for folder in lm_studio_folders():
        yield [folder / repo / each.path for each in wanted]
    flat = repo.replace("/", "_")
    yield [llama_cpp_folder() / f"{flat}_{PurePosixPath(each.path).name}" for each in wanted]
    if len(wanted) == 1:  # a blob's name is not that of a part
        for folder in ollama_folders():
            yield [folder / "blobs" / f"sha256-{wanted[0].digest}"]


def _is(path: Path, remote: RemoteFile) -> bool:
    try:
        return path.stat().st_size == remote.size and is_right(path, remote.digest)
    except OSError:
        return False
