"""Downloading GGUF files from the Hugging Face hub (extra ``hub``).

This module decides which file of a repository is meant, and compares what came with the digest that
the hub names. ``huggingface_hub`` does the rest (caching, tokens for private repositories, the
progress bar); whether it goes on with a download that was interrupted depends on its version.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from llama_py.digests import check_digest
from llama_py.errors import DownloadError, ModelNotFoundError, ParameterError

__all__ = [
    "DownloadError",
    "Hub",
    "HuggingFace",
    "download",
    "download_projector",
    "projector_for",
    "select",
    "select_projector",
]

_log = logging.getLogger("llama_py")

_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
#: Taken, in this order, when nothing is said about the quantization (as llama.cpp does).
_USUAL = ("Q4_K_M", "Q8_0")
#: The same for projectors, which are small, and lose more by quantization than they save.
_USUAL_PROJECTORS = ("F16", "Q8_0", "BF16", "F32")
_MOST_LISTED = 30

PathLike = str | os.PathLike[str]


class Hub(Protocol):
    """The methods of a hub that this module uses."""

    def list_files(self, repo_id: str) -> Sequence[str]:
        """The files of a repository, as relative paths."""

    def fetch(self, repo_id: str, filename: str) -> str:
        """Download a file, unless it is there already; its path."""


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
        local_dir: where to put the files, instead of the cache of huggingface_hub.
        cache_dir: the directory of that cache.
        hub: the hub to download from; the Hugging Face hub by default.

    Raises:
        ParameterError: no file matches, or several do; the message lists the files.
        ModelNotFoundError: there is no such repository, or it asks for a login.
        DownloadError: the hub cannot be reached, or the extra is not installed.
    """
    repo, quant = _split_reference(repo_id, filename)
    hub = hub or HuggingFace(local_dir, cache_dir)
    exact = filename is not None and not _is_pattern(filename) and not _SPLIT.search(filename)
    if exact and not any(map(_is_pattern, additional_files)):
        # Needs no list of files, and so no network if it was downloaded before.
        names = [str(filename)]
        more = [*additional_files]
    else:
        files = hub.list_files(repo)
        names = select(files, filename, quant, repo)
        more = []
        for pattern in additional_files:
            matching = sorted(name for name in files if _fits(name, pattern))
            if not matching:
                raise ParameterError(f"no file in {repo} fits {pattern!r} of additional_files")
            more += matching
    paths = [hub.fetch(repo, name) for name in [*names, *more]]
    return paths[0]


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
    repo, _, _ = repo_id.partition(":")
    hub = hub or HuggingFace(local_dir, cache_dir)
    if wanted is not None and not _is_pattern(wanted):
        return hub.fetch(repo, wanted)
    files = hub.list_files(repo)
    if wanted is not None:
        found = sorted(name for name in files if name.endswith(".gguf") and _fits(name, wanted))
    else:
        found = select_projector(files, beside)
    if len(found) == 1:
        return hub.fetch(repo, found[0])
    what = "are projectors" if wanted is None else f"fit {wanted!r}"
    if not found:
        listed = _listed(filter(_is_projector, files)).replace("GGUF files", "projectors")
        raise ParameterError(f"no files in {repo} {what}; {listed}")
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
    repo, _, _ = repo_id.partition(":")
    hub = hub or HuggingFace(local_dir, cache_dir)
    try:
        files = [name for name in hub.list_files(repo) if _is_projector(name)]
    except DownloadError:  # the model was here, without a list of what else there is
        return None
    # The model is in the deepest folder of the repository that its path ends with.
    model, folders = Path(model_path), {PurePosixPath(name).parent.parts for name in files}
    ends = [each for each in folders if each and model.parent.parts[-len(each) :] == each]
    folder = max(ends, key=len, default=())
    found = select_projector(files, str(PurePosixPath(*folder, model.name)))
    if len(found) > 1:
        _log.warning(
            "%s has several projectors for pictures and sounds, and none is taken: %s; say which "
            "with mmproj=",
            repo,
            ", ".join(found),
        )
    return hub.fetch(repo, found[0]) if len(found) == 1 else None


def _split_reference(repo_id: str, filename: str | None) -> tuple[str, str | None]:
    repo, _, quant = repo_id.partition(":")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo) or (":" in repo_id and not quant):
        raise ParameterError(
            f"{repo_id!r} names no repository; expected owner/name or owner/name:QUANT, for "
            "example Qwen/Qwen3-0.6B-GGUF:Q8_0"
        )
    if quant and filename is not None:
        raise ParameterError(f"{repo_id!r} names a quantization, and filename={filename!r} a file")
    return repo, quant or None


