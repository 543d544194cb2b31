"""The pinned headers, and the C compiler that the checks of the declarations need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tools.declarations import generate

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def llama_cpp() -> Path:
    return generate.find_llama_cpp()


@pytest.fixture
def headers(llama_cpp: Path, tmp_path: Path) -> Path:
    """A copy of the headers, to be edited; the layout is the source tree's."""
    for folder in ("include", "ggml/include", "tools/mtmd"):
        (tmp_path / "source" / folder).mkdir(parents=True)
        for header in (llama_cpp / folder).glob("*.h"):
            shutil.copy(header, tmp_path / "source" / folder)
    return tmp_path / "source"


@pytest.fixture(scope="session")
def cc() -> str:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    return compiler


@pytest.fixture(scope="session")
def gcc() -> str:
    """A GCC for x86, which knows its CPUs."""
    found = shutil.which("g++")
    if found is None:
        pytest.skip("needs g++")
    named = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    command = [found, "-march=znver3", "-x", "c++", "-E", "-dM", "/dev/null"]
    known = subprocess.run(command, capture_output=True, text=True, check=False)
    if "clang" in named or known.returncode:
        pytest.skip("this g++ is not a GCC for x86")
    return found


@pytest.fixture
def build_library(cc: str, tmp_path: Path) -> Callable[[str, str], Path]:
    """Compile C text into a shared library of the name that the loader looks for."""

    def build(name: str, text: str) -> Path:
        source = tmp_path / f"{name}.c"
        source.write_text(text, encoding="utf-8")
        suffix = "dylib" if sys.platform == "darwin" else "so"
        target = tmp_path / "lib" / f"lib{name}.{suffix}"
        target.parent.mkdir(exist_ok=True)
        command = [cc, "-shared", "-fPIC", "-o", str(target), str(source)]
        subprocess.run(command, check=True)
        return target

    return build


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a piece of Python in a fresh process, with these environment variables changed."""

    def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **variables},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    return run
