"""Builds the wheel of one backend: ``python -m tools.plugin_wheel vulkan``.

All of them are made from one template (``plugins/template``) and a table
(``plugins/backends.toml``). The project that pip builds is written into ``build/plugins/NAME``;
options of the build come from ``CMAKE_ARGS``, as for the package.
"""

from __future__ import annotations

import argparse
import json
import shutil
import string
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llama_py.version import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["backends", "write_project"]

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = ROOT / "plugins" / "template"


def backends() -> dict[str, dict[str, Any]]:
    """The table, by the name of the backend."""
    return read_toml((ROOT / "plugins" / "backends.toml").read_text(encoding="utf-8"))


def read_toml(text: str) -> dict[str, Any]:
    """What is in a file of that format."""
    return dict(tomllib.loads(text))


def write_project(name: str, folder: Path) -> Path:
    """Write the project of a backend's wheel; returns its folder, which is replaced."""
    recipe = backends()[name]
    package = f"llama_py_{name}"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / package).mkdir(parents=True)
    values = _values(recipe, package)
    for source, target in (("pyproject.toml", "."), ("__init__.py", package)):
        text = string.Template((TEMPLATE / f"{source}.in").read_text(encoding="utf-8"))
        (folder / target / source).write_text(text.substitute(values), encoding="utf-8")
    shutil.copyfile(ROOT / "LICENSE", folder / "LICENSE")
    return folder


def _values(recipe: Mapping[str, Any], package: str) -> dict[str, str]:
    options = [f"{recipe['option']}=ON", f"LLAMA_PY_PLUGIN={recipe['library']}"]
    options += [f"LLAMA_PY_PLUGIN_PACKAGE={package}", *recipe["cmake"]]
    return {
        "distribution": package.replace("_", "-"),
        "package": package,
        "version": __version__,
        "title": recipe["title"],
        # TOML writes arrays of strings as JSON does.
        "dependencies": json.dumps([f"llama-py=={__version__}", *recipe["dependencies"]]),
        "options": json.dumps([f"-D{option}" for option in options]),
        "root": ROOT.as_posix(),
    }


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tools.plugin_wheel")
    parser.add_argument("name", choices=sorted(backends()))
    parser.add_argument("--outdir", type=Path, default=ROOT / "dist", help="default: dist/")
    parser.add_argument("--no-isolation", action="store_true", help="build with what is installed")
    parsed = parser.parse_args()
    folder = ROOT / "build" / "plugins" / parsed.name
    project = write_project(parsed.name, folder / "project")
    command = [sys.executable, "-m", "pip", "wheel", str(project), "--no-deps"]
    command += ["--wheel-dir", str(parsed.outdir)]
    command += [f"--config-settings=build-dir={folder / 'build'}"]
    if parsed.no_isolation:
        command.append("--no-build-isolation")
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
