"""Folders of GGUF files: the hub's cache, LM Studio's, the older one of llama.cpp, anybody's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from llama_py.models.hub_cache import HubCache, cache_folders
from llama_py.models.stores.places import (
    llama_cpp_folder,
    lm_studio_folders,
    model_folders,
    read_small_json,
)
from llama_py.models.stores.stored import StoredModel, models_of_folder, named_like_hub

__all__ = ["cached", "from_folders", "of_llama_cpp", "of_lm_studio"]

#: Folders below folders that are looked into; a link may lead in a circle.
_DEEPEST = 8


def cached() -> Iterator[StoredModel]:
    """The models in the hub's caches, of all revisions; the newest first."""
    for folder in cache_folders():
        for repo, cache in HubCache.repositories(folder):
            for commit in cache.commits():
                yield from _of_commit(repo, cache, commit)


def _of_commit(repo: str, cache: HubCache, commit: str) -> Iterator[StoredModel]:
    root = cache.snapshot(commit)
    at = "" if commit == cache.commit("main") else f"@{commit}"
    found = models_of_folder(
        _files_below(root), root, "hub", lambda first: named_like_hub(repo, first) + at
    )
    for model in found:
        named = model.path.resolve().name
        digest = named if re.fullmatch(r"[0-9a-f]{64}", named) else ""
        name = PurePosixPath(repo).name
        yield replace(model, digest=digest, names=(*model.names, repo, name))


def of_lm_studio() -> Iterator[StoredModel]:
    """The models of LM Studio: ``publisher/repository/file.gguf``."""
    for root in lm_studio_folders():
        yield from models_of_folder(_files_below(root), root, "LM Studio", _name_by_folders)


def _name_by_folders(first: str) -> str:
    publisher, _, rest = first.partition("/")
    repo, _, file = rest.partition("/")
    return named_like_hub(f"{publisher}/{repo}", file) if file else Path(first).stem


def of_llama_cpp() -> Iterator[StoredModel]:
    """The models in the older cache of llama.cpp: ``OWNER_NAME_file.gguf``, with manifests."""
    root = llama_cpp_folder()
    if not root.is_dir():
        return
    files = {name: size for name, size in _files_below(root).items() if "/" not in name}
    named = _manifests(root)
    for model in models_of_folder(files, root, "llama.cpp", lambda first: Path(first).stem):
        yield replace(model, name=named.get(model.path.name, model.name))


def _manifests(root: Path) -> dict[str, str]:
    """The references of files, by the ``manifest=OWNER=NAME=TAG.json`` beside them."""
    named = {}
    for path in root.glob("manifest=*.json"):
        owner, _, rest = path.name.removeprefix("manifest=").removesuffix(".json").partition("=")
        name, _, tag = rest.partition("=")
        file: Any = read_small_json(path).get("ggufFile")
        if isinstance(file, dict) and isinstance(file.get("rfilename"), str):
            flat = f"{owner}_{name}_{PurePosixPath(file['rfilename']).name}"
            named[flat] = f"{owner}/{name}:{tag}" if tag != "latest" else f"{owner}/{name}"
    return named


def from_folders() -> Iterator[StoredModel]:
    """The models below the folders of ``LLAMA_PY_MODELS_DIR``."""
    for root in model_folders():
        yield from models_of_folder(_files_below(root), root, "folder", _name_by_file)


def _name_by_file(first: str) -> str:
    return re.sub(r"-\d{5}-of-\d{5}$", "", Path(first).stem)


def _files_below(root: Path) -> dict[str, int]:
    """The GGUF files below a folder with their sizes; links that lead nowhere are left out."""
    found: dict[str, int] = {}
    _walk(str(root), "", found, 0)
    return found


def _walk(folder: str, inner: str, found: dict[str, int], depth: int) -> None:
    try:
        entries = os.scandir(folder)
    except OSError:
        return
    with entries:
        for entry in entries:
            name = inner + entry.name
            try:
                if entry.is_dir():
                    if depth < _DEEPEST:
                        _walk(entry.path, f"{name}/", found, depth + 1)
                elif entry.name.endswith(".gguf") and entry.is_file():
                    found[name] = entry.stat().st_size
            except OSError:
                continue
