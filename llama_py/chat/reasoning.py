"""``Reasoning``: where the reasoning of a reply begins and ends, for everybody who has to know.

A template has one mark that opens reasoning and one that ends it, which some templates list with
the line break before it as well. A mark may be a token of the vocabulary, or any tokens that spell
its text. The rules of both grammar engines and the budget are made of the same ``Reasoning``, and
llama.cpp's parser of the reply reads the same marks in its text.

Some families write a mark of their own between the reasoning and the answer, and another one behind
it. The parser knows them, and they are read off its description.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llama_py.chat.answer_marks import BARE, Wrapping, reads_reasoning, wrapping_of
from llama_py.chat.rendered import RenderedChat
from llama_py.params import GrammarSpec

__all__ = ["NO_REASONING", "Reasoning", "ReasoningWatch", "reasoning_of"]

#: Text that a grammar lets stand between the end of the reasoning and the answer.
_GAP = r"[ \t\r\n]{0,4}"


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Where reasoning may be in a reply.

    Attributes:
        start: the text that opens it; "" if the reply cannot open any.
        closing: the text that ends it, in the template's own form; "" if there is no reasoning.
        inside: the reply begins in its reasoning: the prompt opens it.
        wrapping: the marks around an answer that follows the reasoning.
        direct: those around one with which the reply begins.
    """

    start: str = ""
    closing: str = ""
    inside: bool = False
    wrapping: Wrapping = BARE
    direct: Wrapping = BARE

    @property
    def possible(self) -> bool:
        """True if the reply may have reasoning."""
        return bool(self.inside or (self.start and self.closing))

    @property
    def end(self) -> str:
        """The closing mark without the line breaks around it, which models write or leave out."""
        return self.closing.strip()

    @property
    def marks(self) -> tuple[str, ...]:
        """Every text that reasoning cannot contain."""
        before = self.wrapping.before
        return (self.end, before) if before else (self.end,)

    def named_in(self, grammar: str) -> bool:
        """True if a grammar speaks of the closing mark: then it has rules for the reasoning."""
        return bool(self.end) and self.end in grammar

    def framed(self, spec: GrammarSpec) -> GrammarSpec:
        """A grammar of answers, as one of replies whose reasoning is free.

        A lazy one waits for its triggers anyway, and one that names the closing mark has rules for
        the reasoning itself.
        """
        if not self.possible or spec.lazy or self.named_in(spec.gbnf):
            return spec
        prefix = "thought"
        while prefix in spec.gbnf:
            prefix += "-x"
        thought = f"{prefix}-0 {_GAP}{_wrapped(spec.root, self.wrapping)}"
        if self.inside:
            root = thought
        else:
            opened = f"[ \\t\\r\\n]{{0,2}} {_literal(self.start)} {thought}"
            root = f"{opened} |{_wrapped(spec.root, self.direct)}"
        rules = [f"{prefix}-reply ::= {root}", *_until(prefix, self.marks, {self.end})]
        return replace(spec, gbnf="\n".join([*rules, spec.gbnf]), root=f"{prefix}-reply")


NO_REASONING = Reasoning()


def reasoning_of(rendered: RenderedChat) -> Reasoning:
    """Where the reasoning of the reply to a rendered chat is.

    There is none where the parser of the reply reads none, whatever marks the template has: it
    would be part of the answer.
    """
    arena = (rendered.parser or {}).get("arena")
    if not rendered.thinking_ends or (arena and not reads_reasoning(arena)):
        return NO_REASONING
    closing, start = rendered.thinking_ends[0], rendered.thinking_start
    opening = rendered.generation_prompt
    closed = opening.rfind(closing.strip())
    inside = bool(start) and opening.rfind(start) > closed
    may_open = not inside and closed < 0
    wrapping = wrapping_of(arena) if arena else BARE
    # Less what is the prompt's, or the end of the reasoning.
    before = wrapping.before.rpartition(closing.strip())[2]
    wrapping = replace(wrapping, before=before) if before and before not in opening else BARE
    direct = wrapping.opened_by(opening)
    return Reasoning(start if may_open else "", closing, inside, wrapping, direct)


# ---- rules of llama.cpp's grammars ---------------------------------------------------------------


def _wrapped(answer: str, wrapping: Wrapping) -> str:
    """An answer with the marks around it, as an expression."""
    before = f" {_literal(wrapping.before)}" if wrapping.before else ""
    if before and not wrapping.needed:
        before = f" ({before[1:]})?"
    after = (_literal(mark.text) + ("" if mark.needed else "?") for mark in wrapping.after)
    return " ".join([f"{before} {answer}", *after])


