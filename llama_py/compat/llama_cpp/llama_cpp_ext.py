"""Functions of ``llama-ext.h``, which llama.cpp exports without declaring them for others.

Their symbols have C++ names, so they exist only where the compiler names them as expected.
"""

from __future__ import annotations

from ctypes import POINTER, c_bool, c_float, c_int32, c_void_p
from typing import Any

from llama_py.compat import binding

_FLOATS = POINTER(c_float)
#: Result and arguments, and how the Itanium ABI spells the types of the arguments.
_FUNCTIONS: dict[str, tuple[tuple[Any, ...], str, str]] = {
    "llama_get_ctx_other": ((c_void_p, c_void_p), "P13llama_context", "ctx"),
    "llama_get_embeddings_nextn": ((_FLOATS, c_void_p), "P13llama_context", "ctx"),
    "llama_get_embeddings_nextn_ith": (
        (_FLOATS, c_void_p, c_int32),
        "P13llama_contexti",
        "ctx i",
    ),
    "llama_set_embeddings_nextn": (
        (None, c_void_p, c_bool, c_bool),
        "P13llama_contextbb",
        "ctx value masked",
    ),
    "llama_set_nextn_layer_offset": (
        (None, c_void_p, c_int32),
        "P13llama_contexti",
        "ctx offset",
    ),
}


__all__ = list(_FUNCTIONS)


def __getattr__(name: str) -> Any:
    if name not in _FUNCTIONS:
        raise AttributeError(f"module 'llama_cpp.llama_cpp_ext' has no attribute {name!r}")
    prototype, spelled, parameters = _FUNCTIONS[name]
    try:
        value = binding.bind_as(name, name, ("llama",), prototype)
    except AttributeError:
        value = binding.bind_as(name, f"_Z{len(name)}{name}{spelled}", ("llama",), prototype)
    value.__signature__ = binding.positional(parameters.split())
    globals()[name] = value
    return value
