"""Helpers of llama-cpp-python for ctypes."""

from __future__ import annotations

import ctypes
import functools
import pathlib
import sys
from collections.abc import Callable
from ctypes import byref
from typing import Any, TypeVar

__all__ = ["F", "byref", "ctypes_function_for_shared_library", "load_shared_library"]

F = TypeVar("F", bound=Callable[..., Any])

_ENDINGS = {"win32": ("{}.dll", "lib{}.dll"), "darwin": ("lib{}.so", "lib{}.dylib")}


def load_shared_library(lib_base_name: str, base_path: pathlib.Path) -> ctypes.CDLL:
    """The library of this name in a directory.

    Raises:
        FileNotFoundError: there is none.
        RuntimeError: the system refuses it.
    """
    for pattern in _ENDINGS.get(sys.platform, ("lib{}.so",)):
        path = pathlib.Path(base_path) / pattern.format(lib_base_name)
        if path.exists():
            try:
                return ctypes.CDLL(str(path))
            except OSError as error:
                raise RuntimeError(f"Failed to load shared library '{path}': {error}") from error
    raise FileNotFoundError(f"Shared library with base name '{lib_base_name}' not found")


def ctypes_function_for_shared_library(lib: ctypes.CDLL) -> Callable[..., Any]:
    """A decorator that makes a Python signature the C function of a library."""

    def ctypes_function(
        name: str, argtypes: list[Any], restype: Any, enabled: bool = True
    ) -> Callable[[F], F]:
        def decorator(f: F) -> F:
            if not enabled:
                return f
            function: Any = getattr(lib, name)
            function.argtypes = argtypes
            function.restype = restype
            functools.wraps(f)(function)
            return function  # type: ignore[no-any-return]

        return decorator

    return ctypes_function
