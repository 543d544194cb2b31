"""What a release was made from and by: an in-toto statement in the form of SLSA, not signed.

The part for people is ``resolvedDependencies``: this repository's commit; the archive that
llama.cpp was taken from; and the files of it that a build reads, with one digest over all of them.
``vendor/resolve.py`` compares the archive with the digest in ``vendor/llama.cpp.toml`` before it
unpacks it.
"""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools.release import sources

__all__ = ["statement"]

ROOT = Path(__file__).resolve().parents[2]


def statement(files: Iterable[Path], tree: Path) -> dict[str, Any]:
    """The statement about these files.

    Args:
        tree: llama.cpp's source.
    """
    files = sorted(files)
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": path.name, "digest": {"sha256": sources.digest(path)}} for path in files
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:llama-py:release:1",
                "externalParameters": {"command": "make release"},
                "internalParameters": {path.name: _build(path) for path in files if _build(path)},
                "resolvedDependencies": [_repository(), _archive(), _tree(tree)],
            },
            "runDetails": {"builder": {"id": "urn:llama-py:builder:by-hand"}},
        },
    }


def _repository() -> dict[str, Any]:
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: dict[str, Any] = {"name": "llama-py"}
    if done.returncode == 0:
        found["digest"] = {"gitCommit": done.stdout.strip()}
    return found


def _archive() -> dict[str, Any]:
    pin = sources.pin()
    archive = pin["archive"]
    return {
        "name": f"llama.cpp {pin['commit']}, in the source distribution of {archive['package']}",
        "uri": f"pkg:pypi/{archive['package']}@{archive['version']}",
        "digest": {"sha256": archive["sha256"]},
        "annotations": {"below": archive["prefix"], "upstream": pin["repository"]},
    }


def _tree(tree: Path) -> dict[str, Any]:
    found, count = sources.tree_digest(tree, sources.pin()["unpack"]["build"])
    return {
        "name": f"the {count:,} files of it that a build reads",
        "digest": {"sha256": found},
        "annotations": {
            "digest": "SHA-256 of the lines that sha256sum writes, sorted by the names of the files"
        },
    }


def _build(path: Path) -> dict[str, Any]:
    """How the libraries in a wheel were compiled; empty for other files."""
    if path.suffix != ".whl":
        return {}
    with zipfile.ZipFile(path) as wheel:
        names = [name for name in wheel.namelist() if name.endswith("/lib/build_info.json")]
        info = json.loads(wheel.read(names[0])) if names else {}
    wanted = ("compiler", "compiler_flags", "cmake", "system", "options", "llama_cpp_origin")
    return {key: info[key] for key in wanted if key in info}
