"""JSON schemas in plainer words: what not every engine knows, written with what all of them know.

``nullable`` (of OpenAPI) becomes a type or an alternative, ``true`` as a schema becomes ``{}``, a
reference to the root becomes one to a definition, and alternatives that nothing fits are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llama_py.chat.schemas.bounds import role_of

__all__ = ["plain_schema", "with_null", "with_nulls"]

#: Keywords beside which a further type would not make null fit.
_WHOLE = frozenset({"$ref", "anyOf", "oneOf", "allOf", "not", "if", "$dynamicRef", "$recursiveRef"})
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")


def with_nulls(schema: Any) -> Any:
    """The schema, with ``nullable`` written as a type or an alternative, and without alternatives
    that nothing fits."""
    return _changed(schema, lambda node: _possible(with_null(node)))


def plain_schema(schema: Any) -> Any:
    """The schema without ``nullable``, ``true`` as a schema, and references to the root."""
    schema = _changed(schema, lambda node: _without_true(_possible(with_null(node))))
    return _with_root_on_a_shelf(schema) if isinstance(schema, Mapping) else schema


def with_null(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """One node of a schema, with ``nullable`` written as a type or an alternative."""
    if "nullable" not in node:
        return node
    nullable = node["nullable"] is True
    node = {key: value for key, value in node.items() if key != "nullable"}
    if not nullable:
        return node
    kind = node.get("type")
    if _WHOLE & node.keys() or not (kind is None or isinstance(kind, (str, list))):
        return {"anyOf": [node, {"type": "null"}]}
    if kind is not None:
        kinds = [kind] if isinstance(kind, str) else kind
        node["type"] = kinds if "null" in kinds else [*kinds, "null"]
    if "const" in node:
        node["enum"] = [node.pop("const")]
    values = node.get("enum")
    if isinstance(values, list) and None not in values:
        node["enum"] = [*values, None]
    return node


def _changed(
    value: Any, change: Callable[[Mapping[str, Any]], Mapping[str, Any]], role: str = "schema"
) -> Any:
    """A schema whose nodes were changed, the inner ones first."""
    if role in ("data", "note"):
        return value
    if isinstance(value, list):
        return [_changed(each, change) for each in value]
    if not isinstance(value, Mapping):
        return value
    out = {key: _changed(each, change, role_of(key, role)) for key, each in value.items()}
    return change(out) if role == "schema" else out


def _possible(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """The node without the alternatives ``false`` and ``{"not": {}}`` (zod's ``never``), if there
    are others."""
    out = dict(node)
    for key in ("anyOf", "oneOf"):
        if isinstance(ways := node.get(key), list):
            out[key] = [way for way in ways if not _is_never(way)] or ways
    return out


def _is_never(node: Any) -> bool:
    return node is False or (isinstance(node, Mapping) and node.get("not") in ({}, True))


def _without_true(node: Mapping[str, Any]) -> Mapping[str, Any]:
    out = dict(node)
    if out.get("items") is True:
        out["items"] = {}
    for key in _LISTS:
        if isinstance(out.get(key), list):
            out[key] = [{} if part is True else part for part in out[key]]
    for key in ("properties", "$defs", "definitions"):
        if isinstance(out.get(key), Mapping):
            out[key] = {name: {} if part is True else part for name, part in out[key].items()}
    return out


def _with_root_on_a_shelf(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same, with a definition of the root if something refers to that.

    llama.cpp's converter refers to what lies within the root, and not to the root itself.
    """
    shelf = schema.get("$defs")
    shelf = shelf if isinstance(shelf, Mapping) else {}
    name = "root"
    while name in shelf:
        name += "-"

    referring: list[Mapping[str, Any]] = []

    def refer(node: Mapping[str, Any]) -> Mapping[str, Any]:
        if node.get("$ref") != "#":
            return node
        referring.append(node)
        return {**node, "$ref": f"#/$defs/{name}"}

    changed = dict(_changed(schema, refer))
    if not referring:
        return schema
    root = {key: value for key, value in changed.items() if key not in ("$defs", "definitions")}
    return {**changed, "$defs": {**changed.get("$defs", {}), name: root}}
