"""JSON schemas with texts that fit them, in the ways in which models write JSON."""

from __future__ import annotations

import dataclasses
import json
import random
from dataclasses import dataclass
from typing import Any

__all__ = ["Case", "Style", "make_case", "styles", "write"]

_WORDS = ["Alice", "Bob Smith", "", "a/b", 'say "hi"', "C:\\temp", "x\ny\tz", "<b>&'", "-", "0"]
_UNICODE = ["café", "日本語", "naïve Ω", "😀 ok", "München/Köln", "\u2028", "e\u0301"]
_NAMES = ["name", "age", "id", "tags", "a", "b", "with space", "café", "x/y", "名前", "é", "_id"]


@dataclass(frozen=True)
class Style:
    """How a model writes JSON.

    Attributes:
        indent: the text that indents by a level, None for one line.
        comma, colon: what stands between items, and between a name and its value.
        padding: what stands inside of brackets that are not empty.
        hollow: what stands inside of empty brackets.
        escapes: "none", "ascii" (by number), "ASCII" (capital digits), "slash" or "html".
        numbers: "plain" or "odd".
        before, after: white space around the whole text.
    """

    indent: str | None = None
    comma: str = ", "
    colon: str = ": "
    padding: str = ""
    hollow: str = ""
    escapes: str = "none"
    numbers: str = "plain"
    before: str = ""
    after: str = ""


def styles(random_: random.Random) -> Style:
    """Some style."""
    indent = random_.choice([None, None, None, "  ", "    ", "\t", " ", "   "])
    joints = [(", ", ": "), (", ", ": "), (",", ":"), (",", ": "), (", ", ":"), (" , ", " : ")]
    comma, colon = random_.choice(joints)
    if indent is not None:
        comma, colon = random_.choice([(",", ": "), (",", ": "), (", ", ":"), (",", " : ")])
    return Style(
        indent=indent,
        comma=comma,
        colon=colon,
        padding=random_.choice(["", "", "", " "]),
        hollow=random_.choice(["", "", "", " ", "\n"]),
        escapes=random_.choice(["none", "none", "ascii", "ASCII", "slash", "html"]),
        numbers=random_.choice(["plain", "odd"]),
        before=random_.choice(["", "", "", "\n", " ", "\n\n"]),
        after=random_.choice(["", "", "", "\n", " "]),
    )


def write(value: Any, style: Style, random_: random.Random) -> str:
    """A value in a style."""
    return style.before + _write(value, style, random_, 0) + style.after


def _write(value: Any, style: Style, random_: random.Random, depth: int) -> str:
    if isinstance(value, dict):
        items = [
            _string(name, style) + style.colon + _write(inner, style, random_, depth + 1)
            for name, inner in value.items()
        ]
        return _enclosed("{}", items, style, depth)
    if isinstance(value, list):
        return _enclosed("[]", [_write(v, style, random_, depth + 1) for v in value], style, depth)
    if isinstance(value, str):
        return _string(value, style)
    if isinstance(value, Odd):
        return random_.choice(value.ways) if style.numbers == "odd" else value.ways[0]
    return json.dumps(value)


def _enclosed(brackets: str, items: list[str], style: Style, depth: int) -> str:
    if not items:
        return brackets[0] + style.hollow + brackets[1]
    if style.indent is None:
        return brackets[0] + style.padding + style.comma.join(items) + style.padding + brackets[1]
    line, end = "\n" + style.indent * (depth + 1), "\n" + style.indent * depth
    return brackets[0] + line + (style.comma.rstrip() + line).join(items) + end + brackets[1]


def _string(text: str, style: Style) -> str:
    if style.escapes in ("ascii", "ASCII"):
        written = json.dumps(text)
        return _capital(written) if style.escapes == "ASCII" else written
    written = json.dumps(text, ensure_ascii=False)
    if style.escapes == "slash":
        written = written.replace("/", r"\/")
    if style.escapes == "html":
        for letter in "<>&'":
            written = written.replace(letter, f"\\u{ord(letter):04x}")
    return written


def _capital(written: str) -> str:
    parts = written.split("\\u")
    return "\\u".join([parts[0], *(part[:4].upper() + part[4:] for part in parts[1:])])


class Odd:
    """A number that people write in several ways; the first one is Python's."""

    def __init__(self, *ways: str) -> None:
        self.ways = ways


