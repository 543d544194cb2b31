"""``resolve``: the file that a name means, wherever a model can be named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llama_py.errors import ModelNotFoundError
from llama_py.models.references import looks_like_path, reference_of
from llama_py.models.stores.catalog import find, similar, stored_models
from llama_py.models.stores.ollama import of_ollama

if TYPE_CHECKING:
    from llama_py.models.hub import Watch
    from llama_py.models.stores.stored import StoredModel

__all__ = ["Located", "resolve"]


@dataclass(frozen=True, slots=True)
class Located:
    """A model's file on this machine.

    Attributes:
        path: the file.
        projector: the one that came with it, or None.
        name: what a program may call it: the stem of the file, or the name of its store.
    """

    path: str
    projector: str | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", Path(self.path).stem)


def resolve(name: str, watch: Watch | None = None) -> Located:
    """The file of a model: a path, a reference to a hub, or a short name of a model that is here.

    Args:
        name: what exists as a path is that path, whatever else it may mean.
        watch: is told how far a download is.

    Raises:
        ModelNotFoundError: there is none.
        ParameterError: the name may mean several.
        DownloadError: it could not be downloaded.
    """
    reference = reference_of(name)
    if reference is None:
        return Located(name) if looks_like_path(name) else _located(_stored(name), name)
    if reference.quant and (found := find(name, of_ollama())):  # its names look the same
        return _located(found, name)
    from llama_py.models.downloads import download_reference

    return Located(*download_reference(reference, watch))


def _stored(name: str) -> StoredModel:
    models = stored_models()
    found = find(name, models)
    if found is None:
        near = similar(name, models)
        hint = f"; there are: {', '.join(near)}" if near else ""
        raise ModelNotFoundError(
            f"there is no file {name}, and no model of that name is on this machine (llama-py "
            f"list){hint}"
        )
    return found


def _located(found: StoredModel, name: str) -> Located:
    if found.problem:
        raise ModelNotFoundError(f"{name} of {found.source} cannot be loaded: {found.problem}")
    projector = str(found.projector) if found.projector else None
    return Located(str(found.path), projector, found.name if found.source == "Ollama" else "")
