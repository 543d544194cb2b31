"""Run-time support for the generated declarations: each function is bound when first used.

What a C type becomes:

``struct llama_model *``      a hidden struct's pointer is a class of its own (a ``c_void_p``
                              subclass): ``llama_model_p``, or the header's own typedef
                              (``llama_memory_t``). Falsy when NULL; ``.value`` is the address.
                              Passing one where another belongs fails in mypy, and raises
                              ``ctypes.ArgumentError`` at run time. ``llama_model_p()`` is NULL.
``struct llama_batch``        a ``ctypes.Structure`` with typed fields.
``llama_token_data_array *``  a visible struct's pointer is ``POINTER(struct)``; an argument may
                              also be the struct itself, ``byref(...)`` or an array.
``const char *``              ``bytes`` (or None). As an argument: ``bytes`` or a char array.
``char *``, ``float *``,      as an argument: an array, a pointer, ``byref(...)``, or the address
``llama_token *`` ...         as an int (``numpy_array.ctypes.data``); for const ones ``bytes``
                              too. As a result: ``POINTER(c_float)`` and so on.
``void *``                    an address: int, None, or anything with one. A result is int | None.
``enum``                      an int; the enum's constants are plain module-level ints.
a function pointer            a ``CFUNCTYPE`` class named as the header names it. NULL is the
                              class called with no arguments. Keep a reference while C may call.
                              A callback that returns a pointer returns its address (an int).

The struct behind a name that is also a function's gets the suffix ``_s``
(``ggml_backend_graph_copy_s``). ``stub_types.pyi`` has the names of these rules for type checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Prototype", "bind_lazily"]

Prototype = tuple[Any, ...]
"""The result's ctypes class, followed by the arguments'."""


def bind_lazily(
    namespace: dict[str, Any], libraries: tuple[str, ...], prototypes: Mapping[str, Prototype]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make a module's ``__getattr__`` and ``__dir__`` over the functions it declares.

    The first use of a function loads its library and binds it; the bound ``ctypes`` function then
    replaces this detour in the module's namespace, so that every later use is an ordinary global
    lookup, with no Python code around the call.
    """

    def bind(name: str) -> Any:
        if name not in prototypes:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        from . import loader

        function = loader.symbol(name, libraries)
        function.restype, *function.argtypes = prototypes[name]
        namespace[name] = function
        return function

    def names() -> list[str]:
        return sorted({*namespace, *prototypes})

    return bind, names
