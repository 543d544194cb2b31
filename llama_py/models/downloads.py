"""``download``: a model of a hub, its projector and its drafter, as files of this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Protocol

from llama_py.errors import DownloadError, ParameterError
from llama_py.models.hub import HuggingFace, Watch
from llama_py.models.references import Reference, read_reference
from llama_py.models.selection import (
    fits,
    is_pattern,
    is_projector,
    listed,
    select,
    select_drafter,
    select_projector,
)

__all__ = [
    "Hub",
    "download",
    "download_projector",
    "download_reference",
    "projector_for",
    "pull",
]

_log = logging.getLogger("llama_py")

PathLike = str | os.PathLike[str]


class Hub(Protocol):
    """The methods of a hub that this module uses."""

    def list_files(self, repo: str, revision: str = "main") -> Sequence[str]:
        """The files of a repository, as relative paths."""

    def fetch(self, repo: str, names: Sequence[str], revision: str = "main") -> list[str]:
        """Download files, unless they are there already; their paths."""


def download(
    repo_id: str,
    filename: str | None = None,
    additional_files: Sequence[str] = (),
    local_dir: PathLike | None = None,
    cache_dir: PathLike | None = None,
    *,
    hub: Hub | None = None,
) -> str:
    """Download a model, and return the path of its (first) file.

    Args:
        repo_id: ``"owner/name"``, or ``"owner/name:Q4_K_M"`` for the file of that quantization.
        filename: a file of the repository, or a pattern such as ``"*Q8_0.gguf"``. None takes the
            only GGUF, or else Q4_K_M, or else Q8_0. All parts of a split model are downloaded.
        additional_files: further files or patterns, for example a projector.
        local_dir: where to put the files, instead of the cache of the hub.
        cache_dir: the directory of that cache.
        hub: the hub to download from; the Hugging Face hub by default.

    Raises:
        ParameterError: no file matches, or several do; the message lists the files.
        ModelNotFoundError: there is no such repository, or it asks for a login.
        DownloadError: the hub cannot be reached, or sends another file than it names.
    """
    reference = read_reference(repo_id)
    if reference.quant and filename is not None:
        raise ParameterError(f"{repo_id!r} names a quantization, and filename={filename!r} a file")
    hub = hub or _hub(local_dir, cache_dir)
    files = hub.list_files(reference.repo, reference.revision)
    names = select(files, filename or reference.file, reference.quant, reference.repo)
    for pattern in additional_files:
        matching = sorted(name for name in files if fits(name, pattern))
        if not matching:
            raise ParameterError(
                f"no file in {reference.repo} fits {pattern!r} of additional_files"
            )
        names += matching
    return hub.fetch(reference.repo, names, reference.revision)[0]


def download_reference(
    reference: Reference, watch: Watch | None = None, hub: Hub | None = None
) -> tuple[str, str | None]:
    """Download a model and the projector of its repository, if it is clear which; their paths."""
    model, projector, _ = pull(reference, watch, hub=hub)
    return model, projector


def pull(
    reference: Reference,
    watch: Watch | None = None,
    *,
    drafter: bool = False,
    hub: Hub | None = None,
) -> tuple[str, str | None, str | None]:
    """Download a model, its projector, and its drafter if that is asked for; their paths.

    Raises:
        ParameterError, ModelNotFoundError, DownloadError: see ``download``; the repository has no
            drafter, though one is asked for.
    """
    hub = hub or HuggingFace(watch=watch)
    files = hub.list_files(reference.repo, reference.revision)
    names = select(files, reference.file, reference.quant, reference.repo)
    near = _clear_projector(reference.repo, files, names[0])
    draft = select_drafter(files, names[0]) if drafter else None
    if drafter and draft is None:
        raise ParameterError(f"{reference.repo} has no drafter")
    more = [name for name in (near, draft) if name]
    paths = hub.fetch(reference.repo, [*names, *more], reference.revision)
    by_name = dict(zip([*names, *more], paths, strict=True))
    return paths[0], by_name.get(near or ""), by_name.get(draft or "")


def _clear_projector(repo: str, files: Sequence[str], model: str) -> str | None:
    """The projector of a model; None without one, and with a warning if several may be meant."""
    found = select_projector(files, model)
    if len(found) > 1:
        _log.warning(
            "%s has several projectors for pictures and sounds, and none is taken: %s; say which "
            "with mmproj=",
            repo,
            ", ".join(found),
        )
    return found[0] if len(found) == 1 else None


def download_projector(
    repo_id: str,
    wanted: str | None = None,
    local_dir: PathLike | None = None,
    cache_dir: PathLike | None = None,
    *,
    beside: str = "",
    hub: Hub | None = None,
) -> str:
    """Download the projector of a repository (for pictures and sounds), and return its path.

    Args:
        repo_id: as for ``download``; a quantization in it is that of the model.
        wanted: a file of the repository or a pattern; None takes the one that
            ``select_projector`` names.
        beside: the file of the model, if it is known.

    Raises:
        ParameterError: no file matches, or several do; the message lists them.
        ModelNotFoundError, DownloadError: as for ``download``.
    """
    reference = read_reference(repo_id)
    repo, revision = reference.repo, reference.revision
    hub = hub or _hub(local_dir, cache_dir)
    if wanted is not None and not is_pattern(wanted):
        return hub.fetch(repo, [wanted], revision)[0]
    files = hub.list_files(repo, revision)
    if wanted is not None:
        found = sorted(name for name in files if name.endswith(".gguf") and fits(name, wanted))
    else:
        found = select_projector(files, beside)
    if len(found) == 1:
        return hub.fetch(repo, found, revision)[0]
    what = "are projectors" if wanted is None else f"fit {wanted!r}"
    if not found:
        there = listed(filter(is_projector, files)).replace("GGUF files", "projectors")
        raise ParameterError(f"no files in {repo} {what}; {there}")
    raise ParameterError(
        f"{len(found)} files in {repo} {what}: {', '.join(found)}; say which one is meant"
    )


def projector_for(
    repo_id: str,
    model_path: str,
    wanted: PathLike = "auto",
    local_dir: PathLike | None = None,
    cache_dir: PathLike | None = None,
    *,
    hub: Hub | None = None,
) -> str | None:
    """The path of the projector for a model that was downloaded.

    Args:
        wanted: a file of this machine, a file of the repository, a pattern, or ``"auto"``, with
            which None is returned if there is none, or if it is not clear which one is meant.
    """
    given = os.fspath(wanted)
    if given != "auto":
        if Path(given).is_file():
            return given
        return download_projector(repo_id, given, local_dir, cache_dir, hub=hub)
    reference = read_reference(repo_id)
    hub = hub or _hub(local_dir, cache_dir)
    try:
        files = hub.list_files(reference.repo, reference.revision)
    except DownloadError:  # the model was here, without a list of what else there is
        return None
    # The model is in the deepest folder of the repository that its path ends with.
    model = Path(model_path)
    folders = {PurePosixPath(name).parent.parts for name in filter(is_projector, files)}
    ends = [each for each in folders if each and model.parent.parts[-len(each) :] == each]
    folder = max(ends, key=len, default=())
    near = _clear_projector(reference.repo, files, str(PurePosixPath(*folder, model.name)))
    return hub.fetch(reference.repo, [near], reference.revision)[0] if near else None


def _hub(local_dir: PathLike | None, cache_dir: PathLike | None) -> HuggingFace:
    return HuggingFace(
        Path(local_dir) if local_dir is not None else None,
        Path(cache_dir) if cache_dir is not None else None,
    )
