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
        roots = self._triggers() if self._form.lazy else [self._arena.root]
        found: _Lang = []
        for root in roots:
            if self._arena.names(root):
                found += self._lang(root, place)
        if not found:
            raise TemplateError(
                "llama.cpp's description of this template's replies has no tool call in it; use "
                'another template (chat_format="chatml-function-calling"), or tool_choice="none"'
            )
        return [_joined(self._unopened(each)) for each in found]

    def _unopened(self, way: list[str]) -> list[str]:
        """A way to write the reply, without the end of the prompt."""
        opening = self._form.opening
        if not opening:
            return way
        if way[:1] != [quoted(opening)]:
            raise TemplateError(
                "llama.cpp describes a reply of this template that does not begin as its prompt "
                f'ends, {opening!r}; use another template, or tool_choice="required"'
            )
        return way[1:]

    def answers(self) -> list[str]:
        """The expressions of replies that follow the schema."""
        self._answering = True
        self._free = "schema" not in self._arena.kinds(self._arena.root)
        found = self._lang(self._arena.root, _PiecePlace())
        return [_joined(each) for each in found]

    def _triggers(self) -> list[int]:
        nodes = self._arena.nodes
        numbers = sorted(set(self._arena.rules.values()))
        return [at for at in numbers if nodes[at]["type"] == "rule" and nodes[at]["trigger"]]

    # ---- nodes -----------------------------------------------------------------------------------

    def _lang(self, at: int, place: _PiecePlace) -> _Lang:
        node = self._arena.nodes[at]
        names = self._arena.names(at)
        if not place.tool and len(names) == 1:
            place = place._replace(tool=next(iter(names)))
        if self._is_list(at, place):
            return self._arguments([at], place)
        return _KINDS[node["type"]](self, at, node, place)

    def _is_list(self, at: int, place: _PiecePlace) -> bool:
        """Whether this is where the arguments of a call are."""
        if not place.tool or place.argument or self._arena.names(at):
            return False
        if not self._arena.arguments(at):
            return False
        node = self._arena.nodes[at]
        tagged = node["type"] == "tag" and node["tag"] == peg.ARG
        return tagged or node["type"] in ("choice", "repetition")

    def _nothing(self, at: int, node: peg.Node, place: _PiecePlace) -> _Lang:
        return _EMPTY

    def _literal(self, at: int, node: peg.Node, place: _PiecePlace) -> _Lang:
        return [[quoted(node["literal"])]] if node["literal"] else _EMPTY

    def _any(self, at: int, node: peg.Node, place: _PiecePlace) -> _Lang:
        return [["."]]

    def _white(self, at: int, node: peg.Node, place: _PiecePlace) -> _Lang:
        return [[self.space]]

    @property
    def space(self) -> str:
        """The rule of white space between marks."""
        if not self._space:
            self._space = "c-space"
            self._values.rules[self._space] = _SPACE_RULE
        return self._space

    def _chars(self, at: int, node: peg.Node, place: _PiecePlace) -> _Lang:
        least, most = node["min_count"], node["max_count"]
        most = max(least, 32) if most == -1 else most
        return [[f"{_class(node)}{{{least},{most}}}"]]

    def _string(self, at: int, node: peg.Node, place: _PiecePlace) -> _Lang:
        return [[rf'[^"\\\x00-\x1F]{{0,{_MOST_ID}}}']]

    def _until(self, at: int, node: peg.Node, place: _PiecePlace) -> _Lang:
        if place.inside:
            first = sorted({text[0] for text in node["delimiters"] if text})
            banned = "".join(f"\\x{ord(letter):02X}" for letter in first if letter < "\x7f")
            return [[f"[^\\x00-\\x1F{banned}]{{0,{_MOST_FILLED}}}"]]
        return [[self._values.free_text(node["delimiters"])]]

    def _sequence(self, at: int, node: peg.Node, place: _PiecePlace) -> _Lang:
        out: list[str] = []
        children = list(node["children"])
        listed = self._block(children, place)
        called = not place.forced
        for number, child in enumerate(children):
            here = place._replace(forced=place.forced and not called)
            if self._behind_content(children, number):
                lang = self._white_before_call(children[number - 1])
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
            elif recipient := self._recipient(children, number, place):
                lang = [[quoted(recipient)]]
            else:
                lang = self._lang(child, self._after(children, number, here))
            if not lang:
                return []
            out += lang[0] if len(lang) == 1 else [_group(lang)]
        return [out]

    def _behind_content(self, children: Sequence[int], number: int) -> bool:
        """Whether this is white space that the parser does not take as such.

        Behind content it is content, and behind a tool whose end is found by what comes next it
        would not be found.
        """
        if not number or self._arena.nodes[children[number]]["type"] != "space":
            return False
        before = children[number - 1]
        spoken = peg.CONTENT in self._arena.tags(before)
        return self._looks_ahead(before) or (spoken and not self._answers(before))

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

    def _white_before_call(self, content: int) -> _Lang:
        """White space that belongs to the mark of a call, and not to the content before it."""
        marks = self._closers(content)
        spaces = {mark[: len(mark) - len(mark.lstrip())] for mark in marks}
        found: _Lang = [[quoted(space)] for space in sorted(spaces) if space]
        return [*found, []] if found else _EMPTY

    def _after(self, children: Sequence[int], number: int, place: _PiecePlace) -> _PiecePlace:
        """The place behind what must not stand here."""
        if not number:
            return place
        before = self._arena.nodes[children[number - 1]]
        if before["type"] != "not":
            return place
        inner = self._arena.nodes[before["child"]]
        if inner["type"] != "literal":
            return place
        return place._replace(never=(*place.never, inner["literal"]))

    def _recipient(self, children: Sequence[int], number: int, place: _PiecePlace) -> str:
        """The name of the tool, where a call says for whom it is before it says who that is."""
        later = any(self._arena.names(child) for child in children[number + 1 :])
        node = self._arena.nodes[children[number]]
        return place.tool if place.inside and later and node["type"] == "until" else ""

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
            bare = [child for child in children if not self._is_fenced(child)]
            children = bare or children
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

    def _is_fenced(self, at: int) -> bool:
        texts = (self._arena.nodes[each] for each in self._arena.walk(at))
        return any(node.get("literal", "").startswith("```") for node in texts)

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
        return self._lang(node["child"], place)

    def _ref(self, at: int, node: peg.Node, place: _PiecePlace) -> _Lang:
        return self._lang(self._arena.rules[node["name"]], place)

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

    def _gbnf(self, at: int, node: peg.Node, place: _PiecePlace) -> _Lang:
        if not node["grammar"]:
            return _EMPTY
        return self._lang(node["child"], place)

    def _tag(self, at: int, node: peg.Node, place: _PiecePlace) -> _Lang:
        tag = node["tag"]
        if tag == peg.CONTENT:
            return self._content(node, place)
        if tag == peg.ARGS and not self._arena.arguments(at):
            return self._all_arguments(at, node, place)
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

    def _all_arguments(self, at: int, node: peg.Node, place: _PiecePlace) -> _Lang:
        """Arguments that are one object."""
        schema, defs = self._schema(place)
        if self._form.notation == "peg-gemma4":
            return [[self._values.gemma({"type": "object", **schema}, defs)]]
        if "schema" not in self._arena.kinds(at):
            return self._lang(node["child"], place)  # there are none
        return [[self._values.json(_without_defs(schema), defs)]]

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
            mark = self._mark(unit, name)
            return [[self._values.element(name, schema, defs, self.space, mark)]]
        tags = self._arena.tags(unit)
        place = place._replace(beside_json={peg.VALUE, peg.STRING_VALUE} <= tags)
        return self._lang(unit, place)

    def _mark(self, unit: int, name: str) -> str:
        """The text before each tag of an element."""
        nodes = (self._arena.nodes[at] for at in self._arena.walk(unit))
        ends = (node["literal"] for node in nodes if node["type"] == "literal")
        close = str(next((end for end in ends if end.endswith(f"</{name}>")), ""))
        if not close:
            raise TemplateError(f"the format of the argument {name!r} has no closing tag")
        return close.removesuffix(f"</{name}>")

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


