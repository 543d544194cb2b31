"""JSON schemas, made by hand in few words, or from declarations."""

from __future__ import annotations

import re
import types
from collections.abc import Collection, Mapping
from typing import Any, Literal, Union, get_args, get_origin, is_typeddict
from typing import get_type_hints as hints_of

from typing_extensions import NotRequired, Required

from llama_py.options import Table
from llama_py.options.describe import json_schema

__all__ = [
    "BOOLEAN",
    "INTEGER",
    "NUMBER",
    "OBJECT",
    "STRING",
    "Schema",
    "any_of",
    "listing",
    "of_options",
    "of_type",
    "one_of_texts",
    "plain",
    "record",
    "reference",
    "said",
]

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
_PLAIN = {str: STRING, int: INTEGER, float: NUMBER, bool: BOOLEAN, type(None): {"type": "null"}}
#: A link to a page of the documentation, which is not served.
_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")
_ASIDE = re.compile(r" \(\[[^]]+\]\([^)]+\)\)")


def reference(name: str) -> Schema:
    """The component of this name."""
    return {"$ref": f"#/components/schemas/{name}"}


def record(properties: Mapping[str, Schema], required: Collection[str] = (), **more: Any) -> Schema:
    """An object with these members, and others that are ignored."""
    needed = {"required": [*required]} if required else {}
    return {"type": "object", "properties": {**properties}, **needed, **more}


def listing(items: Schema, **more: Any) -> Schema:
    """An array."""
    return {"type": "array", "items": items, **more}


def any_of(*schemas: Schema) -> Schema:
    """One of several."""
    return {"anyOf": [*schemas]}


def one_of_texts(*texts: str) -> Schema:
    """One of certain strings."""
    return {"type": "string", "enum": [*texts]}


def said(schema: Schema, text: str, **more: Any) -> Schema:
    """A schema with a description."""
    return {**schema, "description": text, **more}


def plain(markdown: str) -> str:
    """A description without links to pages."""
    return _LINK.sub(r"\1", _ASIDE.sub("", markdown))


def of_options(table: Table[Any], names: Collection[str] | None = None) -> dict[str, Schema]:
    """The options of a call that JSON can express, by name.

    Args:
        names: only these.
    """
    properties = json_schema(table)["properties"]
    return {
        name: {**each, "description": plain(each["description"])}
        for name, each in properties.items()
        if names is None or name in names
    }


# ---- types ---------------------------------------------------------------------------------------


def of_type(hint: Any) -> Schema:
    """The schema of a type: a ``TypedDict``, a ``Literal``, a list, a union, or a plain one."""
    if is_typeddict(hint):
        properties = {name: of_type(each) for name, each in hints_of(hint).items()}
        required = [name for name in properties if name in hint.__required_keys__]
        return record(properties, required)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Required, NotRequired):
        return of_type(arguments[0])
    if origin is Literal:
        return {"enum": [*arguments]}
    if origin in (Union, types.UnionType):
        return any_of(*map(of_type, arguments))
    if origin is list:
        return listing(of_type(arguments[0]))
    if origin is dict:
        return {"type": "object", "additionalProperties": of_type(arguments[1])}
    return _PLAIN.get(hint, {})
