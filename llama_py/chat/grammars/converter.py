"""Converting JSON schemas into grammars with llama.cpp's converter, and checking what it supports.

The converter ignores keywords that it does not implement, so its grammar may accept what the schema
forbids. ``check_schema`` follows the same rules, and raises a ``GrammarError`` with keyword and
place for everything that the converter would ignore. A grammar that is stricter than its schema is
not an error, because each text that it accepts fits the schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from itertools import combinations
from typing import Any, NoReturn

from llama_py.chat.grammars.gbnf import widened_schema, with_margins
from llama_py.chat.grammars.integers import rules_of_schema
from llama_py.chat.grammars.order import in_order
from llama_py.chat.schemas.bounds import check_optional
from llama_py.chat.schemas.json_forms import levels_of
from llama_py.chat.schemas.patterns import pattern_problem, plain_pattern
from llama_py.chat.schemas.plain import plain_schema
from llama_py.core.grammar.gbnf_reader import MOST_REPEATED
from llama_py.errors import GrammarError

__all__ = ["FORMATS", "RESTRICTING", "check_schema", "gbnf_of_schema", "prepare_schema"]

_STRING = frozenset({"minLength", "maxLength", "pattern", "format"})
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_OBJECT = frozenset({"properties", "required", "additionalProperties"})
_ARRAY = frozenset({"items", "prefixItems", "minItems", "maxItems"})
_NOTHING: frozenset[str] = frozenset()

#: type -> (keywords that the converter implements, further keywords that apply to the type).
_OF_TYPE: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "string": (_STRING, _NOTHING),
    "integer": (_BOUNDS, frozenset({"multipleOf"})),
    "number": (_NOTHING, _BOUNDS | {"multipleOf"}),
    "object": (
        _OBJECT,
        frozenset({"patternProperties", "propertyNames", "minProperties", "maxProperties"})
        | {"dependencies", "dependentRequired", "dependentSchemas", "unevaluatedProperties"},
    ),
    "array": (
        _ARRAY,
        frozenset({"uniqueItems", "contains", "minContains", "maxContains"})
        | {"additionalItems", "unevaluatedItems"},
    ),
    "boolean": (_NOTHING, _NOTHING),
    "null": (_NOTHING, _NOTHING),
}
_TYPED = frozenset().union(*(done | more for done, more in _OF_TYPE.values()))
#: Keywords that apply to values of any type.
_GENERAL = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not"}) | {
    *("if", "then", "else", "const", "enum", "nullable")
}
#: Keywords that restrict the values of a node.
RESTRICTING = _GENERAL | _TYPED | {"type"}
#: Type -> what its values are in Python. Booleans, which are integers there, are told apart first.
_CLASSES: dict[str, Any] = {
    "string": str,
    "number": (int, float),
    "integer": int,
    "object": Mapping,
    "array": list,
    "null": type(None),
}
#: Formats of text that the converter implements.
FORMATS = frozenset({"date", "time", "date-time", "uuid", *(f"uuid{i}" for i in range(1, 6))})


def gbnf_of_schema(schema: Any) -> str:
    """A GBNF grammar, with the root rule ``root``, of texts that fit a JSON schema.

    Raises:
        GrammarError: the schema uses what llama.cpp's converter does not implement.
    """
    grammar = rules_of_schema(prepare_schema(schema))
    return with_margins(widened_schema(in_order(grammar, [schema]), levels_of(schema)))


def prepare_schema(schema: Any) -> Any:
    """The schema, rewritten so that llama.cpp's converter supports as much of it as possible.

    Raises:
        GrammarError: the schema uses what the converter does not implement.
    """
    schema = {} if schema is True else plain_schema(schema)
    check_optional(schema)
    try:
        check_schema(schema)
    except RecursionError:
        _refuse("#", "it is nested too deep, references followed")
    return _with_plain_patterns(schema)


def check_schema(schema: Any) -> None:
    """Raise GrammarError for keywords that llama.cpp's converter would ignore."""
    _SchemaChecker(schema).check(schema, "#")


def _with_plain_patterns(schema: Any) -> Any:
    """The schema with its patterns rewritten by ``plain_pattern``."""
    if isinstance(schema, list):
        return [_with_plain_patterns(value) for value in schema]
    if not isinstance(schema, Mapping):
        return schema
    out = {key: _with_plain_patterns(value) for key, value in schema.items()}
    if isinstance(out.get("pattern"), str):
        out["pattern"] = plain_pattern(out["pattern"])
    return out


