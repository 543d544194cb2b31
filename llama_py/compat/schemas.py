"""JSON schemas as llama-cpp-python reads them: closed objects, and keywords without effect.

Its converter allows the listed properties of an object, and no others unless the schema says
``additionalProperties``; JSON Schema allows them by default. Of each node it looks at a few
keywords, and passes over the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from llama_py.chat.grammars.converter import FORMATS, RESTRICTING, gbnf_of_schema
from llama_py.chat.schemas.bounds import role_of
from llama_py.chat.schemas.ranges import BOUNDS
from llama_py.errors import GrammarError

__all__ = ["closed", "convertible"]

#: Where one of these is, other properties may come, or other parts name them.
_OPEN = frozenset(("additionalProperties", "patternProperties", "allOf", "$ref"))
_MEMBERS = frozenset(("properties", "required", "additionalProperties"))
_Change = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def closed(schema: Any) -> Any:
    """A schema whose objects have no properties but those listed, where it does not say.

    An ``allOf`` of objects becomes one object that has all their properties, as there. The parts of
    another ``allOf`` stay open: each may list only some of the properties.
    """
    return _walked(schema, lambda node: _closed(_merged(node, schema)))


def convertible(schema: Any) -> tuple[Any, str]:
    """A closed schema that llama.cpp's grammars express, and its grammar.

    Where that needs it, the keywords that llama-cpp-python passes over are left out, and one
    warning names them.

    Raises:
        GrammarError: llama-cpp-python would not take it either.
    """
    whole = closed(schema)
    try:
        return whole, gbnf_of_schema(whole)
    except GrammarError:
        dropped: set[str] = set()
        lean = closed(_walked(schema, lambda node: _kept(node, dropped)))
        if not dropped:
            raise
        text = gbnf_of_schema(lean)
    warnings.warn(
        f"the grammar of the JSON schema does not enforce {', '.join(sorted(dropped))}, as with "
        "llama-cpp-python; response_format enforces more with llama-py[structured]",
        stacklevel=3,
    )
    return lean, text


def _walked(value: Any, change: _Change, role: str = "schema") -> Any:
    """A schema whose nodes were changed, the outer ones first."""
    if role in ("data", "note"):
        return value
    if isinstance(value, list):
        return [_walked(each, change) for each in value]
    if not isinstance(value, Mapping):
        return value
    node = change(value) if role == "schema" else value
    whole = ("allOf",) if role == "schema" else ()
    return {
        key: each if key in whole else _walked(each, change, role_of(key, role))
        for key, each in node.items()
    }


def _closed(node: Mapping[str, Any]) -> Mapping[str, Any]:
    if "properties" in node and not _OPEN & node.keys():
        return {**node, "additionalProperties": False}
    return node


def _merged(node: Mapping[str, Any], root: Any) -> Mapping[str, Any]:
    """A node with an ``allOf`` of objects as one object, whose properties are all required but for
    those of alternatives within the ``allOf``."""
    parts = node.get("allOf")
    if not isinstance(parts, list) or _MEMBERS & node.keys():
        return node
    if node.get("type") not in (None, "object"):
        return node
    properties: dict[str, Any] = {}
    required: list[str] = []
    for part in parts:
        choices = part.get("anyOf") if isinstance(part, Mapping) else None
        for each in [part] if choices is None else choices:
            found = _target(each, root)
            if not isinstance(found, Mapping) or "properties" not in found:
                return node
            properties |= found["properties"]
            required += found["properties"] if choices is None else ()
    others = {key: value for key, value in node.items() if key != "allOf"}
    wanted = list(dict.fromkeys(required))
    return {**others, "type": "object", "properties": properties, "required": wanted}


def _target(node: Any, root: Any) -> Any:
    """What a node refers to within the document; the node itself if it does not."""
    reference = node.get("$ref") if isinstance(node, Mapping) else None
    if not isinstance(reference, str):
        return node
    for part in reference.split("/")[1:]:
        root = root.get(part) if isinstance(root, Mapping) else None
    return root


def _kept(node: Mapping[str, Any], dropped: set[str]) -> Mapping[str, Any]:
    """A node with the keywords at which llama-cpp-python's converter looks."""
    for either in ("oneOf", "anyOf"):
        if node.get(either) and "$ref" not in node:
            rest = _only(node, ("anyOf",), dropped)  # of oneOf, several may fit there
            return {**_without(rest, either), "anyOf": node[either]}
    if isinstance(node.get("type"), list) and "$ref" not in node:
        ways = [_kept({**node, "type": kind}, dropped) for kind in node["type"]]
        return {"anyOf": [_without(way, "$defs", "definitions") for way in ways]} | {
            shelf: node[shelf] for shelf in ("$defs", "definitions") if shelf in node
        }
    kept = _looked_at(node)
    if kept is None:
        return node
    found = _only(node, kept, dropped)
    listed = found.get("required")
    if isinstance(listed, list) and "required" in kept:
        found["required"] = [name for name in listed if name in found.get("properties", {})]
        dropped.update({"required"} if len(found["required"]) < len(listed) else ())
    return found


def _looked_at(node: Mapping[str, Any]) -> Iterable[str] | None:
    """The keywords of a node that count there; None if it is refused there."""
    kind = node.get("type")
    for alone in ("$ref", "const", "enum"):
        if alone in node:
            return (alone,)
    if kind in (None, "object"):
        if "properties" in node or node.get("additionalProperties", True) is not True:
            return ("type", *_MEMBERS)
        if "allOf" in node:
            return ("type", "allOf")
    for items in ("items", "prefixItems"):
        if kind in (None, "array") and node.get(items):
            return ("type", items, "minItems", "maxItems")
    if kind in (None, "string"):
        if "pattern" in node:
            return ("type", "pattern")
        if node.get("format") in FORMATS:
            return ("type", "format")
    of_type = {"string": ("minLength", "maxLength"), "integer": BOUNDS}
    return None if kind is None else ("type", *of_type.get(str(kind), ()))


def _only(node: Mapping[str, Any], kept: Iterable[str], dropped: set[str]) -> dict[str, Any]:
    out = {key: value for key, value in node.items() if key not in RESTRICTING or key in kept}
    dropped.update(node.keys() - out.keys())
    return out


def _without(node: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key not in keys}
