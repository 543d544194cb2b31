"""What can be said in words about options: tables for the docs, and a JSON schema."""

from __future__ import annotations

from collections import abc
from collections.abc import Mapping
from typing import Any, get_origin

from llama_py.options.marks import Default, Ignored, Reads, WithoutDefault
from llama_py.options.table import Option, Table
from llama_py.options.values import TEXTS

__all__ = ["markdown_table", "plain_default", "schema"]

_NAMES = {int: "integer", float: "number", bool: "boolean", str: "string"}


# ---- docs ------------------------------------------------------------------------------------


def plain_default(option: Option, table: Table[Any]) -> str:
    """The default in words, in Markdown; nothing where there is none."""
    other = option.mark(WithoutDefault)
    if other is not None:
        return other.text
    value = option.default(table.function)
    if option.mark(Default) is None or value is None:
        return ""
    names = {number: name for name, number in option.names.items()}
    return f"`{names.get(value, value)!r}`" if value in names else f"`{value!r}`"


def allowed(option: Option) -> str:
    """Type and range in words, in Markdown."""
    low, high = option.range.low, option.range.high
    if (option.choices and not {int, float}.isdisjoint(option.kinds)) or option.choices:
        texts = [f'`"{text}"`' for text in option.choices]
        more = [f"`{kind.__name__}`" for kind in option.kinds if kind in (bool, int)]
        return ", ".join([*more, *texts])
    kind = _NAMES.get(option.kinds[0], "") if len(option.kinds) == 1 else ""
    if low is not None and high is not None:
        return f"{kind}, {_number(low)} to {_number(high)}"
    if low is not None:
        return f"{kind}, at least {_number(low)}"
    return f"{kind}, at most {_number(high)}" if high is not None else kind


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def markdown_table(table: Table[Any], names: list[str]) -> str:
    """A table with some of the options, one row for each."""
    rows = [_row(table[name], table) for name in names]
    return "\n".join(
        ["| option | allowed | default | meaning |", "| --- | --- | --- | --- |", *rows]
    )


def _row(option: Option, table: Table[Any]) -> str:
    cells = (f"`{option.name}`", allowed(option), plain_default(option, table), option.doc)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# ---- JSON schema -----------------------------------------------------------------------------


def schema(table: Table[Any]) -> dict[str, Any]:
    """The JSON schema of the options that JSON can express, as an object; for HTTP.

    Further members are refused, as the call refuses them.
    """
    properties = {
        option.name: each for option in table if (each := _property(option, table)) is not None
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _property(option: Option, table: Table[Any]) -> dict[str, Any] | None:
    value = _type_of(option)
    if value is None:
        return None
    default = option.default(table.function)
    known = {} if default is None or isinstance(default, tuple) else {"default": default}
    return {**value, "description": option.doc, **known}


def _type_of(option: Option) -> Mapping[str, Any] | None:
    own, first = option.mark(Reads), option.kinds[0]
    if own is not None:
        return own.json
    if option.mark(Ignored):
        return {}
    if option.choices and first not in _NAMES:
        return {"enum": [*option.choices, None]}
    if first in _NAMES:
        return TEXTS if first is str and len(option.kinds) > 1 else _plain_type(option)
    return {"type": "object"} if get_origin(first) is abc.Mapping else None


def _plain_type(option: Option) -> dict[str, Any]:
    names = [_NAMES[kind] for kind in option.kinds if kind in _NAMES]
    limits = {"minimum": option.range.low, "maximum": option.range.high}
    return {
        "type": [*names, "null"] if option.optional else names[0],
        **{name: limit for name, limit in limits.items() if limit is not None},
    }
