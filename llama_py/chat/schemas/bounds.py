"""Limits of JSON schemas, checked before native code sees them.

Schemas often come from clients. Compilers of schemas copy what is repeated and recurse into what is
nested, and a schema that no value fits would make the model write until it is cut off. Each of
these is a ``GrammarError`` that names the place (as a JSON pointer) and the remedy. Which keywords
are supported is checked by the engine that enforces the schema (``grammars.converter``,
``grammars.guidance``).
"""

from __future__ import annotations

import marshal
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from llama_py.chat.schemas.satisfiable import check_satisfiable
from llama_py.core.host.gil_yield import GilYield
from llama_py.errors import GrammarError
from llama_py.tenants import Remembered

__all__ = [
    "MOST_BYTES",
    "MOST_CHOICES",
    "MOST_DEPTH",
    "MOST_ONE_OF",
    "MOST_OPTIONAL",
    "MOST_OPTIONAL_GBNF",
    "MOST_PATTERN",
    "MOST_PROPERTIES",
    "MOST_REPEATED",
    "MOST_TEXT",
    "MOST_VALUES",
    "check_bounds",
    "check_optional",
    "check_tools",
    "role_of",
]

#: Bytes of a schema's text, roughly: names, strings and numbers without what is between them.
MOST_BYTES = 1 << 19
#: Objects, arrays, strings and numbers in a schema.
MOST_VALUES = 20_000
#: Objects and arrays within one another. One property within a property takes two of them.
MOST_DEPTH = 100
#: Properties, in the whole schema.
MOST_PROPERTIES = 2_000
#: Values of all enums together.
MOST_CHOICES = 5_000
#: Characters of one string that has to be written (``const``, ``enum``), or of a property's name.
MOST_TEXT = 4_096
#: ``minLength``, ``minItems`` and their like. An upper bound may be larger: it costs nothing.
MOST_REPEATED = 100_000
#: Characters of a pattern, also after its repetitions have been written out.
MOST_PATTERN = 5_000
#: Properties of one object that may be left out: each may follow each.
MOST_OPTIONAL = 400
#: The same where llama.cpp's grammars enforce it, as for the parameters of tools.
MOST_OPTIONAL_GBNF = 150
#: Alternatives of one "oneOf": each is compared with each.
MOST_ONE_OF = 150

#: Characters of a reference.
_LONGEST_REFERENCE = 1000
#: How many schemas that passed are remembered, and up to which size.
_MOST_KEYS, _MOST_KNOWN, _MOST_KEY_BYTES = 128, 1 << 16, 1 << 23
_LOWER = frozenset({"minLength", "minItems", "minProperties", "minContains"})
_MUST_BE: dict[str, tuple[Any, str]] = {
    "properties": (Mapping, "an object"),
    "required": ((list, tuple), "a list of names"),
    "enum": ((list, tuple), "a list"),
    "anyOf": ((list, tuple), "a list"),
    "oneOf": ((list, tuple), "a list"),
    "allOf": ((list, tuple), "a list"),
    "type": ((str, list, tuple), "the name of a type"),
    "pattern": (str, "a text"),
    "format": (str, "a text"),
    "$ref": (str, "a text"),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), ((int, float), "a number")),
}
_DATA = frozenset({"enum", "const"})
#: What people read, and nobody compiles.
_NOTES = frozenset({"default", "example", "examples", "description", "title", "$comment"})


def check_optional(schema: Any) -> None:
    """Raise if an object has too many optional properties for llama.cpp's converter."""
    _Walk(MOST_OPTIONAL_GBNF).check(schema, "the JSON schema")


def check_bounds(schema: Any, name: str = "the JSON schema") -> None:
    """Raise for a schema that is too large, contradicts itself, or is not JSON.

    Args:
        schema: the schema, as Python values.
        name: the schema's name in the error message.

    Raises:
        GrammarError: with the place and the remedy.
    """
    with _PASSED.check(schema) as known:
        if not known:
            _Walk(MOST_OPTIONAL, strict=True).check(schema, name)
            check_satisfiable(schema, name)


