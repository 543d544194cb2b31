"""``ReplyText``: the bytes of sampled tokens to text that may be shown.

Two things hold text back: a UTF-8 character that is still incomplete, and text that may turn out to
be the beginning of a stop string. The earliest match in the text wins, whichever order the stop
strings were given in, and also when it lies across token borders.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

__all__ = ["ReplyText", "whole_characters"]

_DECODER = codecs.getincrementaldecoder("utf-8")


def whole_characters(raw: bytes) -> str:
    """The text of a reply's bytes, without the beginning of a character at their end."""
    return _DECODER("replace").decode(raw)


class ReplyText:
    """Text of one reply.

    Attributes:
        stopped_by: the stop string that was found, or None.
    """

    __slots__ = ("_decoder", "_longest", "_pending", "_stops", "stopped_by")

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._decoder = _DECODER("replace")
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._pending = ""
        self.stopped_by: str | None = None

    def feed(self, piece: bytes) -> str:
        """Add the bytes of a token; returns the text that is now certain."""
        text = self._decoder.decode(piece)
        if not self._longest:
            return text
        text = self._pending + text
        # The longest tail that begins a stop string is held back.
        held = min(len(text), self._longest - 1)
        while held:
            tail = text[-held:]
            if any(stop.startswith(tail) for stop in self._stops):
                break
            held -= 1
        cut = self._first_stop(text)
        # A match counts when no other one that begins before it can come any more.
        if cut is not None and cut[0] <= len(text) - held:
            position, self.stopped_by = cut
            self._pending = ""
            return text[:position]
        self._pending = text[len(text) - held :] if held else ""
        return text[: len(text) - held]

    def finish(self) -> str:
        """The text that was held back and will not become a stop string any more.

        The first bytes of a character whose others did not come are not text: they are left out.
        """
        self._decoder.reset()
        if self.stopped_by is not None:
            return ""
        text, self._pending = self._pending, ""
        cut = self._first_stop(text)
        if cut is None:
            return text
        position, self.stopped_by = cut
        return text[:position]

    @property
    def holds_back(self) -> bool:
        """True while some text is withheld."""
        return bool(self._pending) or self._decoder.getstate()[0] != b""

    def _first_stop(self, text: str) -> tuple[int, str] | None:
        """The earliest match; of those that begin together, the longest."""
        found = [(text.find(stop), stop) for stop in self._stops]
        hits = [(position, -len(stop), stop) for position, stop in found if position >= 0]
        if not hits:
            return None
        position, _, stop = min(hits)
        return position, stop
