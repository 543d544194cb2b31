"""Schemas, grammars and tools that were made to harm whoever compiles them, or follows them.

Each is to end in a typed error or in a right reply. They are made when they are asked for: some are
large.
"""

# ruff: noqa: E501 - one case a line

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

__all__ = ["GRAMMARS", "PATTERNS", "SCHEMAS", "TOOLS"]

S = {"type": "string"}
N = {"type": "integer"}


def obj(properties: Any, required: Any = (), **more: Any) -> dict[str, Any]:
    out = {"type": "object", "properties": properties, "additionalProperties": False, **more}
    return out | ({"required": [*required]} if required else {})


def nested(depth: int, wrap: Callable[[Any], Any], inner: Any = S) -> Any:
    for _ in range(depth):
        inner = wrap(inner)
    return inner


def chain(count: int, link: Callable[[str], Any], last: Any = S) -> Any:
    """``count`` definitions, each of which leads to the next."""
    defs = {f"d{i}": link(f"#/$defs/d{i + 1}") for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": defs | {f"d{count}": last}}


def circle(node: Any) -> Any:
    """A schema that holds itself, as a Python object."""
    node["properties"] = {"a": node}
    return node


def laughs(depth: int) -> Any:
    """Two times the same object, which holds two times the same object, and so on."""
    return nested(depth, lambda inner: obj({"a": inner, "b": inner}))


SCHEMAS: dict[str, Callable[[], Any]] = {
    # bounds that contradict each other
    "minLength over maxLength": lambda: {**S, "minLength": 5, "maxLength": 2},
    "minItems over maxItems": lambda: {"type": "array", "items": N, "minItems": 5, "maxItems": 2},
    "minProperties over max": lambda: obj({"a": N}, minProperties=2, maxProperties=1),
    "minimum over maximum": lambda: {**N, "minimum": 5, "maximum": 4},
    "minimum at maximum, excluded": lambda: {**N, "minimum": 4, "exclusiveMaximum": 4},
    "no integer between": lambda: {**N, "exclusiveMinimum": 1, "exclusiveMaximum": 2},
    "no integer in a fraction": lambda: {**N, "minimum": 1.2, "maximum": 1.8},
    "no multiple": lambda: {**N, "minimum": 1, "maximum": 9, "multipleOf": 10},
    "number bounds": lambda: {"type": "number", "minimum": 1.5, "maximum": 1.4},
    "draft 4 bounds": lambda: {**N, "minimum": 3, "exclusiveMinimum": True, "maximum": 3},
    "nested bounds": lambda: obj({"a": obj({"b": {**S, "minLength": 3, "maxLength": 1}}, "b")}, "a"),
    "huge bounds": lambda: {**N, "minimum": -(10**300), "maximum": 10**300},
    "endless bounds": lambda: {**N, "minimum": 10**5000},
    "more items than there are": lambda: {
        "type": "array",
        "prefixItems": [N, N],
        "items": False,
        "minItems": 3,
    },
    "more properties than there are": lambda: obj({"a": N}, minProperties=3),
    # nothing is allowed
    "false": lambda: False,
    "required and false": lambda: obj({"a": False}, "a"),
    "required and not described": lambda: obj({}, "a"),
    "empty enum": lambda: {"enum": []},
    "const of another type": lambda: {**S, "const": 5},
    "enum of another type": lambda: {**N, "enum": ["a", "b"]},
    "allOf with false": lambda: {"allOf": [obj({"a": N}), False]},
    "anyOf of nothing": lambda: {"anyOf": [False, {"enum": []}]},
    "two types at once": lambda: {"allOf": [S, N]},
    "not anything": lambda: {"not": {}},
    "const under maximum": lambda: {**N, "const": 5, "maximum": 3},
    # references
    "itself": lambda: {"$ref": "#"},
    "a circle of two": lambda: {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    },
    "a circle behind anyOf": lambda: {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
    "a required circle": lambda: obj({"a": {"$ref": "#"}}, "a"),
    "a circle through an array": lambda: {
        "type": "array",
        "items": {"$ref": "#"},
        "minItems": 1,
    },
    "a tree that can end": lambda: obj({"a": {"$ref": "#"}}),
    "a list that can end": lambda: {"type": "array", "items": {"$ref": "#"}, "maxItems": 3},
    "a reference to nowhere": lambda: {"$ref": "#/$defs/none"},
    "a remote reference": lambda: {"$ref": "https://example.org/schema"},
    "a reference through a long path": lambda: {"$ref": "#/" + "a/" * 100_000},
    "a chain of references": lambda: chain(4000, lambda ref: {"$ref": ref}),
    "a chain of objects": lambda: chain(2000, lambda ref: obj({"a": {"$ref": ref}}, "a")),
    "a chain of arrays": lambda: chain(2000, lambda ref: {"type": "array", "items": {"$ref": ref}}),
    "a chain of choices": lambda: chain(2000, lambda ref: {"anyOf": [N, {"$ref": ref}]}),
    "a chain of 200": lambda: chain(200, lambda ref: obj({"a": {"$ref": ref}}, "a")),
    "doubling references": lambda: chain(24, lambda ref: obj({"a": {"$ref": ref}, "b": {"$ref": ref}})),
    "doubling allOf": lambda: chain(24, lambda ref: {"allOf": [{"$ref": ref}, {"$ref": ref}]}, obj({"a": N})),
    "doubling anyOf": lambda: chain(24, lambda ref: {"anyOf": [{"$ref": ref}, {"$ref": ref}]}),
    "holds itself": lambda: circle({"type": "object"}),
    "laughs": lambda: laughs(30),
    "some laughs": lambda: laughs(8),
    # depth and width
    "2000 objects deep": lambda: nested(2000, lambda inner: obj({"a": inner}, "a")),
    "2000 arrays deep": lambda: nested(2000, lambda inner: {"type": "array", "items": inner}),
    "2000 choices deep": lambda: nested(2000, lambda inner: {"anyOf": [inner, N]}),
    "a const 2000 deep": lambda: {"const": nested(2000, lambda inner: [inner])},
    "100,000 arrays deep": lambda: nested(100_000, lambda inner: {"items": inner}),
    "30 objects deep": lambda: nested(30, lambda inner: obj({"a": inner}, "a")),
    "10,000 required": lambda: obj({f"p{i}": N for i in range(10_000)}, map("p{}".format, range(10_000))),
    "4,000 required": lambda: obj({f"p{i}": N for i in range(4_000)}, map("p{}".format, range(4_000))),
    "3,000 optional": lambda: obj({f"p{i}": N for i in range(3_000)}),
    "300 optional": lambda: obj({f"p{i}": N for i in range(300)}),
    "20,000 choices": lambda: {"enum": [f"value {i}" for i in range(20_000)]},
    "9,000 choices": lambda: {"enum": [f"value {i}" for i in range(9_000)]},
    "3,000 choices": lambda: {"enum": [f"value {i}" for i in range(3_000)]},
    "a text of a million": lambda: {"enum": ["a" * 1_000_000]},
    "a text of 16,000": lambda: {"const": "ab c" * 4_000},
    "a name of a million": lambda: obj({"a" * 1_000_000: N}, ["a" * 1_000_000]),
    "five million bytes": lambda: obj({f"p{i}": {**S, "description": "x" * 50_000} for i in range(100)}),
    "2,000 alternatives": lambda: {"anyOf": [obj({f"k{i}": {"const": i}}, [f"k{i}"]) for i in range(2_000)]},
    "500 of oneOf": lambda: {"oneOf": [obj({"k": {"const": i}}, "k") for i in range(500)]},
    "alternatives of alternatives": lambda: {
        "allOf": [
            {"anyOf": [obj({f"a{i}": N}) | {"additionalProperties": True}, obj({f"b{i}": S}) | {"additionalProperties": True}]}
            for i in range(20)
        ]
    },
    "types upon types": lambda: nested(
        12, lambda inner: {"type": ["array", "object", "null"], "items": inner, "properties": {"a": inner}}
    ),
    # repetitions
    "minLength of a million": lambda: {**S, "minLength": 1_000_000},
    "minLength of 100,000": lambda: {**S, "minLength": 100_000},
    "maxLength of a million": lambda: {**S, "maxLength": 1_000_000},
    "minLength of 1e308": lambda: {**S, "minLength": 1e308},
    "minLength below nothing": lambda: {**S, "minLength": -5, "maxLength": -1},
    "minItems of a million": lambda: {"type": "array", "items": N, "minItems": 1_000_000},
    "minItems of 2**64": lambda: {"type": "array", "items": N, "minItems": 2**64},
    "items of items": lambda: nested(
        6, lambda inner: {"type": "array", "items": inner, "minItems": 200, "maxItems": 200}
    ),
    "optional items of items": lambda: nested(
        5, lambda inner: {"type": "array", "items": inner, "maxItems": 300}
    ),
    # no JSON
    "not a number": lambda: {"enum": [math.nan]},
    "infinity": lambda: {**N, "maximum": math.inf},
    "half a character": lambda: {"enum": ["\ud800"]},
    "half a character in a name": lambda: obj({"\udfff": N}),
    "a name that is a number": lambda: {1: 2},
    "a set": lambda: {"enum": {1, 2}},
    "bytes": lambda: {"const": b"x"},
    "a list": lambda: [S],
    "an unknown type": lambda: {"type": "thing"},
    "a type that is a number": lambda: {"type": 5},
    "required that is not a list": lambda: obj({"a": N}) | {"required": True},
    "properties that are a list": lambda: {"type": "object", "properties": ["a"]},
    "enum that is not a list": lambda: {"enum": "abc"},
    "NUL": lambda: {"enum": ["a\0b"]},
    "every character": lambda: {"const": "".join(map(chr, range(0x20, 0xD800, 7)))},
    "right to left": lambda: obj({"\u202e\u0000\U0010ffff": {"const": "\u2028\ufeff"}}, ["\u202e\u0000\U0010ffff"]),
    "options of llguidance": lambda: {"x-guidance": {"whitespace_pattern": "(a*)*", "lenient": True}, **S},
}  # fmt: skip

PATTERNS: dict[str, str] = {
    "repetitions of repetitions": "^((a{1,99}){1,99}){1,99}$",
    "a million times": "^a{1000000}$",
    "the wrong way round": "^a{5,2}$",
    "optional and needed": "^(?:a?){500}a{500}$",
    "stars of stars": "^(a*)*$",
    "stars of stars of stars": "^((a*)*)*b$",
    "overlapping": "^(a|aa)+$",
    "plus plus": "^(x+x+)+y$",
    "a window": "^[ab]*a[ab]{20}$",
    "a larger window": "^(.*a.{200})+$",
    "200 parentheses": "^" + "(" * 200 + "a" + ")" * 200 + "$",
    "5,000 parentheses": "(" * 5000,
    "a long class": "^[" + "".join(map(chr, range(0x4E00, 0x8000))) + "]{1,500}$",
    "letters of all languages": "^\\p{L}{1,2000}$",
    "back reference": "^(a)\\1$",
    "look behind": "^(?<=a)b$",
    "unbalanced": "^(a$",
    "empty": "^$",
    "half a character": "^\ud800$",
    "a class that is empty": "^[^\\s\\S]$",
    "50,000 alternatives": "^(" + "|".join(map(str, range(50_000))) + ")$",
}

GRAMMARS: dict[str, Callable[[], str]] = {
    # no grammar
    "empty": lambda: "",
    "only a comment": lambda: "# ::=",
    "no root": lambda: 'start ::= "a"',
    "undefined": lambda: "root ::= other",
    "undefined in a group": lambda: 'root ::= ("a" (b | "c"))',
    "text without an end": lambda: 'root ::= "abc',
    "class without an end": lambda: "root ::= [abc",
    "escape at the end": lambda: 'root ::= "\\',
    "hex at the end": lambda: 'root ::= "\\x4',
    "unknown escape": lambda: 'root ::= "\\q"',
    "repetition without an end": lambda: 'root ::= "a"{1,',
    "repetition of letters": lambda: 'root ::= "a"{b}',
    "repetition of nothing": lambda: "root ::= {3}",
    "star of nothing": lambda: 'root ::= ""*',
    "parenthesis too many": lambda: 'root ::= ("a"))',
    "parenthesis too few": lambda: 'root ::= (("a")',
    "NUL": lambda: 'root ::= "a\0b"',
    "half a character": lambda: 'root ::= "\ud800"',
    "a token that is not there": lambda: "root ::= <[4294967295]>",
    "a token without an end": lambda: "root ::= <[1",
    "a huge token": lambda: "root ::= <[99999999999999999999999999]>",
    "no token": lambda: "root ::= <not a token>",
    "backwards": lambda: "root ::= [z-a]",
    "nothing fits": lambda: "root ::= [^\\x00-\\U0010FFFF]",
    "an empty class": lambda: "root ::= []",
    # no end
    "itself": lambda: "root ::= root",
    "left recursion": lambda: 'root ::= root "a" | "b"',
    "left recursion of two": lambda: 'root ::= a\na ::= b "x" | "y"\nb ::= a "z" | "w"',
    "left recursion behind nothing": lambda: 'root ::= e root "z" | "x"\ne ::= f\nf ::= "y" | ""',
    "left recursion deep": lambda: 'root ::= "x" a\na ::= e a "q" | "r"\ne ::= f f\nf ::= "y"?',
    "a way that ends the process": lambda: 'root ::= "x" a\na ::= e a\ne ::= f\nf ::= ""',
    "a star of a star": lambda: 'root ::= "a"**',
    "never ends": lambda: 'root ::= "a" root',
    "never ends in a branch": lambda: 'root ::= "x" | a\na ::= "b" a',
    # size
    "the wrong way round": lambda: 'root ::= "a"{5,2}',
    "a large repetition": lambda: 'root ::= "a"{100000}',
    "a larger one": lambda: 'root ::= "a"{99999999999999999999}',
    "repetitions that multiply": lambda: 'root ::= ((("a"{0,60}){0,60}){0,60}){0,60}',
    "a long text repeated": lambda: f'root ::= "{"a" * 100_000}"{{2000}}',
    "a large class repeated": lambda: f"root ::= [{'abcdefgh' * 5000}]{{2000}}",
    "a long text": lambda: f'root ::= "{"a" * 900_000}"',
    "two million bytes": lambda: f'root ::= "{"a" * 2_000_000}"',
    "100,000 rules": lambda: "root ::= r0\n" + "".join(f'r{i} ::= "a"\n' for i in range(100_000)),
    "100,000 optional": lambda: "root ::= " + '"a"? ' * 100_000,
    "plus upon plus": lambda: 'root ::= "a"' + "+" * 100_000,
    "500,000 escapes": lambda: 'root ::= "' + "\\n" * 450_000 + '"',
    "a million spaces": lambda: 'root ::= "a"' + " " * 1_000_000 + '"b"',
    "a comment of a million": lambda: 'root ::= "a" #' + "x" * 1_000_000,
    "100,000 alternatives": lambda: "root ::= " + " | ".join(f'"{i}"' for i in range(100_000)),
    "2,000 alternatives": lambda: "root ::= " + " | ".join(f'"value {i}"' for i in range(2_000)),
    # depth
    "10,000 parentheses": lambda: "root ::= " + "(" * 10_000 + '"a"' + ")" * 10_000,
    "10,000 parentheses open": lambda: "root ::= " + "(" * 10_000,
    "90 parentheses": lambda: "root ::= " + "(" * 90 + '"a"' + ")" * 90,
    "a chain of rules": lambda: "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(30_000)) + 'r30000 ::= "x"',
    "a chain of choices": lambda: "root ::= r0\n" + "".join(f'r{i} ::= r{i + 1} "a" | r{i + 1} "b"\n' for i in range(40)) + 'r40 ::= "x"',
    "a chain of choices that are alike": lambda: "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1} | r{i + 1}\n" for i in range(40)) + 'r40 ::= "x"',
    "nested repetitions": lambda: "root ::= " + "(" * 60 + '"a"' + "*)" * 60,
    # ambiguity
    "optional twice": lambda: 'root ::= ("a"? "a"?){600} "b"',
    "optional 30 times": lambda: 'root ::= ("a"? "a"?){30} "b"',
    "spaces of spaces": lambda: 'root ::= (" "* )* "x"',
    "stars of stars": lambda: 'root ::= ((("a"* "b"*)* "c"*)* "d"*)*',
    "the same thrice": lambda: 'root ::= ("a" | "a" | "a")* "b"',
    "three times itself": lambda: 'root ::= x "!"\nx ::= [a-z ] x x x | [a-z ] x x | [a-z ] x | [a-z ]',
    "twice itself": lambda: 'root ::= x\nx ::= . x x | .',
    "palindromes": lambda: 'root ::= x "!"\nx ::= . x . | . x | .',
    "words of words": lambda: 'root ::= ([a-z]{0,20} " "?){0,50} "."',
    "everything, everywhere": lambda: "root ::= .* .* .* .* .* .* .* .* .* .* .* .*",
    "nullable nests": lambda: "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}? r{i + 1}? [a-z]?\n" for i in range(10)) + "r10 ::= [a-z]?",
    "nullable nests, deep": lambda: "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}? r{i + 1}? [a-z]?\n" for i in range(30)) + "r30 ::= [a-z]?",
    "arithmetic": lambda: 'root ::= t (o t)*\no ::= [-+*/ ]+\nt ::= [0-9a-z]+ | "(" root ")"',
}  # fmt: skip

#: As parameters of a tool that has to be called.
TOOLS = (
    "minLength over maxLength",
    "minItems over maxItems",
    "minimum over maximum",
    "false",
    "required and false",
    "empty enum",
    "itself",
    "a required circle",
    "a chain of objects",
    "holds itself",
    "laughs",
    "2000 objects deep",
    "10,000 required",
    "3,000 optional",
    "a text of a million",
    "minLength of a million",
    "minItems of a million",
    "items of items",
    "not a number",
    "half a character",
    "a set",
    "alternatives of alternatives",
    "types upon types",
    "doubling allOf",
)
