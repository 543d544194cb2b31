"""``stored_models``: all models of this machine, and ``find``: the one that a name means."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

from llama_py.errors import ParameterError
from llama_py.models.stores.folders import cached, from_folders, of_llama_cpp, of_lm_studio
from llama_py.models.stores.ollama import of_ollama
from llama_py.models.stores.stored import StoredModel

__all__ = ["find", "similar", "stored_models"]

#: Places of a file by which two of one size are compared, and bytes of each.
_SAMPLES, _PART = 16, 1 << 14


def stored_models() -> list[StoredModel]:
    """The models of the hub's caches, of other programs, and of the folders that were named.

    What is here more than once is one model; its other places are ``others``.
    """
    every = chain(cached(), of_llama_cpp(), of_ollama(), of_lm_studio(), from_folders())
    return _once([*every])


def _once(models: list[StoredModel]) -> list[StoredModel]:
    sizes: dict[int, int] = {}
    for model in models:
        sizes[model.size] = sizes.get(model.size, 0) + 1
    found: dict[object, StoredModel] = {}
    for model in models:
        key = _content(model, sizes[model.size] > 1)
        first = found.get(key)
        if first and first.digest and model.digest and first.digest != model.digest:
            key = (key, model.digest)
            first = found.get(key)
        if first is None:
            found[key] = model
            continue
        names = dict.fromkeys((*first.names, model.name, *model.names))
        same = os.path.realpath(first.path) == os.path.realpath(model.path)
        others = first.others if same else (*first.others, model.path)
        projector = first.projector or model.projector
        found[key] = replace(
            first,
            names=tuple(names),
            others=others,
            projector=projector,
            notes=first.notes or model.notes,
        )
    return [*found.values()]


def _content(model: StoredModel, shared: bool) -> object:
    """Equal for equal contents, as far as that can be told without reading whole files."""
    if model.problem or not shared:
        return (model.source, str(model.path), model.name)
    try:
        with model.path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            samples = [0, *(end * n // _SAMPLES for n in range(1, _SAMPLES)), max(end - _PART, 0)]
            found = []
            for start in samples:
                file.seek(start)
                found.append(hash(file.read(_PART)))
            return (model.size, *found)
    except OSError:
        return str(model.path)


def find(name: str, models: Iterable[StoredModel]) -> StoredModel | None:
    """The model that a short name means; case does not matter.

    Raises:
        ParameterError: several models have it.
    """
    wanted = name.lower()
    models = [*models]
    exact = [each for each in models if each.name.lower() == wanted]
    found = exact or [each for each in models if wanted in map(str.lower, each.names)]
    usable = [each for each in found if not each.problem] or found
    if len(usable) > 1:
        there = "; ".join(f"{each.name} ({each.path})" for each in usable)
        raise ParameterError(f"{name!r} means {len(usable)} models: {there}; say which")
    return usable[0] if usable else None


def similar(name: str, models: Iterable[StoredModel]) -> list[str]:
    """Names of models that are nearly this one."""
    known = {each.name.lower(): each.name for each in models}
    inside = [full for low, full in known.items() if name.lower() in low]
    close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    return [*dict.fromkeys([*inside, *(known[each] for each in close)])][:5]
