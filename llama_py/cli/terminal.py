"""The terminal: lines with editing and history, Ctrl-C, notes on standard error."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from typing_extensions import Self

from llama_py.cli.tabs import completer

__all__ = ["Interrupts", "LineReader", "is_terminal", "note", "sentence"]

_HISTORY_LINES = 1000
#: What begins and ends a message of several lines.
_QUOTES = '"""'


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is open and leads to a terminal."""
    return stream is not None and not stream.closed and stream.isatty()


def note(text: str) -> None:
    """Print a remark about the conversation on standard error."""
    print(f"({text})", file=sys.stderr, flush=True)


def sentence(error: BaseException) -> str:
    """The message of an error, on one line."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


class Interrupts:
    """While it is entered, the first Ctrl-C only sets ``seen``; the second one interrupts as usual.

    Attributes:
        seen: Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.seen = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        if self.seen:
            raise KeyboardInterrupt
        self.seen = True


class LineReader:
    """Reads lines from the keyboard, with editing and history if ``readline`` is available.

    Pasted lines are one message, where readline supports that. A line that ends with a backslash
    continues on the next line, and lines between triple quotes are one message. The history is in
    ``$LLAMA_PY_HISTORY`` (none is kept if that is empty), or in the user's state directory.

    Args:
        commands: names to complete with Tab.
    """

    def __init__(self, commands: Iterable[str] = ()) -> None:
        self._commands = commands
        self.interactive = is_terminal(sys.stdin)
        self._readline: Any = None

    def __enter__(self) -> Self:
        if self.interactive:
            try:
                import readline
            except ImportError:  # Windows
                return self
            self._readline = readline
            self._bind(readline)
            path = _history_path()
            if path is not None and path.is_file():
                try:
                    readline.read_history_file(path)
                except OSError as error:
                    note(f"the history cannot be read: {error}")
        return self

    def _bind(self, readline: Any) -> None:
        """Pasted lines stay together, which Python turns off, and Tab completes."""
        if "libedit" in (readline.__doc__ or ""):
            readline.parse_and_bind("bind ^I rl_complete")
        else:
            readline.parse_and_bind("set enable-bracketed-paste on")
            readline.parse_and_bind("tab: complete")
        readline.set_completer_delims("")
        readline.set_completer(completer(readline.get_line_buffer, self._commands))

    def __exit__(self, *error: object) -> None:
        path = _history_path()
        if self._readline is None or path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._readline.set_history_length(_HISTORY_LINES)
            self._readline.write_history_file(path)
        except OSError as problem:
            note(f"the history cannot be saved: {problem}")

    def read(self) -> str | None:
        """The next message, stripped; None at the end of the input."""
        lines: list[str] = []
        quoted = False
        while True:
            try:
                line = self._line(". " if lines or quoted else "> ")
            except KeyboardInterrupt:
                print(file=sys.stderr)
                note("/exit or Ctrl-D leaves")
                lines, quoted = [], False
                continue
            if line is None:
                return "\n".join(lines).strip() or None
            if not lines and not quoted and line.lstrip().startswith(_QUOTES):
                quoted, line = True, line.lstrip()[len(_QUOTES) :]
            if quoted:
                text, ended, _ = line.partition(_QUOTES)
                lines.append(text)
                if ended:
                    return "\n".join(lines).strip()
                continue
            if line.endswith("\\"):
                lines.append(line[:-1])
                continue
            return "\n".join([*lines, line]).strip()

    def _line(self, prompt: str) -> str | None:
        if self.interactive and not is_terminal(sys.stdout):
            print(prompt, end="", file=sys.stderr, flush=True)  # it is not part of the output
            prompt = ""
        try:
            return input(prompt if self.interactive else "")
        except EOFError:
            if self.interactive:
                print()
            return None


def _history_path() -> Path | None:
    given = os.environ.get("LLAMA_PY_HISTORY")
    if given is not None:
        return Path(given).expanduser() if given else None
    state = os.environ.get("XDG_STATE_HOME")
    home = Path(state) if state else Path.home() / ".local" / "state"
    return home / "llama_py" / "history"
