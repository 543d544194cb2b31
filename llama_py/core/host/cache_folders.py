"""Where files of this user are kept that can be made again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["cache_directory"]


def cache_directory() -> Path:
    """``$LLAMA_PY_CACHE_DIR``, or ``llama_py`` in the user's cache directory."""
    named = os.environ.get("LLAMA_PY_CACHE_DIR")
    if named:
        return Path(named).expanduser()
    if sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "llama_py"
