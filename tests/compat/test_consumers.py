"""Packages from the package index that use llama_cpp, unmodified, on llama_py.

Each program in ``consumers`` names its packages in its first line (``# requires:``). They are
installed into an environment of their own, with the shim distribution in place of
llama-cpp-python, and do their main job on the bundled model. That takes minutes and the network;
``-rP`` shows versions and what came out: ``pytest -m long -rP tests/compat/test_consumers.py``.
docs/migrating.md has the table of results.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from llama_py.demo import demo_model_path
from llama_py.version import __version__

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = sorted((Path(__file__).parent / "consumers").glob("*.py"))

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


def requirements(program: Path) -> list[str]:
    """The packages that a program names in its first line."""
    first = program.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("# requires:").split()


def versions(python: Path, requirements: list[str]) -> str:
    """Which versions of the required packages are there, as ``name version, ...``."""
    names = [re.split(r"[^\w.-]", each)[0] for each in requirements]
    code = "import sys, importlib.metadata as m; print(*(m.version(n) for n in sys.argv[1:]))"
    found = subprocess.check_output([str(python), "-c", code, *names], text=True).split()
    return ", ".join(f"{name} {version}" for name, version in zip(names, found, strict=True))


def add_llama_py(python: Path) -> None:
    """Make the llama_py of this repository the one of an environment, without building it again.

    With its metadata, or else pip looks for a llama-cpp-python that requires no llama-py.
    """
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.check_output([str(python), "-c", code], text=True).strip())
    (site / "llama_py.pth").write_text(f"{ROOT}\n", encoding="utf-8")
    directory = site / f"llama_py-{__version__}.dist-info"
    directory.mkdir()
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = text.partition("\ndependencies = [")[2].partition("]")[0]
    needed = "".join(f"Requires-Dist: {each}\n" for each in re.findall(r'"([^"]+)"', listed))
    (directory / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: llama-py\nVersion: {__version__}\n{needed}", encoding="utf-8"
    )


def install(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "install", "-q", "--prefer-binary", "--no-compile"]
    command += ["--only-binary", "llama-cpp-python"]  # or else it compiles one
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"pip install {' '.join(arguments)}: {done.stderr[-500:]}")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_it_does_its_main_job(program: Path, tmp_path: Path) -> None:
    home = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    add_llama_py(python)
    install(python, str(ROOT / "shims" / "llama-cpp-python"), *requirements(program))
    done = subprocess.run(
        [str(python), str(program), demo_model_path()],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        cwd=tmp_path,
        env={name: each for name, each in os.environ.items() if name != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    print(f"{versions(python, requirements(program))}: {done.stdout.strip()}")
