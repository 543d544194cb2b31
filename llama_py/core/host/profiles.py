"""Profiles: what ``llama-py tune`` found to be fastest, for parameters that nobody gave.

A profile belongs to a CPU and the cores of it that the process may use, to the native libraries,
and to the shape and the types of a model: each is a file of its own in the cache directory.
It is used or it is absent; one that is stale, damaged or of another version is absent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import secrets
import time
from collections.abc import Container, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeGuard

from llama_py._native.loader import search_directories
from llama_py.core import backend
from llama_py.core.host.cache_folders import cache_directory
from llama_py.core.host.machine import usable_cores
from llama_py.gguf.check import GGUFInfo
from llama_py.params import ContextParams
from llama_py.quick_dataclass import dataclass
from llama_py.version import LLAMA_CPP_COMMIT, __version__

__all__ = [
    "TUNED",
    "VARIABLE",
    "Profile",
    "apply",
    "build_info",
    "find",
    "key_of",
    "path_of",
    "write",
]

#: Set to "off", this variable of the environment makes all profiles absent.
VARIABLE: Final = "LLAMA_PY_PROFILE"
#: Parameters that a profile may have, with their types and, for numbers, the largest value.
TUNED: Final[dict[str, tuple[type, int]]] = {
    "flash_attn": (bool, 0),
    "n_threads": (int, 512),
    "n_threads_batch": (int, 512),
    "n_ubatch": (int, 65536),
}
#: Changes when the meaning of a profile does.
_FORMAT = 1
#: No profile is longer.
_LARGEST = 1 << 16
#: What of a model's shape decides how fast its kernels are.
_SHAPE = (
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.sliding_window",
)


@dataclass(frozen=True, slots=True)
class Profile:
    """The parameters that were fastest.

    Attributes:
        values: by the name of the parameter; those that are best left as they are do not appear.
        path: the file.
        made: when, as ``2026-01-31``.
    """

    values: Mapping[str, bool | int]
    path: Path
    made: str


# -- what it belongs to ----------------------------------------------------------------------------


def key_of(info: GGUFInfo) -> dict[str, Any]:
    """The key of the profiles of this model on this machine."""
    shape = {}
    for name in _SHAPE:
        full = f"{info.architecture}.{name}"
        value = info.metadata.get(full)
        if full in info.arrays:  # only how long it is and what it begins with
            array = info.arrays[full]
            value = f"{array.type} x {array.count}: {getattr(array, 'values', None)}"[:200]
        if value is not None:
            shape[name] = value
    return {
        "format": _FORMAT,
        "version": __version__,
        "llama_cpp": LLAMA_CPP_COMMIT,
        "build": _digest(build_info())[:16],
        "cpu": _cpu(),
        "cores": usable_cores(),
        "architecture": info.architecture,
        "shape": shape,
        "types": dict(sorted(info.tensor_types.items())),
    }


def path_of(key: Mapping[str, Any]) -> Path:
    """The file of the profile with this key."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return _folder() / f"{digest[:24]}.json"


def _folder() -> Path:
    return cache_directory() / "profiles"


def build_info() -> dict[str, Any]:
    """How the libraries in use were built (``build_info.json``); empty if they do not say."""
    for directory in search_directories():
        try:
            found: dict[str, Any] = json.loads((directory / "build_info.json").read_text())
        except (OSError, ValueError):
            continue
        return found
    return {}


@cache
def _cpu() -> str:
    """The kind of CPU: name, family, model, and a digest of its features."""
    try:
        with Path("/proc/cpuinfo").open("rb", buffering=0) as file:
            text = file.read(8192).decode("ascii", "replace")  # the first one: the file is long
    except OSError:
        return f"{platform.machine()} {platform.processor()}".strip()
    lines = (line.partition(":")[::2] for line in text.split("\n\n")[0].splitlines())
    facts = {name.strip(): value.strip() for name, value in lines}
    features = facts.get("flags") or facts.get("Features") or ""
    digest = hashlib.sha256(" ".join(sorted(features.split())).encode()).hexdigest()[:12]
    names = ("model name", "cpu family", "model", "stepping", "CPU part")
    return " ".join([*filter(None, map(facts.get, names)), digest])


# -- reading and writing ---------------------------------------------------------------------------


def find(info: GGUFInfo) -> Profile | None:
    """The profile for a model on this machine; None if there is none that can be trusted."""
    if os.environ.get(VARIABLE, "").lower() == "off" or not _folder().is_dir():
        return None
    if any("gpu" in device["kind"] for device in backend.local_devices()):
        return None  # CPUs are what was measured
    key = key_of(info)
    path = path_of(key)
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
        content = json.loads(text) if len(text) <= _LARGEST else None
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or content.get("key") != key:
        return None
    values, made = content.get("values"), content.get("made")
    if content.get("digest") != _digest(values) or not isinstance(made, str):
        return None
    return Profile(values, path, made) if _valid(values) else None


def write(key: Mapping[str, Any], values: Mapping[str, bool | int], figures: Any) -> Profile:
    """Write a profile, which appears as a whole or not at all.

    Args:
        figures: what was measured, for people.

    Raises:
        OSError: it cannot be written; an older one is unchanged.
    """
    path, made = path_of(key), time.strftime("%Y-%m-%d")
    content = {
        "key": key,
        "made": made,
        "values": values,
        "digest": _digest(values),
        "figures": figures,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return Profile(dict(values), path, made)


def _digest(values: object) -> str:
    try:
        text = json.dumps(values, sort_keys=True)
    except (TypeError, ValueError):
        return ""
    return hashlib.sha256(text.encode()).hexdigest()


def _valid(values: object) -> TypeGuard[dict[str, bool | int]]:
    """Whether all of it can be given to a context."""
    if not isinstance(values, dict):
        return False
    for name, value in values.items():
        kind, most = TUNED.get(str(name), (None, 0))
        if type(value) is not kind:
            return False
        if isinstance(value, int) and kind is not bool and not 1 <= value <= most:
            return False
    return True


# -- use -------------------------------------------------------------------------------------------


def apply(
    params: ContextParams, given: Container[str], profile: Profile | None
) -> tuple[ContextParams, dict[str, str]]:
    """The parameters with those of a profile in place of what was not given.

    Args:
        given: the names of the parameters that somebody gave.

    Returns:
        The parameters, and for each that a profile may have, where its value comes from:
        ``"given"``, ``"profile"`` or ``"default"``.
    """
    values = {} if profile is None else {**profile.values}
    if "n_threads" in given or "n_threads_batch" in given:  # one follows from the other
        values.pop("n_threads", None)
        values.pop("n_threads_batch", None)
    if params.type_k is not None or params.type_v is not None:  # measured with cells in F16
        values.pop("flash_attn", None)
    used = {name: value for name, value in values.items() if name not in given}
    origins = {
        name: "given" if name in given else "profile" if name in used else "default"
        for name in TUNED
    }
    return dataclasses.replace(params, **used), origins  # type: ignore[arg-type]
