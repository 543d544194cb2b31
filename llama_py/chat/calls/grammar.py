"""The grammar of replies that call tools, made from llama.cpp's description of the format.

llama.cpp's own grammars let text come before a required call in some families, let arguments come
twice, and do not look at the values of arguments that have tags of their own. So the grammar is
written here, from the tags of the description (``peg``): which piece is content, which a call,
which an argument. A required call is one because content has no place in its grammar, whatever the
rules are called; where no call is found, that is an error and not another grammar.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from llama_py.chat.calls import peg
from llama_py.chat.calls.automata import quoted
from llama_py.chat.calls.peg import Arena
from llama_py.chat.calls.values import PYTHON, Member, Values, in_reach, leaves, may_be_text
from llama_py.errors import TemplateError
from llama_py.tenants import remembering

__all__ = ["CallFormat", "answer_of", "grammar_of_calls", "parser_of_calls"]

#: Alternatives, each a sequence of expressions; [[]] is the empty text, [] is nothing at all.
_Lang = list[list[str]]
_EMPTY: _Lang = [[]]
#: What formats have between their marks: ids, numbers and other attributes.
_MOST_FILLED, _MOST_ID = 40, 64
#: Arguments may come in any order as long as that takes no more rules than these.
_MOST_ORDERED, _MOST_ORDERS = 6, 600
#: White space around an answer whose description has no place for any, and between the end of the
#: reasoning and a call.
_WHITE_BEFORE, _WHITE_BEHIND = r"[ \t\r\n]{0,4}", r"[ \t\r\n]{0,2}"
#: Messages of reasoning before a call, in families where it may be several: a model that would
#: rather answer must not write them for ever.
_MOST_THOUGHTS = 32
_SPACE_RULE = r'"" | " " | "\n"{1,2} [ \t]{0,20}'


class CallFormat(NamedTuple):
    """How a family writes calls: what ``llama_py_chat_apply`` says of it, and the tools.

    Attributes:
        arena: the description of the format, as JSON text.
        notation: the name of the format, which says how values are written.
        tools: the functions with their parameters, as JSON text.
        lazy: the grammar begins where a call begins, not where the reply does.
        single: there is one call.
        answer: the description of an answer in place of a call, as JSON text; "" for none. Where
            it knows of no schema, its content is what has to follow that.
        schema: of the answer, as JSON text.
        opening: the end of the prompt, with which the description of a reply begins, and the
            grammar does not; "" if it does.
    """

    arena: str
    notation: str
    tools: str
    lazy: bool
    single: bool
    answer: str = ""
    schema: str = ""
    opening: str = ""


class _PiecePlace(NamedTuple):
    """Where in a reply a piece stands.

    Attributes:
        forced: it has to have a call.
        single: it has one call.
        tool, argument: that it belongs to; "" for none.
        beside_json: the value may be JSON as well as text.
        never: texts with which a text does not begin.
        inside: it is a piece of a call.
    """

    forced: bool = False
    single: bool = False
    tool: str = ""
    argument: str = ""
    beside_json: bool = False
    never: tuple[str, ...] = ()
    inside: bool = False


def grammar_of_calls(form: CallFormat) -> str:
    """The grammar of a reply that calls tools, or of the part of it that does.

    Raises:
        TemplateError: the format has no place for a call.
        GrammarError: the parameters of a tool have no grammar.
    """
    return _written(form)[0]


def parser_of_calls(form: CallFormat) -> str:
    """The arena with which these replies are parsed.

    Values that are never text are JSON in it: llama.cpp takes the value of an argument for text
    where its schema does not name one type. And white space may stand between reasoning and a call.
    """
    _, numbers, gaps = _written(form)
    if not numbers and not gaps:
        return form.arena
    data = json.loads(form.arena)
    nodes = data["parsers"]
    for number in numbers:
        nodes[number]["tag"] = peg.VALUE
    for at, place in gaps:  # one for each sequence: no place moves
        nodes[at]["children"].insert(place, len(nodes))
        nodes.append({"type": "space"})
    return json.dumps(data)


@remembering(64)
def _written(form: CallFormat) -> tuple[str, frozenset[int], frozenset[tuple[int, int]]]:
    """The grammar, the values in the arena that are JSON and not text, and the gaps in it."""
    values = Values()
    writer = _CallWriter(peg.arena_of(form.arena), form, values)
    ways = writer.calls()
    if form.answer:
        answer = _CallWriter(peg.arena_of(form.answer), form, values)
        ways += answer.answers()
    grammar = f"root ::= {' | '.join(ways)}\n{values.finished()}\n"
    return grammar, frozenset(writer.no_texts), frozenset(writer.gaps)


def answer_of(form: CallFormat, answer: Mapping[str, Any], schema: Any) -> CallFormat:
    """The format with an answer in place of a call, too.

    Args:
        answer: what ``llama_py_chat_apply`` says of a reply that has to follow the schema, or of
            any reply.
    """
    return form._replace(answer=answer["parser"]["arena"], schema=json.dumps(schema), lazy=False)


class _CallWriter:
    """Writes the rules of one format."""

    def __init__(self, arena: Arena, form: CallFormat, values: Values) -> None:
        self._arena = arena
        self._form = form
        self._values = values
        self._tools = {
            tool["function"]["name"]: tool["function"].get("parameters") or {}
            for tool in json.loads(form.tools)
        }
        self._known: dict[tuple[int, _PiecePlace], str] = {}
        self._orders = 0
        self._answering = False
        #: The content is the answer, of whose schema llama.cpp's description says nothing.
        self._free = False
        #: Values that llama.cpp reads as text, and that are none.
        self.no_texts: set[int] = set()
        #: Sequences that have no white space between reasoning and a call, and the place of it.
        self.gaps: set[tuple[int, int]] = set()
        self._space = ""

    def calls(self) -> list[str]:
        """The expressions of replies with a call; the grammar begins with one of them."""
        place = _PiecePlace(forced=True, single=self._form.single)
        roots = [self._arena.root]
        if self._form.lazy:
            nodes, rules = self._arena.nodes, sorted(set(self._arena.rules.values()))
            roots = [at for at in rules if nodes[at]["type"] == "rule" and nodes[at]["trigger"]]
        found: _Lang = []
        for root in roots:
            if self._arena.names(root):
                found += self._lang(root, place)
        if not found:
            raise TemplateError(
                "llama.cpp's description of this template's replies has no tool call in it; use "
                'another template (chat_format="chatml-function-calling"), or tool_choice="none"'
            )
        opening = self._form.opening
        if opening and any(way[:1] != [quoted(opening)] for way in found):
            raise TemplateError(
                "llama.cpp describes a reply of this template that does not begin as its prompt "
                f'ends, {opening!r}; use another template, or tool_choice="required"'
            )
        return [_joined(way[1:] if opening else way) for way in found]

    def answers(self) -> list[str]:
        """The expressions of replies that follow the schema."""
        self._answering = True
        self._free = "schema" not in self._arena.kinds(self._arena.root)
        found = self._lang(self._arena.root, _PiecePlace())
        return [_joined(each) for each in found]

    # ---- nodes -----------------------------------------------------------------------------------

    def _lang(self, at: int, place: _PiecePlace) -> _Lang:
        node = self._arena.nodes[at]
        names = self._arena.names(at)
        if not place.tool and len(names) == 1:
            place = place._replace(tool=next(iter(names)))
        # Below the name of the tool, and where there are arguments: that is the list of them.
        if place.tool and not place.argument and not names and self._arena.arguments(at):
            tagged = node["type"] == "tag" and node["tag"] == peg.ARG
            if tagged or node["type"] in ("choice", "repetition"):
                return self._arguments([at], place)
        return _KINDS[node["type"]](self, at, node, place)

    def _leaf(self, at: int, node: peg.Node, place: _PiecePlace) -> _Lang:
        """A node that consists of no others; what only looks ahead writes nothing."""
        kind = node["type"]
        if kind == "literal":
            return [[quoted(node["literal"])]] if node["literal"] else _EMPTY
        if kind == "any":
            return [["."]]
        if kind == "space":
            return [[self.space]]
        if kind == "chars":
            return [[_chars(node)]]
        if kind == "string":
            return [[rf'[^"\\\x00-\x1F]{{0,{_MOST_ID}}}']]
        if kind == "until" and place.inside:
            first = sorted({text[0] for text in node["delimiters"] if text})
            banned = "".join(f"\\x{ord(letter):02X}" for letter in first if letter < "\x7f")
            return [[f"[^\\x00-\\x1F{banned}]{{0,{_MOST_FILLED}}}"]]
        if kind == "until":
            return [[self._values.free_text(node["delimiters"])]]
        return _EMPTY

    @property
    def space(self) -> str:
        """The rule of white space between marks."""
        if not self._space:
            self._space = "c-space"
            self._values.rules[self._space] = _SPACE_RULE
        return self._space

    def _sequence(self, at: int, node: peg.Node, place: _PiecePlace) -> _Lang:
        out: list[str] = []
        children = list(node["children"])
        listed = self._block(children, place)
        called = not place.forced
        for number, child in enumerate(children):
            here = place._replace(forced=place.forced and not called)
            white = self._white_behind_content(children, number)
            named_later = place.tool and any(map(self._arena.names, children[number + 1 :]))
            if white is not None:
                lang = white
            elif listed and number in listed:
                lang = _EMPTY
                if number == listed[0]:
                    lang = self._arguments([children[i] for i in listed], place)
            elif self._arena.names(child):
                if called and place.forced:  # a further call
                    if place.single and self._arena.nullable(child):
                        continue
                    if place.single:
                        return []
                if number and self._reasons(children[number - 1]):
                    self.gaps.add((at, number))
                    out.append(self.space)
                lang = self._lang(child, here)
                called = True
            elif named_later and place.inside and self._arena.nodes[child]["type"] == "until":
                # The call says for whom it is before it says who that is.
                lang = [[quoted(place.tool)]]
            else:
                lang = self._lang(child, self._after(children, number, here))
            if not lang:
                return []
            out += lang[0] if len(lang) == 1 else [_group(lang)]
        return [out]

    def _white_behind_content(self, children: Sequence[int], number: int) -> _Lang | None:
        """White space that the parser does not take as such; None if this is something else.

        Behind content it is content, and behind a tool whose end is found by what comes next it
        would not be found. Only what belongs to the mark of the call that follows is written.
        """
        if not number or self._arena.nodes[children[number]]["type"] != "space":
            return None
        before = children[number - 1]
        spoken = peg.CONTENT in self._arena.tags(before)
        if not self._looks_ahead(before) and (not spoken or self._answers(before)):
            return None
        spaces = {mark[: len(mark) - len(mark.lstrip())] for mark in self._closers(before)}
        found: _Lang = [[quoted(space)] for space in sorted(spaces) if space]
        return [*found, []] if found else _EMPTY

    def _reasons(self, at: int) -> bool:
        """Whether this is reasoning with its mark, and nothing else."""
        tags = self._arena.tags(at)
        return peg.REASONING in tags and peg.CONTENT not in tags and not self._arena.names(at)

    def _looks_ahead(self, at: int) -> bool:
        """Whether this ends with a look at the text that has to follow."""
        node = self._arena.nodes[at]
        if node["type"] == "and":
            return bool(self._arena.nodes[node["child"]]["type"] == "literal")
        parts = self._arena.children(at)
        if node["type"] == "choice":
            return any(map(self._looks_ahead, parts))
        if node["type"] in ("repetition", "schema") or not parts:
            return False
        return self._looks_ahead(parts[-1])

    def _answers(self, at: int) -> bool:
        if self._free:
            return peg.CONTENT in self._arena.tags(at)
        return bool(self._form.schema) and "schema" in self._arena.kinds(at)

    def _after(self, children: Sequence[int], number: int, place: _PiecePlace) -> _PiecePlace:
        """The place behind what must not stand here."""
        before = self._arena.nodes[children[number - 1]] if number else {}
        banned = self._arena.nodes[before["child"]] if before.get("type") == "not" else {}
        if banned.get("type") != "literal":
            return place
        return place._replace(never=(*place.never, banned["literal"]))

    def _block(self, children: Sequence[int], place: _PiecePlace) -> range | None:
        """The children among which the arguments of a call are; None if there is one at most."""
        if not place.tool or place.argument:
            return None
        found = [
            number
            for number, child in enumerate(children)
            if self._arena.arguments(child) and not self._arena.names(child)
        ]
        return range(found[0], found[-1] + 1) if len(found) > 1 else None

    def _choice(self, at: int, node: peg.Node, place: _PiecePlace) -> _Lang:
        children = list(node["children"])
        if place.forced:
            children = [child for child in children if self._arena.names(child)] or children
            children = [child for child in children if not self._announces(child)] or children
        silent = [child for child in children if peg.CONTENT not in self._arena.tags(child)]
        if silent and not self._arena.names(at):
            children = silent
        if self._answering:
            # A call may follow reasoning whose end is missing, and an answer would be part of it.
            nodes = self._arena.nodes
            children = [child for child in children if nodes[child]["type"] != "and"] or children
            fenced = {
                child
                for child in children
                if any(
                    nodes[at].get("literal", "").startswith("```") for at in self._arena.walk(child)
                )
            }
            children = [child for child in children if child not in fenced] or children
        out: _Lang = []
        for child in children:
            lang = self._lang(child, place)
            out += [each for each in lang if each not in out]
        return out

    def _announces(self, at: int) -> bool:
        """Whether content comes first, behind a mark of its own."""
        node = self._arena.nodes[at]
        parts = [self._arena.nodes[child] for child in self._arena.children(at)]
        if node["type"] != "sequence":
            return False
        return any(
            one["type"] == "literal" and one["literal"] and two.get("tag") == peg.CONTENT
            for one, two in pairwise(parts)
        )

    def _repetition(self, at: int, node: peg.Node, place: _PiecePlace) -> _Lang:
        least, most = node["min_count"], node["max_count"]
        calls = bool(self._arena.names(at))
        if calls:
            least = max(least, 1) if place.forced else least
            most = 1 if place.single else most
        elif least == 0 and {peg.CONTENT, peg.REASONING} <= self._arena.tags(at):
            most = _MOST_THOUGHTS if most == -1 else most
        elif least == 0 and peg.CONTENT in self._arena.tags(at):
            bare = self._arena.nodes[node["child"]].get("tag") == peg.CONTENT
            if bare and place.forced:
                return self._content(self._arena.nodes[node["child"]], place)
            if not self._free:
                return _EMPTY
            least = 1
        lang = self._lang(node["child"], place._replace(forced=calls))
        if not lang:
            return [] if least else _EMPTY
        if not any(lang):
            return _EMPTY
        text = _group(lang) if len(lang) > 1 or len(lang[0]) > 1 else lang[0][0]
        if (least, most) == (1, 1):
            return lang
        times = {(0, 1): "?", (0, -1): "*", (1, -1): "+"}.get((least, most))
        if times is None:
            times = f"{{{least},{'' if most == -1 else most}}}"
        if text[-1] in "?*+}":
            text = f"({text})"
        return [[text + times]]

    def _child(self, at: int, node: peg.Node, place: _PiecePlace) -> _Lang:
        """A node that stands for another one, or for nothing."""
        if node["type"] == "gbnf" and not node["grammar"]:
            return _EMPTY
        (child,) = self._arena.children(at)
        return self._lang(child, place)

    def _rule(self, at: int, node: peg.Node, place: _PiecePlace) -> _Lang:
        if not self._arena.tags(at):
            place = _PiecePlace(inside=place.inside)
        key = at, place
        if key not in self._known:
            self._known[key] = name = self._values.new_name("r")
            self._values.rules[name] = '""'  # it may need itself
            lang = self._lang(node["child"], place)
            self._values.rules[name] = " | ".join(map(_joined, lang))
            if not lang or not any(lang):
                del self._values.rules[name]
                self._known[key] = "" if lang else "-"
        name = self._known[key]
        return [] if name == "-" else [[name]] if name else _EMPTY

    def _tag(self, at: int, node: peg.Node, place: _PiecePlace) -> _Lang:
        tag = node["tag"]
        if tag == peg.CONTENT:
            return self._content(node, place)
        if tag == peg.ARGS and not self._arena.arguments(at):  # they are one object, or none
            schema, defs = self._schema(place)
            if self._form.notation == "peg-gemma4":
                return [[self._values.gemma({"type": "object", **schema}, defs)]]
            if "schema" not in self._arena.kinds(at):
                return self._lang(node["child"], place)
            if isinstance(schema, Mapping):
                schema = {key: value for key, value in schema.items() if key != "$defs"}
            return [[self._values.json(schema, defs)]]
        if place.argument and tag == peg.STRING_VALUE:
            return self._text_value(at, node, place)
        if place.argument and tag == peg.VALUE:
            return self._json_value(node, place)
        inside = place.inside or tag.startswith("tool")
        return self._lang(node["child"], place._replace(inside=inside))

    def _content(self, node: peg.Node, place: _PiecePlace) -> _Lang:
        """Content, for which there is a place only where it is the answer."""
        if self._free or self._answers(node["child"]):
            schema = json.loads(self._form.schema)
            defs = schema.get("$defs", {}) if isinstance(schema, Mapping) else {}
            found = self._values.json(schema, defs)
            return [[_WHITE_BEFORE, found, _WHITE_BEHIND]] if self._free else [[found]]
        # Models write white space behind their reasoning, and must not have to leave it out.
        return [[_WHITE_BEFORE]] if place.forced else _EMPTY

    # ---- arguments -------------------------------------------------------------------------------

    def _schema(self, place: _PiecePlace) -> tuple[Any, Mapping[str, Any]]:
        """The schema of a tool or of an argument, and its definitions."""
        schema = self._tools.get(place.tool)
        if not isinstance(schema, Mapping):
            return True, {}
        defs = schema.get("$defs") or {}
        if place.argument:
            return (schema.get("properties") or {}).get(place.argument, True), defs
        return schema, defs

    def _arguments(self, nodes: Sequence[int], place: _PiecePlace) -> _Lang:
        """A list of arguments, each at most once, in any order if they are few."""
        units: dict[str, int] = {}
        for at in nodes:
            self._find_units(at, -1, units)
        schema, _ = self._schema(place)
        required = schema.get("required") or () if isinstance(schema, Mapping) else ()
        listed = list(schema.get("properties") or {}) if isinstance(schema, Mapping) else []
        units = {name: units[name] for name in [*listed, *units] if name in units}
        before, after = self._joints(nodes, place)
        groups: list[list[Member]] = []
        for names in self._groups(nodes):
            members: list[Member] = []
            for name in (name for name in units if name in names):
                lang = self._argument(units[name], name, place)
                if not lang and name in required:
                    return []
                if lang:
                    text = _group(lang) if len(lang) > 1 else _joined(lang[0])
                    members.append((f"{text} {after}".rstrip(), name in required))
            few = 1 << len(members) if len(members) <= _MOST_ORDERED else _MOST_ORDERS + 1
            fits = self._orders + few <= _MOST_ORDERS
            self._orders += few if fits else 0
            groups += in_reach(members, _MOST_ORDERED if fits else 0)
        some = not all(self._arena.nullable(at) for at in nodes)
        return [[self._values.listed(groups, before, some)]]

    def _groups(self, nodes: Sequence[int]) -> list[frozenset[str]]:
        """The arguments that the parser takes in any order, group after group."""
        out: list[frozenset[str]] = []
        for at in nodes:
            found = self._arena.arguments(at)
            if found and out and out[-1] & found:
                out[-1] |= found
            elif found:
                out.append(found)
        return out

    def _argument(self, unit: int, name: str, place: _PiecePlace) -> _Lang:
        place = place._replace(argument=name)
        if self._form.notation == "peg-minimax-m3":
            schema, defs = self._schema(place)
            nodes = (self._arena.nodes[at] for at in self._arena.walk(unit))
            ends = (str(node["literal"]) for node in nodes if node["type"] == "literal")
            close = next((end for end in ends if end.endswith(f"</{name}>")), "")
            if not close:
                raise TemplateError(f"the format of the argument {name!r} has no closing tag")
            mark = close.removesuffix(f"</{name}>")  # the text before each tag of the element
            return [[self._values.element(name, schema, defs, self.space, mark)]]
        tags = self._arena.tags(unit)
        place = place._replace(beside_json={peg.VALUE, peg.STRING_VALUE} <= tags)
        return self._lang(unit, place)

    def _find_units(self, at: int, rule: int, units: dict[str, int]) -> None:
        """The nodes that are one argument each: its tag, or the innermost rule around it."""
        names = self._arena.arguments(at)
        node = self._arena.nodes[at]
        if node["type"] == "tag" and node["tag"] == peg.ARG:
            name = self._arena.literal_under(at, peg.ARG_NAME)
            units.setdefault(name, at if rule < 0 else rule)
            return
        if node["type"] == "rule" and len(names) == 1:
            rule = at
        elif node["type"] in ("choice", "repetition"):
            rule = -1
        for child in self._arena.children(at):
            if self._arena.arguments(child):
                self._find_units(child, rule, units)

    def _joints(self, nodes: Sequence[int], place: _PiecePlace) -> tuple[str, str]:
        """The text between two arguments, and the text behind each."""
        for at in nodes:
            for found in self._arena.walk(at):
                node = self._arena.nodes[found]
                if node["type"] == "tag" and node["tag"] == peg.ARG:
                    break
                if node["type"] == "repetition" and self._arena.arguments(found):
                    return self._around(node["child"], place)
        between = [at for at in nodes[1:-1] if not self._arena.arguments(at)][:1]
        return self._text_of(between, place), ""

    def _around(self, at: int, place: _PiecePlace) -> tuple[str, str]:
        """The text before and behind an argument that is repeated."""
        node = self._arena.nodes[at]
        while node["type"] in ("tag", "atomic") and node.get("tag") != peg.ARG:
            node = self._arena.nodes[node["child"]]
        if node["type"] != "sequence":
            return "", ""
        parts = list(node["children"])
        inside = next(i for i, part in enumerate(parts) if self._arena.arguments(part))
        return self._text_of(parts[:inside], place), self._text_of(parts[inside + 1 :], place)

    def _text_of(self, nodes: Sequence[int], place: _PiecePlace) -> str:
        langs = [self._lang(at, place) for at in nodes]
        return " ".join(
            _group(lang) if len(lang) > 1 else _joined(lang[0]) for lang in langs if lang
        )

    # ---- values ----------------------------------------------------------------------------------

    def _text_value(self, at: int, node: peg.Node, place: _PiecePlace) -> _Lang:
        schema, defs = self._schema(place)
        closers = self._closers(node["child"])
        if not place.beside_json and not may_be_text(schema, defs):
            self.no_texts.add(at)
            return [[self._values.json(schema, defs, closers[0][0] if closers else "")]]
        name = self._values.text(schema, defs, closers, place.beside_json, place.never)
        return [[name]] if name else []

    def _json_value(self, node: peg.Node, place: _PiecePlace) -> _Lang:
        schema, defs = self._schema(place)
        if not place.beside_json:
            closers = self._closers(node["child"])
            python = not closers and "schema" not in self._arena.kinds(node["child"])
            avoid = closers[0][0] if closers else PYTHON if python else ""
            return [[self._values.json(schema, defs, avoid)]]
        if any(leaf.keys() <= _NOTES for leaf in leaves(schema, defs)):
            return []  # any text does
        name = self._values.json_of_others(schema, defs)
        return [[name]] if name else []

    def _closers(self, at: int) -> list[str]:
        nodes = (self._arena.nodes[each] for each in self._arena.walk(at))
        return next((node["delimiters"] for node in nodes if node["type"] == "until"), [])


_NOTES = frozenset({"description", "title", "default", "examples"})


def _joined(atoms: Sequence[str]) -> str:
    return " ".join(atoms) or '""'


def _group(lang: _Lang) -> str:
    return f"({' | '.join(map(_joined, lang))})"


def _chars(node: peg.Node) -> str:
    """So many characters of a class."""
    text = ""
    for part in node["ranges"]:
        first, last = part["start"], part["end"]
        text += f"\\U{first:08X}" if first == last else f"\\U{first:08X}-\\U{last:08X}"
    least, most = node["min_count"], node["max_count"]
    most = max(least, 32) if most == -1 else most
    return f"[{'^' if node['negated'] else ''}{text}]{{{least},{most}}}"


_KINDS: Mapping[str, Callable[[_CallWriter, int, peg.Node, _PiecePlace], _Lang]] = {
    "epsilon": _CallWriter._leaf,
    "start": _CallWriter._leaf,
    "end": _CallWriter._leaf,
    "and": _CallWriter._leaf,
    "not": _CallWriter._leaf,
    "literal": _CallWriter._leaf,
    "any": _CallWriter._leaf,
    "space": _CallWriter._leaf,
    "chars": _CallWriter._leaf,
    "string": _CallWriter._leaf,
    "until": _CallWriter._leaf,
    "sequence": _CallWriter._sequence,
    "choice": _CallWriter._choice,
    "repetition": _CallWriter._repetition,
    "ref": _CallWriter._child,
    "rule": _CallWriter._rule,
    "tag": _CallWriter._tag,
    "atomic": _CallWriter._child,
    "ac": _CallWriter._child,
    "schema": _CallWriter._child,
    "gbnf": _CallWriter._child,
}
