"""Tab in ``llama-py chat``: names of commands, and files behind those that take one."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["completer", "completions"]

#: Commands that take a file.
_OF_FILES = frozenset({"/audio", "/file", "/image", "/load", "/save"})


def completer(line: Callable[[], str], commands: Iterable[str]) -> Callable[[str, int], str | None]:
    """A completer for readline.

    Args:
        line: gives the line so far.
        commands: with their slashes.
    """
    known = sorted(commands)

    def complete(_word: str, state: int) -> str | None:
        return dict(enumerate(completions(line(), known))).get(state)

    return complete


def completions(line: str, commands: Iterable[str]) -> list[str]:
    """The lines that this one may become."""
    name, space, path = line.partition(" ")
    if not space:
        return [f"{each} " for each in commands if line and each.startswith(line)]
    if name not in _OF_FILES:
        return []
    shown = path.removeprefix("~")
    home = str(Path.home()) if path.startswith("~") else ""
    found = sorted(glob.glob(glob.escape(home + shown) + "*"))  # noqa: PTH207 - of any folder
    return [f"{name} {'~' if home else ''}{each[len(home) :]}{_end(each)}" for each in found]


def _end(path: str) -> str:
    return "/" if Path(path).is_dir() else ""