def _until(prefix: str, marks: Sequence[str], ends: set[str]) -> list[str]:
    """Rules of any text up to one of the marks, and of that mark if it is one of ``ends``.

    The rule ``{prefix}-{n}`` goes on from the n-th beginning of a mark. Each of them has one
    reading, so that the engine never follows more than one.
    """
    begun = sorted({mark[:length] for mark in marks for length in range(len(mark))})
    number = {text: index for index, text in enumerate(begun)}
    rules = []
    for text in begun:
        ways, taken = [], ""
        # Letters that begin a mark, or go on with one from this beginning of one, or an end of it.
        letters = {mark[0] for mark in marks}
        for tail in (text[start:] for start in range(len(text))):
            letters |= {mark[len(tail)] for mark in marks if mark.startswith(tail) and mark != tail}
        for letter in sorted(letters):
            longer = text + letter
            tails = (longer[start:] for start in range(len(longer) + 1))
            now = next((tail for tail in tails if tail in number or tail in marks), "")
            if not now:
                continue
            taken += _in_class(letter)
            if now not in marks:
                ways.append(f"[{_in_class(letter)}] {prefix}-{number[now]}")
            elif now in ends:
                ways.append(f"[{_in_class(letter)}]")
        ways.append(f"[^{taken}] {prefix}-0")
        rules.append(f"{prefix}-{number[text]} ::= {' | '.join(ways)}")
    return rules


_ESCAPED = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\\": r"\\", "]": r"\]", "[": r"\["}


def _in_class(letter: str) -> str:
    """A letter as it stands in a class of characters."""
    return r"\x5E" if letter == "^" else r"\x2D" if letter == "-" else _ESCAPED.get(letter, letter)


def _literal(text: str) -> str:
    escapes = {'"': r"\"", "\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
    return '"' + "".join(escapes.get(letter, letter) for letter in text) + '"'


#: The way out of the reasoning that llama.cpp's grammars leave for a call, also where none can be.
_WAY_OUT = re.compile(r'\(("(?:[^"\\]|\\.)*") \| \)')


def answers_after_end(grammar: str) -> str:
    """llama.cpp's grammar of an answer, which has to follow the end of the reasoning.

    Where a call may follow the reasoning at once, llama.cpp's grammar lets an answer do the same,
    which would then be part of the reasoning.
    """
    lines = grammar.split("\n")
    return "\n".join(
        _WAY_OUT.sub(r"\1", line) if line.startswith("root ::=") else line for line in lines
    )


# ---- following a reply ---------------------------------------------------------------------------


class ReasoningWatch:
    """Follows the tokens of one reply, and knows whether it is in its reasoning.

    Args:
        piece: the bytes of a token.
        reasoning: the marks.
        again: reasoning may also be opened after something else was said.
    """

    def __init__(
        self, piece: Callable[[int], bytes], reasoning: Reasoning, again: bool = False
    ) -> None:
        self._piece = piece
        self._start = reasoning.start.encode()
        self._end = reasoning.end.encode()
        self._again = again
        self._tail = b""
        #: True while the reply is in its reasoning.
        self.inside = reasoning.inside
        #: The tokens with which the reasoning ended, the mark among them; () unless it just did.
        self.ending: tuple[int, ...] = ()
        self._recent: list[tuple[int, int]] = []

    def accept(self, token: int) -> bytes:
        """Advance past a token; what of it is behind the reasoning, as bytes."""
        piece = self._piece(token)
        self.ending = ()
        return self._in_reasoning(token, piece) if self.inside else self._behind(piece)

    def _in_reasoning(self, token: int, piece: bytes) -> bytes:
        self._tail += piece
        self._recent.append((token, len(piece)))
        at = self._tail.find(self._end) if self._end else -1
        if at < 0:
            # No more is kept than may be the beginning of a mark.
            keep = len(self._end) - 1
            while self._recent and len(self._tail) - self._recent[0][1] >= keep:
                self._tail = self._tail[self._recent.pop(0)[1] :]
            return b""
        self.ending = tuple(token for token, _ in self._recent if token >= 0)
        rest = self._tail[at + len(self._end) :]
        self.inside, self._tail, self._recent = False, b"", []
        self._start = self._start if self._again else b""
        return self._behind(rest)

    def _behind(self, piece: bytes) -> bytes:
        if self._start:
            self._tail += piece
            if self._start in self._tail:
                rest = self._tail.partition(self._start)[2]
                self.inside, self._tail = True, b""
                self._recent = []
                return self._in_reasoning(-1, rest) if rest else b""
            if self._again:
                self._tail = self._tail[-len(self._start) :]
            elif not self._start.startswith(self._tail.lstrip()):
                self._start = b""
        return piece
