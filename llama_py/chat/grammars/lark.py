"""JSON schemas in llguidance's notation, with every spelling that models use.

llguidance's own compiler (``%json``) supports all of JSON schema that it can enforce, but only one
spelling of each text: no ``\\u00e9``, no ``\\/``, and the same white space at every joint.
``lark_rules`` writes the common part of JSON schema as rules in which each joint allows a space, or
a line break and indentation. Nodes that it does not support are left to ``%json``.

It does not check the schema. Compile it with ``%json`` first, which names what cannot be enforced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from llama_py.chat.schemas.json_forms import (
    CHARACTER,
    INTEGER,
    NUMBER,
    any_spelling,
    line_regex,
    space_regex,
    usual_spelling,
)
from llama_py.chat.schemas.ranges import BOUNDS, number_ranges
from llama_py.chat.schemas.satisfiable import is_a

__all__ = ["lark_rules", "slashes"]

#: type -> the keywords that apply to it (a sibling of another type means nothing).
_OF_TYPE: dict[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format", "contentEncoding"})
    | {"contentMediaType", "contentSchema"},
    "number": frozenset(
        {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    ),
    "object": frozenset({"properties", "required", "additionalProperties", "patternProperties"})
    | {"propertyNames", "minProperties", "maxProperties", "dependencies", "dependentRequired"}
    | {"dependentSchemas", "unevaluatedProperties"},
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"})
    | {"minContains", "maxContains", "additionalItems", "unevaluatedItems"},
    "boolean": frozenset(),
    "null": frozenset(),
}
_OF_TYPE["integer"] = _OF_TYPE["number"]
#: Keywords that apply whatever the type is.
_GENERAL = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not"}) | {
    *("if", "then", "else", "const", "enum", "nullable", "$id", "id", "$anchor", "x-guidance")
}
#: Items beyond which a list is left to ``%json``, and rules beyond which a whole schema is.
_MOST_ITEMS, _MOST_RULES = 2000, 1000
#: Rules that may stand within one another; llguidance reads them recursively.
_DEEPEST = 200
#: Letters of names or values beyond which they are spelled in one way only.
_MOST_LETTERS = 50_000


#: References to what lies on a shelf of the root, which every node that is left gets with it.
_SHELVED = re.compile(r"#/(\$defs|definitions)/([\w.-]+)")


def lark_rules(schema: Any, name: str, options: Mapping[str, Any]) -> list[str] | None:
    """Rules in which ``name`` is a JSON text that fits the schema, without white space around it.

    None if there would be too many rules, or too deep ones for llguidance's stack, or if there are
    references that mean another place in a node that is left to ``%json`` by itself.

    Args:
        schema: a schema that ``%json`` compiles.
        options: llguidance's options for the nodes that are left to ``%json``.
    """
    if not all(map(_SHELVED.fullmatch, _references(schema))):
        return None
    writer = _LarkWriter(schema, options)
    try:
        start = writer.node(schema)
    except _TooManyRulesError:
        return None
    return [f"{name}: {start}", *writer.lines]


def _references(node: Any) -> Iterator[str]:
    """All references in a schema."""
    if isinstance(node, Mapping):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        node = [*node.values()]
    for part in node if isinstance(node, list) else ():
        yield from _references(part)


class _TooManyRulesError(Exception):
    """There would be too many rules; the schema is left to ``%json``."""


class _LarkWriter:
    """Writes rules for a schema; an expression for each node."""

    def __init__(self, root: Any, options: Mapping[str, Any]) -> None:
        self._root = root
        self._options = options
        self.lines: list[str] = []
        self._terminals: dict[str, str] = {}
        self._known: dict[str, str] = {}
        self._rules = 0
        self._depths: dict[str, int] = {}

    # ---- what lines are made of ------------------------------------------------------------------

    def _terminal(self, body: str) -> str:
        """The name of a terminal, which is defined once."""
        name = self._terminals.get(body)
        if name is None:
            name = self._terminals[body] = f"T{len(self._terminals)}"
            self._add(f"{name}: {body}")
        return name

    def _add(self, line: str) -> None:
        name, body = line.split(":", 1)
        depths = (self._depths.get(part, 0) for part in re.findall(r"\br\d+\b", body))
        self._depths[name] = depth = 1 + max(depths, default=0)
        if len(self.lines) >= _MOST_RULES or depth > _DEEPEST:
            raise _TooManyRulesError
        self.lines.append(line)

    def _regex(self, regex: str) -> str:
        return self._terminal("/" + slashes(regex) + "/")

    def _rule(self, body: str) -> str:
        self._rules += 1
        name = f"r{self._rules}"
        self._add(f"{name}: {body}")
        return name

    def _comma(self) -> str:
        return self._regex(" ?," + space_regex())

    def _colon(self) -> str:
        return self._regex(" ?: ?")

    def _leave(self, node: Any) -> str:
        """The node as ``%json`` understands it."""
        body = dict(node)
        for shelf in ("$defs", "definitions"):
            if isinstance(self._root, Mapping) and shelf in self._root:
                body[shelf] = self._root[shelf]
        return self._rule(f"%json {json.dumps({**body, 'x-guidance': self._options})}")

    # ---- nodes -----------------------------------------------------------------------------------

    def node(self, node: Any) -> str:
        """An expression for a value that fits a node."""
        if node is True:
            return self._any()
        if not isinstance(node, Mapping):
            return self._rule(f"%json {json.dumps(node)}")
        if not _words(node) and "type" not in node:
            return self._any()
        write = self._writer_of(node)
        return self._leave(node) if write is None else write(node)

    def _writer_of(self, node: Mapping[str, Any]) -> Any:
        """The method for this node, or None if it has keywords that are not supported here."""
        words = _words(node)
        if words == {"$ref"} and "type" not in node and self._target(node["$ref"]) is not None:
            return self._reference
        for key, method in (("anyOf", self._choice), ("oneOf", self._choice)):
            if words == {key} and "type" not in node and _is_list(node[key]):
                return method
        if words == {"allOf"} and "type" not in node and _is_list(node["allOf"], 1):
            return lambda node: self.node(node["allOf"][0])
        if words in ({"enum"}, {"const"}):
            long = len(json.dumps(node.get("enum", node.get("const")))) > _MOST_LETTERS
            return None if long else self._values
        if words & _GENERAL or "type" not in node:
            return None
        kind = node["type"]
        if isinstance(kind, list):
            return self._types if kind else None
        known = {
            "string": ({"minLength", "maxLength"}, self._string),
            "integer": (BOUNDS, self._number),
            "number": (BOUNDS, self._number),
            "boolean": (set(), lambda node: self._regex("true|false")),
            "null": (set(), lambda node: self._regex("null")),
            "array": ({"items", "prefixItems", "minItems", "maxItems"}, self._array),
            "object": ({"properties", "required", "additionalProperties"}, self._object),
        }
        if kind not in known or (words & _OF_TYPE[kind]) - known[kind][0]:
            return None
        return known[kind][1] if _is_plain(node) else None

    def _any(self) -> str:
        name = self._known.get("")
        if name is None:
            self._rules += 1
            name = self._known[""] = f"r{self._rules}"
            kinds = ("object", "array", "string", "number", "boolean", "null")
            parts = [self.node({"type": kind}) for kind in kinds]
            self._add(f"{name}: {' | '.join(parts)}")
        return name

    def _reference(self, node: Mapping[str, Any]) -> str:
        key = node["$ref"]
        if key not in self._known:
            self._rules += 1
            self._known[key] = f"r{self._rules}"
            self._add(f"{self._known[key]}: {self.node(self._target(key))}")
        return self._known[key]

    def _target(self, reference: Any) -> Any:
        """The schema that a reference of the usual kind points to, None for another."""
        match = _SHELVED.fullmatch(str(reference))
        shelf = self._root.get(match[1]) if match and isinstance(self._root, Mapping) else None
        return shelf.get(match[2]) if match and isinstance(shelf, Mapping) else None

    def _choice(self, node: Mapping[str, Any]) -> str:
        # %json has compiled the schema: alternatives of "oneOf" exclude each other.
        key = "anyOf" if "anyOf" in node else "oneOf"
        return self._alternatives(self.node(part) for part in node[key])

    def _types(self, node: Mapping[str, Any]) -> str:
        return self._alternatives(
            self.node({**node, "type": kind}) for kind in dict.fromkeys(node["type"])
        )

    def _alternatives(self, parts: Iterable[str]) -> str:
        return self._rule(" | ".join(dict.fromkeys(parts)))

    def _values(self, node: Mapping[str, Any]) -> str:
        values = [node["const"]] if "const" in node else node["enum"]
        kinds = _types(node)
        fitting = [value for value in values if not kinds or any(is_a(value, k) for k in kinds)]
        simple = [value for value in fitting if not isinstance(value, (Mapping, list))]
        parts = [self._regex("|".join(map(_spellings, simple)))] if simple else []
        parts += [self._constant(v) for v in fitting if isinstance(v, (Mapping, list))]
        return self._alternatives(parts)

    def _constant(self, value: Any) -> str:
        if isinstance(value, Mapping):
            colon, inner = self._colon(), value.items()
            items = [f"{self._name(k)} {colon} {self._constant(v)}" for k, v in inner]
            return self._enclosed("{}", f" {self._comma()} ".join(items))
        if isinstance(value, list):
            items = [self._constant(item) for item in value]
            return self._enclosed("[]", f" {self._comma()} ".join(items))
        return self._regex(_spellings(value))

    def _enclosed(self, brackets: str, inner: str) -> str:
        """Brackets around an inside: on one line, or opened and closed on lines of their own."""
        start, end = map(re.escape, brackets)
        inner = self._rule(inner) if inner else ""
        line, space = line_regex(), space_regex()
        flat = f"{self._regex(f'{start} ?')} {inner} {self._regex(f' ?{end}')}"
        tall = f"{self._regex(start + line)} {inner} {self._regex(space + end)}"
        return self._rule(f"{flat} | {tall}")

    def _name(self, name: str) -> str:
        return self._regex(f'"{usual_spelling(name)}"')

    # ---- strings, lists and objects --------------------------------------------------------------

    def _string(self, node: Mapping[str, Any]) -> str:
        least, most = node.get("minLength", 0), node.get("maxLength")
        if not least and most is None:
            return self._regex(f'"({CHARACTER})*"')
        return self._regex(f'"({CHARACTER}){{{least},{"" if most is None else most}}}"')

    def _number(self, node: Mapping[str, Any]) -> str:
        fraction = node["type"] == "number"
        if not BOUNDS & node.keys():
            return self._regex(NUMBER if fraction else INTEGER)
        try:
            ranges = number_ranges(node, fraction)
        except (ValueError, ArithmeticError):  # too many digits for a range of them
            return self._leave(node)
        parts = []
        for part in ranges:
            digits = self._terminal(" & ".join(map(self._regex, part.all_of)))
            ways = " | ".join([digits, *map(self._regex, part.or_else)])
            parts.append(f'"-" ({ways})' if part.negative else ways)
        return self._alternatives(parts)

    def _array(self, node: Mapping[str, Any]) -> str:
        first, item = node.get("prefixItems", []), node.get("items", True)
        least, most = node.get("minItems", 0), node.get("maxItems")
        comma = self._comma()
        if item is False:
            most = len(first) if most is None else min(most, len(first))
        named = [self.node(part) for part in first[:most]]
        more = None if most is not None and most <= len(first) else self.node(item)
        return self._enclosed("[]", _items(named, more, least, most, comma))

    def _object(self, node: Mapping[str, Any]) -> str:
        properties, required = node.get("properties", {}), node.get("required", ())
        colon, comma = self._colon(), self._comma()
        more = node.get("additionalProperties", True)
        rest = "", ""
        if more is not False:
            other = self._regex(f'"({CHARACTER})*"')
            if taken := "|".join(map(any_spelling, properties)):
                quoted = self._regex(f'"({taken})"')
                other = self._terminal(f"{other} & ~{quoted}")
            pair = self._rule(f"{other} {colon} {self.node(more)}")
            rest = f"({pair} ({comma} {pair})*)?", f"({comma} {pair})*"
        for name in reversed(properties):
            if properties[name] is False and name not in required:
                continue
            item = self._rule(f"{self._name(name)} {colon} {self.node(properties[name])}")
            if name in required:
                rest = f"{item} {rest[1]}", f"{comma} {item} {rest[1]}"
                continue
            first, after = (self._rule(part) if part else "" for part in rest)
            alone = f"{item} {after} | {first}" if first else f"({item} {after})?"
            rest = alone, f"({comma} {item})? {after}"
        return self._enclosed("{}", self._rule(rest[0]) if rest[0] else "")


def _items(named: Sequence[str], more: str | None, least: int, most: int | None, comma: str) -> str:
    """The inside of a list: the items listed by position, then any number of further ones."""
    if more is None:
        tail = ""
    elif named:
        room = None if most is None else most - len(named)
        tail = _times(f"({comma} {more})", max(0, least - len(named)), room)
    else:
        rest = _times(f"({comma} {more})", max(0, least - 1), None if most is None else most - 1)
        return f"{more} {rest}" if least else f"({more} {rest})?"
    for index in range(len(named) - 1, -1, -1):
        tail = f"{comma if index else ''} {named[index]} {tail}"
        if index >= least:
            tail = f"({tail})?"
    return tail


def _times(item: str, least: int, most: int | None) -> str:
    if most == 0:
        return ""
    return f"{item}{{{least},{'' if most is None else most}}}"


def _words(node: Mapping[str, Any]) -> set[str]:
    """The keywords of a node that restrict values."""
    kinds = _types(node)
    applying = set().union(*(_OF_TYPE.get(kind, set()) for kind in kinds))
    if not kinds:
        applying = set().union(*_OF_TYPE.values())
    return {word for word in node if word in _GENERAL or word in applying}


def _types(node: Mapping[str, Any]) -> set[str]:
    kind = node.get("type", [])
    return {kind} if isinstance(kind, str) else {*kind}


def _is_list(value: Any, length: int = 0) -> bool:
    return isinstance(value, list) and bool(value) and length in (0, len(value))


def _is_plain(node: Mapping[str, Any]) -> bool:
    """Whether what a node says of an array or object is of a form and size that rules can say."""
    if node["type"] == "array":
        counts = [node.get("minItems", 0), node.get("maxItems", 0)]
        small = all(isinstance(count, int) and 0 <= count <= _MOST_ITEMS for count in counts)
        return small and not isinstance(node.get("items"), list)
    if node["type"] == "object":
        properties, required = node.get("properties", {}), node.get("required", [])
        if not isinstance(properties, Mapping) or sum(map(len, properties)) > _MOST_LETTERS:
            return False
        return all(name in properties and properties[name] is not False for name in required)
    return True


def _spellings(value: Any) -> str:
    """A regular expression of the ways to write a string, a number, a boolean or null."""
    if isinstance(value, str):
        return f'"{usual_spelling(value)}"'
    return re.escape(json.dumps(value))


def slashes(regex: str) -> str:
    """A regular expression as it stands between slashes."""
    return re.sub(r"\\.|/", lambda match: r"\/" if match[0] == "/" else match[0], regex, flags=re.S)
