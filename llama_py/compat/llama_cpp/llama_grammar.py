"""Grammars under llama-cpp-python's names."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import Self

from llama_py.chat.constraints import LlamaGrammar as NativeGrammar
from llama_py.compat.schemas import convertible
from llama_py.params import GrammarSpec
from llama_py.regular_files import read_short_text

__all__ = [
    "ARITHMETIC_GBNF",
    "CHESS_GBNF",
    "C_GBNF",
    "DOT",
    "DOTALL",
    "ESCAPED_IN_REGEXPS_BUT_NOT_IN_LITERALS",
    "GRAMMAR_LITERAL_ESCAPES",
    "GRAMMAR_LITERAL_ESCAPE_RE",
    "INVALID_RULE_CHARS_RE",
    "JAPANESE_GBNF",
    "JSON_ARR_GBNF",
    "JSON_GBNF",
    "LIST_GBNF",
    "LLAMA_GRAMMAR_DEFAULT_ROOT",
    "NON_LITERAL_SET",
    "PRIMITIVE_RULES",
    "RESERVED_NAMES",
    "SPACE_RULE",
    "STRING_FORMAT_RULES",
    "BuiltinRule",
    "LlamaGrammar",
    "SchemaConverter",
    "json_schema_to_gbnf",
]

LLAMA_GRAMMAR_DEFAULT_ROOT = "root"


class LlamaGrammar(NativeGrammar):
    """A grammar for ``grammar=``; its text is checked when it is used."""

    def __init__(self, *args: Any, _grammar: str, **kwargs: Any) -> None:
        super().__init__(_grammar, LLAMA_GRAMMAR_DEFAULT_ROOT, schema=kwargs.get("schema"))

    @property
    def _grammar(self) -> str:
        return self.grammar

    @property
    def _root(self) -> str:
        return self.root

    @property
    def spec(self) -> GrammarSpec:
        """It masks before the draw, as llama-cpp-python's does: the same seed, the same text."""
        return replace(super().spec, first=True)

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> Self:
        """A grammar from GBNF text."""
        return cls(_grammar=grammar)

    @classmethod
    def from_file(cls, file: str | Path, verbose: bool = True) -> Self:
        """A grammar from a file of GBNF text.

        Raises:
            Exception: the file cannot be read, or is empty.
        """
        try:
            grammar = read_short_text(file)
        except OSError as error:
            raise Exception(f"from_file: error reading from '{file}': {error}") from error
        if not grammar:
            raise ValueError("from_file: empty grammar file")
        return cls.from_string(grammar, verbose)

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> Self:
        """A grammar from the text of a JSON schema; see ``json_schema_to_gbnf``."""
        schema, grammar = convertible(json.loads(json_schema))
        return cls(_grammar=grammar, schema=schema)

    def reset(self) -> None:
        """Nothing: each generation begins at the root anyway."""


def json_schema_to_gbnf(schema: str, prop_order: list[str] | None = None) -> str:
    """The GBNF rules of a JSON schema.

    Objects have the properties that are listed, and no others unless the schema says
    ``additionalProperties``, as with llama-cpp-python; in JSON Schema that would be the default.
    Keywords that it passes over are left out where llama.cpp's grammars cannot express them, with a
    warning.

    Args:
        prop_order: properties that come first, in this order.
    """
    return convertible(_ordered(json.loads(schema), prop_order or []))[1]


def _ordered(value: Any, first: list[str]) -> Any:
    """A schema whose properties are in this order."""
    if isinstance(value, list):
        return [_ordered(each, first) for each in value]
    if not isinstance(value, dict):
        return value
    found = {key: _ordered(each, first) for key, each in value.items()}
    if first and isinstance(found.get("properties"), dict):
        members = found["properties"]
        order = sorted(members, key=lambda name: first.index(name) if name in first else len(first))
        found["properties"] = {name: members[name] for name in order}
    return found


class SchemaConverter:
    """Converts a JSON schema to GBNF rules; ``json_schema_to_gbnf`` does it in one call."""

    def __init__(
        self, *, prop_order: Any, allow_fetch: bool, dotall: bool, raw_pattern: bool
    ) -> None:
        self._order = sorted(prop_order or {}, key=lambda name: (prop_order or {}).get(name, 0))
        self._schema: Any = {}

    def resolve_refs(self, schema: Any, url: str) -> Any:
        """The schema as it is: references within it are followed by ``visit``."""
        return schema

    def visit(self, schema: Any, name: str) -> str:
        """Take the schema; ``format_grammar`` gives its rules."""
        self._schema = schema
        return name or LLAMA_GRAMMAR_DEFAULT_ROOT

    def not_literal(
        self, literal: str, dotall: bool = True, maybe_escaped_underscores: bool = False
    ) -> str:
        """A rule for texts that are not ``literal``, do not begin with it, and are not part of it.

        Raises:
            ValueError: the literal is empty.
        """
        if not literal:
            raise ValueError("Empty literal not supported")
        head, rest = literal[0], literal[1:]
        escaped = maybe_escaped_underscores and head == "_"
        other = f"[^{_class_text(head)}{_class_text(chr(92)) if escaped else ''}]"
        rule = f"{other} {DOTALL if dotall else DOT}*"
        if rest:
            inner = self.not_literal(rest, dotall, maybe_escaped_underscores)
            before = '"\\\\"? ' if escaped else ""
            rule += f" | {before}{json.dumps(head)} ({inner})?"
        return rule

    def format_grammar(self) -> str:
        """The GBNF rules."""
        return json_schema_to_gbnf(json.dumps(self._schema), self._order)


