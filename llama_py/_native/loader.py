"""Finds and loads the native libraries, each once, when one of their functions is first used.

Where it looks, in this order:

1. ``LLAMA_PY_LIB``, a directory (or a file in it). When it is set, nothing else is searched.
2. ``lib/`` in the installed package, and in every other directory that the package spans: an
   editable install keeps the sources in one place and what CMake built in another.

The libraries find each other by themselves (they carry a relative rpath). Loading ``ggml`` also
loads the backends, where they are separate files (``GGML_BACKEND_DL``), and those of plug-in wheels
(``backends``), unless ``LLAMA_PY_LIB`` is set; loading ``llama`` also calls ``llama_backend_init``.
Each happens once, whatever the threads.

Before anything is called, the digest of the declarations that ``ggml-base`` was built for is
compared with that of these: a library of another llama.cpp is refused with a sentence, and does not
crash.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import sysconfig
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from llama_py.errors import LibraryLoadError, LibraryNotFoundError, SymbolNotFoundError
from llama_py.version import LLAMA_CPP_COMMIT

from . import abi, backends

__all__ = [
    "LibraryLoadError",
    "LibraryNotFoundError",
    "SymbolNotFoundError",
    "build_info",
    "library",
    "search_directories",
    "symbol",
]

VARIABLE = "LLAMA_PY_LIB"
STEMS = {
    "ggml-base": "ggml-base",
    "ggml-cpu": "ggml-cpu",
    "ggml": "ggml",
    "llama": "llama",
    "mtmd": "mtmd",
    "chat": "llama_py_chat",
    "rpc": "llama_py_rpc",
}
OPTIONAL = {"ggml-cpu"}
"""Not linked, and once for each kind of CPU, in a build with ``GGML_BACKEND_DL``."""

FIRST = {
    "ggml-cpu": "ggml-base",
    "ggml": "ggml-base",
    "llama": "ggml",
    "mtmd": "llama",
    "chat": "llama",
    "rpc": "ggml",
}
"""What has to be loaded, and prepared, before a library."""

_loaded: dict[str, ctypes.CDLL] = {}
_lock = threading.RLock()
_dll_directories: dict[Path, Any] = {}


def library(name: str) -> ctypes.CDLL:
    """The loaded library: ``"llama"``, ``"ggml"``, ``"ggml-base"``, ``"mtmd"``, ``"chat"`` ..."""
    found = _loaded.get(name)
    return found if found is not None else _load(name)


def symbol(name: str, libraries: tuple[str, ...]) -> Any:
    """The C function ``name`` from the first of the libraries that has it, not yet typed."""
    for candidate in libraries:
        try:
            return library(candidate)[name]
        except AttributeError:
            continue
        except LibraryNotFoundError:
            if candidate not in OPTIONAL:
                raise
    paths = ", ".join(str(_loaded[lib]._name) for lib in libraries if lib in _loaded)
    raise SymbolNotFoundError(
        f"{paths} has no function {name}: it was built from another version of llama.cpp than "
        f"these declarations, or without the backend they belong to. Reinstall llama_py"
        f"{f', or unset {VARIABLE}' if VARIABLE in os.environ else ''}."
    )


def search_directories() -> list[Path]:
    """The directories that are searched, in order."""
    override = os.environ.get(VARIABLE)
    if override:
        path = Path(override).expanduser()
        return [path.parent if path.is_file() else path]
    import llama_py

    homes = [Path(p) for p in llama_py.__path__]
    homes += [Path(sysconfig.get_path(key), "llama_py") for key in ("platlib", "purelib")]
    return list(dict.fromkeys(home / "lib" for home in homes))


def build_info() -> dict[str, Any]:
    """How the libraries in use were built (``build_info.json``); empty if they do not say."""
    for directory in search_directories():
        with suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads((directory / "build_info.json").read_text("utf-8"))
            return found
    return {}


def candidates(name: str, directory: Path) -> list[Path]:
    """The files that may be the library, in one directory.

    The name with the major version comes first, because the other libraries ask for that one: a
    wheel has copies where a build has links, and two copies of one library must not both load.
    """
    stem = STEMS[name]
    if sys.platform == "win32":
        return [directory / f"{stem}.dll", directory / f"lib{stem}.dll"]
    if sys.platform == "darwin":
        versioned, plain = directory.glob(f"lib{stem}.[0-9]*.dylib"), f"lib{stem}.dylib"
    else:
        versioned, plain = directory.glob(f"lib{stem}.so.[0-9]*"), f"lib{stem}.so"
    return [*sorted(versioned, key=lambda path: len(path.name)), directory / plain]


def _load(name: str) -> ctypes.CDLL:
    with _lock:
        if name in _loaded:
            return _loaded[name]
        if name in FIRST:
            library(FIRST[name])
        path = _chosen_variant(name) or _find(name)
        loaded = _open(path)
        if name == "ggml-base":
            _refuse_other_declarations(loaded, path)
        elif name == "ggml":
            _register_backends(loaded, path.parent)
        elif name == "llama":
            _call(loaded, "llama_backend_init")
        _loaded[name] = loaded
        return loaded


def _chosen_variant(name: str) -> Path | None:
    """The file of the CPU's backend that ggml chose, where there is one for each kind of CPU."""
    if name != "ggml-cpu":
        return None
    plain = (path for place in search_directories() for path in candidates(name, place))
    if any(path.is_file() for path in plain):
        return None
    return backends.chosen_cpu(library("ggml-base"), library("ggml"))


