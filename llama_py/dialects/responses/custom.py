"""``InputText``: the text in the arguments of a custom tool, while the model writes them."""

from __future__ import annotations

import contextlib
import json
import re

from llama_py.dialects.responses.tools import INPUT

__all__ = ["InputText"]

_OPENING = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
#: The longest beginning of a JSON string that consists of whole characters. The escape of a high
#: surrogate is whole only with the low one behind it.
_WHOLE = re.compile(
    r'(?:[^"\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*"
)


class InputText:
    """Reads ``{"input": "..."}`` piece by piece. What models write otherwise is told at the end."""

    def __init__(self) -> None:
        self._arguments: list[str] = []
        self._rest = ""
        self._inside = self._done = False
        self._told: list[str] = []

    def feed(self, piece: str) -> str:
        """Add a piece of the arguments; return the text that is certain now."""
        self._arguments.append(piece)
        if self._done:
            return ""
        self._rest += piece
        if not self._inside:
            opening = _OPENING.match(self._rest)
            if opening is None:
                return ""
            self._inside, self._rest = True, self._rest[opening.end() :]
        whole = _WHOLE.match(self._rest)
        end = whole.end() if whole else 0
        chunk, self._rest = self._rest[:end], self._rest[end:]
        self._done = self._rest.startswith('"')
        with contextlib.suppress(ValueError):  # an escape that JSON has not is meant as it stands
            chunk = _sound(json.loads(f'"{chunk}"', strict=False))
        return self._tell(chunk)

    def finish(self) -> str:
        """The text that ``feed`` has not returned."""
        arguments, told = "".join(self._arguments), self.text
        try:
            value = json.loads(arguments, strict=False)
        except (ValueError, RecursionError):  # it was cut off, or is something else
            return self._tell("" if self._inside else arguments)
        text = value.get(INPUT) if isinstance(value, dict) else None
        text = _sound(text) if isinstance(text, str) else arguments
        return self._tell(text[len(told) :] if text.startswith(told) else "")

    @property
    def text(self) -> str:
        """All that was returned."""
        return "".join(self._told)

    def _tell(self, text: str) -> str:
        if text:
            self._told.append(text)
        return text


def _sound(text: str) -> str:
    """The text without halves of surrogate pairs, which cannot be sent."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
