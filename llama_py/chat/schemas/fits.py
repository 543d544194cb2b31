"""``fits``: whether a value fits a JSON schema.

For the arguments of calls that a model wrote without a constraint, which are read only then and
are small. Where llama.cpp's grammars are narrower than a schema (the order of properties) or wider
(bounds of fractions), this is exactly what the schema says. Keywords that are not known, and
references that lead nowhere, are no reason to refuse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard
from urllib.parse import unquote

from llama_py.chat.schemas.plain import with_null
from llama_py.chat.schemas.satisfiable import is_a

__all__ = ["fits"]

#: Whether a text fits a pattern.
Matches = Callable[[str, str], bool]
#: References and combinations that are followed before anything of the value is read.
_MOST_FOLLOWED = 100
#: Comparisons of a part of the value with a part of the schema: references can double them.
_MOST_COMPARED = 100_000


def fits(value: Any, schema: Any, matches: Matches, *, closed: bool = False) -> bool:
    """Whether a value fits a schema.

    Args:
        value: as ``json.loads`` returns it.
        schema: of any draft; its references are looked up in it.
        matches: ``matches(pattern, text)``: whether the pattern occurs in the text.
        closed: an object whose schema lists properties, and says nothing of others, has no others,
            as in a grammar of llama.cpp.
    """
    try:
        return _Check(schema, matches, closed).fits(value, schema)
    except (RecursionError, _TooMuch):
        return False


class _TooMuch(Exception):
    """Nobody writes such a schema who wants it to be used."""


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal; 1 is 1.0, and no boolean is a number."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_multiple(value: float, step: float) -> bool:
    if isinstance(value, int) and isinstance(step, int):
        return value % step == 0
    try:
        times = value / step
    except OverflowError:  # one of them is an integer that has no double
        return False
    return math.isfinite(times) and math.isclose(times, round(times), rel_tol=1e-9)


#: Keywords by which other schemas say something of the same value.
_COMBINING = ("$ref", "allOf", "anyOf", "oneOf", "not", "if")


def _is_shared(schema: Mapping[str, Any]) -> bool:
    """Whether each part of a schema may name properties that the other parts do not know."""
    used = [key for key in _COMBINING if key in schema]
    parts = schema.get("allOf")
    own = any(key in schema for key in ("properties", "patternProperties", "not", "if"))
    return bool(used) and (own or len(used) > 1 or (isinstance(parts, list) and len(parts) > 1))


class _Check:
    def __init__(self, root: Any, matches: Matches, closed: bool) -> None:
        self._root = root
        self._matches = matches
        self._closed = closed
        self._left = _MOST_COMPARED

    def fits(self, value: Any, schema: Any, followed: int = 0, part: bool = False) -> bool:
        """``part``: other schemas say something of the same value."""
        self._left -= 1
        if self._left < 0:
            raise _TooMuch
        if not isinstance(schema, Mapping):
            return schema is not False
        schema = with_null(schema)
        kinds, listed = schema.get("type"), schema.get("enum")
        if isinstance(kinds, str):
            kinds = [kinds]
        if isinstance(kinds, list) and not any(is_a(value, str(kind)) for kind in kinds):
            return False
        if "const" in schema and not _same(value, schema["const"]):
            return False
        if isinstance(listed, list) and not any(_same(value, each) for each in listed):
            return False
        combined = self._fits_combined(value, schema, followed, part)
        return combined and all(self._of_its_kind(value, schema, part))

    # ---- schemas of schemas --------------------------------------------------------------------

    def _fits_combined(
        self, value: Any, schema: Mapping[str, Any], followed: int, part: bool
    ) -> bool:
        shared = part or _is_shared(schema)

        def fit(part: Any) -> bool:
            return self.fits(value, part, followed + 1, shared)

        if followed > _MOST_FOLLOWED:
            return False
        if isinstance(reference := schema.get("$ref"), str) and not fit(self._target(reference)):
            return False
        if isinstance(parts := schema.get("allOf"), list) and not all(map(fit, parts)):
            return False
        if isinstance(parts := schema.get("anyOf"), list) and not any(map(fit, parts)):
            return False
        if isinstance(parts := schema.get("oneOf"), list) and sum(map(fit, parts)) != 1:
            return False
        if "not" in schema and fit(schema["not"]):
            return False
        if "if" in schema:
            return fit(schema.get("then" if fit(schema["if"]) else "else", True))
        return True

    def _target(self, reference: str) -> Any:
        if not reference.startswith("#"):
            return True
        node = self._root
        for part in filter(None, reference[1:].split("/")):
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping) and key in node:
                node = node[key]
            elif isinstance(node, list) and key.isdecimal() and int(key[:9]) < len(node):
                node = node[int(key[:9])]
            else:
                return True
        return node

    # ---- by the kind of the value --------------------------------------------------------------

    def _of_its_kind(self, value: Any, schema: Mapping[str, Any], part: bool) -> Iterator[bool]:
        if isinstance(value, str):
            yield _within(len(value), schema, "minLength", "maxLength")
            if isinstance(pattern := schema.get("pattern"), str):
                yield self._matches(pattern, value)
        elif isinstance(value, list):
            yield from self._of_list(value, schema)
        elif isinstance(value, dict):
            yield from self._of_object(value, schema, part)
        elif _is_number(value):
            least, most = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
            yield _within(value, schema, "minimum", "maximum")
            # Up to draft 4 these two are booleans.
            above = least is not True or value != schema.get("minimum")
            yield value > least if _is_number(least) else above
            below = most is not True or value != schema.get("maximum")
            yield value < most if _is_number(most) else below
            step = schema.get("multipleOf")
            if _is_number(step) and step > 0:
                yield _is_multiple(value, step)

    def _of_list(self, values: Sequence[Any], schema: Mapping[str, Any]) -> Iterator[bool]:
        yield _within(len(values), schema, "minItems", "maxItems")
        first, rest = schema.get("prefixItems"), schema.get("items", True)
        if isinstance(rest, list):
            first, rest = rest, schema.get("additionalItems", True)
        first = first if isinstance(first, list) else []
        for i, value in enumerate(values):
            yield self.fits(value, first[i] if i < len(first) else rest)
        if "contains" in schema:
            yield any(self.fits(value, schema["contains"]) for value in values)
        if schema.get("uniqueItems") is True:
            self._left -= len(values) ** 2 // 2
            if self._left < 0:
                raise _TooMuch
            yield not any(_same(a, b) for i, a in enumerate(values) for b in values[:i])

    def _of_object(
        self, values: Mapping[str, Any], schema: Mapping[str, Any], part: bool
    ) -> Iterator[bool]:
        yield _within(len(values), schema, "minProperties", "maxProperties")
        required = schema.get("required")
        if isinstance(required, list):
            yield all(name in values for name in required)
        known = schema.get("properties")
        known = known if isinstance(known, Mapping) else {}
        patterns = schema.get("patternProperties")
        patterns = patterns if isinstance(patterns, Mapping) else {}
        closed = self._closed and "properties" in schema and not (part or _is_shared(schema))
        others = schema.get("additionalProperties", not closed)
        for name, value in values.items():
            yield self.fits(name, schema.get("propertyNames", True))
            parts = [known[name]] if name in known else []
            parts += [each for pattern, each in patterns.items() if self._matches(pattern, name)]
            for each in parts or (others,):
                yield self.fits(value, each)


def _within(size: float, schema: Mapping[str, Any], least: str, most: str) -> bool:
    low, high = schema.get(least), schema.get(most)
    return (not _is_number(low) or size >= low) and (not _is_number(high) or size <= high)