def _find(name: str) -> Path:
    tried = [path for d in search_directories() for path in candidates(name, d)]
    for path in tried:
        if path.is_file():
            return path
    listing = "".join(f"\n  {path}" for path in tried)
    if VARIABLE in os.environ:
        remedy = f"{VARIABLE} is set: point it at the directory of the built libraries, or unset it"
    else:
        remedy = (
            "build them (in a checkout: 'pip install --force-reinstall --no-cache-dir .', or 'pip "
            f"install -e .'), or set {VARIABLE} to a directory that has them"
        )
    raise LibraryNotFoundError(
        f"the native library '{name}' was not found; looked for:{listing}\nRemedy: {remedy}."
    )


def _open(path: Path) -> ctypes.CDLL:
    if sys.platform == "win32" and path.parent not in _dll_directories:
        # The DLLs of the GPU toolkits: Windows no longer looks there by itself.
        roots = (os.environ.get(variable) for variable in ("CUDA_PATH", "HIP_PATH", "VULKAN_SDK"))
        toolkits = [Path(root, "bin") for root in roots if root and Path(root, "bin").is_dir()]
        for directory in (path.parent, *toolkits):
            _dll_directories[directory] = os.add_dll_directory(str(directory))
    _refuse_second_copy(path)
    try:
        return ctypes.CDLL(str(path.absolute()))
    except OSError as error:
        raise LibraryLoadError(_why_refused(path, str(error))) from error


def _why_refused(path: Path, reason: str) -> str:
    if any(word in reason for word in ("cuda", "cublas", "nvrtc", "nccl", "nvcuda")):
        remedy = (
            "it was built for CUDA: install the NVIDIA driver and the CUDA runtime of that version "
            "and make them visible (LD_LIBRARY_PATH, or CUDA_PATH on Windows), or reinstall "
            "llama_py without GGML_CUDA"
        )
    elif any(word in reason for word in ("wrong ELF class", "incompatible architecture", "193")):
        remedy = "it was built for another processor architecture: reinstall llama_py from source"
    elif "GLIBC" in reason or "CXXABI" in reason:
        remedy = "it was built on a newer system: reinstall llama_py from source on this one"
    else:
        remedy = "install what it misses, or reinstall llama_py from source on this machine"
    return f"{path} does not load: {reason}\nRemedy: {remedy}."


def _refuse_second_copy(path: Path) -> None:
    """Stop where another package's build is loaded already (seen on Linux only).

    The dynamic linker takes libraries of one name for one library, so that ours would run on
    the other's internals, and crash.
    """
    maps = Path("/proc/self/maps")
    if not maps.is_file():
        return
    name = path.name.partition(".so")[0] + ".so"
    homes = (path.parent.resolve(), path.resolve().parent)
    mapped = {line.partition("/")[2] for line in maps.read_text(errors="replace").splitlines()}
    for other in (Path("/" + entry) for entry in mapped if entry):
        if other.name.startswith(name) and other.parent not in homes:
            raise LibraryLoadError(
                f"{path} cannot be loaded beside {other}, which this process has loaded already. "
                "Remedy: use the two packages in separate processes."
            )


def _refuse_other_declarations(loaded: ctypes.CDLL, path: Path) -> None:
    """Stop where they were built for other declarations: calls would read other structs."""
    try:
        found = ctypes.c_char.in_dll(loaded, "llama_py_abi")
    except ValueError:  # of llama.cpp's own build, or of an older version of this package
        digest = "none"
    else:
        digest = ctypes.string_at(ctypes.addressof(found)).decode("ascii", "replace")
    if digest == abi.DIGEST:
        return
    remedy = "build them again (in a checkout: 'make install', or 'pip install --force-reinstall "
    remedy += "--no-cache-dir .')"
    if VARIABLE in os.environ:
        remedy += f", or unset {VARIABLE}"
    try:
        info = json.loads((path.parent / "build_info.json").read_text(encoding="utf-8"))
        built_from = f"llama.cpp {info['llama_cpp_commit'][:9]}"
    except (OSError, ValueError, KeyError, TypeError):
        built_from = "an unknown llama.cpp"
    raise LibraryLoadError(
        f"{path.parent} has libraries of {built_from} for other declarations than "
        f"those of this llama_py: digest {digest} there, {abi.DIGEST} here (llama.cpp "
        f"{LLAMA_CPP_COMMIT}).\nRemedy: {remedy}."
    )


def _register_backends(ggml: ctypes.CDLL, directory: Path) -> None:
    """Load the backends that are files of their own; others have registered themselves."""
    with backends.in_silence(library("ggml-base")):
        if _call(ggml, "ggml_backend_reg_count", result=ctypes.c_size_t) == 0:
            load_all = "ggml_backend_load_all_from_path"
            _call(ggml, load_all, ctypes.c_char_p(os.fsencode(directory)))
        if not os.environ.get(VARIABLE):
            backends.load_plugins(ggml)


def _call(loaded: ctypes.CDLL, name: str, *arguments: Any, result: Any = None) -> Any:
    function = loaded[name]
    function.restype = result
    return function(*arguments)


# -- forks -----------------------------------------------------------------------------------------

_leave_section: Callable[[], Any] | None = None


def _enter_section() -> None:
    """Take ggml's only global lock, if ggml is loaded and has it."""
    global _leave_section
    base = _loaded.get("ggml-base")
    if base is not None and hasattr(base, "ggml_critical_section_start"):
        base.ggml_critical_section_start()
        _leave_section = base.ggml_critical_section_end


def _leave() -> None:
    global _leave_section
    leave, _leave_section = _leave_section, None
    if leave is not None:
        leave()


def _begin_anew() -> None:
    """In a forked child: whoever held our lock is not there."""
    global _lock
    _lock = threading.RLock()
    _leave()


if hasattr(os, "register_at_fork"):
    # No thread of the parent is in the critical section during a fork, or the first model that the
    # child loads would wait for it for ever.
    os.register_at_fork(before=_enter_section, after_in_parent=_leave, after_in_child=_begin_anew)
