"""``closed``: JSON schemas as llama.cpp's converters, and so its clients' users, read them.

Those allow the listed properties of an object, and no others unless the schema says
``additionalProperties``; JSON Schema allows them by default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llama_py.chat.schemas.bounds import role_of

__all__ = ["MEMBERS", "closed", "walked"]

#: Where one of these is, other properties may come, or other parts name them.
_OPEN = frozenset(("additionalProperties", "patternProperties", "allOf", "$ref"))
#: Keywords about the properties of an object.
MEMBERS = frozenset(("properties", "required", "additionalProperties"))
_Change = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def closed(schema: Any) -> Any:
    """A schema whose objects have no properties but those listed, where it does not say.

    An ``allOf`` of objects becomes one object that has all their properties, as there. The parts of
    another ``allOf`` stay open: each may list only some of the properties.
    """
    return walked(schema, lambda node: _closed(_merged(node, schema)))


def walked(value: Any, change: _Change, role: str = "schema") -> Any:
    """A schema whose nodes were changed, the outer ones first."""
    if role in ("data", "note"):
        return value
    if isinstance(value, list):
        return [walked(each, change) for each in value]
    if not isinstance(value, Mapping):
        return value
    node = change(value) if role == "schema" else value
    whole = ("allOf",) if role == "schema" else ()
    return {
        key: each if key in whole else walked(each, change, role_of(key, role))
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
    if not isinstance(parts, list) or MEMBERS & node.keys():
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
