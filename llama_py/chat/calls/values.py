"""Arguments in the grammar of a call: JSON, text without quotes, and two families' own notations.

Every value is enforced as its schema says, however the family writes it. JSON is converted by
llama.cpp's converter, all schemas of a request at once; text up to a closing tag is read by a
machine (``automata``).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from llama_py.chat.calls.automata import (
    Machine,
    Piece,
    anything,
    either,
    expression,
    literal,
    quoted,
    rules_of,
    sequence,
)
from llama_py.chat.grammars.gbnf import in_python, in_text, opened, rename_rules, widened_schema
from llama_py.chat.grammars.integers import rules_of_schema
from llama_py.chat.grammars.order import in_order
from llama_py.chat.schemas.json_forms import levels_of
from llama_py.errors import GrammarError
from llama_py.tenants import remembering

__all__ = ["PYTHON", "Member", "Values", "in_reach", "leaves", "may_be_text", "texts_of"]

_log = logging.getLogger("llama_py")

Schema = Mapping[str, Any]
#: What a list may have: an expression, and whether it has to be there.
Member = tuple[str, bool]
_HEX = "[0-9a-fA-F]"
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
_FORMATS = {
    "date": r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])",
    "time": rf"{_CLOCK}:[0-5][0-9](\.[0-9]{{1,9}})?(Z|[+-]{_CLOCK})",
    "uuid": rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
}
_FORMATS["date-time"] = f"{_FORMATS['date']}T{_FORMATS['time']}"
_FORMATS |= {f"uuid{number}": _FORMATS["uuid"] for number in range(1, 6)}
#: Texts that are read as JSON where a value may be JSON or text.
_JSON = (
    r"^(-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+\-]?[0-9]+)?|true|false|null"
    r'|\{[^\x00]*\}|\[[^\x00]*\]|"[^\x00]*")$'
)
#: Keywords by which a schema that names no type is of something else than text.
_STRUCTURED = ("properties", "items", "prefixItems", "additionalProperties")
#: What the machines of texts with a bounded length come to in a grammar, in characters of it.
_MOST_TEXT = 120_000
#: Beyond this many states, a closing tag is known by its first two characters.
_MOST_EXACT = 300


def leaves(schema: Any, defs: Schema, seen: frozenset[str] = frozenset()) -> Iterator[Schema]:
    """The alternatives that a schema consists of, references and lists of types followed."""
    if not isinstance(schema, Mapping):
        if schema is True:
            yield {}
        return
    if isinstance(reference := schema.get("$ref"), str):
        if reference not in seen:
            target = defs.get(reference.rpartition("/")[2], {})
            yield from leaves(target, defs, seen | {reference})
        return
    for key in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(key), list):
            for choice in choices:
                yield from leaves(choice, defs, seen)
            return
    if isinstance(kinds := schema.get("type"), list) and "enum" not in schema:
        for kind in kinds:
            yield from leaves({**schema, "type": kind}, defs, seen)
        return
    yield schema


def _listed(leaf: Schema) -> list[Any] | None:
    if "const" in leaf:
        return [leaf["const"]]
    return leaf["enum"] if isinstance(leaf.get("enum"), list) else None


def texts_of(leaf: Schema) -> Piece | None:
    """The texts that an alternative allows; None if it allows no text."""
    if (values := _listed(leaf)) is not None:
        found = [literal(value) for value in values if isinstance(value, str)]
        return either(found) if found else None
    usual = "object" if any(key in leaf for key in _STRUCTURED) else "string"
    if leaf.get("type", usual) != "string":
        return None
    if isinstance(pattern := leaf.get("pattern"), str):
        return expression(pattern) or anything()
    if leaf.get("format") in _FORMATS:
        return expression(f"^{_FORMATS[leaf['format']]}$")
    return anything(leaf.get("minLength", 0), leaf.get("maxLength", -1))


def may_be_text(schema: Any, defs: Schema) -> bool:
    """Whether some text fits."""
    return any(texts_of(leaf) is not None for leaf in leaves(schema, defs))


@remembering(256)
def _machine(
    fits: Piece, closers: tuple[str, ...], never: Piece | None, short: bool
) -> Machine | Literal[False]:
    if short:
        closers = tuple(closer[:2] for closer in closers)
    try:
        return Machine(fits, closers, never)
    except OverflowError:
        return False


class Values:
    """Collects the values of a grammar, and gives their rules.

    Args:
        prefix: of the names of its rules.
    """

    def __init__(self, prefix: str = "c-") -> None:
        self.rules: dict[str, str] = {}
        self._prefix = prefix
        self._count = 0
        self._raw: dict[Any, str] = {}
        self._text = 0
        #: JSON, by the character that it must not have without an escape.
        self._json: dict[str, list[Any]] = {}
        self._defs: dict[str, Any] = {}
        self._named: dict[str, str] = {}

    def new_name(self, word: str = "v") -> str:
        """The name of a new rule."""
        self._count += 1
        return f"{self._prefix}{word}{self._count}"

    # ---- JSON ------------------------------------------------------------------------------------

    def json(self, schema: Any, defs: Schema, avoid: str = "") -> str:
        """The rule of JSON that fits a schema.

        Args:
            avoid: a character that stands in no text without an escape; ``PYTHON`` for JSON or
                Python's notation.
        """
        self._defs.update(defs)
        listed = self._json.setdefault(avoid, [])
        plain = {} if schema is True else schema
        if plain in listed:
            number = listed.index(plain)
        else:
            number = len(listed)
            listed.append(plain)
        return f"{self._json_prefix(avoid)}entry{number}"

    def json_of_others(self, schema: Any, defs: Schema) -> str | None:
        """The rule of JSON for what of a schema is not text; None if all of it is text."""
        schemas: list[Any] = []
        for leaf in leaves(schema, defs):
            values = _listed(leaf)
            if values is None:
                schemas += [leaf] if texts_of(leaf) is None else []
            elif others := [value for value in values if not isinstance(value, str)]:
                schemas.append({"enum": others})
        if not schemas:
            return None
        return self.json(schemas[0] if len(schemas) == 1 else {"anyOf": [*schemas]}, defs)

    def _json_prefix(self, avoid: str) -> str:
        return f"json{ord(avoid[0])}-" if avoid else "json-"

    def finished(self) -> str:
        """All rules, as text.

        Raises:
            GrammarError: a schema has no grammar.
        """
        parts = [f"{name} ::= {body}" for name, body in self.rules.items()]
        for avoid, schemas in self._json.items():
            parts.append(self._converted(avoid, schemas))
        return "\n".join(parts)

    def _converted(self, avoid: str, schemas: Sequence[Any]) -> str:
        members = {f"entry{number}": schema for number, schema in enumerate(schemas)}
        whole: dict[str, Any] = {"type": "object", "properties": members, "required": [*members]}
        whole["additionalProperties"] = False
        if self._defs:
            whole["$defs"] = self._defs
        lines = in_order(rules_of_schema(whole), [whole]).split("\n")
        entries, kept = {}, []
        for line in lines:
            name, _, body = line.partition(" ::= ")
            if name.removesuffix("-kv") in members and name.endswith("-kv"):
                entries[name.removesuffix("-kv")] = body.rpartition(" ")[2]
            elif name not in ("root", ""):
                kept.append(line)
        if entries.keys() != members.keys():
            raise GrammarError("llama.cpp's converter writes objects in an unknown way")
        grammar = opened(widened_schema("\n".join(kept), levels_of(whole)))
        if avoid == PYTHON:
            grammar = in_python(grammar)
        elif avoid:
            grammar = in_text(grammar, avoid)
        taken = {line.partition(" ::= ")[0] for line in grammar.split("\n")}
        grammar = rename_rules(grammar, prefix := self._json_prefix(avoid))
        aliases = [
            f"{prefix}{entry} ::= {prefix}{rule}"
            for entry, rule in entries.items()
            if entry not in taken
        ]
        return "\n".join([grammar, *aliases])

    # ---- text up to a closing tag ----------------------------------------------------------------

    def text(
        self,
        schema: Any,
        defs: Schema,
        closers: Sequence[str],
        beside_json: bool = False,
        never: Iterable[str] = (),
    ) -> str | None:
        """The rule of a text that fits a schema, up to a closing tag; None if no text fits.

        Args:
            beside_json: what is JSON is read as JSON.
            never: texts with which it does not begin.
        """
        pieces = [piece for leaf in leaves(schema, defs) if (piece := texts_of(leaf)) is not None]
        if not pieces:
            return None
        free = anything() in pieces
        bans = [sequence(literal(text), anything()) for text in never]
        if beside_json and not any(leaf.keys() <= _ANYTHING for leaf in leaves(schema, defs)):
            bans += [piece for piece in [expression(_JSON)] if piece]
        fits = anything() if free else either(pieces) if len(pieces) > 1 else pieces[0]
        return self._read(fits, tuple(closers), either(bans) if bans else None)

    def free_text(self, closers: Sequence[str]) -> str:
        """The rule of any text without the closing tags."""
        name = self._read(anything(), tuple(closers), None)
        assert name is not None
        return name

    def _read(self, fits: Piece, closers: tuple[str, ...], never: Piece | None) -> str | None:
        key = fits, closers, never
        if key in self._raw:
            return self._raw[key] or None
        longest = _longest(fits)
        size = max(longest, 1) * max(map(len, closers), default=1)
        machine = _machine(fits, closers, never, short=size > _MOST_EXACT and longest > 0)
        if not machine or (longest > 0 and self._text + 90 * longest > _MOST_TEXT):
            _log.info("the length of an argument is not enforced: it would take too much grammar")
            machine = _machine(_unbounded(fits), closers, never, short=False) or _machine(
                anything(), closers, never, short=False
            )
        if not machine or machine.empty:
            self._raw[key] = ""
            return None
        name = self._raw[key] = self.new_name("t")
        rules = rules_of(machine, name)
        self._text += sum(map(len, rules.values())) if longest > 0 else 0
        self.rules.update(rules)
        return name

    # ---- Gemma 4 ---------------------------------------------------------------------------------

    def gemma(self, schema: Any, defs: Schema) -> str:
        """The rule of a value in Gemma's notation: names are bare, and strings have marks."""
        key = json.dumps(schema, sort_keys=True)
        if key not in self._named:
            self._named[key] = name = self.new_name("g")
            self.rules[name] = ""  # it may need itself
            self.rules[name] = self._gemma(schema, defs)
        return self._named[key]

    def _gemma(self, schema: Any, defs: Schema) -> str:
        if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
            return self.gemma(defs.get(schema["$ref"].rpartition("/")[2], {}), defs)
        found = list(leaves(schema, defs))
        if found != [schema]:
            return " | ".join(dict.fromkeys(self.gemma(leaf, defs) for leaf in found))
        (leaf,) = found
        if (values := _listed(leaf)) is not None:
            return " | ".join(quoted(_in_gemma(value)) for value in values)
        kind = leaf.get("type") or ("object" if "properties" in leaf else None)
        if kind == "string":
            return f"{quoted(_MARK)} {self.text(leaf, defs, [_MARK])} {quoted(_MARK)}"
        if kind == "object":
            return self._gemma_object(leaf, defs)
        if kind == "array":
            item = self.gemma(leaf.get("items", True), defs)
            least, most = leaf.get("minItems", 0), leaf.get("maxItems")
            return f'"[" {_list(item, least, most, _COMMA)} "]"'
        if kind is not None:
            return self.json(leaf, defs)
        kinds = ("string", "number", "boolean", "null", "object", "array")
        return " | ".join(self.gemma({"type": kind}, defs) for kind in kinds)

    def _gemma_object(self, leaf: Schema, defs: Schema) -> str:
        properties = leaf.get("properties") or {}
        required = leaf.get("required") or ()
        if not properties:
            others = leaf.get("additionalProperties", True)
            if others is False:
                return '"{" "}"'
            member = f'[^:{{}}\\x00-\\x1F,]{{1,64}} ":" " "? {self.gemma(others, defs)}'
            return f'"{{" {_list(f"({member})", 0, None, _COMMA)} "}}"'
        members = [
            (f'{quoted(name + ":")} " "? {self.gemma(part, defs)}', name in required)
            for name, part in properties.items()
            if not set(name) & set(":}")
        ]
        groups = [[member] for member in members]
        return f'"{{" {self.listed(groups, _COMMA)} "}}"'

    # ---- elements of XML -------------------------------------------------------------------------

    def elements(self, schema: Any, defs: Schema, space: str, mark: str, close: str) -> str:
        """A value in MiniMax's notation, with its closing tag: an element for each member.

        Args:
            space: the rule of white space.
            mark: what stands before each tag.
            close: the closing tag.
        """
        found = list(leaves(schema, defs))
        if may_be_text(schema, defs) and found != [{}]:
            return f"{self.text(schema, defs, [close])} {quoted(close)}"
        ways = [self._element(leaf, defs, space, mark) for leaf in found]
        return f"({' | '.join(ways)}) {quoted(close)}"

    def _element(self, leaf: Schema, defs: Schema, space: str, mark: str) -> str:
        properties = leaf.get("properties") or {}
        if leaf.get("type", "object") == "object" and properties:
            members = [
                (self.element(name, part, defs, space, mark), name in leaf.get("required", ()))
                for name, part in properties.items()
            ]
            needed = [[member] for member in members if member[1]]
            others = [member for member in members if not member[1]]
            return f"{self.listed([*needed, *in_reach(others)], space)} {space}"
        if leaf.get("type") == "array" and _listed(leaf) is None:
            inner = self.elements(leaf.get("items", True), defs, space, mark, f"{mark}</item>")
            item = f"({space} {quoted(mark + '<item>')} {inner})"
            return f"{item}{_times(leaf.get('minItems', 0), leaf.get('maxItems'))} {space}"
        return self.json(leaf, defs)

    def element(self, name: str, schema: Any, defs: Schema, space: str, mark: str) -> str:
        """A member in MiniMax's notation."""
        inner = self.elements(schema, defs, space, mark, f"{mark}</{name}>")
        return self._ruled(f"{quoted(f'{mark}<{name}>')} {inner}", "e")

    # ---- lists -----------------------------------------------------------------------------------

    def listed(self, groups: Sequence[Sequence[Member]], joint: str, some: bool = False) -> str:
        """A list with each member at most once, and the required ones once.

        Args:
            groups: one after the other; within one, the members come in any order.
            joint: what stands between two members.
            some: there is at least one.
        """
        order = [(number, *member) for number, group in enumerate(groups) for member in group]
        names = [self._ruled(text, "m") for _, text, _ in order]
        whole = frozenset(range(len(order)))
        known: dict[frozenset[int], str] = {whole: self.new_name("s")}
        todo = [whole]
        while todo:
            left = todo.pop()
            before = f"{joint} " if left != whole and joint else ""
            ways = []
            for member in sorted(left):
                group = order[member][0]
                if any(order[other][0] < group and order[other][2] for other in left):
                    break  # one of an earlier group has to come first
                after = frozenset(o for o in left if o != member and order[o][0] >= group)
                if after not in known:
                    known[after] = self.new_name("s")
                    todo.append(after)
                ways.append(f"{before}{names[member]} {known[after]}")
            if not any(order[member][2] for member in left) and not (some and left == whole):
                ways.append('""')
            self.rules[known[left]] = " | ".join(ways)
        return known[whole]

    def _ruled(self, text: str, word: str) -> str:
        name = self.new_name(word)
        self.rules[name] = text
        return name


