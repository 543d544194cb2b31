"""Which files of a repository are meant: the model, its projector, its drafter."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import PurePosixPath

from llama_py.errors import ParameterError

__all__ = [
    "fits",
    "is_pattern",
    "is_projector",
    "quantization_of",
    "select",
    "select_drafter",
    "select_projector",
    "split_models",
]

_log = logging.getLogger("llama_py")

_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
#: Taken, in this order, when nothing is said about the quantization (as llama.cpp does).
_USUAL = ("Q4_K_M", "Q8_0")
#: The same for projectors, which are small, and lose more by quantization than they save.
_USUAL_PROJECTORS = ("F16", "Q8_0", "BF16", "F32")
#: Beginnings of the names of drafters, as llama.cpp knows them.
_DRAFTERS = ("mtp-", "eagle3-", "dflash-", "dspark-")
_QUANT = re.compile(r"(?i)(?:^|[-.])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|MXFP4\w*|NVFP4|B?F16|F32))$")
_MOST_LISTED = 30


def select(files: Iterable[str], filename: str | None, quant: str | None, repo: str) -> list[str]:
    """The file that is meant, or all parts of a split model.

    Raises:
        ParameterError: no file matches, or several match a pattern.
    """
    models = split_models(files)
    if filename is not None:
        found = {n: p for n, p in models.items() if any(fits(f, filename) for f in p)}
        wanted = f"fits {filename!r}"
    elif quant is not None:
        found = {name: parts for name, parts in models.items() if _has_quant(name, quant)}
        found, wanted = _shortest(found), f"is of {quant}"
    else:
        found, wanted = _usual(models, repo), "is a GGUF"
    if len(found) == 1:
        return _complete(*found.popitem())
    if not found:
        raise ParameterError(f"no file in {repo} {wanted}; {listed(models)}")
    raise ParameterError(
        f"{len(found)} files in {repo} could be meant: {', '.join(sorted(found))}; say which, with "
        f"a longer file name or with {repo}:QUANT"
    )


def split_models(files: Iterable[str]) -> dict[str, list[str]]:
    """The files of models by their first one, without projectors, drafters and matrices."""
    models: dict[str, list[str]] = {}
    for name in sorted(files):
        if name.endswith(".gguf") and not _is_companion(name):
            part = _SPLIT.search(name)
            first = f"{name[: part.start()]}-00001-of-{part[2]}.gguf" if part else name
            models.setdefault(first, []).append(name)
    return models


def is_projector(name: str) -> bool:
    """Whether a file is a projector, by its name."""
    return "mmproj" in PurePosixPath(name).name.lower() and name.endswith(".gguf")


def _is_companion(name: str) -> bool:
    plain = PurePosixPath(name).name.lower()
    return "mmproj" in plain or "imatrix" in plain or plain.startswith(_DRAFTERS)


def select_projector(files: Iterable[str], beside: str = "") -> list[str]:
    """The projector that is meant if nobody says which; several, if that is not clear.

    Those in the folder of the model come before others, those with the most of the model's name
    before those with less of it, and then F16 before Q8_0, BF16, F32 and all else.
    """
    found = sorted(filter(is_projector, files))
    folder = PurePosixPath(beside).parent
    found = [name for name in found if PurePosixPath(name).parent == folder] or found
    for rank in (lambda name: -_alike(name, beside), _quant_rank):
        best = min(map(rank, found), default=0)
        found = [name for name in found if rank(name) == best]
    return found


def select_drafter(files: Iterable[str], beside: str) -> str | None:
    """The drafter of a model: in its folder before others, of its quantization before others."""
    found = [f for f in files if PurePosixPath(f).name.lower().startswith(_DRAFTERS)]
    quant, folder = quantization_of(beside), PurePosixPath(beside).parent

    def rank(name: str) -> tuple[bool, bool, str]:
        return PurePosixPath(name).parent != folder, quantization_of(name) != quant, name

    return min((f for f in found if f.endswith(".gguf")), key=rank, default=None)


def quantization_of(name: str) -> str:
    """The quantization that a file's name ends with, or ""."""
    found = _QUANT.search(_stem(name))
    return found[1].upper() if found else ""


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


def _usual(models: dict[str, list[str]], repo: str) -> dict[str, list[str]]:
    """The usual quantization of several; else the first file, which is said."""
    if len(models) < 2:
        return models
    for quant in _USUAL:
        found = {name: parts for name, parts in models.items() if _has_quant(name, quant)}
        if found:
            _log.info("of %d files, that of %s is taken", len(models), quant)
            return _shortest(found)
    first = min(models)
    _log.warning(
        "%s has neither %s: %s is taken; %s", repo, " nor ".join(_USUAL), first, listed(models)
    )
    return {first: models[first]}


def _shortest(found: dict[str, list[str]]) -> dict[str, list[str]]:
    """Of several files of one quantization, the one with the plainest name."""
    if len(found) < 2:
        return found
    first = min(found, key=lambda name: (len(name), name))
    _log.info("of %s, %s is taken", ", ".join(sorted(found)), first)
    return {first: found[first]}


def _stem(name: str) -> str:
    return _SPLIT.sub("", name).removesuffix(".gguf")


def _has_quant(name: str, quant: str) -> bool:
    """``Q4_K`` is not in ``model-Q4_K_M.gguf``: a quantization is a whole part of the name."""
    return re.search(rf"(?i)(?:^|[-./]){re.escape(quant)}(?=$|[-./])", _stem(name)) is not None


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


def is_pattern(name: str) -> bool:
    """Whether a file's name stands for several."""
    return any(character in name for character in "*?[")


def fits(name: str, pattern: str) -> bool:
    """Whether a file of a repository has that name, or fits that pattern."""
    return name == pattern or fnmatch(name, pattern) or fnmatch(PurePosixPath(name).name, pattern)


def listed(models: Iterable[str]) -> str:
    """The end of a message: the files that there are."""
    names = sorted(models)
    if not names:
        return "it has no GGUF files at all"
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"there are: {', '.join(names[:_MOST_LISTED])}{more}"
