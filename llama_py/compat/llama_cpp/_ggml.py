"""ggml's library as an object of ctypes."""

from __future__ import annotations

import pathlib
from typing import Any

from llama_py._native import loader

__all__ = ["libggml", "libggml_base_path"]  # noqa: F822 - made when used


def __getattr__(name: str) -> Any:
    if name == "libggml":
        return loader.library("ggml")
    if name == "libggml_base_path":
        return pathlib.Path(loader.library("ggml")._name).parent
    raise AttributeError(f"module 'llama_cpp._ggml' has no attribute {name!r}")