def _class_text(character: str) -> str:
    return re.sub(r"([\]\[\\^-])", r"\\\1", character)


class BuiltinRule:
    """A rule that others refer to, and those that it refers to itself."""

    def __init__(self, content: str, deps: list[str] | None = None) -> None:
        self.content = content
        self.deps = deps or []


SPACE_RULE = '" "?'
DOTALL = "[\\U00000000-\\U0010FFFF]"
DOT = "[^\\x0A\\x0D]"
INVALID_RULE_CHARS_RE = re.compile(r"[^a-zA-Z0-9-]+")
GRAMMAR_LITERAL_ESCAPE_RE = re.compile(r'[\r\n"]')
GRAMMAR_LITERAL_ESCAPES = {"\r": "\\r", "\n": "\\n", '"': '\\"'}
NON_LITERAL_SET = set("|.()[]{}*+?")
ESCAPED_IN_REGEXPS_BUT_NOT_IN_LITERALS = set("[]()|{}*+?")

PRIMITIVE_RULES = {
    "boolean": BuiltinRule('("true" | "false") space'),
    "null": BuiltinRule('"null" space'),
    "char": BuiltinRule(r'[^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})'),
    "string": BuiltinRule(r'"\"" char* "\"" space', ["char"]),
    "integral-part": BuiltinRule('"0" | [1-9] [0-9]{0,15}'),
    "decimal-part": BuiltinRule("[0-9]{1,16}"),
    "integer": BuiltinRule('"-"? integral-part space', ["integral-part"]),
    "number": BuiltinRule(
        '"-"? integral-part ("." decimal-part)? ([eE] [-+]? integral-part)? space',
        ["integral-part", "decimal-part"],
    ),
    "array": BuiltinRule('"[" space (value ("," space value)*)? "]" space', ["value"]),
    "object": BuiltinRule(
        '"{" space (string ":" space value ("," space string ":" space value)*)? "}" space',
        ["string", "value"],
    ),
    "value": BuiltinRule(
        "object | array | string | number | boolean | null",
        ["object", "array", "string", "number", "boolean", "null"],
    ),
}
STRING_FORMAT_RULES = {
    "date": BuiltinRule('[0-9]{4} "-" ("0" [1-9] | "1" [0-2]) "-" ([0-2] [0-9] | "3" [01])'),
    "time": BuiltinRule(
        '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{3})? '
        '("Z" | [-+] [0-9]{2} ":" [0-5] [0-9])'
    ),
    "date-time": BuiltinRule('date "T" time', ["date", "time"]),
    "date-string": BuiltinRule(r'"\"" date "\"" space', ["date"]),
    "time-string": BuiltinRule(r'"\"" time "\"" space', ["time"]),
    "date-time-string": BuiltinRule(r'"\"" date-time "\"" space', ["date-time"]),
}
RESERVED_NAMES = {"root", "dot", *PRIMITIVE_RULES, *STRING_FORMAT_RULES}

_VALUES = r"""
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""
JSON_GBNF = "root ::= object\n" + _VALUES
JSON_ARR_GBNF = "root ::= array\n" + _VALUES
LIST_GBNF = r"""
root ::= item+
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n"
"""
ARITHMETIC_GBNF = r"""
root    ::= (expr "=" ws term "\n")+
expr    ::= term ([-+*/] ws term)*
term    ::= (name | number | "(" ws expr ")") ws
name    ::= [a-z] [a-z0-9_]*
number  ::= [0-9]+
ws      ::= [ \t\n]*
"""
CHESS_GBNF = r"""
root   ::= turn+
turn   ::= [1-9] [0-9]? ". " move " " move "\n"
move   ::= (piece | pawn | castle) [+#]?
piece  ::= [NBKQR] [a-h]? [1-8]? "x"? square
pawn   ::= ([a-h] "x")? square ("=" [NBQR])?
castle ::= "O-O" "-O"?
square ::= [a-h] [1-8]
"""
JAPANESE_GBNF = r"""
root ::= word ([ \t\n] word)*
word ::= [ぁ-ゟ]+ | [ァ-ヿ]+ | [、-〾]+ | [一-龯㐀-䶿]+
"""
C_GBNF = r"""
root       ::= function+
function   ::= type ws name "(" parameters? ")" ws block
parameters ::= type ws name ("," ws type ws name)*
block      ::= "{" ws statement* "}" ws
statement  ::= (declare | assign | call ";" | return | branch | loop) ws
declare    ::= type ws name ws ("=" ws expr)? ";"
assign     ::= name ws "=" ws expr ";"
return     ::= "return" ws expr ";"
branch     ::= "if" ws "(" condition ")" ws block ("else" ws block)?
loop       ::= "while" ws "(" condition ")" ws block
condition  ::= expr (("<=" | "<" | "==" | "!=" | ">=" | ">") ws expr)?
expr       ::= term ([-+*/] ws term)*
term       ::= (call | name | number | string | "(" expr ")") ws
call       ::= name "(" (expr ("," ws expr)*)? ")"
type       ::= "int" | "float" | "char" | "void"
name       ::= [a-zA-Z_] [a-zA-Z_0-9]*
number     ::= [0-9]+ ("." [0-9]+)?
string     ::= "\"" [^"\\\n]* "\""
ws         ::= [ \t\n]*
"""
