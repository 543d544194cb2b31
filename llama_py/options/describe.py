"""Descriptions of options: tables for the docs, texts for ``help()``, and a JSON schema."""

from __future__ import annotations

import json
import re
from collections import abc
from collections.abc import Mapping
from textwrap import fill
from typing import Any, get_origin

from llama_py.options.marks import Default, Ignored, Reads, WithoutDefault
from llama_py.options.table import Option, Table
from llama_py.options.values import TEXTS

__all__ = [
    "json_schema",
    "limits_in_words",
    "markdown_table",
    "options_in_words",
    "plain_default",
]

#: Types in words, by the type itself or by its name.
_WORDS: dict[Any, str] = {
    int: "integer",
    float: "number",
    bool: "boolean",
    str: "text",
    abc.Mapping: "dictionary",
    abc.Sequence: "list",
    abc.Callable: "function",
    "PathLike": "path",
}
#: Types in JSON schemas.
_NAMES = {int: "integer", float: "number", bool: "boolean", str: "string"}


# ---- docs ------------------------------------------------------------------------------------


def plain_default(option: Option, table: Table[Any]) -> str:
    """The default in words, in Markdown; nothing where there is none."""
    other = option.mark(WithoutDefault)
    if other is not None:
        return other.text
    value = option.default(table.function)
    if value is None:
        return ""
    names = {number: name for name, number in option.names.items()}
    return f"`{_literal(names.get(value, value) if names else value)}`"


def _literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def allowed(option: Option) -> str:
    """Type and range in words, in Markdown."""
    if option.choices:
        also = ["`True`", "`False`"] if bool in option.kinds else []
        return ", ".join([*also, *(f'`"{text}"`' for text in option.choices)])
    origins = [get_origin(kind) or kind for kind in option.kinds]
    words = (_WORDS.get(each) or _WORDS.get(getattr(each, "__name__", "")) for each in origins)
    kinds = " or ".join(dict.fromkeys(word for word in words if word))
    return kinds + limits_in_words(option.range.low, option.range.high)


def limits_in_words(low: float | None, high: float | None) -> str:
    """What follows a type in words: ", 0 to 1", for example; nothing where there are no limits."""
    if high is None or high >= 2**31 - 1:  # what fits into C's integers is no news
        return f", at least {low:g}" if low is not None and low > -(2**31) else ""
    return f", {low:g} to {high:g}" if low is not None else f", at most {high:g}"


def markdown_table(table: Table[Any], names: list[str]) -> str:
    """A table with some of the options, one row for each."""
    rows = ["| option | allowed | default | meaning |", "| --- | --- | --- | --- |"]
    for name in names:
        option = table[name]
        default, mark = plain_default(option, table), option.mark(Default)
        if mark is not None and mark.of:
            others = [f"`{_literal(value)}` in `{function}`" for function, value in mark.of.items()]
            default = "; ".join([f"`{_literal(mark.value)}`", *others])
        cells = (f"`{name}`", allowed(option), default, option.doc)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


# ---- help() ----------------------------------------------------------------------------------


def options_in_words(table: Table[Any]) -> str:
    """The options of a call, for its docstring; without those that have no effect."""
    lines = ["Options:"]
    for option in table:
        if option.mark(Ignored):
            continue
        default = _plain(plain_default(option, table))
        facts = [_plain(allowed(option)), f"default: {default}" if default else ""]
        head = f"{option.name} ({'; '.join(filter(None, facts))}): {_plain(option.doc)}"
        lines.append(fill(head, 96, initial_indent=" " * 4, subsequent_indent=" " * 8))
    return "\n".join(lines)


def _plain(markdown: str) -> str:
    """Without the links and the quotes of Markdown."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown).replace("`", "")


# ---- JSON schema -----------------------------------------------------------------------------


def json_schema(table: Table[Any]) -> dict[str, Any]:
    """The JSON schema of the options that JSON can express, as an object; for HTTP.

    Further members are refused, as the call refuses them.
    """
    properties: dict[str, dict[str, Any]] = {}
    for option in table:
        value = _type_of(option)
        if value is None:
            continue
        default = option.default(table.function)
        known = {} if default is None or isinstance(default, tuple) else {"default": default}
        properties[option.name] = {**value, "description": option.doc, **known}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _type_of(option: Option) -> Mapping[str, Any] | None:
    own, first = option.mark(Reads), option.kinds[0]
    if own is not None:
        return {"anyOf": [own.json, {"type": "null"}]} if own.json else None
    if option.mark(Ignored):
        return {}
    if option.choices and first not in _NAMES:
        return {"enum": [*option.choices, None]}
    if first not in _NAMES:
        return {"type": "object"} if get_origin(first) is abc.Mapping else None
    if first is str and len(option.kinds) > 1:
        return TEXTS
    names = [_NAMES[kind] for kind in option.kinds if kind in _NAMES]
    limits = {"minimum": option.range.low, "maximum": option.range.high}
    return {
        "type": [*names, "null"] if option.optional else names[0],
        **{name: limit for name, limit in limits.items() if limit is not None},
    }