def _refuse(path: str, what: str) -> NoReturn:
    more = (
        "" if find_spec("llguidance") else "install llama-py[structured], which supports more, or "
    )
    raise GrammarError(
        f"the JSON schema at {path}: {what}, which llama.cpp's grammars cannot express; "
        f"{more}change the schema"
    )


class _SchemaChecker:
    """Walks a schema in the order in which the converter decides what a node is."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._seen: set[str] = set()

    def check(self, node: Any, path: str) -> None:
        if not isinstance(node, Mapping):
            _refuse(path, f"{node!r} stands for a schema")
        if "$ref" in node:
            self._only(node, path, {"$ref"})
            ref = node["$ref"]
            if not isinstance(ref, str) or not ref.startswith("#/"):
                _refuse(path, f"the reference {ref!r} leaves the document")
            if ref not in self._seen:
                self._seen.add(ref)
                target = self._resolve(ref)
                if target is None:
                    raise GrammarError(f"the JSON schema at {path}: {ref} does not exist")
                self.check(target, ref)
        elif "oneOf" in node or "anyOf" in node:
            self._check_alternatives(node, path)
        elif isinstance(node.get("type"), list):
            for kind in node["type"]:
                alternative = {**node, "type": kind}
                for given in ("const", "enum"):
                    alternative.pop(given, None)
                self.check(alternative, path)
        elif "const" in node or "enum" in node:
            self._check_values(node, path)
        else:
            self._check_kind(node, path)

    # ---- references and combinations -----------------------------------------------------------

    def _only(self, node: Mapping[str, Any], path: str, allowed: Iterable[str]) -> None:
        """Raise for keywords that restrict values, other than the allowed ones."""
        for keyword, value in node.items():
            says_nothing = value is None or value is False  # 0 is a bound, and equals False
            if keyword in RESTRICTING and keyword not in allowed and not says_nothing:
                _refuse(path, f'"{keyword}"')

    def _resolve(self, ref: str) -> Any:
        node = self._root
        for part in ref[2:].split("/"):
            if isinstance(node, Mapping) and part in node:
                node = node[part]
            elif isinstance(node, list) and part.isdecimal() and int(part[:9]) < len(node):
                node = node[int(part[:9])]
            else:
                return None
        return node

    def _check_alternatives(self, node: Mapping[str, Any], path: str) -> None:
        key = "oneOf" if "oneOf" in node else "anyOf"
        branches = node[key]
        if not isinstance(branches, list) or not branches:
            raise GrammarError(f'the JSON schema at {path}: "{key}" must be a list of schemas')
        known = [self._target(branch) for branch in branches]
        same = all(branch.get("type") == node.get("type") for branch in known)
        self._only(node, path, {key, "type"} if same else {key})
        if key == "oneOf" and not all(_apart(a, b) for a, b in combinations(known, 2)):
            _refuse(path, '"oneOf" has alternatives that may overlap')
        for i, branch in enumerate(branches):
            self.check(branch, f"{path}/{key}/{i}")

    def _target(self, node: Any) -> Mapping[str, Any]:
        for _ in range(16):
            if isinstance(node, Mapping) and isinstance(node.get("$ref"), str):
                node = self._resolve(node["$ref"]) if node["$ref"].startswith("#/") else None
        return node if isinstance(node, Mapping) else {}

    def _check_all(self, node: Mapping[str, Any], path: str) -> None:
        self._only(node, path, {"allOf", "type"})
        names: list[str] = []
        for i, part in enumerate(node["allOf"]):
            place = f"{path}/allOf/{i}"
            known = self._target(part)
            simple = {"type", "properties", "required", "$ref", "enum"}
            self._only(part if isinstance(part, Mapping) else {}, place, simple)
            self._only(known, place, simple)
            if "properties" not in known and "enum" not in known:
                _refuse(place, "a part of allOf that is neither an object nor an enum")
            names += known.get("properties", ())
            self.check(part, place)
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            _refuse(path, f'"allOf" describes the property {doubled[0]!r} twice')

    def _check_values(self, node: Mapping[str, Any], path: str) -> None:
        key = "const" if "const" in node else "enum"
        self._only(node, path, {key, "type"})
        values = [node["const"]] if key == "const" else node["enum"]
        kind = node.get("type")
        if not isinstance(values, list) or not isinstance(kind, str):
            return
        for value in values:
            if isinstance(value, bool):
                fits = kind == "boolean"
            else:
                fits = isinstance(value, _CLASSES.get(kind, ()))
            if not fits:
                _refuse(path, f'"{key}" has {value!r}, which is not of the type "{kind}"')

    # ---- values of one type ------------------------------------------------------------------

    def _check_kind(self, node: Mapping[str, Any], path: str) -> None:
        describes = "properties" in node or node.get("additionalProperties", True) is not True
        kind = node.get("type") or ("object" if describes else None)
        if not kind and "allOf" not in node:  # what the converter assumes
            text = {"pattern", "minLength", "maxLength"} & node.keys()
            if "items" in node or "prefixItems" in node:
                kind = "array"
            elif text or node.get("format") in FORMATS:
                kind = "string"
        if "allOf" in node:
            if describes or kind not in (None, "object", "string"):
                _refuse(path, '"allOf" stands beside the description of a value')
            self._check_all(node, path)
            return
        if kind is None:
            self._only(node, path, ())
            return
        if kind not in _OF_TYPE:
            raise GrammarError(f"the JSON schema at {path}: there is no type {kind!r}")
        done, more = _OF_TYPE[kind]
        # Keywords of other types mean nothing here, unless the type is only the converter's guess.
        idle = _TYPED - done - more if "type" in node else _NOTHING
        self._only(node, path, idle | done | {"type"})
        getattr(self, f"_check_{kind}", lambda node, path: None)(node, path)

    def _check_string(self, node: Mapping[str, Any], path: str) -> None:
        form = node.get("format")
        if form is not None and form not in FORMATS:
            _refuse(path, f'"format": {form!r}')
        given = [key for key in ("pattern", "format") if key in node]
        if "minLength" in node or "maxLength" in node:
            given.append("minLength / maxLength")
        if len(given) > 1:
            _refuse(path, f"{' together with '.join(given)}")
        _check_most(node, path, "maxLength")
        problem = pattern_problem(plain_pattern(node["pattern"])) if "pattern" in node else None
        if problem:
            _refuse(path, f'{problem} ("pattern": {node["pattern"]!r})')

    def _check_integer(self, node: Mapping[str, Any], path: str) -> None:
        for plain, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if plain in node and exclusive in node:
                _refuse(path, f'"{plain}" together with "{exclusive}"')

    def _check_object(self, node: Mapping[str, Any], path: str) -> None:
        properties = node.get("properties", {})
        for name in node.get("required", ()):
            if name not in properties:
                _refuse(path, f'"required" names {name!r}, which "properties" does not describe')
        for name, schema in properties.items():
            self.check(schema, f"{path}/properties/{name}")
        if isinstance(node.get("additionalProperties"), Mapping):
            self.check(node["additionalProperties"], f"{path}/additionalProperties")

    def _check_array(self, node: Mapping[str, Any], path: str) -> None:
        if "items" in node and "prefixItems" in node:
            _refuse(path, '"items" together with "prefixItems"')
        _check_most(node, path, "maxItems")
        key = "items" if "items" in node else "prefixItems"
        items = node.get(key)
        path = f"{path}/{key}"
        if not isinstance(items, list):
            if items is not None:
                self.check(items, path)
            return
        # The grammar takes exactly these items: stricter than the schema, unless it wants more.
        if node.get("minItems", 0) > len(items) or node.get("maxItems", len(items)) < len(items):
            _refuse(path, '"minItems" or "maxItems" does not fit a list of single items')
        for i, item in enumerate(items):
            self.check(item, f"{path}/{i}")


def _check_most(node: Mapping[str, Any], path: str, key: str) -> None:
    """Raise for an upper bound so large that llama.cpp treats it as no bound."""
    if node.get(key, 0) > MOST_REPEATED:
        _refuse(path, f'"{key}": {node[key]} (more than {MOST_REPEATED})')


def _apart(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two branches are known to exclude each other: no value fits both."""
    one, two = _values(a), _values(b)
    if one is not None and two is not None:
        return not any(x == y and type(x) is type(y) for x in one for y in two)
    kinds = _kinds(a), _kinds(b)
    if all(kinds) and not kinds[0] & kinds[1]:
        return True
    shared = set(a.get("required", ())) & set(b.get("required", ()))
    properties = (a.get("properties", {}), b.get("properties", {}))
    return any(
        _values(properties[0].get(name, {})) is not None
        and _values(properties[1].get(name, {})) is not None
        and _apart(properties[0][name], properties[1][name])
        for name in shared
    )


def _kinds(node: Mapping[str, Any]) -> set[str]:
    """The types that a node allows; an integer is a number. Empty if it does not say."""
    given = node.get("type", ())
    kinds = {str(kind) for kind in ([given] if isinstance(given, str) else given or ())}
    return kinds | {"number"} if "integer" in kinds else kinds


def _values(node: Any) -> list[Any] | None:
    """The values that a schema lists, or None."""
    if not isinstance(node, Mapping):
        return None
    if "const" in node:
        return [node["const"]]
    values = node.get("enum")
    return values if isinstance(values, list) else None