_SMALL = Odd("0.1", "0.10", "1e-1", "1.0E-01")
_NUMBERS = [
    _SMALL,
    Odd("0", "-0", "0.0", "-0.0", "0e0"),
    Odd("100000.0", "1e5", "1E5", "1e+5", "100000", "1.0E+5"),
    Odd("1e-05", "1E-5", "0.00001", "1.0e-5"),
    Odd("-12.75", "-1.275e1", "-12.750"),
    Odd("0.30000000000000004", "0.3", "3.0000000000000004E-1"),
    Odd("1e+22", "1e22", "1.0E+22"),
    Odd(
        "1234567890123456789",
    ),
    Odd("3.141592653589793", "3.14"),
    Odd("42", "42.0", "4.2e1"),
]


@dataclass(frozen=True)
class Case:
    """A schema and a text that fits it; whether llama.cpp's grammars know the schema."""

    schema: dict[str, Any]
    text: str
    gbnf: bool


class _Maker:
    """Makes schemas and values that fit them, together."""

    def __init__(self, random_: random.Random) -> None:
        self.random = random_
        self.gbnf = True
        self.plain = False
        self.shelf: dict[str, Any] = {}

    def make(self, depth: int) -> tuple[Any, Any]:
        leaves = [self.string, self.string, self.integer, self.number, self.boolean, self.enum]
        leaves += [self.constant, self.null, self.kinds, self.bounded, self.dated, self.pattern]
        nodes = [self.object, self.object, self.array, self.row, self.choice, self.reference]
        nodes += [self.anything, self.alternatives]
        if self.plain:  # what the tools of programs have
            leaves, nodes = leaves[:6], [self.object, self.array, self.string, self.enum]
        kinds = leaves if depth <= 0 else [*leaves[:6], *nodes, *nodes]
        made: tuple[Any, Any] = self.random.choice(kinds)(depth)
        return made

    def words(self) -> str:
        return self.random.choice(_WORDS + _UNICODE)

    def string(self, depth: int) -> tuple[Any, Any]:
        text = self.words()
        schema: dict[str, Any] = {"type": "string"}
        if self.random.random() < 0.5:
            schema["maxLength"] = len(text) + self.random.choice([0, 1, 20])
        if self.random.random() < 0.3:
            schema["minLength"] = self.random.choice([0, len(text)])
        return schema, text

    def integer(self, depth: int) -> tuple[Any, Any]:
        return {"type": "integer"}, self.random.choice([0, 7, -3, 2024, 123456789012345678])

    def bounded(self, depth: int) -> tuple[Any, Any]:
        low = self.random.choice([-5, 0, 1, 10, 999])
        value = low + self.random.choice([0, 1, 5, 90])
        high = value + self.random.choice([0, 3, 1000])
        if self.random.random() < 0.3:
            self.gbnf = False
            if low <= 0 and high >= 1 and self.random.random() < 0.5:
                return {"type": "number", "minimum": low, "maximum": high}, _SMALL
            return {"type": "number", "minimum": low, "maximum": high + 0.5}, value + 0.25
        return {"type": "integer", "minimum": low, "maximum": high}, value

    def number(self, depth: int) -> tuple[Any, Any]:
        return {"type": "number"}, self.random.choice(_NUMBERS)

    def boolean(self, depth: int) -> tuple[Any, Any]:
        return {"type": "boolean"}, self.random.random() < 0.5

    def null(self, depth: int) -> tuple[Any, Any]:
        return {"type": "null"}, None

    def enum(self, depth: int) -> tuple[Any, Any]:
        values = self.random.sample([*_WORDS, *_UNICODE, 1, 2.5, None, True], 4)
        strings = [value for value in values if isinstance(value, str)] or ["x"]
        if self.random.random() < 0.6:
            return {"type": "string", "enum": strings}, self.random.choice(strings)
        return {"enum": values}, self.random.choice(values)

    def constant(self, depth: int) -> tuple[Any, Any]:
        value = self.random.choice([self.words(), 3, False])
        return {"const": value}, value

    def kinds(self, depth: int) -> tuple[Any, Any]:
        value = self.random.choice([None, self.words()])
        return {"type": self.random.choice([["string", "null"], ["null", "string"]])}, value

    def dated(self, depth: int) -> tuple[Any, Any]:
        samples = {
            "date": "2024-02-29",
            "time": "23:59:00Z",
            "date-time": "2024-01-02T03:04:05+01:00",
            "uuid": "123e4567-e89b-12d3-a456-426614174000",
        }
        form = self.random.choice(list(samples))
        return {"type": "string", "format": form}, samples[form]

    def pattern(self, depth: int) -> tuple[Any, Any]:
        pattern, text = self.random.choice(
            [
                ("^[a-z]{2,5}-\\d{3}$", "abc-123"),
                ("^(yes|no)$", "yes"),
                ("^[A-Z][a-z]*( [A-Z][a-z]*)?$", "Ann Lee"),
            ]
        )
        return {"type": "string", "pattern": pattern}, text

    def object(self, depth: int) -> tuple[Any, Any]:
        names = self.random.sample(_NAMES, self.random.randint(0, 4))
        properties, value, required = {}, {}, []
        for name in names:
            properties[name], inner = self.make(depth - 1)
            wanted = self.random.random() < 0.6
            if wanted:
                required.append(name)
            if wanted or self.random.random() < 0.5:
                value[name] = inner
        schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
        if self.random.random() < 0.7:
            schema["additionalProperties"] = False
        elif names and self.random.random() < 0.6:
            schema["additionalProperties"], value["zzz/ü"] = self.make(depth - 2)
        return schema, value

    def array(self, depth: int) -> tuple[Any, Any]:
        made = [self.make(depth - 1)]
        count = self.random.choice([0, 1, 2, 3])
        schema: dict[str, Any] = {"type": "array", "items": made[0][0]}
        if self.random.random() < 0.5:
            schema["minItems"] = self.random.randint(0, count)
        if self.random.random() < 0.5:
            schema["maxItems"] = count + self.random.choice([0, 2])
        return schema, [made[0][1]] * count

    def row(self, depth: int) -> tuple[Any, Any]:
        made = [self.make(depth - 1) for _ in range(self.random.randint(1, 3))]
        count = {"minItems": len(made), "maxItems": len(made)}
        items = [schema for schema, _ in made]
        return {"type": "array", "prefixItems": items, **count}, [value for _, value in made]

    def choice(self, depth: int) -> tuple[Any, Any]:
        made = [self.make(depth - 1) for _ in range(self.random.randint(1, 3))]
        return {"anyOf": [schema for schema, _ in made]}, self.random.choice(made)[1]

    def alternatives(self, depth: int) -> tuple[Any, Any]:
        made = self.random.sample([self.integer, self.boolean, self.string, self.null], 2)
        pairs = [maker(depth) for maker in made]
        return {"oneOf": [schema for schema, _ in pairs]}, self.random.choice(pairs)[1]

    def anything(self, depth: int) -> tuple[Any, Any]:
        value = self.make(depth - 1)[1]
        return self.random.choice([({}, value), ({"type": "object"}, {"any": value})])

    def reference(self, depth: int) -> tuple[Any, Any]:
        name = f"def{len(self.shelf)}"
        self.shelf[name] = {}
        if self.random.random() < 0.5:
            self.shelf[name], value = self.make(depth - 1)
            return {"$ref": f"#/$defs/{name}"}, value
        me = {"$ref": f"#/$defs/{name}"}
        leaf, leaf_value = self.make(0)
        kids = {"type": "array", "items": me}
        self.shelf[name] = {
            "type": "object",
            "properties": {"v": leaf, "kids": kids},
            "required": ["v"],
            "additionalProperties": False,
        }
        twig = {"v": leaf_value}
        return me, {"v": leaf_value, "kids": [twig, {"v": leaf_value, "kids": []}][: depth + 1]}


def make_case(seed: int) -> Case:
    """A schema and a text that fits it."""
    random_ = random.Random(seed)
    maker = _Maker(random_)
    schema, value = maker.object(3) if random_.random() < 0.8 else maker.make(2)
    while not schema:  # a request that says nothing asks for an object
        schema, value = maker.make(2)
    if maker.shelf:
        schema = {**schema, "$defs": maker.shelf}
    return Case(schema, write(value, styles(random_), random_), maker.gbnf)


def make_call(seed: int, name: str, key: str) -> tuple[dict[str, Any], str]:
    """The parameters of a tool, and a JSON text that calls it with arguments that fit."""
    random_ = random.Random(seed)
    maker = _Maker(random_)
    maker.plain = True
    schema, value = maker.object(2)
    style = dataclasses.replace(styles(random_), before="", after="")
    return schema, write({"name": name, key: value}, style, random_)