def in_reach(members: Sequence[Member], most: int = 5) -> list[list[Member]]:
    """Members in any order if they are few, in this order otherwise."""
    return [[*members]] if len(members) <= most else [[member] for member in members]


#: Stands for Python's notation: llama.cpp's parser of it takes no white space before a comma.
PYTHON = ","
_ANYTHING = frozenset({"description", "title", "default", "examples"})
_MARK = '<|"|>'
_COMMA = '"," " "?'


def _in_gemma(value: Any) -> str:
    if isinstance(value, str):
        return f"{_MARK}{value}{_MARK}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_in_gemma(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_in_gemma, value)) + "]"
    return json.dumps(value)


def _times(least: int, most: int | None) -> str:
    return f"{{{least},{'' if most is None else most}}}"


def _list(item: str, least: int, most: int | None, joint: str) -> str:
    """So many items with something between them."""
    if most == 0:
        return '""'
    rest = f"({joint} {item}){_times(max(least - 1, 0), None if most is None else most - 1)}"
    return f"{item} {rest}" if least else f"({item} {rest})?"


def _longest(piece: Piece) -> int:
    """The largest upper bound within an expression; 0 if there is none."""
    inner = max(map(_longest, piece.parts), default=0)
    own = max(piece.least, piece.most) if piece.kind == "rep" else 0
    return own * max(inner, 1) if own > 1 else inner


def _unbounded(piece: Piece) -> Piece:
    """The expression without its upper bounds."""
    parts = tuple(map(_unbounded, piece.parts))
    most = -1 if piece.most > 1 and piece.least < piece.most else piece.most
    return piece._replace(parts=parts, most=most)
