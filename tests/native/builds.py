"""Builds that are configured and not compiled: what a compiler would be given."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, given: str = "") -> str:
    """What a command prints; it has to succeed."""
    arguments = [str(part) for part in command]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, input=given)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def configured(
    folder: Path, compiler: str, sources: tuple[str, ...], *options: str, source: Path = ROOT
) -> tuple[list[str], Any]:
    """How a build compiles the files that end so, and what became of the rules.

    Args:
        source: this tree, or a copy of it.
    """
    cmake, ninja = shutil.which("cmake"), shutil.which("ninja")
    if cmake is None or ninja is None:
        pytest.skip("needs cmake and ninja")
    run(
        *(cmake, "-S", source, "-B", folder, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}"),
        *("-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", "-DGGML_NATIVE=OFF", *options),
    )
    entries = json.loads((folder / "compile_commands.json").read_text(encoding="utf-8"))
    build = json.loads((folder / "build_info.json").read_text(encoding="utf-8"))
    return [each["command"] for each in entries if each["file"].endswith(sources)], build["rules"]


def for_cpu(name: str) -> tuple[str, str]:
    """The options of a build for a kind of CPU, as ``-march`` names it."""
    return f"-DCMAKE_C_FLAGS=-march={name}", f"-DCMAKE_CXX_FLAGS=-march={name}"
