"""C functions in the form of llama-cpp-python: pointers are integers, and NULL is None.

``llama_py._native`` has a class for each kind of pointer. Code that was written for
llama-cpp-python compares pointers with None and with each other, and hands them to other libraries
as integers, so the same functions are bound a second time here, with ``c_void_p`` in place of these
classes.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

from llama_py._native import loader
from llama_py.compat.c_parameters import C_PARAMETERS

__all__ = ["bind", "bind_as", "declared", "keywords", "native_value", "positional", "signature"]

_HEADERS = {
    "llama_h": ("llama",),
    "mtmd_h": ("mtmd",),
    "ggml_h": ("ggml-base", "ggml", "ggml-cpu"),
    "gguf_h": ("ggml-base",),
}


def native_value(name: str) -> Any:
    """A struct, a constant or a type of a callback, as the headers declare it.

    Raises:
        AttributeError: there is none of that name.
    """
    for header in _HEADERS:
        module = import_module(f"llama_py._native.{header}")
        if name in vars(module):
            return _open(vars(module)[name])
    raise AttributeError(name)


def _open(kind: Any) -> Any:
    """A struct of parameters as a class that takes further attributes, too; others as they are.

    Programs set members of older versions (``logits_all``), which has no effect there either.
    """
    if isinstance(kind, type) and issubclass(kind, ctypes.Structure):
        return _opened(kind) if kind.__name__.endswith("_params") else kind
    return kind


@cache
def _opened(kind: type[ctypes.Structure]) -> type[ctypes.Structure]:
    return type(kind.__name__, (kind,), {})


def declared(*headers: str) -> set[str]:
    """The names of everything that these headers declare."""
    found: set[str] = set()
    for header in headers:
        module = import_module(f"llama_py._native.{header}")
        found.update(vars(module)["_FUNCTIONS"], vars(module))
    return found


def bind(name: str, symbol: str = "") -> Any:
    """The C function ``symbol`` (by default: of this name), with the signature of ``name``.

    Raises:
        AttributeError: no header declares it, or the library has not got it.
    """
    symbol = symbol or name
    for header, libraries in _HEADERS.items():
        prototype = vars(import_module(f"llama_py._native.{header}"))["_FUNCTIONS"].get(symbol)
        if prototype is not None:
            return bind_as(name, symbol, libraries, prototype)
    raise AttributeError(f"llama.cpp has no function {name!r}")


def bind_as(name: str, symbol: str, libraries: tuple[str, ...], prototype: tuple[Any, ...]) -> Any:
    """The C function with a given result and arguments, of which pointers become integers."""
    function = loader.symbol(symbol, libraries)
    result, *arguments = map(_plain, prototype)
    function.argtypes = arguments
    function.restype = result
    function.__name__ = name
    if name in C_PARAMETERS:
        function.__signature__ = signature(name)
    return function


def _plain(kind: Any) -> Any:
    """``c_void_p`` in place of a class of pointers; other types stay."""
    if kind is None or not (isinstance(kind, type) and issubclass(kind, ctypes.c_void_p)):
        return _open(kind)
    if kind.__name__ == "llama_sampler_p":  # its struct is public there: callers read .contents
        return ctypes.POINTER(native_value("llama_sampler"))
    return ctypes.c_void_p


def signature(name: str) -> inspect.Signature:
    """What ``inspect.signature`` says about a C function."""
    return positional(C_PARAMETERS[name].split())


def positional(names: Sequence[str]) -> inspect.Signature:
    """A signature of parameters that have no defaults and are given by position."""
    kind = inspect.Parameter.POSITIONAL_ONLY
    return inspect.Signature([inspect.Parameter(name, kind) for name in names])


def keywords(*names: str) -> inspect.Signature:
    """A signature of parameters that have no defaults."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(name, kind) for name in names])
