"""Writes the pin, the declarations that its headers give, and builds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tools.move_pin.archives import PIN, ROOT, MoveError, Tree

VERSION = ROOT / "llama_py" / "version.py"
#: What a build takes; another command (``--build``) has to install into llama_py/lib, too.
BUILD = "make install"


def apply(tree: Tree, build: str = BUILD) -> list[str]:
    """Move the pin to a tree, and say what was done."""
    if tree.pin is None:
        raise MoveError(
            "a directory cannot be pinned: give the archive that carries it, or set "
            "LLAMA_PY_LLAMA_CPP_DIR and build"
        )
    done = [f"`{PIN.relative_to(ROOT)}`: {rewrite(PIN, pin_lines(tree.pin))}"]
    commit = {"LLAMA_CPP_COMMIT": tree.pin.commit[:9]}
    done.append(f"`{VERSION.relative_to(ROOT)}`: {rewrite(VERSION, commit)}")
    run([sys.executable, "-m", "tools.declarations", "--llama-cpp", str(tree.path)])
    done.append(f"declarations: {changed_files()}")
    run(["sh", "-c", build])
    done.append(f"built by `{build}`")
    return done


def pin_lines(pin: Any) -> dict[str, str]:
    """The fields of the pin that say which llama.cpp it is."""
    archive = pin.archive
    return {
        "commit": pin.commit,
        "package": archive.package,
        "version": archive.version,
        "sha256": archive.sha256,
        "prefix": archive.prefix,
    }


def rewrite(path: Path, values: dict[str, str]) -> str:
    """Set lines ``name = "value"``; every other line stays. Returns what became of it."""
    before = path.read_text(encoding="utf-8")
    after = before
    for name, value in values.items():
        pattern = re.compile(rf'^{name} = "[^"]*"$', re.MULTILINE)
        if len(pattern.findall(after)) != 1:
            raise MoveError(f"{path} has no single line {name} = ...: set it to {value} by hand")
        after = pattern.sub(f'{name} = "{value}"', after)
    if after == before:
        return "as it was"
    path.write_text(after, encoding="utf-8", newline="\n")
    return "written"


def changed_files() -> str:
    """Which declarations differ from those that are committed."""
    command = [
        "git",
        "-C",
        str(ROOT),
        "status",
        "--short",
        "llama_py/_native",
        "native/abi_check.c",
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    names = [line[3:] for line in found.splitlines()]
    return ", ".join(f"`{name}`" for name in names) or "as they were"


def run(command: list[str]) -> None:
    """Run it in the checkout; what it prints is for the person who waits."""
    done = subprocess.run(command, cwd=ROOT, check=False, stdout=sys.stderr)
    if done.returncode != 0:
        raise MoveError(f"'{' '.join(command)}' failed (see above); what was written stays")
