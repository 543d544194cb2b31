"""``llama-py bench build-tools``: llama-bench, llama-batched-bench and llama-server, on demand.

They are built from llama.cpp's source at the pinned commit and linked to the libraries of this
package, so that they measure the same code. They are kept in the user's cache.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from llama_py.bench.files import cache_directory
from llama_py.errors import ParameterError
from llama_py.version import LLAMA_CPP_COMMIT

__all__ = ["build", "find_tool", "main"]

TOOLS = ("llama-bench", "llama-batched-bench", "llama-server")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the tools; returns the exit code."""
    parser = argparse.ArgumentParser(prog="llama-py bench build-tools", description=__doc__)
    parser.add_argument("--source", metavar="DIR", help="llama.cpp's source (default: it is found)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    options = parser.parse_args(arguments)
    try:
        folder = build(Path(options.source) if options.source else None, options.jobs)
    except (ParameterError, OSError, subprocess.CalledProcessError) as error:
        print(f"llama-py bench build-tools: {error}", file=sys.stderr)
        return 2
    for name in TOOLS:
        print(folder / name)
    return 0


def build(source: Path | None = None, jobs: int = 1) -> Path:
    """Build the tools, or only what has changed; returns the folder they are in.

    Raises:
        ParameterError: there is no source, or no CMake.
        CalledProcessError: the build failed.
    """
    cmake = shutil.which("cmake", path=_search_path())
    if cmake is None:
        raise ParameterError("cmake was not found; pip install cmake")
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    configure = [
        cmake,
        "-S",
        str(Path(__file__).with_name("tools")),
        "-B",
        str(folder),
        f"-DLLAMA_CPP_DIR={source or _find_source()}",
        f"-DLLAMA_PY_LIB_DIR={_libraries()}",
    ]
    ninja = shutil.which("ninja", path=_search_path())
    if ninja is not None and not (folder / "CMakeCache.txt").exists():
        configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    subprocess.run(configure, check=True, stdout=sys.stderr)
    command = [cmake, "--build", str(folder), "--parallel", str(jobs), "--target", *TOOLS]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return folder / "bin"


def find_tool(name: str) -> Path:
    """A tool that was built for these libraries.

    Raises:
        ParameterError: the tool was not built.
    """
    path = _folder() / "bin" / (f"{name}.exe" if sys.platform == "win32" else name)
    if not path.is_file():
        raise ParameterError(f"{name} was not built; run: llama-py bench build-tools")
    return path


def _folder() -> Path:
    """The folder of the tools, one for each folder of libraries, because tools contain its path."""
    where = hashlib.sha256(str(_libraries()).encode()).hexdigest()[:8]
    return cache_directory() / f"bench-tools-{LLAMA_CPP_COMMIT}-{where}"


def _libraries() -> Path:
    from llama_py._native.loader import library

    return Path(library("llama")._name).resolve().parent


def _search_path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def _find_source() -> Path:
    """The source that this package was built from: in a named folder, a checkout or the cache."""
    named = os.environ.get("LLAMA_PY_LLAMA_CPP_DIR")
    checkout = Path(__file__).parents[2] / "vendor" / "llama.cpp"
    cached = sorted(cache_directory().glob(f"llama.cpp-{LLAMA_CPP_COMMIT}-*"))
    for path in [Path(named)] if named else [checkout, *cached]:
        if all((path / "tools" / name).is_dir() for name in ("llama-bench", "server")):
            return path
    raise ParameterError(
        "llama.cpp's source was not found; give it with --source (in a checkout, "
        "'python vendor/resolve.py --full' fetches it)"
    )
