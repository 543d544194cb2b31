"""How arguments of calls that llama-cpp-python takes become those that llama_py takes.

llama-cpp-python checks next to nothing; what is harmless among the odd values is brought into the
range that llama_py accepts, and everything else is an error of llama_py's, which names the
argument.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

__all__ = ["UNCHANGED", "changed", "lenient"]

#: The defaults of calls, which need not be passed on: those of llama_py are the same.
UNCHANGED: Mapping[str, Any] = {
    "suffix": None,
    "top_p": 0.95,
    "min_p": 0.05,
    "typical_p": 1.0,
    "echo": False,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repeat_penalty": 1.0,
    "top_k": 40,
    "mirostat_mode": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
}
_RANGES = {
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "repeat_penalty": (1e-6, math.inf),
}
_WHOLE = ("max_tokens", "top_k", "seed", "mirostat_mode")


def changed(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that differ from the defaults, and are known to have an effect."""
    return {
        name: value
        for name, value in given.items()
        if name != "tfs_z" and (name not in UNCHANGED or value != UNCHANGED[name])
    }


def lenient(options: dict[str, Any]) -> dict[str, Any]:
    """The same arguments with harmless odd values brought into range; changes the dictionary."""
    for name in _WHOLE:
        value = options.get(name)
        if isinstance(value, (float, np.integer, np.floating)) and value == int(value):
            options[name] = int(value)
    for name, (low, high) in _RANGES.items():
        value = options.get(name)
        if isinstance(value, (int, float)) and value == value:
            options[name] = min(max(value, low), high)
    if "stop" in options:
        options["stop"] = _stops(options["stop"])
    if options.get("logit_bias"):
        options["logit_bias"] = _biases(options["logit_bias"])
    return options


def _stops(stop: Any) -> Any:
    """Stop strings without empty ones, which end nothing."""
    if isinstance(stop, str):
        return [stop] if stop else None
    if isinstance(stop, Iterable) and not isinstance(stop, bytes):
        return [each for each in stop if each != ""] or None
    return None


def _biases(biases: Any) -> Any:
    if not isinstance(biases, Mapping):
        return biases
    largest = 1e30
    return {
        int(token): value if math.isfinite(value) or value < 0 else largest
        for token, value in biases.items()
    }