def _without_defs(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    return {key: value for key, value in schema.items() if key != "$defs"}


def _joined(atoms: Sequence[str]) -> str:
    return " ".join(atoms) or '""'


def _group(lang: _Lang) -> str:
    return f"({' | '.join(map(_joined, lang))})"


def _class(node: peg.Node) -> str:
    text = ""
    for part in node["ranges"]:
        first, last = part["start"], part["end"]
        text += f"\\U{first:08X}" if first == last else f"\\U{first:08X}-\\U{last:08X}"
    return f"[{'^' if node['negated'] else ''}{text}]"


_KINDS: Mapping[str, Callable[[_CallWriter, int, peg.Node, _PiecePlace], _Lang]] = {
    "epsilon": _CallWriter._nothing,
    "start": _CallWriter._nothing,
    "end": _CallWriter._nothing,
    "and": _CallWriter._nothing,
    "not": _CallWriter._nothing,
    "literal": _CallWriter._literal,
    "any": _CallWriter._any,
    "space": _CallWriter._white,
    "chars": _CallWriter._chars,
    "string": _CallWriter._string,
    "until": _CallWriter._until,
    "sequence": _CallWriter._sequence,
    "choice": _CallWriter._choice,
    "repetition": _CallWriter._repetition,
    "ref": _CallWriter._ref,
    "rule": _CallWriter._rule,
    "tag": _CallWriter._tag,
    "atomic": _CallWriter._child,
    "ac": _CallWriter._child,
    "schema": _CallWriter._child,
    "gbnf": _CallWriter._gbnf,
}
