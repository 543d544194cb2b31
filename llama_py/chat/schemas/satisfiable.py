"""Whether any value fits a JSON schema, as far as simple rules can tell.

With a schema that no value fits, the model would write until it is cut off, or no token would be
allowed. The checks cover contradictory bounds, empty lists of values, ``false``, and references
that never end. Less obvious contradictions are left to the engine that enforces the schema.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from llama_py.core.grammar.gbnf_check import components
from llama_py.core.host.gil_yield import GilYield
from llama_py.errors import GrammarError

__all__ = ["MOST_CHAINED", "MOST_MERGED", "check_satisfiable", "is_a"]

#: Schemas within one another, references followed. Whoever compiles them recurses; references
#: that form a circle count with everything in it.
MOST_CHAINED = 300
#: Alternatives and parts of combinations, references within them written out.
MOST_MERGED = 5_000

_PAIRS = (
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
    ("minContains", "maxContains"),
)
_ONE = (
    *("items", "additionalProperties", "additionalItems", "unevaluatedItems", "contains"),
    *("unevaluatedProperties", "propertyNames", "not", "if", "then", "else"),
)
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_TABLES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
#: Tables that mean nothing by themselves.
_UNUSED = ("$defs/", "definitions/")
_KINDS: dict[str, Any] = {
    "string": str,
    "number": (int, float),
    "object": Mapping,
    "array": (list, tuple),
    "null": type(None),
}


def check_satisfiable(schema: Any, name: str = "the JSON schema", *, lax: bool = False) -> None:
    """Raise for a schema that no value fits.

    Args:
        lax: accept values of ``enum`` and ``const`` that contradict the ``type`` beside them, which
            llama.cpp ignores (tools contain ``{"type": "integer", "enum": ["1", "2"]}``).

    Raises:
        GrammarError: with the place and what is contradictory there.
    """
    nodes = _Nodes(schema)
    gil_yield = GilYield()
    for node, path in nodes.all():
        gil_yield()
        problem = _contradiction(node, lax)
        if problem:
            raise GrammarError(f"{name} at {path}: {problem}, so that no value fits")
    nodes.check_depth(name)
    nodes.check_merges(name)
    nodes.settle()
    if not nodes.possible(schema):
        path, why = nodes.why(schema)
        raise GrammarError(f"{name} at {path}: {why}, so that no value fits")


# ---- contradictions within one node -----------------------------------------------------------


def _contradiction(node: Mapping[str, Any], lax: bool) -> str | None:
    for low, high in _PAIRS:
        one, two = _number(node.get(low)), _number(node.get(high))
        if one is not None and two is not None and one > two:
            return f'"{low}" is {node[low]} and "{high}" is {node[high]}'
    if lax and node.get("enum") != [] and ("enum" in node or "const" in node):
        return _bad_range(node)
    return _bad_range(node) or _bad_choice(node)


def _number(value: Any) -> int | float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _bad_range(node: Mapping[str, Any]) -> str | None:
    low, high = _number(node.get("minimum")), _number(node.get("maximum"))
    low_out = node.get("exclusiveMinimum") is True and low is not None  # as before draft 6
    high_out = node.get("exclusiveMaximum") is True and high is not None
    least, most = _number(node.get("exclusiveMinimum")), _number(node.get("exclusiveMaximum"))
    if least is not None and (low is None or least >= low):
        low, low_out = least, True
    if most is not None and (high is None or most <= high):
        high, high_out = most, True
    low = -math.inf if low is None else low
    high = math.inf if high is None else high
    if low > high or (low == high and (low_out or high_out)):
        return f"there is no number {_limits(node)}"
    if node.get("type") != "integer" or math.inf in (-low, high):
        return None
    first = math.floor(low) + 1 if low_out else math.ceil(low)
    last = math.ceil(high) - 1 if high_out else math.floor(high)
    step = node.get("multipleOf")
    if isinstance(step, int) and not isinstance(step, bool) and step > 0:
        first = -(-first // step) * step
        if first > last:
            return f"there is no multiple of {step} {_limits(node)}"
    return f"there is no integer {_limits(node)}" if first > last else None


def _limits(node: Mapping[str, Any]) -> str:
    names = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    given = [f'"{key}" {node[key]}' for key in names if key in node]
    return f"with {' and '.join(given)}"


def _bad_choice(node: Mapping[str, Any]) -> str | None:
    values = node.get("enum")
    if isinstance(values, (list, tuple)) and not values:
        return '"enum" is empty'
    kinds = _kinds(node)
    if kinds is None:
        return None
    if not kinds:
        return '"type" is an empty list'
    if "const" in node and not any(is_a(node["const"], kind) for kind in kinds):
        return f'"const" is not of the type {_shown(kinds)}'
    if isinstance(values, (list, tuple)) and not any(
        is_a(value, kind) for value in values for kind in kinds
    ):
        return f'no value of "enum" is of the type {_shown(kinds)}'
    return None


def _kinds(node: Mapping[str, Any]) -> list[str] | None:
    """The types that a node names; None if it allows any."""
    kind = node.get("type")
    if isinstance(kind, str):
        return [kind]
    known = isinstance(kind, (list, tuple)) and all(isinstance(each, str) for each in kind)
    return [*kind] if known and isinstance(kind, (list, tuple)) else None


def _shown(kinds: list[str]) -> str:
    return " or ".join(f'"{kind}"' for kind in kinds)


def is_a(value: Any, kind: str) -> bool:
    """Whether a value is of a type of JSON schema."""
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return isinstance(value, _KINDS.get(kind, object)) and kind != "boolean"


# ---- which nodes have a value ------------------------------------------------------------------

#: What a node needs: one of these parts has to have a value; else, in words.
_Need = tuple[list[Any], str]


class _Nodes:
    """All schemas within a schema, and those that are known to have a value.

    A node has a value if each of its needs is met by a part that has one. Nodes that need
    themselves never reach that state, which is how references that never end are found.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[int, tuple[Mapping[str, Any], str]] = {}
        self._needs: dict[int, list[_Need]] = {}
        self._possible: set[int] = set()
        todo = [(root, "#")]
        gil_yield = GilYield()
        while todo:
            gil_yield()
            node, path = todo.pop()
            if not isinstance(node, Mapping) or id(node) in self._known:
                continue
            self._known[id(node)] = (node, path)
            todo += [(part, f"{path}/{where}") for part, where in _parts(node)]
            if isinstance(node.get("$ref"), str):
                todo.append((self._target(node["$ref"]), node["$ref"]))

    def all(self) -> list[tuple[Mapping[str, Any], str]]:
        return [*self._known.values()]

    def check_depth(self, name: str) -> None:
        """Raise where schemas and references lead too deep for a recursive compiler."""
        numbers = {key: i for i, key in enumerate(self._known)}
        edges: list[list[int]] = []
        gil_yield = GilYield()
        for node, _ in self._known.values():
            gil_yield()
            inner = [part for part, where in _parts(node) if not where.startswith(_UNUSED)]
            if isinstance(node.get("$ref"), str):
                inner.append(self._target(node["$ref"]))
            edges.append([numbers[id(part)] for part in inner if id(part) in numbers])
        depth = [0] * len(edges)
        paths = [path for _, path in self._known.values()]
        for component in components(edges):
            below = max((depth[other] for each in component for other in edges[each]), default=0)
            total = below + len(component)
            if total > MOST_CHAINED:
                raise GrammarError(
                    f"{name} at {paths[component[0]][:200]}: schemas and references within one "
                    f"another are {total} deep, and {MOST_CHAINED} is the most"
                )
            for number in component:
                depth[number] = total

    def check_merges(self, name: str) -> None:
        """Raise where combinations and references become too large when they are written out.

        A schema that is referred to from within a combination is merged each time, not shared.
        """
        numbers = {key: i for i, key in enumerate(self._known)}
        nodes = [*self._known.values()]
        edges: list[list[int]] = []
        for node, _ in nodes:
            parts = [part for key in ("allOf", "anyOf", "oneOf") for part in _listed(node.get(key))]
            if isinstance(node.get("$ref"), str):
                parts.append(self._target(node["$ref"]))
            edges.append([numbers[id(part)] for part in parts if id(part) in numbers])
        sizes = [1] * len(edges)
        for component in components(edges):
            inside = {*component}
            if len(component) > 1 and any("allOf" in nodes[each][0] for each in component):
                raise GrammarError(
                    f'{name} at {nodes[component[0]][1][:200]}: "allOf" needs itself again, which '
                    "nobody can write out"
                )
            total = sum(
                1 + sum(sizes[other] for other in edges[each] if other not in inside)
                for each in component
            )
            if total > MOST_MERGED:
                raise GrammarError(
                    f"{name} at {nodes[component[0]][1][:200]}: its combinations come to more than "
                    f"{MOST_MERGED} schemas when their references are written out"
                )
            for each in component:
                sizes[each] = total

    def settle(self) -> None:
        """Find the nodes that have a value, until no further node depends on a newly found one."""
        waiting: dict[int, list[tuple[int, int]]] = {}
        met: set[tuple[int, int]] = set()
        left: dict[int, int] = {}
        ready: list[int] = []
        gil_yield = GilYield()
        for key, (node, _) in self._known.items():
            gil_yield()
            needs = self._needs[key] = [*self._needed(node)]
            left[key] = len(needs)
            for i, (parts, _) in enumerate(needs):
                if any(not isinstance(part, Mapping) and part is not False for part in parts):
                    left[key] -= 1
                    continue
                for part in parts:
                    waiting.setdefault(id(part), []).append((key, i))
            if not left[key]:
                ready.append(key)
        while ready:
            key = ready.pop()
            self._possible.add(key)
            for need in waiting.pop(key, ()):
                if need not in met:
                    met.add(need)
                    left[need[0]] -= 1
                    if not left[need[0]]:
                        ready.append(need[0])

    def possible(self, node: Any) -> bool:
        return id(node) in self._possible if isinstance(node, Mapping) else node is not False

    def why(self, node: Any) -> tuple[str, str]:
        """Place and reason of the contradiction: the innermost node that others depend on."""
        seen: set[int] = set()
        path, what = "#", "it is false"
        while isinstance(node, Mapping):
            path = self._known[id(node)][1]
            if id(node) in seen:
                return path, "it needs itself again, without an end"
            seen.add(id(node))
            unmet = (n for n in self._needs[id(node)] if not any(map(self.possible, n[0])))
            parts, what = next(unmet)
            node = parts[0] if parts else False
        return path, what

    def _needed(self, node: Mapping[str, Any]) -> Iterator[_Need]:
        if isinstance(node.get("$ref"), str):
            yield [self._target(node["$ref"])], f'"$ref" leads to {node["$ref"]}, which is false'
        for i, part in enumerate(_listed(node.get("allOf"))):
            yield [part], f'"allOf" has false as its part {i}'
        for key in ("anyOf", "oneOf"):
            if _is_list(node.get(key)):
                yield [*node[key]], f'no alternative of "{key}" allows anything'
        kinds = _kinds(node)
        if kinds == ["object"]:
            properties = node.get("properties")
            properties = properties if isinstance(properties, Mapping) else {}
            others = node.get("additionalProperties", node.get("unevaluatedProperties", True))
            if node.get("patternProperties") or "allOf" in node or "$ref" in node:
                others = True  # they may describe it
            names = [each for each in _listed(node.get("required")) if isinstance(each, str)]
            for name in names:
                part = properties.get(name, others)
                yield [part], f"the required property {name!r} is forbidden"
            fewest = _number(node.get("minProperties")) or 0
            if others is False and fewest > len(properties):
                yield [], f'"minProperties" is {fewest}, and only {len(properties)} are allowed'
        if kinds == ["array"]:
            least = int(min(_number(node.get("minItems")) or 0, 1 << 30))
            items = node.get("items", True)
            first = _listed(items if _is_list(items) else node.get("prefixItems"))
            rest = node.get("additionalItems", True) if _is_list(items) else items
            for i, part in enumerate(first[: max(0, least)]):
                yield [part], f"the item {i} is needed and forbidden"
            if least > len(first):
                yield [rest], f'"minItems" is {least}, and no more than {len(first)} are allowed'

    def _target(self, reference: str) -> Any:
        """The schema that a local reference points to; True for other or broken references."""
        if not reference.startswith("#"):
            return True
        node = self._root
        for part in filter(None, unquote(reference[1:]).split("/")):
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping) and part in node:
                node = node[part]
            elif _is_list(node) and part.isdecimal() and int(part[:9]) < len(node):
                node = node[int(part[:9])]
            else:
                return True
        return node


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _parts(node: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    """The schemas within a schema, and where they stand."""
    for key in _ONE:
        if isinstance(node.get(key), Mapping):
            yield node[key], key
    for key in _LISTS:
        if _is_list(node.get(key)):
            for i, part in enumerate(node[key]):
                yield part, f"{key}/{i}"
    for key in _TABLES:
        if isinstance(node.get(key), Mapping):
            for name, part in node[key].items():
                yield part, f"{key}/{name.replace('~', '~0').replace('/', '~1')}"
