"""Texts that are written without quotes: which ones a schema allows, and where they end.

Formats with a tag per argument write a text as it is, up to a closing tag. ``Machine`` reads such a
text character by character: it knows the expressions that the text has to fit, those that it must
not fit, and the closing tags that it must not contain. ``rules_of`` writes it as rules of GBNF, of
which one at a time is alive, so that they cost a sampler next to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

__all__ = [
    "Machine",
    "Piece",
    "anything",
    "either",
    "expression",
    "literal",
    "quoted",
    "rules_of",
    "sequence",
]

_LAST = 0x10FFFF
Ranges = tuple[tuple[int, int], ...]
ALL: Ranges = ((0, _LAST),)
#: The most states of an expression, and of a machine.
MOST_STATES = 3000


class Piece(NamedTuple):
    """An expression: characters, a sequence, a choice or a repetition.

    Attributes:
        kind: "set", "seq", "alt" or "rep".
        ranges: of a set.
        parts: of a sequence and a choice; the one part of a repetition.
        least, most: of a repetition; ``most`` is -1 where there is no bound.
    """

    kind: str
    ranges: Ranges = ()
    parts: tuple[Piece, ...] = ()
    least: int = 0
    most: int = -1


def literal(text: str) -> Piece:
    """An expression of one text."""
    return Piece("seq", parts=tuple(Piece("set", ((ord(c), ord(c)),)) for c in text))


def anything(least: int = 0, most: int = -1) -> Piece:
    """An expression of all texts with so many characters."""
    return Piece("rep", parts=(Piece("set", ALL),), least=least, most=most)


def sequence(*parts: Piece) -> Piece:
    """An expression of these, one after the other."""
    return Piece("seq", parts=parts)


def either(parts: Iterable[Piece]) -> Piece:
    """An expression of what fits one of these."""
    return Piece("alt", parts=tuple(parts))


# ---- regular expressions -------------------------------------------------------------------------

_DIGITS: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = ((9, 13), (32, 32), (0xA0, 0xA0), (0x2028, 0x2029), (0xFEFF, 0xFEFF))
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_COUNTS = re.compile(r"\{([0-9]{1,6})(,([0-9]{1,6})?)?\}")
_GROUP = re.compile(r"\?(?::|P?<[A-Za-z_][A-Za-z_0-9]*>)")


class _Unsupported(Exception):
    """A part of an expression that no machine has."""


def expression(pattern: str) -> Piece | None:
    """A regular expression of JSON schema, as a whole; None if it has something else than
    characters, classes, groups, choices and repetitions."""
    try:
        return _Pattern(pattern).read()
    except (_Unsupported, RecursionError):
        return None


class _Pattern:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def read(self) -> Piece:
        piece = self._choice(True)
        if self._at < len(self._text):
            raise _Unsupported
        return piece

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        letter = self._peek()
        if not letter:
            raise _Unsupported
        self._at += 1
        return letter

    def _choice(self, top: bool) -> Piece:
        parts = [self._sequence(top)]
        while self._peek() == "|":
            self._at += 1
            parts.append(self._sequence(top))
        return parts[0] if len(parts) == 1 else either(parts)

    def _sequence(self, top: bool) -> Piece:
        """A sequence. At the top, whatever is not anchored may have text around it."""
        parts: list[Piece] = []
        begins = top and self._peek() == "^"
        self._at += begins
        ends = False
        while self._peek() not in ("", "|", ")"):
            if top and self._peek() == "$" and self._text[self._at + 1 : self._at + 2] in ("", "|"):
                self._at, ends = self._at + 1, True
                break
            parts.append(self._repeated(self._item()))
        if top:
            parts = [*([] if begins else [anything()]), *parts, *([] if ends else [anything()])]
        return Piece("seq", parts=tuple(parts))

    def _repeated(self, piece: Piece) -> Piece:
        simple = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}
        while True:
            if (letter := self._peek()) in simple and letter:
                self._at += 1
                least, most = simple[letter]
            elif match := _COUNTS.match(self._text, self._at):
                self._at = match.end()
                least = int(match[1])
                most = least if match[2] is None else -1 if match[3] is None else int(match[3])
            else:
                return piece
            if self._peek() == "?":  # lazy: the same texts
                self._at += 1
            if most != -1 and most < least:
                raise _Unsupported
            piece = Piece("rep", parts=(piece,), least=least, most=most)

    def _item(self) -> Piece:
        letter = self._next()
        if letter == "(":
            if self._peek() == "?":
                if not (match := _GROUP.match(self._text, self._at)):
                    raise _Unsupported
                self._at = match.end()
            piece = self._choice(False)
            if self._next() != ")":
                raise _Unsupported
            return piece
        if letter == "[":
            return Piece("set", self._class())
        if letter == ".":
            return Piece("set", _without(((10, 10), (13, 13), (0x2028, 0x2029))))
        if letter == "\\":
            return Piece("set", self._escape())
        if letter in "*+?{}^$)":
            raise _Unsupported
        return Piece("set", ((ord(letter), ord(letter)),))

    def _escape(self) -> Ranges:
        letter = self._next()
        if letter.lower() in _CLASSES:
            ranges = _CLASSES[letter.lower()]
            return ranges if letter.islower() else _without(ranges)
        if letter in _CONTROLS:
            code = _CONTROLS[letter]
        elif size := {"x": 2, "u": 4, "U": 8}.get(letter):
            digits = self._text[self._at : self._at + size]
            if not re.fullmatch(f"[0-9a-fA-F]{{{size}}}", digits) or int(digits, 16) > _LAST:
                raise _Unsupported
            self._at += size
            code = int(digits, 16)
        elif letter.isalnum():
            raise _Unsupported
        else:
            code = ord(letter)
        return ((code, code),)

    def _class(self) -> Ranges:
        negated = self._peek() == "^"
        self._at += negated
        found: list[tuple[int, int]] = []
        while (letter := self._next()) != "]":
            if letter == "\\":
                ranges = self._escape()
            else:
                ranges = ((ord(letter), ord(letter)),)
            rest = self._text[self._at + 1 : self._at + 2]
            if self._peek() == "-" and rest not in ("", "]") and len(ranges) == 1:
                self._at += 1
                end = self._next()
                last = self._escape() if end == "\\" else ((ord(end), ord(end)),)
                if last[0][0] < ranges[0][0]:
                    raise _Unsupported
                ranges = ((ranges[0][0], last[0][0]),)
            found += ranges
        return _without(found) if negated else _joined(found)


def _joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return tuple(out)


def _without(ranges: Iterable[tuple[int, int]]) -> Ranges:
    out, at = [], 0
    for low, high in _joined(ranges):
        if at < low:
            out.append((at, low - 1))
        at = high + 1
    return (*out, (at, _LAST)) if at <= _LAST else tuple(out)


# ---- machines ------------------------------------------------------------------------------------


@dataclass
class _Net:
    """An expression as states with arrows; ``free`` arrows read nothing."""

    arrows: list[list[tuple[Ranges, int]]] = field(default_factory=list)
    free: list[list[int]] = field(default_factory=list)
    end: int = 0

    def state(self) -> int:
        if len(self.arrows) >= 4 * MOST_STATES:
            raise _Unsupported
        self.arrows.append([])
        self.free.append([])
        return len(self.arrows) - 1

    def build(self, piece: Piece, start: int) -> int:
        """The state in which the piece has ended."""
        if piece.kind == "set":
            end = self.state()
            self.arrows[start].append((piece.ranges, end))
            return end
        if piece.kind == "seq":
            for part in piece.parts:
                start = self.build(part, start)
            return start
        if piece.kind == "alt":
            end = self.state()
            for part in piece.parts:
                first = self.state()
                self.free[start].append(first)
                self.free[self.build(part, first)].append(end)
            return end
        (part,) = piece.parts  # of a repetition
        for _ in range(piece.least):
            start = self.build(part, start)
        if piece.most == -1:
            loop, end = self.state(), self.state()
            self.free[start].append(loop)
            self.free[self.build(part, loop)].append(loop)
            self.free[loop].append(end)
            return end
        end = self.state()
        self.free[start].append(end)
        for _ in range(piece.most - piece.least):
            start = self.build(part, start)
            self.free[start].append(end)
        return end

    def closed(self, states: Iterable[int]) -> frozenset[int]:
        seen, todo = set[int](), list(states)
        while todo:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                todo += self.free[at]
        return frozenset(seen)

    def after(self, states: frozenset[int], code: int) -> frozenset[int]:
        return self.closed(
            target
            for state in states
            for ranges, target in self.arrows[state]
            if any(low <= code <= high for low, high in ranges)
        )

    def bounds(self) -> Iterator[int]:
        for arrows in self.arrows:
            for ranges, _ in arrows:
                for low, high in ranges:
                    yield low
                    yield high + 1


def _net(piece: Piece) -> _Net:
    net = _Net()
    start = net.state()
    net.end = net.build(piece, start)
    return net


class Machine:
    """Reads a text that ends where one of the closing texts begins.

    Args:
        fits: the text has to fit this.
        never: and must not fit this.
        closers: it contains none of these, nor does a closing text that follows it begin earlier.

    Attributes:
        arrows: of each state, classes of characters and the states that they lead to.
        ends: the states in which the text may end.

    Raises:
        OverflowError: it has too many states.
    """

    def __init__(
        self, fits: Piece, closers: Sequence[str] = (), never: Piece | None = None
    ) -> None:
        try:
            self._fits, self._never = _net(fits), _net(never or Piece("alt"))
        except _Unsupported:
            raise OverflowError("the expression has too many states") from None
        self._closers = [closer for closer in closers if closer]
        marks = {0, _LAST + 1, *self._fits.bounds(), *self._never.bounds()}
        for closer in self._closers:
            for letter in closer:
                marks |= {ord(letter), ord(letter) + 1}
        points = sorted(marks)
        self._steps = [(a, b - 1) for a, b in pairwise(points)]
        self._prefixes = {c[:n] for c in self._closers for n in range(len(c))} | {""}
        self.arrows: list[dict[int, list[tuple[int, int]]]] = []
        self.ends: set[int] = set()
        self._explore()
        self._prune()

    def _explore(self) -> None:
        fits, never = self._fits, self._never
        first = (fits.closed([0]), "", never.closed([0]))
        known = {first: 0}
        todo = [first]
        self.arrows.append({})
        while todo:
            state = todo.pop()
            number = known[state]
            read, held, banned = state
            # A text may end here if no closing text behind it would seem to begin within it.
            whole = fits.end in read and never.end not in banned
            if whole and all((held + each).find(each) == len(held) for each in self._closers):
                self.ends.add(number)
            for low, high in self._steps:
                after = self._after(state, low)
                if after is None:
                    continue
                if after not in known:
                    if len(known) >= MOST_STATES:
                        raise OverflowError("the machine has too many states")
                    known[after] = len(known)
                    self.arrows.append({})
                    todo.append(after)
                self.arrows[number].setdefault(known[after], []).append((low, high))

    def _after(
        self, state: tuple[frozenset[int], str, frozenset[int]], code: int
    ) -> tuple[frozenset[int], str, frozenset[int]] | None:
        fits = self._fits.after(state[0], code)
        if not fits:
            return None
        held = state[1] + chr(code) if not 0xD800 <= code < 0xE000 else ""
        if any(held.endswith(closer) for closer in self._closers):
            return None
        while held not in self._prefixes:
            held = held[1:]
        return fits, held, self._never.after(state[2], code)

    def _prune(self) -> None:
        """Take away what leads nowhere."""
        before: list[set[int]] = [set() for _ in self.arrows]
        for number, arrows in enumerate(self.arrows):
            for target in arrows:
                before[target].add(number)
        alive, todo = set[int](), list(self.ends)
        while todo:
            at = todo.pop()
            if at not in alive:
                alive.add(at)
                todo += before[at]
        self.arrows = [
            {target: ranges for target, ranges in arrows.items() if target in alive}
            for arrows in self.arrows
        ]

    @property
    def empty(self) -> bool:
        """Whether it takes no text at all."""
        return not self.ends


def rules_of(machine: Machine, name: str) -> dict[str, str]:
    """The machine as rules, of which ``name`` is the first."""
    names = [name if not number else f"{name}-{number}" for number in range(len(machine.arrows))]
    out: dict[str, str] = {}
    todo = [0]
    while todo:
        number = todo.pop()
        if names[number] in out:
            continue
        ways = ['""'] if number in machine.ends else []
        for target, ranges in machine.arrows[number].items():
            text, last = _inlined(machine, ranges, target)
            todo.append(last)
            ways.append(f"{text} {names[last]}")
        out[names[number]] = " | ".join(ways)
    return out


def _inlined(machine: Machine, ranges: list[tuple[int, int]], target: int) -> tuple[str, int]:
    """An arrow with those that follow it without a choice: its text, and where it leads."""
    seen = {target}
    if not _single(ranges):
        return _set(ranges), target
    text = chr(ranges[0][0])
    while target not in machine.ends and len(machine.arrows[target]) == 1:
        ((after, further),) = machine.arrows[target].items()
        if not _single(further) or after in seen:
            break
        seen.add(after)
        text, target = text + chr(further[0][0]), after
    return quoted(text), target


def _single(ranges: list[tuple[int, int]]) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _set(ranges: list[tuple[int, int]]) -> str:
    joined = _joined(ranges)
    if joined == ALL:
        return "."
    outside = _without(joined)
    if joined[-1][1] == _LAST and outside:
        return f"[^{_ranges(outside)}]"
    return f"[{_ranges(joined)}]"


def _ranges(ranges: Ranges) -> str:
    return "".join(
        _code_text(low) if low == high else f"{_code_text(low)}-{_code_text(high)}"
        for low, high in ranges
    )


def _code_text(code: int) -> str:
    letter = chr(code)
    if letter in "\\]-[^":
        return f"\\x{code:02X}"
    if 0x20 < code < 0x7F:
        return letter
    return f"\\x{code:02X}" if code < 0x100 else f"\\U{code:08X}"


_ESCAPES: Mapping[str, str] = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def quoted(text: str) -> str:
    """A text as a literal of GBNF."""
    parts = (
        _ESCAPES.get(letter) or (letter if letter >= " " else f"\\x{ord(letter):02X}")
        for letter in text
    )
    return f'"{"".join(parts)}"'
