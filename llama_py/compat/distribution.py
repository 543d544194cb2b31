"""What ``importlib.metadata`` is told about llama-cpp-python."""

from __future__ import annotations

from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

__all__ = ["Unpacked"]


class Unpacked(Distribution):
    """A distribution that consists of its name and version."""

    def __init__(self, name: str, version: str) -> None:
        self._text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        """The metadata; there are no other files."""
        return self._text if filename in ("METADATA", "PKG-INFO") else None

    def locate_file(self, path: Any) -> Any:
        """A path beside this module; there are no files."""
        return Path(__file__).parent / path
