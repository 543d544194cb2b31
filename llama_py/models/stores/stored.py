"""``StoredModel``: a model file of this machine, and who keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from llama_py.models.selection import (
    is_projector,
    quantization_of,
    select_projector,
    split_models,
)

__all__ = ["StoredModel", "models_of_folder", "named_like_hub"]


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model of this machine.

    Attributes:
        name: the name it is loaded by.
        source: the program that keeps it: "hub", "Ollama", "LM Studio", "llama.cpp", "folder".
        path: its file; the first one, if it is split.
        size: the bytes of all of its files.
        names: other names of it.
        digest: the SHA-256 of its file as its store states it, or "".
        projector: the file for pictures and sounds that belongs to it.
        problem: why it cannot be loaded, or "".
        notes: further files about it, by kind (Ollama's template, system text, parameters).
        others: other places with the same content.
    """

    name: str
    source: str
    path: Path
    size: int
    names: tuple[str, ...] = ()
    digest: str = ""
    projector: Path | None = None
    problem: str = ""
    notes: tuple[tuple[str, Path], ...] = ()
    others: tuple[Path, ...] = ()


def models_of_folder(
    files: dict[str, int], root: Path, source: str, name_of: Callable[[str], str]
) -> Iterator[StoredModel]:
    """The models among the files of a folder.

    Args:
        files: paths below ``root``, with their sizes.
        name_of: the name of a model by the path of its first file.
    """
    near: dict[str, list[str]] = {}
    for name in filter(is_projector, files):
        near.setdefault(name.rpartition("/")[0], []).append(name)
    for first, parts in split_models(files).items():
        missing = "" if first in files else "its first part is missing"
        if "-of-" in first and not missing:
            expected = int(first.rpartition("-of-")[2].removesuffix(".gguf"))
            if len(parts) != expected:
                missing = f"{expected - len(parts)} of its {expected} parts are missing"
        fitting = select_projector(near.get(first.rpartition("/")[0], ()), first)
        yield StoredModel(
            name_of(first),
            source,
            root / first,
            sum(files[part] for part in parts),
            names=(Path(first).stem, Path(first).name),
            projector=root / fitting[0] if len(fitting) == 1 else None,
            problem=missing,
        )


def named_like_hub(repo: str, file: str) -> str:
    """``owner/name:QUANT``, or the file's name where it names no quantization."""
    quant = quantization_of(file)
    return f"{repo}:{quant}" if quant else f"{repo}/{file}"
