"""llama-bench, llama-batched-bench and llama-server, built on demand.

They are built from llama.cpp's source at the pinned commit and linked to the libraries of
llama_py, so that they measure the same code. With --plain, llama-bench and llama-batched-bench are
built once more, with libraries as llama.cpp builds them by default, to compare the builds; that
takes as long as building the package. They are kept in the user's cache.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from llama_py.bench.native_tools import libraries, tools_folder
from llama_py.core.host.cache_folders import cache_directory
from llama_py.errors import ParameterError
from llama_py.version import LLAMA_CPP_COMMIT

__all__ = ["build", "main"]

TOOLS = ("llama-bench", "llama-batched-bench", "llama-server")
_PLAIN_TOOLS = TOOLS[:2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the tools; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks build-tools", description=__doc__)
    parser.add_argument("--source", metavar="DIR", help="llama.cpp's source (default: it is found)")
    parser.add_argument(
        "--plain", action="store_true", help="build the tools of llama.cpp's default build"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    options = parser.parse_args(arguments)
    try:
        source = Path(options.source) if options.source else None
        folder = build(source, options.jobs, plain=options.plain)
    except (ParameterError, OSError, subprocess.CalledProcessError) as error:
        print(f"python -m benchmarks build-tools: {error}", file=sys.stderr)
        return 2
    for name in _PLAIN_TOOLS if options.plain else TOOLS:
        print(folder / name)
    return 0


def build(source: Path | None = None, jobs: int = 1, *, plain: bool = False) -> Path:
    """Build the tools, or only what has changed; returns the folder they are in.

    Args:
        plain: with libraries of their own, as llama.cpp builds them by default.

    Raises:
        ParameterError: there is no source, or no CMake.
        CalledProcessError: the build failed.
    """
    cmake = shutil.which("cmake", path=_search_path())
    if cmake is None:
        raise ParameterError("cmake was not found; pip install cmake")
    folder = tools_folder(plain=plain)
    folder.mkdir(parents=True, exist_ok=True)
    configure = [
        cmake,
        "-S",
        str(Path(__file__).with_name("tools")),
        "-B",
        str(folder),
        f"-DLLAMA_CPP_DIR={source or _find_source()}",
        *(_plain_options() if plain else [f"-DLLAMA_PY_LIB_DIR={libraries()}"]),
    ]
    ninja = shutil.which("ninja", path=_search_path())
    if ninja is not None and not (folder / "CMakeCache.txt").exists():
        configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    subprocess.run(configure, check=True, stdout=sys.stderr)
    targets = _PLAIN_TOOLS if plain else TOOLS
    command = [cmake, "--build", str(folder), "--parallel", str(jobs), "--target", *targets]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return folder / "bin"


def _plain_options() -> list[str]:
    kernels = Path(__file__).parents[1] / "native" / "kernels"  # in a checkout
    header = kernels / "amx_tile_config" / "amx_tile_config.h"
    return ["-DLLAMA_PY_PLAIN=ON", *([f"-DLLAMA_PY_AMX_HEADER={header}"] * header.is_file())]


def _search_path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def _find_source() -> Path:
    """The source that this package was built from: in a named folder, a checkout or the cache."""
    named = os.environ.get("LLAMA_PY_LLAMA_CPP_DIR")
    checkout = Path(__file__).parents[1] / "vendor" / "llama.cpp"
    cached = sorted(cache_directory().glob(f"llama.cpp-{LLAMA_CPP_COMMIT}-*"))
    for path in [Path(named)] if named else [checkout, *cached]:
        if all((path / "tools" / name).is_dir() for name in ("llama-bench", "server")):
            return path
    raise ParameterError(
        "llama.cpp's source was not found; give it with --source (in a checkout, "
        "'python vendor/resolve.py --full' fetches it)"
    )
