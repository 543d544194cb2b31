"""Regular expressions of JSON schemas, in the syntax that llama.cpp's converter supports.

The converter copies a pattern into the grammar of a quoted JSON string. There a dot or a negated
class would accept the closing quote, backslashes and control characters, so that the text would not
be JSON. The converter does not support shorthands (``\\d``), and it treats an unsupported pattern
as "any string", so such patterns have to be found before.
"""

from __future__ import annotations

import re

from llama_py.core.grammar.gbnf_reader import MOST_REPEATED

__all__ = ["fitting_pattern", "pattern_problem", "plain_pattern"]

#: What may not stand in a JSON string as it is.
_NEVER = r"\"\\\x00-\x1F"
_SHORTHAND = {"d": "0-9", "w": "0-9A-Za-z_", "s": " "}
_TOKEN = re.compile(r"\\.|\[\^?(?:\\.|[^\]\\])*\]|[*+?}]\?|\(\?:?|.", re.DOTALL)
#: A range within a class.
_END = r"(\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}|\\.|[^\\])"
_RANGE = re.compile(f"{_END}-{_END}", re.DOTALL)
_BY_NUMBER = re.compile(r"\\u([0-9A-Fa-f]{4})")
#: The codes of what may not stand in a JSON string as it is.
_ESCAPED = (*range(0x20), ord('"'), ord("\\"))
#: How often something is repeated.
_COUNTS = re.compile(r"\{[0-9]+(,[0-9]*)?\}")
#: Escapes that the converter takes as a plain character.
_PLAIN_ESCAPES = frozenset("^$.[](){}|*+?")


def plain_pattern(pattern: str) -> str:
    """The pattern without dots and shorthands, and with classes that stay inside a string."""
    return "".join(_plain(token) for token in _TOKEN.findall(pattern))


def _plain(token: str) -> str:
    if token == ".":
        return f"[^{_NEVER}]"
    if len(token) > 1 and token[0] == "[":
        return _class(token)
    if len(token) != 2 or token[0] != "\\":
        return token
    letter = token[1]
    if letter in _SHORTHAND:
        return f"[{_SHORTHAND[letter]}]"
    if letter in "DWS":
        return f"[^{_SHORTHAND[letter.lower()]}{_NEVER}]"
    needs_escape = letter.isalnum() or letter in _PLAIN_ESCAPES or letter in '\\"'
    return token if needs_escape else letter


def _class(token: str) -> str:
    def inner(match: re.Match[str]) -> str:
        letter = match.group(1)
        if letter in _SHORTHAND:
            return _SHORTHAND[letter]
        return match.group() if letter.isalnum() or letter == "\\" else f"\\x{ord(letter):02X}"

    body = re.sub(r"\\([\x20-\x7E])", inner, token[1:-1])
    if body.startswith("^"):
        return f"[{body}{_NEVER}]"
    body = _BY_NUMBER.sub(lambda match: _written(int(match[1], 16)), body)
    return f"[{_RANGE.sub(_within, body)}]"


def _within(match: re.Match[str]) -> str:
    """A range of characters without those that a JSON string has to escape."""
    first, last = (
        ord(end) if len(end) == 1 else int(end[2:], 16) if len(end) > 2 else None
        for end in match.groups()
    )
    if first is None or last is None or not any(first <= code <= last for code in _ESCAPED):
        return match.group()
    out, start = [], first
    for code in (*_ESCAPED, last + 1):
        if start <= code <= last + 1:
            if start < code:
                out.append(f"{_written(start)}-{_written(code - 1)}")
            start = code + 1
    return "".join(out)


def _written(code: int) -> str:
    return f"\\x{code:02X}" if code < 0x100 else f"\\U{code:08X}"


def fitting_pattern(pattern: str) -> str | None:
    """A pattern as the converter takes it; None if it does not, or if text that fits it could end
    the JSON string that it stands in."""
    plain = plain_pattern(pattern)
    try:
        re.compile(plain)
    except (re.error, OverflowError, RecursionError):
        return None
    counts = [int(count) for count in re.findall(r"\{([0-9]+)", plain)]
    too_many = max(counts, default=0) > MOST_REPEATED
    return None if too_many or pattern_problem(plain) else plain


def pattern_problem(pattern: str) -> str | None:
    """The part of a plain pattern that the converter does not support, or that would allow text
    that is not JSON; None if there is none.
    """
    if not (pattern.startswith("^") and pattern.endswith("$")):
        return "a pattern that is not anchored with ^ and $"
    tokens = _TOKEN.findall(pattern[1:-1])
    for token in tokens:
        problem = _token_problem(token)
        if problem:
            return f"{problem} in a pattern"
    marks = "".join(token for token in tokens if token[0] not in "[\\")
    if re.search(r"[{}\]]", _COUNTS.sub("", marks)):
        return "a bracket without its other half in a pattern"
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
    unsafe = token == '"' or token < " "
    if token[0] == "[":
        # The converter says so on standard error, and takes the pattern for any string.
        for escape in re.findall(r"\\.", token, re.DOTALL):
            if escape[1].isalpha() and escape[1] not in "xuUtrn":
                return f"the escape {escape} in a class"
        if token.startswith("[^"):
            unsafe = _NEVER not in token
        else:
            found = re.search(r'["\x00-\x1F]|\\[^xuU]|\\x(?:[01]|22|5[Cc])', token)
            unsafe = token == "[]" or found is not None
    return "a character that JSON strings have to escape" if unsafe else None