def check_tools(schemas: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> None:
    """Check the parameters of tools. They become one grammar, so the limits apply to their sum.

    Args:
        schemas: of each tool.
        names: of the tools, for the error message.

    Raises:
        GrammarError: with the place and the remedy.
    """
    walk = _Walk(MOST_OPTIONAL_GBNF)
    with _PASSED_TOOLS.check(schemas) as known:
        for i, schema in enumerate(() if known else schemas):
            name = f"the JSON schema tools[{i}].function.parameters"
            name = f"the tool {names[i]!r}: {name}" if names else name
            walk.check(schema, name)
            check_satisfiable(schema, name, lax=True)


class _Passed:
    """Recently accepted schemas of a tenant, by content: many requests repeat the same schema."""

    def __init__(self) -> None:
        self._keys: Remembered[bytes, bool] = Remembered(_MOST_KEYS, _MOST_KEY_BYTES)

    @contextmanager
    def check(self, value: Any) -> Iterator[bool]:
        """Whether a value was accepted before. If the block raises nothing, it is remembered."""
        try:
            key = marshal.dumps(value)  # knows what it wrote before, so that circles end
        except ValueError:  # deeper than it goes, or no plain values
            key = b""
        known = key in self._keys
        yield known
        if key and not known and len(key) < _MOST_KNOWN:
            self._keys.put(key, True, len(key))


_PASSED, _PASSED_TOOLS = _Passed(), _Passed()


class _Walk:
    """Visits every value once, without recursion, and counts."""

    def __init__(self, most_optional: int, strict: bool = False) -> None:
        self._most_optional = most_optional
        self._strict = strict
        self._gil_yield = GilYield()
        self._name = ""
        self._values = 0
        self._bytes = 0
        self._properties = 0
        self._choices = 0

    def check(self, schema: Any, name: str) -> None:
        self._name = name
        todo: list[tuple[Any, str, int, str]] = [(schema, "#", 0, "schema")]
        while todo:
            value, path, depth, role = todo.pop()
            self._values += 1
            self._gil_yield()
            if self._values > MOST_VALUES:
                self._refuse(path, f"it has more than {MOST_VALUES} values")
            if depth > MOST_DEPTH:
                self._refuse(
                    path, f'it is nested more than {MOST_DEPTH} levels deep; use "$defs" and "$ref"'
                )
            if isinstance(value, Mapping):
                todo += self._members(value, path, depth, role)
            elif isinstance(value, (list, tuple)):
                if len(value) > MOST_VALUES:
                    self._refuse(path, f"it has more than {MOST_VALUES} values")
                inner = role if role in ("data", "note") else "schema"
                todo += [(v, f"{path}/{i}", depth + 1, inner) for i, v in enumerate(value)]
            else:
                self._scalar(value, path, role)

    def _members(
        self, value: Mapping[Any, Any], path: str, depth: int, role: str
    ) -> list[tuple[Any, str, int, str]]:
        if len(value) > MOST_VALUES:
            self._refuse(path, f"it has more than {MOST_VALUES} values")
        if role == "properties":
            self._properties += len(value)
            if self._properties > MOST_PROPERTIES:
                self._refuse(path, f"there are more than {MOST_PROPERTIES} properties")
        for key in value:
            self._gil_yield()
            if not isinstance(key, str):
                self._refuse(path, f"the name {_shown(key)} is not a string")
            self._text(key, path)
            if len(key) > MOST_TEXT:
                self._refuse(path, f"a name has {len(key)} characters, and {MOST_TEXT} is the most")
        if role == "schema":
            self._keywords(value, path)
        return [
            (member, f"{path}/{pointer(key)}", depth + 1, role_of(key, role))
            for key, member in value.items()
        ]

    def _scalar(self, value: Any, path: str, role: str) -> None:
        if isinstance(value, str):
            self._text(value, path)
            if role == "data" and len(value) > MOST_TEXT:
                self._refuse(
                    path,
                    f"a text of {len(value)} characters is to be written, and {MOST_TEXT} is the "
                    "most",
                )
        elif isinstance(value, float) and not math.isfinite(value):
            self._refuse(path, f"{value} is not a JSON number")
        elif isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 1024:
            self._refuse(path, f"a number of {value.bit_length()} bits is too large")
        elif not (value is None or isinstance(value, (bool, int, float))):
            self._refuse(path, f"{_shown(value)} is a {type(value).__name__}, which JSON has not")
        else:
            self._bytes += 8

    def _text(self, text: str, path: str) -> None:
        try:
            self._bytes += len(text.encode())
        except UnicodeEncodeError as error:
            half = text[error.start]
            self._refuse(path, f"{half!r} is half a character (a lone surrogate)")
        if self._bytes > MOST_BYTES:
            self._refuse(path, f"it is larger than {MOST_BYTES} bytes")

    # ---- keywords ----------------------------------------------------------------------------

    def _keywords(self, node: Mapping[Any, Any], path: str) -> None:
        if self._strict:
            for key, (kind, what) in _MUST_BE.items():
                if key in node and not isinstance(node[key], kind):
                    self._refuse(path, f'"{key}" must be {what}, not {_shown(node[key])}')
            for name in node.get("required", ()):
                if not isinstance(name, str):
                    self._refuse(
                        path, f'"required" must be a list of names, and has {_shown(name)}'
                    )
        self._count_branches(node, path)
        for key in _LOWER & node.keys():
            count = node[key]
            if isinstance(count, (int, float)) and count > MOST_REPEATED:
                self._refuse(path, f'"{key}" is {count}, and {MOST_REPEATED} is the most')
        reference = node.get("$ref")
        if isinstance(reference, str) and len(reference) > _LONGEST_REFERENCE:
            self._refuse(path, f'"$ref" has {len(reference)} characters')
        values = node.get("enum")
        if isinstance(values, (list, tuple)):
            self._choices += len(values)
            if self._choices > MOST_CHOICES:
                self._refuse(path, f"enums have more than {MOST_CHOICES} values together")
        patterns = [node.get("pattern")]
        if isinstance(node.get("patternProperties"), Mapping):
            patterns += node["patternProperties"]
        for pattern in patterns:
            if isinstance(pattern, str):
                problem = pattern_problem(pattern)
                if problem:
                    self._refuse(path, f'the pattern "{_short(pattern)}" {problem}')

    def _count_branches(self, node: Mapping[Any, Any], path: str) -> None:
        branches = node.get("oneOf")
        if isinstance(branches, (list, tuple)) and len(branches) > MOST_ONE_OF:
            self._refuse(path, f'"oneOf" has {len(branches)} parts, and {MOST_ONE_OF} is the most')
        properties, required = node.get("properties"), node.get("required")
        if isinstance(properties, Mapping) and len(properties) > self._most_optional:
            listed = required if isinstance(required, (list, tuple)) else ()
            names = {name for name in listed if isinstance(name, str)}
            optional = len(properties.keys() - names)
            if optional > self._most_optional:
                self._refuse(
                    path,
                    f"{optional} properties may be left out, and {self._most_optional} is the "
                    'most; name more of them in "required"',
                )

    def _refuse(self, path: str, what: str) -> NoReturn:
        raise GrammarError(f"{self._name} at {_short(path, 200)}: {what}")


def role_of(key: str, role: str) -> str:
    """Whether a member of an object in a schema is a schema, a table of schemas, or plain data."""
    if role in ("data", "note"):
        return role
    if role in ("properties", "table"):
        return "schema"
    if key in _DATA or key in _NOTES:
        return "data" if key in _DATA else "note"
    if key in ("properties", "patternProperties"):
        return "properties"
    return "table" if key in ("$defs", "definitions", "dependentSchemas") else "schema"


def pointer(key: str) -> str:
    """A name as part of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _short(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-limit // 2 :]}"


def _shown(value: Any) -> str:
    try:
        return _short(repr(value))
    except Exception:  # a repr of somebody else's may do anything
        return f"a {type(value).__name__}"


# ---- patterns ---------------------------------------------------------------------------------


def pattern_problem(pattern: str) -> str | None:
    """The reason why a regular expression is too large, or None.

    Repetitions within repetitions multiply. Syntax errors are left to the compiler.
    """
    if len(pattern) > MOST_PATTERN:
        return f"has {len(pattern)} characters, and {MOST_PATTERN} is the most"
    sizes, last, depths, at = [0], 0, 0, 0
    while at < len(pattern):
        letter = pattern[at]
        at += 1
        if letter == "\\":
            at, last = at + 1, 1
        elif letter == "[":
            at, last = _end_of_class(pattern, at), 1
        elif letter == "(":
            sizes.append(0)
            depths = max(depths, len(sizes))
            last = 0
            continue
        elif letter == ")":
            last = sizes.pop() if len(sizes) > 1 else 0
        elif letter == "{":
            low, high, end = _counts(pattern, at)
            if end is None:
                last = 1
            else:
                at = end
                if high is not None and low > high:
                    return (
                        f"has the repetition {{{low},{high}}}, which asks for more than it allows"
                    )
                sizes[-1] += last * (max(1, low if high is None else high) - 1)
                last *= max(1, low if high is None else high)
                if sizes[-1] > MOST_PATTERN:
                    return _too_large()
                continue
        elif letter in "*+?|^$":
            last = last if letter in "*+?" else 0
            continue
        else:
            last = 1
        sizes[-1] += last
        if sizes[-1] > MOST_PATTERN:
            return _too_large()
    if depths > MOST_DEPTH:
        return f"has parentheses that are nested more than {MOST_DEPTH} deep"
    return None


def _too_large() -> str:
    return (
        f"comes to more than {MOST_PATTERN} characters when its repetitions are written out; use "
        "smaller ones"
    )


def _end_of_class(pattern: str, at: int) -> int:
    at += pattern.startswith("^", at)
    at += pattern.startswith("]", at)
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1


def _counts(pattern: str, at: int) -> tuple[int, int | None, int | None]:
    """``{m}``, ``{m,}``, ``{m,n}`` behind its brace: at least, at most, where it ends."""
    end = pattern.find("}", at, at + 40)
    low, comma, high = pattern[at : max(at, end)].partition(",")
    plain = low.isascii() and low.isdigit() and (not high or (high.isascii() and high.isdigit()))
    if end < 0 or not plain:
        return 0, 0, None
    return int(low), (int(high) if high else None) if comma else int(low), end + 1
