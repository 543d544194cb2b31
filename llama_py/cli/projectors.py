"""What ``llama-py inspect`` says of projectors: files with encoders of pictures and sounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llama_py.errors import LlamaError

__all__ = ["beside", "describe"]

_PARTS = ("vision", "audio")


def describe(path: str | Path) -> dict[str, Any] | None:
    """What a projector is; None if the file is none, or cannot be read."""
    from llama_py.gguf.reader import read_header

    try:
        header = read_header(Path(path))
    except (LlamaError, OSError):  # who reads it as a model says what is wrong
        return None
    facts = header.scalars
    if facts.get("general.architecture") != "clip":
        return None
    kinds = {
        part: str(facts.get(f"clip.{part}.projector_type") or facts.get("clip.projector_type"))
        for part in _PARTS
        if facts.get(f"clip.has_{part}_encoder")
    }
    types: dict[str, int] = {}
    for tensor in header.tensors:
        types[tensor.type] = types.get(tensor.type, 0) + 1
    widths = {facts.get(f"clip.{part}.projection_dim") for part in kinds} - {None}
    return {
        "path": str(path),
        "architecture": "clip",
        "name": facts.get("general.name"),
        "kinds": kinds,
        "picture": {
            "size": facts.get("clip.vision.image_size"),
            "patch": facts.get("clip.vision.patch_size"),
        },
        "widths": sorted(widths, key=str),
        "parameters": sum(tensor.n_elements for tensor in header.tensors),
        "bytes": header.file_size,
        "tensors": len(header.tensors),
        "tensor_types": types,
        "metadata": dict(facts),
        "arrays": {name: {"type": a.type, "length": a.count} for name, a in header.arrays.items()},
    }


def beside(model: Path, metadata: Mapping[str, Any], architecture: str) -> list[dict[str, Any]]:
    """The projectors in a model's folder, each with what it is ``unused`` for, or None."""
    from llama_py.api.media import find_projector

    width = metadata.get(f"{architecture}.embedding_length")
    taken = find_projector(model, width) if isinstance(width, int) else None
    found = []
    for path in sorted(model.parent.glob("*mmproj*.gguf")):
        report = describe(path)
        if report is None:
            continue
        unused = None
        if path != taken:
            fits = not report["widths"] or width in report["widths"]
            unused = "there are several; say which with mmproj=" if fits else "of another width"
        kept = ("path", "kinds", "widths", "bytes")
        found.append({**{name: report[name] for name in kept}, "unused": unused})
    return found
