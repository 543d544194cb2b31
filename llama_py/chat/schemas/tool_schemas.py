"""The parameters of tools, as schemas that llama.cpp's converter reads as they are meant.

The converter decides by one keyword what a schema is, and ignores those beside it: ``anyOf`` beside
``properties`` would allow anything, and ``allOf`` of a string only ``{}``. ``call_schema`` brings
together what belongs together. What no grammar can express (bounds of fractions, conditions, some
patterns) is left out, so that arguments may fit a little less closely than the schema asks for; who
calls the tool has to check them anyway.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn
from urllib.parse import unquote

from llama_py.chat.schemas.bounds import pointer
from llama_py.chat.schemas.patterns import fitting_pattern
from llama_py.chat.schemas.plain import with_null
from llama_py.chat.schemas.satisfiable import is_a
from llama_py.core.chat import schema_to_gbnf
from llama_py.core.grammar.gbnf_reader import MOST_REPEATED
from llama_py.errors import GrammarError, shown
from llama_py.tenants import remembering

__all__ = ["call_schema", "has_alternatives"]

_TYPES = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})
_COMBINING = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
_SHELVES = frozenset({"$defs", "definitions"})
_NOTES = frozenset({"description", "title", "default", "examples", "example", "deprecated"}) | {
    *("$schema", "$id", "id", "$comment", "$anchor", "readOnly", "writeOnly", *_SHELVES)
}
_LEAST = frozenset({"minLength", "minItems", "minimum", "exclusiveMinimum", "minProperties"})
_MOST = frozenset({"maxLength", "maxItems", "maximum", "exclusiveMaximum", "maxProperties"})
_COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems"})
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
#: Properties that alternatives may be written out to, each with what stands beside it.
_MOST_WRITTEN = 200
#: Definitions, those included that combinations of references become.
_MOST_SHELVED = 1000
#: The converter's bounds are integers of 64 bits.
_LARGEST = 1 << 63
#: Schemas of which is remembered what they become, and up to which size.
_MOST_KNOWN, _LONGEST_KNOWN = 512, 1 << 15
_MISSING: Any = object()

#: What a schema consists of: its own keywords, and groups of alternatives with their places.
_Parts = tuple[dict[str, Any], list[tuple[Sequence[Any], str]]]


class _NothingFits(Exception):
    """No value fits this part."""


class _NothingFitsThere(Exception):
    """No value fits what this reference stands for."""


def call_schema(name: str, schema: Mapping[str, Any], alternatives: bool = True) -> Any:
    """The parameters of a tool, rewritten for llama.cpp's converter.

    Args:
        name: of the tool.
        alternatives: the whole may be a choice between objects. If False, it is one object with the
            properties of all of them.

    Raises:
        GrammarError: there is no grammar for them.
    """
    text = json.dumps(dict(schema))
    found = (_known if len(text) <= _LONGEST_KNOWN else _rewritten)(name, text, alternatives)
    return json.loads(found) if found else schema


def has_alternatives(schema: Mapping[str, Any]) -> bool:
    """Whether the whole is a choice between objects."""
    return "anyOf" in schema or "oneOf" in schema


def _rewritten(name: str, text: str, alternatives: bool) -> str:
    """The schema as JSON text; "" if it is as it was."""
    where = f"the parameters of the tool {name!r}" if name else "the parameters"
    schema = json.loads(text)
    try:
        out = _Rewriter(schema, where).rewritten(alternatives)
        schema_to_gbnf(out)
    except RecursionError:
        raise GrammarError(f"{where} are nested too deep, references followed") from None
    except GrammarError as error:
        if str(error).startswith(where):
            raise
        raise GrammarError(f"{where}: {error}") from None
    return "" if out == schema else json.dumps(out)


_known = remembering(_MOST_KNOWN)(_rewritten)


class _Rewriter:
    """Rewrites one schema.

    Args:
        where: how errors begin.
    """

    def __init__(self, root: Any, where: str) -> None:
        self._root = root
        self._where = where
        #: The converter knows definitions by their names, and all tools have one grammar.
        self._mark = f"{zlib.crc32(json.dumps(root).encode()):08x}"
        self._shelf: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self._todo: list[tuple[str, Any, str]] = []
        self._written = 0
        self._open: list[str] = []
        #: Keys of definitions that no value fits.
        self._never: set[str] = set()

    def rewritten(self, alternatives: bool) -> Any:
        if not self._root:
            return self._root
        while True:
            self._shelf, self._names, self._todo, self._written = {}, {}, [], 0
            try:
                return self._all(alternatives)
            except _NothingFits:
                self._refuse("#", "no value fits them")
            except _NothingFitsThere as nowhere:
                self._never.add(str(nowhere))

    def _all(self, alternatives: bool) -> Any:
        own, groups = self._parts(self._root, "#")
        if "object" not in self._kinds(own, "#", ["object"]):
            self._refuse("#", f'"type" is {shown(own["type"])}, and arguments are an object')
        own = {**own, "type": "object"} if own.get("type") != "object" else own
        while groups and not alternatives:
            own = self._united(own, *groups.pop(0))
        out = self._built(own, groups, "#")
        while self._todo:
            key, target, path = self._todo.pop()
            name = self._names[key].rpartition("/")[2]
            try:
                self._shelf[name] = self.node(target, path, on_shelf=True)
            except _NothingFits:
                raise _NothingFitsThere(key) from None
        if not self._shelf:
            return out
        out = {key: value for key, value in out.items() if key not in _SHELVES}
        return {**out, "$defs": self._shelf}

    def _refuse(self, path: str, what: str) -> NoReturn:
        raise GrammarError(f"{self._where} at {path[:200]}: {what}")

    # ---- what belongs together -------------------------------------------------------------------

    def node(self, node: Any, path: str, on_shelf: bool = False) -> Any:
        """A schema within the schema, rewritten.

        Args:
            on_shelf: it is what a definition stands for.
        """
        combined = _COMBINING & node.keys() if isinstance(node, Mapping) else frozenset()
        if not combined:
            return self._built(*self._parts(node, path), path)
        own = {key: value for key, value in node.items() if key not in combined}
        only = next(iter(combined)) if len(combined) == 1 and own.keys() <= _NOTES else ""
        if only == "$ref":
            target, place = self._target(node["$ref"], path)
            return {**own, "$ref": self._shelved(place, target, place)}
        if only == "allOf" and isinstance(node[only], list) and len(node[only]) == 1:
            return {**self.node(node[only][0], f"{path}/allOf/0"), **own}
        if only in ("anyOf", "oneOf") or on_shelf or '"$ref"' not in json.dumps(node):
            return self._built(*self._parts(node, path), path)
        # Written out in its place, it might contain itself.
        key = json.dumps(node, sort_keys=True)
        return {"$ref": self._shelved(f"={key}", node, path)}

    def _parts(self, node: Any, path: str) -> _Parts:
        """A schema without references, with the parts of ``allOf`` merged."""
        if node is True:
            return {}, []
        if node is False:
            raise _NothingFits
        if not isinstance(node, Mapping):
            self._refuse(path, f"{shown(node)} is not a schema")
        node = with_null(node)
        parts: _Parts = self._own(node, path), []
        for key in ("anyOf", "oneOf"):
            if key in node:
                parts[1].append((self._list(node, key, path), f"{path}/{key}"))
        if "$ref" in node:
            target, place = self._target(node["$ref"], path)
            referred: _Parts = {}, []  # of what needs itself again, and cannot be written out
            if place not in self._open:
                self._open.append(place)
                try:
                    referred = self._parts(target, place)
                finally:
                    self._open.pop()
            parts = self._merged(parts, referred, path)
        for i, part in enumerate(self._list(node, "allOf", path) if "allOf" in node else ()):
            parts = self._merged(parts, self._parts(part, f"{path}/allOf/{i}"), path)
        return parts

    def _own(self, node: Mapping[str, Any], path: str) -> dict[str, Any]:
        """The keywords of a schema that are not combinations."""
        own = {key: node[key] for key in node if key not in _COMBINING}
        if own.get("type", _MISSING) is None:
            del own["type"]
        if not isinstance(own.get("properties", {}), Mapping):
            self._refuse(path, f'"properties" must be an object, not {shown(own["properties"])}')
        if "required" in own:  # true, in the properties of old schemas
            names = own["required"] if isinstance(own["required"], list) else ()
            own["required"] = [name for name in names if isinstance(name, str)]
        for key in _COUNTS & own.keys():
            count = own[key]
            whole = isinstance(count, int) or (isinstance(count, float) and count.is_integer())
            if isinstance(count, bool) or not whole or count < 0:
                self._refuse(path, f'"{key}" is {shown(count)}, which is not a count')
            if key in _LEAST and count > MOST_REPEATED:
                self._refuse(
                    path, f'"{key}" is {count}, and a grammar repeats {MOST_REPEATED} at most'
                )
            own[key] = min(int(count), (1 << 31) - 1)
        for key in _BOUNDS & own.keys():
            bound = own[key]
            old = isinstance(bound, bool) and key.startswith("exclusive")  # as before draft 6
            if not (bound is None or old or (_are((int, float), bound) and not _are(bool, bound))):
                self._refuse(path, f'"{key}" is {shown(bound)}, which is not a number')
        return own

    def _list(self, node: Mapping[str, Any], key: str, path: str) -> Sequence[Any]:
        if not isinstance(node[key], list) or not node[key]:
            self._refuse(path, f'"{key}" must be a list of schemas, not {shown(node[key])}')
        return list(node[key])

    def _built(
        self, own: dict[str, Any], groups: Sequence[tuple[Sequence[Any], str]], path: str
    ) -> Any:
        """A schema of its own keywords, or a choice of those with each alternative."""
        if not groups:
            return self._plain(own, path)
        (choices, where), rest = groups[0], list(groups[1:])
        if own.keys() <= _NOTES and not rest:
            tried = [self._or_never(choice, f"{where}/{i}") for i, choice in enumerate(choices)]
            fitting = [choice for choice in tried if choice is not False]
            if not fitting:
                raise _NothingFits
            return {**own, where.rpartition("/")[2]: fitting}
        self._written += len(choices) * (1 + len(own.get("properties", ())))
        if self._written > _MOST_WRITTEN:
            return self._built(self._united(own, choices, where), rest, path)
        out: list[Any] = []
        for i, choice in enumerate(choices):
            try:
                parts = self._merged((own, rest), self._parts(choice, f"{where}/{i}"), path)
                built = self._built(*parts, path)
            except _NothingFits:
                continue
            out += [built] if built not in out else []
        if not out:
            raise _NothingFits
        return out[0] if len(out) == 1 else {"anyOf": out}

    def _united(self, own: dict[str, Any], choices: Sequence[Any], where: str) -> dict[str, Any]:
        """An object with the properties of all alternatives, of which none is enforced."""
        found = []
        for i, choice in enumerate(choices):
            try:
                part, groups = self._parts(choice, f"{where}/{i}")
            except _NothingFits:
                continue
            for group in groups:
                part = self._united(part, *group)
            found.append(part)
        names: dict[str, list[Any]] = {}
        for part in found:
            for name, schema in part.get("properties", {}).items():
                if schema not in names.setdefault(name, []):
                    names[name].append(schema)
        taken = own.get("properties", {})
        more = {n: s[0] if len(s) == 1 else {"anyOf": s} for n, s in names.items()}
        needed = [{*part.get("required", ())} for part in found]
        both = set.intersection(*needed) if needed else set()
        listed = [*own.get("required", ()), *sorted(both)]
        out = {**own}
        if taken or more:
            out["properties"] = {**taken, **_without(more, taken)}
        if listed:
            out["required"] = [*dict.fromkeys(listed)]
        return out

    # ---- merging ---------------------------------------------------------------------------------

    def _merged(self, one: _Parts, two: _Parts, path: str) -> _Parts:
        """A schema that allows only values that fit both."""
        return self._both(one[0], two[0], path), [*one[1], *two[1]]

    def _both(self, one: dict[str, Any], two: dict[str, Any], path: str) -> dict[str, Any]:
        out = {**one, **_without(two, one)}
        for key in one.keys() & two.keys():
            if one[key] != two[key] and key not in ("const", "enum"):
                out[key] = self._both_of(key, one, two, path)
        first, second = _values(one), _values(two)
        if first is None and second is None:
            return out
        if first is not None and second is not None:
            values = [value for value in first if value in second]
        else:
            listed, other = (first, two) if second is None else (second, one)
            kinds = self._kinds(other, path, [])
            values = [v for v in listed or () if not kinds or any(is_a(v, k) for k in kinds)]
        if not values:
            raise _NothingFits
        out.pop("const", None)
        return {**out, "enum": values}

    def _both_of(self, key: str, one: dict[str, Any], two: dict[str, Any], path: str) -> Any:
        a, b = one[key], two[key]
        if key == "type":
            first, second = (self._kinds(each, path, []) for each in (one, two))
            common = [kind for kind in first if kind in second]
            common += ["integer"] * ("integer" in first and "number" in second)
            common += ["integer"] * ("number" in first and "integer" in second)
            common = [*dict.fromkeys(common)]
            if not common:
                raise _NothingFits
            return common[0] if len(common) == 1 else common
        if key in ("properties", "patternProperties") and _are(Mapping, a, b):
            return {**a, **b, **{n: {"allOf": [a[n], b[n]]} for n in a.keys() & b.keys()}}
        if key == "required" and _are(list, a, b):
            return [*dict.fromkeys([*a, *b])]
        if key in ("items", "additionalProperties"):
            return False if False in (a, b) else {"allOf": [a, b]}
        if key in _LEAST | _MOST and _are((int, float), a, b) and not _are(bool, a):
            return max(a, b) if key in _LEAST else min(a, b)
        return a

    # ---- references ------------------------------------------------------------------------------

    def _shelved(self, key: str, target: Any, path: str) -> str:
        """The reference to a definition, of which there is one for each key.

        Args:
            key: where it stands in the schema, or what it consists of.
        """
        if key in self._never:
            raise _NothingFits
        if key not in self._names:
            if len(self._names) == _MOST_SHELVED:
                self._refuse(path, "its references come to too many combinations")
            self._names[key] = f"#/$defs/{self._mark}-{len(self._names)}"
            self._todo.append((key, target, path))
        return self._names[key]

    def _target(self, reference: Any, path: str) -> tuple[Any, str]:
        if not isinstance(reference, str) or not (reference + "/").startswith("#/"):
            self._refuse(path, f"the reference {shown(reference)} leaves the document")
        node = self._root
        for part in reference[2:].split("/") if len(reference) > 1 else ():
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping):
                node = node.get(name, node.get(unquote(name), _MISSING))
            elif isinstance(node, list) and name.isdecimal() and int(name[:9]) < len(node):
                node = node[int(name[:9])]
            else:
                node = _MISSING
            if node is _MISSING:
                self._refuse(path, f"the reference {shown(reference)} leads nowhere")
        return node, reference

    # ---- values of one type ----------------------------------------------------------------------

    def _kinds(self, own: Mapping[str, Any], path: str, default: list[str]) -> list[str]:
        kind = own.get("type", _MISSING)
        if kind is _MISSING:
            return default
        kinds = kind if isinstance(kind, list) and kind else [kind]
        for each in kinds:
            if not isinstance(each, str) or each not in _TYPES:
                self._refuse(path, f"there is no type {shown(each)}")
        return kinds

    def _plain(self, own: dict[str, Any], path: str) -> dict[str, Any]:
        """A schema without combinations."""
        kinds = self._kinds(own, path, [])
        out = dict(own)
        if "const" in own or "enum" in own:
            if "const" not in own and not (isinstance(own["enum"], list) and own["enum"]):
                self._refuse(path, '"enum" must be a list of values')
            if len(kinds) > 1:
                del out["type"]  # the converter would list the values once for each type
            return out
        if not kinds or "object" in kinds:
            self._object(out, path, bool(kinds))
        if not kinds or "array" in kinds:
            self._array(out, path)
        if "pattern" in out and (not kinds or "string" in kinds):
            if not isinstance(out["pattern"], str):
                self._refuse(path, f'"pattern" is {shown(out["pattern"])}, which is not text')
            pattern = fitting_pattern(out["pattern"])
            if pattern is None:
                del out["pattern"]
            else:
                out["pattern"] = pattern
        if "integer" in kinds:
            self._integer(out, path)
        return out

    def _object(self, out: dict[str, Any], path: str, typed: bool) -> None:
        given, required = out.get("properties", {}), out.get("required", [])
        others = self._others(out, path)
        properties: dict[str, Any] = {}
        for name, part in given.items():
            try:
                properties[name] = self.node(part, f"{path}/properties/{pointer(name)}")
            except _NothingFits:
                if name in required:
                    raise
        for name in required if typed or "properties" in out else ():
            if name in properties:
                continue
            if others is False or name in given:
                raise _NothingFits
            properties[name] = others if isinstance(others, Mapping) else {}
        if properties and "properties" not in out and others is _MISSING:
            others = True  # without any, the converter would have taken any name
        if properties or "properties" in out:
            out["properties"] = properties
        if others is not _MISSING:
            out["additionalProperties"] = others

    def _others(self, out: Mapping[str, Any], path: str) -> Any:
        """The schema of properties that are not described by their names."""
        others = out.get("additionalProperties", _MISSING)
        if isinstance(others, Mapping):
            others = self._or_never(others, f"{path}/additionalProperties")
        elif others is not _MISSING and not isinstance(others, bool):
            self._refuse(path, f'"additionalProperties" is {shown(others)}, which is not a schema')
        patterns = out.get("patternProperties")
        if not isinstance(patterns, Mapping) or not patterns:
            return others
        place = f"{path}/patternProperties"
        found = [self._or_never(part, f"{place}/{pointer(n)}") for n, part in patterns.items()]
        if others is True or (others is _MISSING and "properties" not in out):
            return True
        found += [others] if isinstance(others, Mapping) else []
        return _one_of([part for part in found if part is not False])

    def _or_never(self, part: Any, path: str) -> Any:
        try:
            return self.node(part, path)
        except _NothingFits:
            return False

    def _array(self, out: dict[str, Any], path: str) -> None:
        items = out.pop("items", True)
        first = items if isinstance(items, list) else out.get("prefixItems", [])
        out.pop("prefixItems", None)
        if isinstance(items, list):
            items = out.get("additionalItems", True)
        if not isinstance(first, list):
            self._refuse(path, f'"prefixItems" must be a list of schemas, not {shown(first)}')
        parts = [self.node(part, f"{path}/prefixItems/{i}") for i, part in enumerate(first)]
        rest = items if isinstance(items, bool) else self._or_never(items, f"{path}/items")
        least, most = out.get("minItems", 0), out.get("maxItems", _MISSING)
        if not parts:
            if rest is False:
                out["maxItems"] = 0
            elif rest is not True:
                out["items"] = rest
            return
        open_ended = rest is not False and rest is not True
        if open_ended or least > len(parts) or (most is not _MISSING and most < len(parts)):
            out["items"] = _one_of([*parts, *([rest] if isinstance(rest, Mapping) else [])])
            return
        out["prefixItems"] = parts

    def _integer(self, out: dict[str, Any], path: str) -> None:
        for plain, exclusive, tighter in (
            ("minimum", "exclusiveMinimum", max),
            ("maximum", "exclusiveMaximum", min),
        ):
            bound, limit = out.get(plain), out.get(exclusive)
            if isinstance(limit, bool):
                out.pop(exclusive)
                if limit and bound is not None:
                    out[exclusive] = out.pop(plain)
            elif bound is not None and limit is not None:
                out.pop(plain if tighter(bound, limit) == limit else exclusive)
            for key in (plain, exclusive):
                value = out.get(key)
                if value is None or abs(value) >= _LARGEST:
                    out.pop(key, None)


def _are(kind: Any, *values: Any) -> bool:
    return all(isinstance(value, kind) for value in values)


def _without(members: Mapping[str, Any], taken: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in members.items() if key not in taken}


def _one_of(parts: list[Any]) -> Any:
    """A schema of what fits one of these; False if there are none."""
    different: list[Any] = []
    for part in parts:
        if part not in different:
            different.append(part)
    if not different or {} in different:
        return {} if different else False
    return different[0] if len(different) == 1 else {"anyOf": different}


def _values(node: Mapping[str, Any]) -> list[Any] | None:
    if "const" in node:
        return [node["const"]]
    values = node.get("enum")
    return values if isinstance(values, list) else None
