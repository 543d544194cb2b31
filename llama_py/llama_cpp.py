"""The C API under its C names, for those who want llama.cpp itself.

Everything that ``llama.h``, ``ggml*.h``, ``gguf.h``, ``mtmd.h`` and ``mtmd-helper.h`` declare
(deprecated and variadic functions aside), as ``ctypes`` functions, structs and constants::

    from llama_py import llama_cpp

    params = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(b"model.gguf", params)

The libraries load when the first function is used, and ``llama_backend_init`` has then been
called. How C types look in Python: see ``llama_py._native.types``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._native.ggml_h import *  # noqa: F403
    from ._native.gguf_h import *  # noqa: F403
    from ._native.llama_h import *  # noqa: F403
    from ._native.mtmd_h import *  # noqa: F403
else:
    _MODULES = ("llama_h", "ggml_h", "gguf_h", "mtmd_h")
    _PREFIXES = ("llama_", "ggml_", "gguf_", "mtmd_")

    def __getattr__(name: str) -> Any:
        """Fetch a C name from the module that declares it, and keep it."""
        if name.lower().startswith(_PREFIXES):
            for module in _MODULES:
                try:
                    value = getattr(import_module(f"llama_py._native.{module}"), name)
                except AttributeError as error:
                    if type(error) is not AttributeError:  # declared, but not in the library
                        raise
                    continue
                globals()[name] = value
                return value
        raise AttributeError(f"llama.cpp declares no {name!r} (deprecated names are left out)")

    def __dir__() -> list[str]:
        """Every C name, for completion."""
        modules = [import_module(f"llama_py._native.{module}") for module in _MODULES]
        names = {name for module in modules for name in dir(module)}
        return sorted(name for name in names if name.lower().startswith(_PREFIXES))
