"""Integers within bounds in llama.cpp's grammars, with the digits that llguidance allows.

llama.cpp's converter writes such integers with 16 digits at most, some with a zero in front, and
takes large bounds for none. So it gets a text in the place of each, for which our own rule is put
in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llama_py.chat.schemas.bounds import role_of
from llama_py.chat.schemas.ranges import BOUNDS, number_ranges
from llama_py.core.chat import schema_to_gbnf

__all__ = ["digits_in_gbnf", "rules_of_schema"]

#: Where one of these is, the converter looks at no bounds.
_BEFORE = frozenset(("$ref", "anyOf", "oneOf", "const", "enum"))
_PARTS = re.compile(r"\[[^\]]*\]|\{[^}]*\}|\\(.)|([0-9]+)")


def rules_of_schema(schema: Any) -> str:
    """llama.cpp's rules of a schema that it supports."""
    marks: dict[str, str] = {}
    grammar = schema_to_gbnf(_marked(schema, marks, "schema"))
    for mark, rule in marks.items():
        grammar = grammar.replace(f'"\\"{mark}\\""', rule)
    return grammar


def _marked(value: Any, marks: dict[str, str], role: str) -> Any:
    if role in ("data", "note"):
        return value
    if isinstance(value, list):
        return [_marked(each, marks, role) for each in value]
    if not isinstance(value, Mapping):
        return value
    if role == "schema" and BOUNDS & value.keys() and not _BEFORE & value.keys():
        kind = value.get("type")
        if isinstance(kind, list):
            return {"anyOf": [_marked({**value, "type": each}, marks, role) for each in kind]}
        if kind == "integer" and (rule := _rule(value)) is not None:
            mark = f"an integer, number {len(marks)}"
            marks[mark] = rule
            return {"const": mark}
    return {key: _marked(each, marks, role_of(key, role)) for key, each in value.items()}


def _rule(node: Mapping[str, Any]) -> str | None:
    """An integer within the bounds of a node; None if there is none, or with too many digits."""
    try:
        ranges = number_ranges(node, False)
    except (ValueError, ArithmeticError):
        return None
    ways = [f'"-" {way}' if part.negative else way for part in ranges for way in _ways(part.all_of)]
    return f"({' | '.join(ways)})"


def _ways(regexes: tuple[str, ...]) -> list[str]:
    return [digits_in_gbnf(regex) for regex in regexes]


def digits_in_gbnf(regex: str) -> str:
    """An expression of digits, as ``json_forms`` and ``ranges`` write it, in GBNF."""

    def part(match: re.Match[str]) -> str:
        if match[1] or match[2]:
            return f'"{match[1] or match[2]}" '
        return match[0].replace("\\-", "-") + " "

    text = _PARTS.sub(part, regex)
    return re.sub(r" +([{?)|])", r"\1", text).replace("|", " | ").strip()
