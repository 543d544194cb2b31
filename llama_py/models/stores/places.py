"""Where other programs keep their models."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from llama_py.regular_files import open_regular

__all__ = ["llama_cpp_folder", "lm_studio_folders", "model_folders", "ollama_folders"]

#: Bytes of a small file of another program.
_LONGEST = 1 << 20


def read_small_json(path: Path) -> dict[str, object]:
    """A JSON object of another program; empty if it is not there, or not one."""
    try:
        with open_regular(path) as file:
            found = json.loads(file.read(_LONGEST) or b"")
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def ollama_folders() -> list[Path]:
    """``OLLAMA_MODELS``, the user's folder, and that of the service."""
    named = os.environ.get("OLLAMA_MODELS")
    if named:
        return [Path(named).expanduser()]
    return _there([Path.home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")])


def lm_studio_folders() -> list[Path]:
    """The folder of LM Studio, where its settings moved it to, and the older one."""
    home = Path.home() / ".lmstudio"
    try:
        pointer = (Path.home() / ".lmstudio-home-pointer").read_text(encoding="utf-8").strip()
        home = Path(pointer) if pointer else home
    except (OSError, ValueError):
        pass
    moved = read_small_json(home / "settings.json").get("downloadsFolder")
    named = [Path(moved)] if isinstance(moved, str) and moved else []
    older = Path.home() / ".cache" / "lm-studio" / "models"
    return _there([*named, home / "models", older])


def llama_cpp_folder() -> Path:
    """The cache of llama.cpp before it used that of the hub."""
    if named := os.environ.get("LLAMA_CACHE"):
        return Path(named).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "llama.cpp"
    if sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "llama.cpp"


def model_folders() -> list[Path]:
    """The folders of ``LLAMA_PY_MODELS_DIR``, or llama-server's ``LLAMA_ARG_MODELS_DIR``."""
    named = os.environ.get("LLAMA_PY_MODELS_DIR") or os.environ.get("LLAMA_ARG_MODELS_DIR") or ""
    return [Path(each).expanduser() for each in named.split(os.pathsep) if each]


def _there(folders: list[Path]) -> list[Path]:
    return [each for each in dict.fromkeys(folders) if each.is_dir()]
