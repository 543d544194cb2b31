"""Ends of replies that llama-server finds in their lines: too long a time, too little indentation.

Editors ask for both when they fill in code: a suggestion has to come soon, and ends where the block
does that it stands in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["Indentation", "LineLimit"]


class Indentation:
    """Follows a text, and finds the first line that is indented less than it has to be.

    The first line does not count: it goes on where the prompt ends.

    Args:
        least: spaces and tabs that every other line begins with.
    """

    def __init__(self, least: int) -> None:
        self._least = least
        self._column: int | None = None  # None: not at the beginning of a line
        self._ended = False

    def kept(self, text: str) -> str:
        """The beginning of the next piece of the text that still belongs to the block."""
        if self._ended:
            return ""
        for place, character in enumerate(text):
            if self._column is not None and character not in " \t":
                self._ended = self._column < self._least
                if self._ended:
                    return text[:place]
                self._column = None
            if character == "\n":
                self._column = 0
            elif self._column is not None:
                self._column += 1
        return text

    @property
    def ended(self) -> bool:
        """Whether there was such a line."""
        return self._ended


class LineLimit:
    """Ends a reply: at a new line when its time is over, or at a line with too little indentation.

    Args:
        piece: the bytes of a token in plain text.
        seconds: for generating, from the first token on; 0 means no limit.
        indentation: what lines have to begin with; 0 is nothing.

    Attributes:
        met: it did.
    """

    def __init__(self, piece: Callable[[int], bytes], seconds: float, indentation: int) -> None:
        self._piece = piece
        self._seconds = seconds
        self._indentation = Indentation(indentation)
        self._began: float | None = None
        self.met = False

    def __call__(self, tokens: Any, _logits: object) -> bool:
        now = time.perf_counter()
        if self._began is None:
            self._began = now
        text = self._piece(int(tokens[-1])).decode("latin-1")  # only ASCII has a meaning here
        self._indentation.kept(text)
        late = 0 < self._seconds <= now - self._began and "\n" in text
        self.met = self.met or late or self._indentation.ended
        return self.met