# ---- which file ------------------------------------------------------------------------------


def select(files: Iterable[str], filename: str | None, quant: str | None, repo: str) -> list[str]:
    """The file that is meant, or all parts of a split model.

    Raises:
        ParameterError: no file matches, or several do.
    """
    models: dict[str, list[str]] = {}  # first file -> all files, without projectors
    for name in sorted(files):
        if name.endswith(".gguf") and not _is_projector(name):
            part = _SPLIT.search(name)
            first = f"{name[: part.start()]}-00001-of-{part[2]}.gguf" if part else name
            models.setdefault(first, []).append(name)
    if filename is not None:
        found = {n: p for n, p in models.items() if any(_fits(f, filename) for f in p)}
        wanted = f"fits {filename!r}"
    elif quant is not None:
        found = {name: parts for name, parts in models.items() if _has_quant(name, quant)}
        wanted = f"is of {quant}"
    else:
        found, wanted = _usual(models), "is a GGUF"
    if len(found) == 1:
        return _complete(*found.popitem())
    if not found:
        raise ParameterError(f"no file in {repo} {wanted}; {_listed(models)}")
    raise ParameterError(
        f"{len(found)} files in {repo} could be meant: {', '.join(sorted(found))}; say which, with "
        f"a longer file name or with {repo}:QUANT"
    )


def _is_projector(name: str) -> bool:
    return "mmproj" in PurePosixPath(name).name.lower() and name.endswith(".gguf")


def select_projector(files: Iterable[str], beside: str = "") -> list[str]:
    """The projector that is meant if nobody says which; several, if that is not clear.

    Those in the folder of the model come before others, those with the most of the model's name
    before those with less of it, and then F16 before Q8_0, BF16, F32 and all else.
    """
    found = sorted(filter(_is_projector, files))
    folder = PurePosixPath(beside).parent
    found = [name for name in found if PurePosixPath(name).parent == folder] or found
    for rank in (lambda name: -_alike(name, beside), _quant_rank):
        best = min(map(rank, found), default=0)
        found = [name for name in found if rank(name) == best]
    return found


def _quant_rank(name: str) -> int:
    ranks = (rank for rank, quant in enumerate(_USUAL_PROJECTORS) if _has_quant(name, quant))
    return next(ranks, len(_USUAL_PROJECTORS))


def _alike(name: str, model: str) -> int:
    """How many words of a projector's name are in the model's, but for quantizations."""
    words, of_model = (
        {*re.split(r"[-_.]", PurePosixPath(each).name.lower().removesuffix(".gguf"))}
        for each in (name, model)
    )
    plain = {word for word in words if not re.fullmatch(r"b?f(16|32)|i?q\d.*|k|m|s|0|1", word)}
    return len(plain & of_model)


def _usual(models: dict[str, list[str]]) -> dict[str, list[str]]:
    if len(models) < 2:
        return models
    for quant in _USUAL:
        found = {name: parts for name, parts in models.items() if _has_quant(name, quant)}
        if found:
            _log.info("of %d files, that of %s is taken", len(models), quant)
            return found
    return models


def _has_quant(name: str, quant: str) -> bool:
    """``Q4_K`` is not in ``model-Q4_K_M.gguf``: a quantization is a whole part of the name."""
    stem = _SPLIT.sub("", name).removesuffix(".gguf")
    return re.search(rf"(?i)(?:^|[-./]){re.escape(quant)}(?=$|[-./])", stem) is not None


