"""JSON schemas as llama-cpp-python reads them: closed objects, and keywords without effect.

Of each node its converter looks at a few keywords, and passes over the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from llama_py.chat.grammars.converter import FORMATS, RESTRICTING, gbnf_of_schema
from llama_py.chat.schemas.closing import MEMBERS, closed, walked
from llama_py.chat.schemas.ranges import BOUNDS
from llama_py.errors import GrammarError

__all__ = ["convertible"]


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
        lean = closed(walked(schema, lambda node: _kept(node, dropped)))
        if not dropped:
            raise
        text = gbnf_of_schema(lean)
    warnings.warn(
        f"the grammar of the JSON schema does not enforce {', '.join(sorted(dropped))}, as with "
        "llama-cpp-python; response_format enforces more with llama-py[structured]",
        stacklevel=3,
    )
    return lean, text


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
            return ("type", *MEMBERS)
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
