"""``AnswerWatch``: keeps white space and digits that a grammar allows from going on for ever.

Grammars of JSON allow white space where models like to write it, so that a reply that fits is left
as it is. A model that wants to say something else, which does not fit, would often take that white
space instead: the likeliest of what is left. And indentation is as deep as the brackets are, which
no grammar of a reasonable size can count. Both are seen to here, for both grammar engines, by
following the text of the answer. So are the digits of numbers for which llguidance has its own
rules, which never end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from llama_py import forks
from llama_py.chat.reasoning import NO_REASONING, Reasoning, ReasoningWatch
from llama_py.chat.schemas.json_forms import SPACES, TABS

__all__ = ["AnswerWatch", "Spaces", "WatchedAnswer", "spaces_of"]

_WHITE = b" \t\r\n"
#: How many spaces a tab counts as.
_TAB = SPACES // TABS
#: Tokens with white space at their end that are taken off the row, one after the other.
_MOST_TRIED = 64
_DIGITS = b"0123456789"
#: Digits in a row that no rule of ours exceeds.
_MOST_DIGITS = 25


class Spaces:
    """The white space in the tokens of a vocabulary.

    Attributes:
        ids: the tokens that begin with white space, or have some behind a line break.
        begins, pure: of each of these: whether it begins with white space, and is nothing else.
        first, line: the spaces at its beginning, and the most of them behind a line break in it; a
            tab counts as several.
        ends: the tokens that end a reply.
        digits: the tokens that begin with a digit.
    """

    def __init__(self, n_tokens: int, piece: Callable[[int], bytes], ends: Any) -> None:
        self.ends = np.fromiter(ends, np.intp)
        digits = (token for token in range(n_tokens) if piece(token)[:1].isdigit())
        self.digits = np.fromiter(digits, np.intp)
        found: list[tuple[int, bool, bool, int, int]] = []
        for token in range(n_tokens):
            text = piece(token)
            if not text or (text[0] not in _WHITE and b"\n" not in text):
                continue
            first, *lines = text.split(b"\n")
            begins, pure = text[0] in _WHITE, not text.strip(_WHITE)
            deepest = max(map(_indentation, lines), default=0)
            found.append((token, begins, pure, _indentation(first), deepest))
        self.ids = np.array([row[0] for row in found], np.intp)
        self.begins = np.array([row[1] for row in found], np.bool_)
        self.pure = np.array([row[2] for row in found], np.bool_)
        self.first = np.array([row[3] for row in found], np.int64)
        self.line = np.array([row[4] for row in found], np.int64)


def _indentation(text: bytes) -> int:
    lead = text[: len(text) - len(text.lstrip(b" \t"))]
    return lead.count(b" ") + _TAB * lead.count(b"\t")


def _ends_number(text: bytes) -> bool:
    """Whether a text behind a digit ends the number; a comma may also part its thousands."""
    return text != b"," and (not text or text[0] not in b"0123456789.eE")


@dataclass(slots=True)
class _JSONPlace:
    """A place in a JSON text.

    Attributes:
        depth: open brackets.
        in_string, escaped: within a string, and behind a backslash in it.
        in_line: nothing but white space was written since a line break.
        spaces: that white space; a tab counts as several.
        begun: something other than white space was written.
        too_deep: a line was indented further than its depth allows.
        trailing: there was white space behind the whole text.
        digits: how many came last, outside of strings.
    """

    depth: int = 0
    in_string: bool = False
    escaped: bool = False
    in_line: bool = False
    spaces: int = 0
    begun: bool = False
    too_deep: bool = False
    trailing: bool = False
    digits: int = 0

    def go_on(self, text: bytes) -> None:
        """Advance past some bytes."""
        for byte in text:
            self.digits = self.digits + 1 if byte in _DIGITS and not self.in_string else 0
            if self.in_string:
                if self.escaped:
                    self.escaped = False
                elif byte == 0x5C:
                    self.escaped = True
                elif byte == 0x22:
                    self.in_string = False
            elif byte in _WHITE:
                self.trailing = self.trailing or (self.begun and self.depth <= 0)
                if byte == 0x0A:
                    self.in_line, self.spaces = True, 0
                elif self.in_line:
                    self.spaces += _TAB if byte == 0x09 else 1
                    self.too_deep = self.too_deep or (self.depth > 0 and self.spaces > self.room)
            else:
                self.in_line, self.begun = False, True
                self.in_string = byte == 0x22
                self.depth += (byte in b"{[") - (byte in b"}]")

    @property
    def room(self) -> int:
        """The most spaces that indent a line here."""
        return SPACES * self.depth


class AnswerWatch:
    """Follows the tokens of one reply: where its reasoning is, and the layout of its answer.

    Args:
        piece: the bytes of a token.
        reasoning: the marks of its reasoning.
        spaces: makes the table of white space; None if the answer is not JSON text, and no business
            of this.
    """

    def __init__(
        self,
        piece: Callable[[int], bytes],
        reasoning: Reasoning = NO_REASONING,
        spaces: Callable[[], Spaces] | None = None,
    ) -> None:
        self._piece = piece
        self._watch = ReasoningWatch(piece, reasoning)
        self._spaces = spaces
        self._place = _JSONPlace()

    @property
    def inside(self) -> bool:
        """True while the reply is in its reasoning."""
        return self._watch.inside

    @property
    def ending(self) -> tuple[int, ...]:
        """The tokens with which the reasoning just ended."""
        return self._watch.ending

    def accept(self, token: int) -> None:
        """Advance past a token."""
        behind = self._watch.accept(token)
        if self._watch.inside:
            self._place = _JSONPlace()  # what came before was its beginning
        elif self._spaces is not None:
            self._place.go_on(behind)

    def excess(self, token: int) -> bool:
        """Whether a token would indent a line further than the brackets around it allow."""
        if self._spaces is None or self._watch.inside:
            return False
        piece = self._piece(token)
        if not (self._place.in_line or b"\n" in piece):
            return False
        return self._after(piece).too_deep

    def trim(self, row: NDArray[np.float32], own: int) -> None:
        """Forbid white space that the model does not want, once the grammar forbade what it does.

        White space stays possible where the model's own token fits or is white space itself, where
        it ends a number, and where nothing else is. A number that the model would end has no
        further digits: its value would be another.

        Args:
            row: the logits, after the grammar; shape ``(n_vocab,)``, changed in place.
            own: the token that the model would take without a grammar.
        """
        place = self._place
        if self._spaces is None or self._watch.inside or place.in_string:
            return
        spaces = self._spaces()
        own_is_white = not self._piece(own).strip(_WHITE)
        wanted = own_is_white or (row[own] > -np.inf and not self.excess(own))
        forbidden = np.zeros(len(spaces.ids), np.bool_)
        if place.depth > 0:  # what would indent a line too far
            forbidden = spaces.line > place.room + SPACES
            if place.in_line:
                forbidden |= spaces.begins & (spaces.first + place.spaces > place.room)
        if not wanted and not place.digits:
            margin = not place.begun or bool(row[spaces.ends].max(initial=-np.inf) > -np.inf)
            forbidden = forbidden | (spaces.begins if margin else spaces.pure)
        if forbidden.any():
            self._forbid(row, spaces.ids[forbidden])
        ended = not wanted and place.digits and _ends_number(self._piece(own))
        if ended or place.digits >= _MOST_DIGITS:
            self._forbid(row, spaces.digits)
        if wanted:
            return
        for _ in range(_MOST_TRIED):  # tokens that end in white space behind the whole text
            token = int(row.argmax())
            piece = self._piece(token)
            if not piece or piece[-1] not in _WHITE or not self._after(piece).trailing:
                return
            if not self._forbid(row, np.array([token])):
                return

    def _after(self, piece: bytes) -> _JSONPlace:
        place = replace(self._place, too_deep=False, trailing=False)
        place.go_on(piece)
        return place

    @staticmethod
    def _forbid(row: NDArray[np.float32], ids: NDArray[np.intp]) -> bool:
        """Set these to ``-inf`` unless nothing would be left."""
        before = row[ids]
        row[ids] = -np.inf
        if row.max() > -np.inf:
            return True
        row[ids] = before
        return False


@dataclass(frozen=True, slots=True)
class WatchedAnswer:
    """Makes the ``AnswerWatch`` of each reply to a request.

    Attributes:
        reasoning: the marks of the reasoning.
        is_json: the answer is a JSON text by a schema.
    """

    reasoning: Reasoning = NO_REASONING
    is_json: bool = True

    def __call__(self, vocab: Any) -> AnswerWatch:
        spaces = (lambda: spaces_of(vocab)) if self.is_json else None
        return AnswerWatch(vocab.piece, self.reasoning, spaces)


_TABLES: WeakKeyDictionary[Any, Spaces] = WeakKeyDictionary()
_LOCK = threading.Lock()


def _begin_anew() -> None:
    """In a forked child: the lock may be held."""
    global _LOCK
    _LOCK = threading.Lock()


forks.after_in_child(_begin_anew)


def spaces_of(vocab: Any) -> Spaces:
    """The table of a vocabulary, made at its first use."""
    with _LOCK:
        table = _TABLES.get(vocab)
        if table is None:
            table = Spaces(vocab.n_tokens, vocab.token_to_piece, vocab.eog_tokens())
            _TABLES[vocab] = table
        return table
