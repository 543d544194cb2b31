"""Where a JSON text breaks off, which tells what the schema of a reply should bound."""

from __future__ import annotations

import re

__all__ = ["broken_off"]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*("|\\?$)|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)
#: Characters of a name that are shown.
_LONGEST = 40


def broken_off(text: str) -> str | None:
    """The place at which a text ends, such as ``$.people[3].name, a string of 200 characters``.

    None if it does not end within brackets or a string.
    """
    place: list[str | int | None] = []  # in each open bracket: its index, or its name
    kind = ""
    for match in _TOKEN.finditer(text):
        token, kind = match[0], ""
        if token in ("{", "["):
            place.append(None if token == "{" else 0)
        elif token in ("}", "]"):
            del place[-1:]
        elif token == "," and place:
            index = place[-1]
            place[-1] = index + 1 if isinstance(index, int) else None
        elif token[0] == '"' and match[1] != '"':
            kind = f", a string of {len(token) - 1} characters"
        elif token[0] == '"' and place and place[-1] is None:
            place[-1] = token[1:-1]
        elif token[0] in "-0123456789" and match.end() == len(text):
            kind = f", a number of {len(token)} characters"
    if not place and not kind.startswith(", a string"):
        return None
    return f"${''.join(map(_step, place))}{kind}"


def _step(step: str | int | None) -> str:
    if step is None:
        return ""
    return f"[{step}]" if isinstance(step, int) else f".{step[:_LONGEST]}"
