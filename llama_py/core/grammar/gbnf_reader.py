"""Reads GBNF as llama.cpp's parser does, so that nothing broken or huge gets as far as that one.

llama.cpp's parser prints what it dislikes, copies whatever a repetition repeats, and recurses. This
reader rewrites repetitions by the same rules and counts what they would become, but keeps only what
``gbnf_check`` asks about: which rules a rule refers to, and where it may be empty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn

from llama_py.core.host.gil_yield import GilYield
from llama_py.errors import GrammarError

__all__ = [
    "MOST_BYTES",
    "MOST_ELEMENTS",
    "MOST_NESTED",
    "MOST_REPEATED",
    "MOST_RULES",
    "TERMINAL",
    "Rules",
    "read_gbnf",
]

#: Bytes of a grammar's text.
MOST_BYTES = 1 << 18
#: Characters, classes and references after every repetition has been written out.
MOST_ELEMENTS = 200_000
#: Rules, those that groups and repetitions become included.
MOST_RULES = 20_000
#: Parentheses within parentheses.
MOST_NESTED = 100
#: llama.cpp's own limit on a repetition, and on the rules that one repeats.
MOST_REPEATED = 2000

#: Stands for a character, a class or a token where rules are numbers.
TERMINAL = -1

_NAME = re.compile(r"[a-zA-Z0-9-]+")
_SPACE = re.compile(r"(?:[ \t]+|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)*")
_ESCAPE = r'\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[trn\\"\[\]-])'
_CHARACTER = re.compile(rf"{_ESCAPE}|[^\\]", re.DOTALL)
# Unrolled, so that a text without an end is given up in linear time.
_LITERAL = re.compile(rf'"([^"\\]*(?:{_ESCAPE}[^"\\]*)*)"')
_CLASS = re.compile(rf"\[\^?([^\]\\]*(?:{_ESCAPE}[^\]\\]*)*)\]")
_TOKEN = re.compile(r"!?<(?:\[[0-9]{1,9}\]|(?!\[)[^>]*)>")
_COUNTS = re.compile(r"\{[ \t]*([0-9]+)[ \t]*(?:(,)[ \t]*([0-9]+)?[ \t]*)?\}")
_SIMPLE = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass
class Rules:
    """A grammar as numbers.

    Attributes:
        names: the name of each rule; a group or a repetition has that of the rule it stands in.
        lines: the line on which each begins.
        alternatives: of each rule, the sequences it may be: numbers of rules, or ``TERMINAL``.
            None for a rule that is used and not defined.
        elements: how much llama.cpp will hold.
        tokens: the text of each token that is named (``<[12]>``, ``<name>``), and its line.
        numbers: the number of each rule that has a name of its own.
    """

    names: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    alternatives: list[list[list[int]] | None] = field(default_factory=list)
    elements: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def place(self, rule: int) -> str:
        """Where a rule stands, in words."""
        return f"line {self.lines[rule]}, rule {self.names[rule]!r}"


def read_gbnf(text: str) -> Rules:
    """Read a grammar.

    Raises:
        GrammarError: it is no GBNF, or more than the limits of this module; with line and rule.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise GrammarError(
            f"the grammar does not parse: line {line}: {text[error.start]!r} is half a character "
            "(a lone surrogate)"
        ) from None
    if size > MOST_BYTES:
        raise GrammarError(f"the grammar has {size} bytes, and {MOST_BYTES} is the most")
    if not text.strip() or "\0" in text:
        raise GrammarError("the grammar does not parse: it is empty, or has a NUL character")
    return _GBNFReader(text).read()


