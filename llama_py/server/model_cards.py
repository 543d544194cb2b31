"""Models in lists of Ollama's form, whether they are in memory or not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from llama_py.dialects.ollama.encode import instant
from llama_py.errors import LlamaError
from llama_py.gguf.check import GGUFInfo, check_model_file
from llama_py.server.pool.served_model import ModelStatus, ServedModel

__all__ = ["in_list", "names_of", "on_gpus", "shown_of"]


@dataclass(frozen=True, slots=True)
class _ModelFile:
    """A model's file.

    Attributes:
        size, modified: in bytes, and in seconds since 1970.
        digest: of its path, size and time; reading the whole of it would take too long.
        details: Ollama's object.
    """

    size: int
    modified: float
    digest: str
    details: Mapping[str, Any]


def _file_of(model: ServedModel) -> _ModelFile:
    path = Path(model.settings.path)
    try:
        found = path.stat()
    except OSError:
        return _ModelFile(0, 0.0, "0" * 64, _details(None))
    return _look(path, found.st_mtime, found.st_size)


@lru_cache(maxsize=256)
def _look(path: Path, modified: float, size: int) -> _ModelFile:
    info = _header(path)
    digest = hashlib.sha256(f"{path} {size} {modified}".encode()).hexdigest()
    return _ModelFile(info.n_bytes if info else size, modified, digest, _details(info))


def _header(path: Path) -> GGUFInfo | None:
    try:
        return check_model_file(path)
    except LlamaError:  # loading it says what is wrong
        return None


def _details(info: GGUFInfo | None) -> dict[str, Any]:
    family = info.architecture if info else ""
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family] if family else None,
        "parameter_size": _rounded(info.n_params) if info else "",
        "quantization_level": info.quantization if info else "",
    }


def _rounded(number: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= size:
            return f"{number / size:.2f}{unit}"
    return str(number)


def names_of(model: ServedModel) -> list[str]:
    """The names that may be asked for: its id and its aliases, but no patterns."""
    return [model.id, *(each for each in model.aliases if "*" not in each)]


def in_list(model: ServedModel, name: str) -> dict[str, Any]:
    """An entry of ``/api/tags``; ``/api/ps`` adds to it."""
    file = _file_of(model)
    return {
        "name": name,
        "model": name,
        "modified_at": instant(file.modified),
        "size": file.size,
        "digest": file.digest,
        "details": file.details,
    }


def on_gpus(model: ServedModel) -> int:
    """Bytes that a model in memory takes on other devices than the CPU; for another thread than the
    event loop's."""
    counted = model.counted
    report = counted[1] if counted is not None else None
    devices = report.devices if report is not None else ()
    return sum(each.total for each in devices if each.device != "CPU")


def shown_of(model: ServedModel) -> dict[str, Any]:
    """The answer of ``/api/show``."""
    path = Path(model.settings.path)
    info, file = _header(path), _file_of(model)
    metadata = dict(info.metadata) if info else {}
    own = metadata.pop("tokenizer.chat_template", "")
    template = str(model.settings.options.get("chat_template") or own)
    facts = {"general.parameter_count": info.n_params, **metadata} if info else {}
    return {
        "license": str(metadata.get("general.license", "")),
        "modelfile": f"FROM {model.id}\n",
        "parameters": f"num_ctx {model.meta['n_ctx']}" if model.meta else "",
        "template": template,
        "details": file.details,
        "model_info": {**facts, **dict.fromkeys(info.arrays if info else ())},
        "capabilities": _capabilities(model, info, template),
        "modified_at": instant(file.modified),
    }


#: A template that has one of these knows reasoning.
_THINKS = ("enable_thinking", "<think>", "reasoning_content", "reasoning_effort")


def _capabilities(model: ServedModel, info: GGUFInfo | None, template: str) -> list[str]:
    sees, hears = model.senses
    names = info.metadata if info else {}
    generates = not any(name.endswith(".pooling_type") for name in names)
    inserts = any("fim_mid" in name or "middle_token_id" in name for name in names)
    if model.status is ModelStatus.LOADED:
        generates, inserts = model.llama.runtime.port.generates, model.llama.vocab.fim_mid >= 0
    found = {
        "completion": generates,
        "embedding": not generates,
        "tools": generates and "tools" in template,
        "insert": generates and inserts,
        "thinking": generates and any(word in template for word in _THINKS),
        "vision": sees,
        "audio": hears,
    }
    return [name for name, there in found.items() if there]
