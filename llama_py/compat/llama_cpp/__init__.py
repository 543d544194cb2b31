"""What ``import llama_cpp`` finds after ``llama_py.compat.install()``.

The names of llama-cpp-python: those of its modules ``llama``, ``llama_types`` and ``llama_cpp``
(the C API). Each is fetched when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from llama_py.compat import finder

__version__ = finder.VERSION

_PACKAGE = "llama_py.compat.llama_cpp"
_SUBMODULES = {
    "_ctypes_extensions",
    "_ggml",
    "_internals",
    "_logger",
    "_utils",
    "llama",
    "llama_cache",
    "llama_chat_format",
    "llama_cpp",
    "llama_cpp_ext",
    "llama_grammar",
    "llama_speculative",
    "llama_tokenizer",
    "llama_types",
    "llava_cpp",
    "mtmd_cpp",
    "server",
}
#: Modules whose names are also names of the package; the first one that has a name counts.
_SOURCES = (
    "llama",
    "llama_types",
    "llama_cache",
    "llama_grammar",
    "llama_tokenizer",
    "llama_speculative",
    "llama_cpp",
)


def __getattr__(name: str) -> Any:
    """Fetch a name from the module that has it, and keep it."""
    value = _find(name)
    globals()[name] = value
    return value


def _find(name: str) -> Any:
    if name == "__all__":
        return [each for each in __dir__() if not each.startswith("_")]
    if name in _SUBMODULES:
        return import_module(f"{_PACKAGE}.{name}")
    if not name.startswith("__"):
        for source in _SOURCES:
            module = import_module(f"{_PACKAGE}.{source}")
            try:
                return getattr(module, name)
            except AttributeError:
                continue
    raise AttributeError(f"module 'llama_cpp' has no attribute {name!r}")


def __dir__() -> list[str]:
    found = {*_SUBMODULES, "__version__"}
    for source in _SOURCES:
        module = import_module(f"{_PACKAGE}.{source}")
        public = [name for name in vars(module) if not name.startswith("_")]
        found.update(getattr(module, "__all__", public))
    return sorted(found)