class _GBNFReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._rules = Rules()
        self._rule = 0
        self._depth = 0
        self._gil_yield = GilYield()
        self._counted = (0, 1)  # a position, and the line on which it is

    def read(self) -> Rules:
        self._skip(True)
        while self._at < len(self._text):
            match = self._take(_NAME)
            if match is None:
                self._fail(f"expected the name of a rule, found {self._shown()}")
            self._rule = self._number(match.group())
            self._rules.lines[self._rule] = self._line()
            self._skip(False)
            if not self._text.startswith("::=", self._at):
                self._fail(f'expected "::=", found {self._shown()}')
            self._at += 3
            self._skip(True)
            self._rules.alternatives[self._rule] = self._alternatives(False)
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                self._fail(f"unexpected {self._shown()}")
            self._skip(True)
        return self._rules

    # ---- places ------------------------------------------------------------------------------

    def _line(self) -> int:
        at, line = self._counted
        line += self._text.count("\n", at, self._at)
        self._counted = (self._at, line)
        return line

    def _fail(self, what: str) -> NoReturn:
        names = self._rules.names
        where = f", rule {names[self._rule]!r}" if names else ""
        raise GrammarError(f"the grammar does not parse: line {self._line()}{where}: {what}")

    def _skip(self, lines: bool) -> None:
        match = (_SPACE_AND_LINES if lines else _SPACE).match(self._text, self._at)
        self._at = match.end() if match else self._at

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        if match:
            self._at = match.end()
        return match

    def _shown(self) -> str:
        piece = self._text[self._at : self._at + 20].split("\n")[0]
        return repr(piece) if self._at < len(self._text) else "the end of the text"

    # ---- rules -------------------------------------------------------------------------------

    def _number(self, name: str) -> int:
        number = self._rules.numbers.get(name)
        if number is None:
            number = self._rules.numbers[name] = self._new_rule(name)
        return number

    def _new_rule(self, name: str) -> int:
        rules = self._rules
        if len(rules.names) >= MOST_RULES:
            self._fail(f"there are more than {MOST_RULES} rules, repetitions written out")
        rules.names.append(name)
        rules.lines.append(self._line())
        rules.alternatives.append(None)
        return len(rules.names) - 1

    def _count(self, more: int) -> None:
        self._rules.elements += more
        if self._rules.elements > MOST_ELEMENTS:
            self._fail(
                f"it becomes larger than {MOST_ELEMENTS} characters and references when its "
                "repetitions are written out; use smaller ones"
            )

    def _alternatives(self, nested: bool) -> list[list[int]]:
        found = [self._sequence(nested)]
        while self._text.startswith("|", self._at):
            self._at += 1
            self._skip(True)
            found.append(self._sequence(nested))
        self._count(len(found))
        return found

    def _sequence(self, nested: bool) -> list[int]:
        out: list[int] = []
        start, size, repeated = 0, 0, 1  # the last item: where it begins, its elements, its rules
        while self._at < len(self._text):
            self._gil_yield()
            letter = self._text[self._at]
            counts = self._counts(letter)
            if counts is not None:
                self._skip(nested)
                repeated = self._repeat(out, start, size, repeated, *counts)
                size = size * counts[0] + (counts[0] != counts[1])
                continue
            before, known = len(out), len(self._rules.names)
            read = self._item(letter, out)
            if read is None:
                break
            start, size = before, read
            repeated = max(1, len(self._rules.names) - known) if letter == "(" else 1
            self._count(size)
            self._skip(nested)
        return out

    def _item(self, letter: str, out: list[int]) -> int | None:
        """Read one item onto ``out``; its elements, or None if no item begins here."""
        if letter == '"':
            return self._literal(out)
        if letter == "[":
            return self._class(out)
        if letter in "<!":
            line, match = self._line(), self._take(_TOKEN)
            if match is None:
                self._fail(f"expected a token like <[12]> or <name>, found {self._shown()}")
            self._rules.tokens.setdefault(match.group().lstrip("!"), line)
            out.append(TERMINAL)
            return 1
        if letter == ".":
            self._at += 1
            out.append(TERMINAL)
            return 1
        if letter == "(":
            return self._group(out)
        match = self._take(_NAME)
        if match is None:
            return None
        out.append(self._number(match.group()))
        return 1

    def _literal(self, out: list[int]) -> int:
        match = self._take(_LITERAL)
        if match is None:
            self._explain("the text in quotes", '"')
        count = len(_CHARACTER.findall(match.group(1)))
        if count:
            # One stands for all of them: what follows the first is never where a rule begins.
            out.append(TERMINAL)
        return count

    def _class(self, out: list[int]) -> int:
        match = self._take(_CLASS)
        if match is None:
            self._explain("the character class", "]")
        letters = _CHARACTER.findall(match.group(1))
        if not letters:
            self._fail("a character class without characters fits nothing")
        at = 0
        while at < len(letters):
            if at + 2 < len(letters) and letters[at + 1] == "-":
                if _code(letters[at]) > _code(letters[at + 2]):
                    self._fail(f"the range {letters[at]}-{letters[at + 2]} goes backwards")
                at += 2
            at += 1
        out.append(TERMINAL)
        return len(letters)

    def _explain(self, what: str, end: str) -> NoReturn:
        """Why a literal or a class does not parse: an unknown escape, or no end."""
        at = self._at + 1
        while at < len(self._text) and self._text[at] != end:
            match = _CHARACTER.match(self._text, at)
            if match is None:
                shown = self._text[at : at + 2]
                self._fail(f"{what} has the unknown escape {shown!r}")
            at = match.end()
        self._fail(f"{what} does not end with {end}")

    def _group(self, out: list[int]) -> int:
        self._depth += 1
        if self._depth > MOST_NESTED:
            self._fail(f"parentheses are nested more than {MOST_NESTED} deep")
        self._at += 1
        self._skip(True)
        number = self._new_rule(self._rules.names[self._rule])
        self._rules.alternatives[number] = self._alternatives(True)
        if not self._text.startswith(")", self._at):
            self._fail(f'expected ")", found {self._shown()}')
        self._at += 1
        self._depth -= 1
        out.append(number)
        return 1

    # ---- repetitions -------------------------------------------------------------------------

    def _counts(self, letter: str) -> tuple[int, int | None] | None:
        """(at least, at most or None) if a repetition stands here."""
        if letter in _SIMPLE:
            self._at += 1
            return _SIMPLE[letter]
        if letter != "{":
            return None
        match = self._take(_COUNTS)
        if match is None:
            self._fail(f"expected a repetition like {{2}} or {{1,3}}, found {self._shown()}")
        shown = match.group()[:40]
        least, comma, most = match.groups()
        low = int(least[:9])
        high = low if comma is None else None if most is None else int(most[:9])
        if len(least) > 9 or low > MOST_REPEATED:
            self._fail(f"the repetition {shown} is larger than {MOST_REPEATED}")
        if high is not None and high < low:
            self._fail(f"the repetition {shown} asks for more than it allows")
        # llama.cpp takes so large an upper bound for none.
        return low, None if high is not None and high > MOST_REPEATED else high

    def _repeat(
        self, out: list[int], start: int, size: int, repeated: int, low: int, high: int | None
    ) -> int:
        """Write a repetition of ``out[start:]`` out, as llama.cpp does; the rules that it takes."""
        item = out[start:]
        if not item:
            self._fail("a repetition has nothing before it that it could repeat")
        total = max(1, high if high is not None else low)
        if repeated * total > MOST_REPEATED:
            self._fail(
                f"a repetition of a repetition comes to {repeated * total} rules, and "
                f"{MOST_REPEATED} is the most"
            )
        optional = 1 if high is None else high - low
        self._count(max(0, low - 1) * size + optional * (size + 3))
        out[start:] = item * low
        last = -1
        for i in range(optional):
            number = self._new_rule(self._rules.names[self._rule])
            rest = [number] if high is None else [last] if i else []
            self._rules.alternatives[number] = [[*item, *rest], []]
            last = number
        if optional:
            out.append(last)
        return repeated * total


def _code(letter: str) -> int:
    if len(letter) == 1:
        return ord(letter)
    if letter[1] in "xuU":
        return int(letter[2:], 16)
    return {"t": 9, "r": 13, "n": 10}.get(letter[1], ord(letter[1]))
