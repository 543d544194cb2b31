"""``ToolInput``: the arguments of a tool call, in pieces that always make a JSON object."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from typing_extensions import Never

__all__ = ["ToolInput"]

#: What matters outside of strings, and within them.
_OUTSIDE = re.compile(r'["{}\[\],]')
_INSIDE = re.compile(r'["\\]')


class ToolInput:
    """Takes the JSON text of arguments in pieces, and hands it out member by member.

    A call that is cut off in the middle of a member ends before that member. So whoever runs it all
    the same misses an argument, and does not write half a file.
    """

    def __init__(self) -> None:
        self._handed: list[str] = []
        self._rest: list[str] = []
        self._depth = 0
        self._quoted = False
        self._escaped = False
        self._broken = False

    @property
    def value(self) -> dict[str, Any]:
        """All of it, after ``end``."""
        return dict(json.loads("".join(self._handed)))

    def feed(self, text: str) -> str:
        """Add a piece; return the members that are complete now."""
        comma = self._last_comma(text)
        if comma < 0 or self._broken:
            self._rest.append(text)
            return ""
        piece = "".join((*self._rest, text[:comma]))
        self._rest = [text[comma:]]
        if not self._members(piece + "}"):
            self._broken = True
            return ""
        return self._hand_out(piece)

    def end(self) -> str:
        """The rest of the object: with it, everything that was handed out is one."""
        rest = "".join(self._rest)
        members = None if self._broken else self._members(rest)
        if members or (members is not None and not self._handed):
            return self._hand_out(rest)
        return self._hand_out("}" if self._handed else "{}")

    def _hand_out(self, piece: str) -> str:
        self._handed.append(piece)
        return piece

    def _last_comma(self, text: str) -> int:
        """Where in the next piece the last complete member ends, -1 if none does."""
        last, at = -1, int(self._escaped and bool(text))
        self._escaped = self._escaped and not text
        while found := (_INSIDE if self._quoted else _OUTSIDE).search(text, at):
            mark, at = found.group(), found.end()
            if mark == '"':
                self._quoted = not self._quoted
            elif mark == "\\":
                self._escaped = at == len(text)
                at += 1
            elif mark == ",":
                last = found.start() if self._depth == 1 else last
            else:
                self._depth += 1 if mark in "{[" else -1
        return last

    def _members(self, text: str) -> dict[str, Any] | None:
        """The members in the end of an object, None if that is not JSON."""
        if self._handed:  # it begins with a comma
            text = "{" + text[1:]
        try:
            value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


def _refuse(constant: str) -> Never:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} has no double")
    return number
