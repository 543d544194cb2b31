"""Regular expressions of JSON schemas, rewritten with the syntax that llama.cpp's converter
supports.

The converter copies a pattern into the grammar of a quoted JSON string. There a dot or a negated
class would accept the closing quote, backslashes and control characters, so that the text would not
be JSON. The converter does not support shorthands (``\\d``), and it treats an unsupported pattern
as "any string", so such patterns have to be found before.
"""

from __future__ import annotations

import re

__all__ = ["pattern_problem", "plain_pattern"]

#: What may not stand in a JSON string as it is.
_NEVER = r"\"\\\x00-\x1F"
_SHORTHAND = {"d": "0-9", "w": "0-9A-Za-z_", "s": " "}
_TOKEN = re.compile(r"\\.|\[\^?(?:\\.|[^\]\\])*\]|[*+?}]\?|\(\?:?|.", re.DOTALL)
#: Escapes that the converter takes as a plain character.
_PLAIN_ESCAPES = frozenset("^$.[](){}|*+?")


def plain_pattern(pattern: str) -> str:
    """The pattern without dots and shorthands, and with classes that stay inside a string."""
    return "".join(_plain(token) for token in _TOKEN.findall(pattern))


def _plain(token: str) -> str:
    if token == ".":
        return f"[^{_NEVER}]"
    if len(token) == 2 and token[0] == "\\":
        return _escape(token[1])
    if len(token) > 1 and token[0] == "[":
        return _class(token)
    return token


def _escape(letter: str) -> str:
    if letter in _SHORTHAND:
        return f"[{_SHORTHAND[letter]}]"
    if letter in "DWS":
        return f"[^{_SHORTHAND[letter.lower()]}{_NEVER}]"
    if letter.isalnum() or letter in _PLAIN_ESCAPES or letter in '\\"':
        return "\\" + letter
    return letter


def _class(token: str) -> str:
    def inner(match: re.Match[str]) -> str:
        letter = match.group(1)
        if letter in _SHORTHAND:
            return _SHORTHAND[letter]
        return match.group() if letter.isalnum() or letter == "\\" else f"\\x{ord(letter):02X}"

    body = re.sub(r"\\([\x20-\x7E])", inner, token[1:-1])
    return f"[{body}{_NEVER}]" if body.startswith("^") else f"[{body}]"


def pattern_problem(pattern: str) -> str | None:
    """The part of a plain pattern that the converter does not support, or that would allow text
    that is not JSON; None if there is none.
    """
    if not (pattern.startswith("^") and pattern.endswith("$")):
        return "a pattern that is not anchored with ^ and $"
    for token in _TOKEN.findall(pattern[1:-1]):
        problem = _token_problem(token)
        if problem:
            return f"{problem} in a pattern"
    return None


def _token_problem(token: str) -> str | None:
    if token in ("^", "$"):
        return "an anchor"
    if token == "(?":
        return "a group of a special kind"
    if len(token) == 2 and token[1] == "?" and token[0] in "*+?}":
        return "a lazy quantifier"
    if token[0] == "\\" and token[1] not in _PLAIN_ESCAPES:
        return f"the escape {token}"
    if token[0] == "[":
        # The converter says so on standard error, and takes the pattern for any string.
        for escape in re.findall(r"\\.", token, re.DOTALL):
            if escape[1].isalpha() and escape[1] not in "xuUtrn":
                return f"the escape {escape} in a class"
    if token == '"' or (token[0] == "[" and _escapes_from_string(token)):
        return "a character that JSON strings have to escape"
    return None


def _escapes_from_string(token: str) -> bool:
    if token.startswith("[^"):
        return _NEVER not in token
    return bool(re.search(r'"|\\[^x]|\\x(?:[01]|22|5[Cc])', token))
