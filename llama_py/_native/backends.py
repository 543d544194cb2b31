"""Backends of ggml that are files of their own: the CPU's that was chosen, and plug-in wheels.

A portable build (``LLAMA_PY_PORTABLE``) has the CPU's backend once for each kind of CPU; ggml asks
all of them and loads the best one. Backends of GPUs come in wheels of their own (``plugins/``):
packages with the names below, each with one library and the ``build_info.json`` of the build that
it belongs to. One that is installed is loaded with ggml, or a sentence says why not.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from llama_py.version import LLAMA_CPP_COMMIT, __version__

__all__ = ["PACKAGES", "Plugin", "chosen_cpu", "in_silence", "load_plugins", "plugins"]

#: Packages that are looked for, and how the backend's library in them is called.
PACKAGES: Final = {
    "llama_py_cuda": "ggml-cuda",
    "llama_py_rocm": "ggml-hip",
    "llama_py_vulkan": "ggml-vulkan",
}
#: A part of the linker's message, and what is to be done about it.
_REMEDIES: Final = {
    "libvulkan": "install Vulkan's loader (libvulkan1 on Debian and Ubuntu, vulkan-loader on "
    "Fedora) and the driver of your GPU",
    "libcuda.so": "install NVIDIA's driver",
    "cudart": "install the CUDA runtime of the version that it was built for",
    "cublas": "install the CUDA runtime of the version that it was built for",
    "hip": "install AMD's ROCm of the version that it was built for",
    "roc": "install AMD's ROCm of the version that it was built for",
    "GLIBC": "it was built on a newer system: build it on this one",
    "ggml": "reinstall it with llama-py",
}


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plug-in wheel that is installed.

    Attributes:
        distribution: how pip calls it, such as ``llama-py-vulkan``.
        backend: how its library is called, such as ``ggml-vulkan``.
        path: the library.
        refusal: a sentence: why it is not loaded; empty if it is.
    """

    distribution: str
    backend: str
    path: Path
    refusal: str


_plugins: list[Plugin] = []


@contextmanager
def in_silence(base: ctypes.CDLL) -> Iterator[None]:
    """ggml tells which backends it loads: not on standard error, unless its log goes elsewhere."""
    before, data = ctypes.c_void_p(), ctypes.c_void_p()
    base["ggml_log_get"](ctypes.byref(before), ctypes.byref(data))
    base["ggml_log_set"](None, None)
    default, nothing = ctypes.c_void_p(), ctypes.c_void_p()
    base["ggml_log_get"](ctypes.byref(default), ctypes.byref(nothing))
    silent = before.value == default.value
    base["ggml_log_set"](_SAYS_NOTHING if silent else before, None if silent else data)
    try:
        yield
    finally:
        base["ggml_log_set"](before, data)


_SAYS_NOTHING = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
    lambda level, text, data: None
)


def plugins() -> tuple[Plugin, ...]:
    """Those that are installed, when ggml is loaded."""
    return tuple(_plugins)


def load_plugins(ggml: ctypes.CDLL) -> None:
    """Load those that are installed and made for this very build."""
    _plugins.clear()
    for package, backend in PACKAGES.items():
        # As CMake and ggml call a backend's file, also on macOS.
        name = f"{backend}.dll" if sys.platform == "win32" else f"lib{backend}.so"
        spec = importlib.util.find_spec(package)
        for home in (spec.submodule_search_locations or ()) if spec else ():
            directory = Path(home, "lib")
            if directory.is_dir():
                path = directory / name
                refusal = _why_not(directory) or _load(ggml, path)
                _plugins.append(Plugin(package.replace("_", "-"), backend, path, refusal))
                break


def _why_not(directory: Path) -> str:
    """A sentence if it was built for another release; its structs may differ from ours."""
    try:
        info = json.loads((directory / "build_info.json").read_text(encoding="utf-8"))
        found = f"llama-py {info['version']} with llama.cpp {info['llama_cpp_commit'][:9]}"
    except (OSError, ValueError, KeyError, TypeError):
        found = "another build"
    wanted = f"llama-py {__version__} with llama.cpp {LLAMA_CPP_COMMIT}"
    if found == wanted:
        return ""
    return f"it was made for {found}, and this is {wanted}: install the one of the same release"


def _load(ggml: ctypes.CDLL, path: Path) -> str:
    if sys.platform == "win32" and path.parent not in _dll_directories:
        _dll_directories[path.parent] = os.add_dll_directory(str(path.parent))
    try:
        # ggml would keep the linker's reason to itself.
        ctypes.CDLL(str(path))
    except OSError as error:
        reason = str(error)
        # Not the path of the file itself, which begins some messages.
        parts = reason.rpartition(".so: ")[2], reason.partition(": cannot open")[0]
        for word, remedy in _REMEDIES.items():
            if any(word in part for part in parts):
                return f"it does not load ({reason}): {remedy}"
        return f"it does not load ({reason}): install what it misses"
    load = ggml["ggml_backend_load"]
    load.restype = ctypes.c_void_p
    if not load(ctypes.c_char_p(os.fsencode(path))):
        return f"{path.name} is for another version of ggml: reinstall it with llama-py"
    return ""


_dll_directories: dict[Path, Any] = {}


# -- the CPU's -------------------------------------------------------------------------------------


def chosen_cpu(base: ctypes.CDLL, ggml: ctypes.CDLL) -> Path | None:
    """The file of the CPU's backend that ggml has chosen; None if there is none."""
    find, ask = ggml["ggml_backend_reg_by_name"], base["ggml_backend_reg_get_proc_address"]
    find.restype = ask.restype = ctypes.c_void_p
    registered = find(ctypes.c_char_p(b"CPU"))
    if not registered:
        return None
    address = ask(ctypes.c_void_p(registered), ctypes.c_char_p(b"ggml_threadpool_new"))
    if not address:
        return None
    if sys.platform == "win32":
        return _module_of(address)
    found = _Information()
    if not ctypes.CDLL(None)["dladdr"](ctypes.c_void_p(address), ctypes.byref(found)):
        return None
    return Path(os.fsdecode(found.file)) if found.file else None


class _Information(ctypes.Structure):
    """``Dl_info`` of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _module_of(address: int) -> Path | None:
    """The library that a function is in, on Windows."""
    kernel, module = getattr(ctypes, "WinDLL")("kernel32"), ctypes.c_void_p()  # noqa: B009
    by_address_and_unchanged = 0x4 | 0x2
    if not kernel.GetModuleHandleExW(
        by_address_and_unchanged, ctypes.c_void_p(address), ctypes.byref(module)
    ):
        return None
    name = ctypes.create_unicode_buffer(32768)
    return Path(name.value) if kernel.GetModuleFileNameW(module, name, len(name)) else None
