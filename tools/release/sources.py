"""What a release is made from: the pin, the libraries inside llama.cpp, the bundled model."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.plugin_wheel import read_toml

__all__ = ["INSIDE", "Inside", "digest", "pin", "pinned_tree", "tree_digest"]

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Inside:
    """Source of others in llama.cpp that is compiled into the libraries.

    Attributes:
        file: where its version stands, below llama.cpp.
        version: a pattern whose groups, with dots between them, are the version; empty: it has
            none of its own.
    """

    name: str
    licence: str
    file: str
    version: str = ""


def _numbers(prefix: str, *names: str) -> str:
    return r"[\s\S]*?".join(rf"#define {prefix}_VERSION_{name}\s+(\d+)" for name in names)


INSIDE = (
    Inside(
        "nlohmann-json",
        "MIT",
        "vendor/nlohmann/json.hpp",
        _numbers("NLOHMANN_JSON", "MAJOR", "MINOR", "PATCH"),
    ),
    Inside(
        "miniaudio",
        "Unlicense OR MIT-0",
        "vendor/miniaudio/miniaudio.h",
        _numbers("MA", "MAJOR", "MINOR", "REVISION"),
    ),
    Inside("stb_image", "MIT OR Unlicense", "vendor/stb/stb_image.h", r"stb_image - v([\d.]+)"),
    Inside("subprocess.h", "Unlicense", "vendor/sheredom/subprocess.h"),
    Inside(
        "xxhash",
        "BSD-2-Clause",
        "vendor/hash/xxhash/xxhash.h",
        _numbers("XXH", "MAJOR", "MINOR", "RELEASE"),
    ),
    Inside("llamafile-sgemm", "MIT", "ggml/src/ggml-cpu/llamafile/sgemm.cpp"),
)


def pin() -> dict[str, Any]:
    """What ``vendor/llama.cpp.toml`` says."""
    return read_toml((ROOT / "vendor" / "llama.cpp.toml").read_text(encoding="utf-8"))


def pinned_tree() -> Path:
    """Where llama.cpp's source is, fetched and compared with its digest if it has to be."""
    script = [sys.executable, str(ROOT / "vendor" / "resolve.py"), "--json"]
    answer = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    return Path(json.loads(answer)["path"])


def version_of(inside: Inside, tree: Path) -> str:
    """The version, as its source says it; empty if it says none."""
    path = tree / inside.file
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    found = re.search(inside.version, text) if inside.version else None
    return ".".join(found.groups()) if found else ""


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        found = hashlib.sha256()
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def tree_digest(tree: Path, patterns: list[str]) -> tuple[str, int]:
    """SHA-256 over the names and digests of the files of a tree, and how many they are.

    A line for each file, sorted by name, as ``sha256sum`` writes it.
    """
    files = sorted(
        {
            path
            for pattern in patterns
            for found in tree.glob(pattern)
            for path in (found.rglob("*") if found.is_dir() else (found,))
            if path.is_file()
        },
        key=lambda path: path.relative_to(tree).as_posix(),
    )
    lines = [f"{digest(path)}  {path.relative_to(tree).as_posix()}\n" for path in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest(), len(files)
