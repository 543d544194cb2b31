"""Packages from the package index that use llama_cpp, unmodified, on llama_py.

Each program in ``consumers`` names its packages in its first line (``# requires:``). They are
installed into an environment of their own, with the shim distribution in place of llama-cpp-python,
and do their main job on the bundled model. That takes minutes and the network:
``pytest -m long tests/compat/test_consumers.py``. docs/migrating.md has the table of results.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from llama_py.demo import demo_model_path

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = sorted((Path(__file__).parent / "consumers").glob("*.py"))

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


def requirements(program: Path) -> list[str]:
    """The packages that a program names in its first line."""
    first = program.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("# requires:").split()


def own_requirements() -> list[str]:
    """What llama_py itself needs: it is found by ``PYTHONPATH``, and not installed."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = text.partition("\ndependencies = [")[2].partition("]")[0]
    return re.findall(r'"([^"]+)"', listed)


def install(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "install", "-q", "--prefer-binary", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"pip install {' '.join(arguments)}: {done.stderr[-500:]}")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_it_does_its_main_job(program: Path, tmp_path: Path) -> None:
    home = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    install(python, *own_requirements())
    install(python, "--no-deps", str(ROOT / "shims" / "llama-cpp-python"))
    install(python, *requirements(program))
    done = subprocess.run(
        [str(python), str(program), demo_model_path()],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-4000:]
