"""The models of Ollama: ``manifests/HOST/NAMESPACE/MODEL/TAG`` and ``blobs/sha256-...``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llama_py.models.stores.places import ollama_folders, read_small_json
from llama_py.models.stores.stored import StoredModel

__all__ = ["of_ollama"]

_KIND = "application/vnd.ollama.image."
_HOST = "registry.ollama.ai"
#: Layers that say something about a model.
_NOTES = ("template", "system", "params", "license", "messages")


def of_ollama() -> Iterator[StoredModel]:
    """Its models, with its templates, system texts and parameters as notes."""
    for root in ollama_folders():
        manifests = root / "manifests"
        for folder, _, tags in os.walk(manifests):
            parts = Path(folder).relative_to(manifests).parts
            if len(parts) >= 3:
                for tag in tags:
                    yield from _model(root, parts, tag, Path(folder) / tag)


def _model(root: Path, parts: tuple[str, ...], tag: str, path: Path) -> Iterator[StoredModel]:
    manifest = read_small_json(path)
    layers = manifest.get("layers")
    name, names = _names(parts, tag)
    if not isinstance(layers, list):
        yield StoredModel(name, "Ollama", path, 0, names, problem="its manifest is not readable")
        return
    blobs = {kind: blob for each in layers for kind, blob in _layer(root, each)}
    if "model" not in blobs:
        why = _why_not(root, manifest, layers)
        yield StoredModel(name, "Ollama", path, 0, names, problem=why)
        return
    file, size, digest = blobs["model"]
    projector = blobs.get("projector")
    yield StoredModel(
        name,
        "Ollama",
        file,
        size,
        names,
        digest=digest,
        projector=projector[0] if projector else None,
        problem=_problem(file, size),
        notes=tuple((kind, blobs[kind][0]) for kind in _NOTES if kind in blobs),
    )


def _names(parts: tuple[str, ...], tag: str) -> tuple[str, tuple[str, ...]]:
    """The name that Ollama shows, and the others that it takes."""
    host, *rest = parts
    inner = [*rest[1:]] if host == _HOST and rest[0] == "library" else [*rest]
    model = "/".join(inner if host == _HOST else [host, *inner])
    full = f"{model}:{tag}"
    return full, ((model,) if tag == "latest" else ())


def _layer(root: Path, layer: Any) -> Iterator[tuple[str, tuple[Path, int, str]]]:
    if not isinstance(layer, dict):
        return
    kind, digest, size = (layer.get(key) for key in ("mediaType", "digest", "size"))
    if not (isinstance(kind, str) and isinstance(digest, str) and isinstance(size, int)):
        return
    if not 0 <= size < 2**63:
        return
    found = re.fullmatch(r"sha256[:-]([0-9a-f]{64})", digest)
    if found and kind.startswith(_KIND):
        yield kind.removeprefix(_KIND), (root / "blobs" / f"sha256-{found[1]}", size, found[1])


def _problem(file: Path, size: int) -> str:
    try:
        there = file.stat().st_size
    except OSError:
        return "its file is missing (the download was not completed)"
    return "" if there == size else f"its file has {there:,} of {size:,} bytes"


def _why_not(root: Path, manifest: dict[str, Any], layers: list[Any]) -> str:
    kinds = {str(each.get("mediaType", "")) for each in layers if isinstance(each, dict)}
    if any(kind.startswith(f"{_KIND}tensor") for kind in kinds):
        return "its layers are tensors for MLX, and no GGUF"
    config = manifest.get("config")
    if isinstance(config, dict):
        for _, blob in _layer(root, {**config, "mediaType": f"{_KIND}config"}):
            form = read_small_json(blob[0]).get("model_format")
            if isinstance(form, str) and form not in ("", "gguf"):
                return f"its format is {form}, and not GGUF"
            if read_small_json(blob[0]).get("remote_host"):
                return "it runs on a server of Ollama, and no file of it is here"
    return "it has no file of a model"
