"""How models spell JSON: white space, escapes and numbers, for both grammar engines.

A constraint must not change a reply that fits anyway, so it allows what people and JSON libraries
write. After an opening bracket or a comma there may be nothing, a space, or a line break with the
indentation of its depth. The same goes for the place before a closing bracket, but with a line
break only if there was one after the opening bracket. Strings may contain the escapes of any
library, and numbers may have exponents. Everything is limited in length, so that a model cannot
write white space or digits for ever: a number has no more digits than tell 64-bit integers, or
doubles, apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = [
    "CHARACTER",
    "DECIMAL",
    "INTEGER",
    "LEAD",
    "NATURAL",
    "NUMBER",
    "POSITIVE",
    "SIGNIFICANT",
    "SPACES",
    "TABS",
    "TRAIL",
    "WHOLE",
    "any_spelling",
    "is_escaped_by_some",
    "levels_of",
    "line_regex",
    "number_units",
    "space_bounds",
    "space_regex",
    "usual_spelling",
]

#: Levels of brackets up to which indentation grows in llama.cpp's grammars.
_LEVELS = 60
#: The most spaces and tabs that indent by one level.
SPACES, TABS = 8, 2
#: The most digits of an integer, unless bounds ask for more, and of other numbers: what a 64-bit
#: integer and a double tell apart.
WHOLE, SIGNIFICANT = 19, 17
#: The most zeros behind the point before the first of these digits.
_ZEROS = 7

_HEX = "[0-9a-fA-F]"
#: One character of a JSON string. A surrogate pair is one; half a pair is none.
CHARACTER = (
    r"[^\"\\\x00-\x1F]|\\[\"\\/bfnrt]"
    rf"|\\u([0-9a-cA-Ce-fE-F]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}}"
    rf"|[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}})"
)
#: An integer without its sign.
NATURAL = rf"(0|[1-9][0-9]{{0,{WHOLE - 1}}})"
INTEGER = f"-?{NATURAL}"


def _behind(digits: int) -> str:
    """The continuation of this many digits before the point: a fraction, or more digits."""
    room = SIGNIFICANT - digits
    more = f"[0-9]{_behind(digits + 1)}" if room > 1 else f"[0-9]{{1,{WHOLE - digits}}}"
    return rf"(\.[0-9]{{1,{room}}}|{more})?"


#: A number without sign and exponent.
DECIMAL = rf"(0(\.0{{0,{_ZEROS}}}[0-9]{{1,{SIGNIFICANT}}})?|[1-9]{_behind(1)})"
#: A number without its sign.
POSITIVE = rf"{DECIMAL}([eE][+\-]?[0-9]{{1,3}})?"
NUMBER = f"-?{POSITIVE}"
#: White space before and after a whole reply.
LEAD = r"[ \n\t\r]{1,4}"
TRAIL = r"[ \n\t\r]{1,2}"

_SHORT = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
#: ASCII that some library escapes for the sake of HTML.
_WARY = frozenset("<>&'\x7f")


def space_bounds(depth: int) -> tuple[int, int]:
    """The most spaces and the most tabs that indent a line inside of ``depth`` brackets."""
    level = min(max(depth, 1), _LEVELS)
    return SPACES * level, TABS * level


def line_regex() -> str:
    """A line break and any indentation, as a regular expression.

    How deep it may be depends on the brackets around it, which ``chat.grammars.layout`` counts.
    """
    return r" ?\r?\n( *|\t*)"


def space_regex() -> str:
    """White space at a joint, as a regular expression."""
    return f"({line_regex()}| ?)"


def levels_of(schema: Any) -> int:
    """The depth of nested brackets in texts that fit a schema. Where the schema does not limit it
    (references, values of any type), the deepest level that counts."""
    if isinstance(schema, list):
        return max(map(levels_of, schema), default=0)
    if not isinstance(schema, Mapping):
        return _LEVELS if schema is True else 0
    if "enum" in schema or "const" in schema:
        return 0
    kinds = schema.get("type") or ()
    either = [schema[key] for key in ("anyOf", "oneOf", "allOf") if key in schema]
    inner = [
        schema[key] for key in ("items", "prefixItems", "additionalProperties") if key in schema
    ]
    inner += list((schema.get("properties") or {}).values())
    bracketed = "object" in kinds or "array" in kinds
    if "$ref" in schema or not (inner or either or (kinds and not bracketed)):
        return _LEVELS
    return min(_LEVELS, max(levels_of(either), 1 + levels_of(inner) if inner else 0))


def usual_spelling(text: str) -> str:
    """A regular expression of the ways in which JSON libraries write a string (without quotes)."""
    return "".join(_character(letter, is_escaped_by_some(letter)) for letter in text)


def is_escaped_by_some(letter: str) -> bool:
    """Whether some JSON library escapes a character by its number although it need not."""
    return letter in _WARY or letter > "~"


def any_spelling(text: str) -> str:
    """A regular expression of all the ways to write a string in JSON (without quotes)."""
    return "".join(_character(letter, True) for letter in text)


def _character(letter: str, by_number: bool) -> str:
    ways = [] if letter in '"\\' or letter < " " else [re.escape(letter)]
    if letter in _SHORT:
        ways.append(r"\\" + re.escape(_SHORT[letter]))
    if by_number or letter < " ":
        number: list[str] = []
        for digits in number_units(letter):
            number += [r"\\u", *(d if d.isdigit() else f"[{d}{d.upper()}]" for d in digits)]
        ways.append("".join(number))
    return ways[0] if len(ways) == 1 else f"({'|'.join(ways)})"


def number_units(letter: str) -> list[str]:
    """The UTF-16 code units of a character, four hexadecimal digits each."""
    data = letter.encode("utf-16-be", "surrogatepass")
    return [data[i : i + 2].hex() for i in range(0, len(data), 2)]