def _complete(first: str, parts: list[str]) -> list[str]:
    split = _SPLIT.search(first)
    if split is None:
        return parts
    stem, count = first[: split.start()], int(split[2])
    expected = [f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    missing = sorted(set(expected) - set(parts))
    if missing:
        raise ParameterError(
            f"{stem} has {count} parts, and the repository lacks {', '.join(missing)}"
        )
    return expected


def _is_pattern(name: str) -> bool:
    return any(character in name for character in "*?[")


def _fits(name: str, pattern: str) -> bool:
    return name == pattern or fnmatch(name, pattern) or fnmatch(PurePosixPath(name).name, pattern)


def _listed(models: Iterable[str]) -> str:
    names = sorted(models)
    if not names:
        return "it has no GGUF files at all"
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"there are: {', '.join(names[:_MOST_LISTED])}{more}"


# ---- the hub ---------------------------------------------------------------------------------


class HuggingFace:
    """The Hugging Face hub, by way of ``huggingface_hub``.

    Raises:
        DownloadError: that package is not installed.
    """

    def __init__(
        self, local_dir: PathLike | None = None, cache_dir: PathLike | None = None
    ) -> None:
        try:
            self._module: Any = importlib.import_module("huggingface_hub")
        except ImportError:
            raise DownloadError(
                "downloading models needs huggingface_hub; pip install 'llama-py[hub]'"
            ) from None
        self._local_dir = local_dir
        self._cache_dir = cache_dir

    def list_files(self, repo_id: str) -> Sequence[str]:
        """The files of a repository; those in the cache if the hub cannot be reached."""
        try:
            with _clear_errors(repo_id):
                files: list[str] = self._module.HfApi().list_repo_files(repo_id)
                return files
        except DownloadError:
            cached = self._cached(repo_id)
            if not cached:
                raise
            _log.warning("the hub cannot be reached; files of %s come from the cache", repo_id)
            return cached

    def _cached(self, repo_id: str) -> list[str]:
        try:
            found = self._module.snapshot_download(
                repo_id, local_files_only=True, cache_dir=self._cache_dir, local_dir=self._local_dir
            )
        except Exception:  # of whatever kind: it is not in the cache
            return []
        root = Path(found)
        return [path.relative_to(root).as_posix() for path in root.rglob("*.gguf")]

    def fetch(self, repo_id: str, filename: str) -> str:
        """Download a file, unless it is there already; its path.

        Raises:
            DownloadError: it cannot be, or it is not the file that the hub names.
        """
        with _clear_errors(repo_id, filename):
            found = self._module.hf_hub_download(
                repo_id, filename, cache_dir=self._cache_dir, local_dir=self._local_dir
            )
        check_digest(Path(found), self._digest(Path(found), filename), f"{repo_id}/{filename}")
        return str(found)

    def _digest(self, path: Path, filename: str) -> str:
        """The digest that the hub names: in the cache, the name of the file behind the link."""
        if self._local_dir is None:
            there = path.resolve()
            return there.name if there.parent.name == "blobs" else ""
        notes = Path(self._local_dir) / ".cache" / "huggingface" / "download"
        try:
            note = (notes / f"{filename}.metadata").read_text(encoding="utf-8").splitlines()
            # One that was changed since is its owner's, as for huggingface_hub.
            return note[1] if path.stat().st_mtime <= float(note[2]) + 1 else ""
        except (OSError, IndexError, ValueError):
            return ""


#: Names of the classes of huggingface_hub's errors -> what they mean. (They moved between modules.)
_NOT_FOUND = {
    "RepositoryNotFoundError": "there is no repository {repo}, or it is private (then: hf auth "
    "login, or set HF_TOKEN)",
    "GatedRepoError": "{repo} asks for consent: accept its terms on the hub, then log in (hf auth "
    "login, or set HF_TOKEN)",
    "EntryNotFoundError": "there is no file {file} in {repo}",
    "RemoteEntryNotFoundError": "there is no file {file} in {repo}",
    "RevisionNotFoundError": "{repo} has no main revision",
}


#: What a hub that cannot be reached at all gives, by httpx and by requests.
_UNREACHABLE = frozenset({"ConnectError", "ConnectTimeout", "ConnectionError"})


class _NoRetries(logging.Filter):
    """Ends a request of this thread, of which huggingface_hub says that it could not connect.

    It would wait and try again five times, and print that each time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        error = sys.exc_info()[1]
        if error is not None and record.thread == self._thread and _is_unreachable(error):
            raise error  # as after the last try; the cache is searched then
        return True


def _is_unreachable(error: BaseException) -> bool:
    return any(kind.__name__ in _UNREACHABLE for kind in type(error).__mro__)


@contextmanager
def _clear_errors(repo: str, file: str = "") -> Iterator[None]:
    logger, once = logging.getLogger("huggingface_hub.utils._http"), _NoRetries()
    logger.addFilter(once)
    try:
        yield
    except Exception as error:  # classes of hf, httpx and requests, which differ by version
        names = [kind.__name__ for kind in type(error).__mro__]
        for name in names:
            if name in _NOT_FOUND and "LocalEntryNotFoundError" not in names:
                raise ModelNotFoundError(_NOT_FOUND[name].format(repo=repo, file=file)) from error
        if not isinstance(error, (OSError, ValueError)) and "HTTPError" not in names:
            raise
        what = f"{repo}/{file}" if file else repo
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        if "LocalEntryNotFoundError" in names:
            reason = "the hub cannot be reached, and it is not in the cache"
        elif _is_unreachable(error) and "OfflineModeIsEnabled" not in names:
            reason = f"the hub cannot be reached, and it is not in the cache ({reason})"
        raise DownloadError(f"{what} cannot be downloaded: {reason}") from error
    finally:
        logger.removeFilter(once)
