"""``Spelling``: a prompt's text in which a special token and the same characters differ.

``<|im_end|>`` in a prompt is a control token, or ten characters that a user typed: the same bytes,
and another prompt. So what is compared is not the text but its *key*: the text with a mark before
each special token. The mark is a byte that no UTF-8 text contains. A token's key is its text, with
the mark if the token is special; tokens stand for a text exactly where their keys spell its key.

Which texts are special is asked of the vocabulary, and where they stand is found as llama.cpp's
tokenizer finds it (``tokenizer_st_partition`` of llama-vocab.cpp): longer ones first.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import TokenizationError

__all__ = ["MARK", "PromptText", "Spelling", "Tokenizer"]

#: Stands before a special token in a key.
MARK = b"\xff"

Range = tuple[int, int]


class Tokenizer(Protocol):
    """What is needed of a vocabulary (``core.vocab.Vocab`` has it)."""

    def tokenize(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Token ids of a text."""

    def piece(self, token: int) -> bytes:
        """The bytes of a token, special tokens as their text."""

    def is_special(self, token: int) -> bool:
        """True if the tokenizer always splits before and after this token."""

    def strips_right(self, token: int) -> bool:
        """True if the tokenizer drops white space behind this token."""

    def special_texts(self) -> Mapping[bytes, bool]:
        """Texts that are read as one special token; True: even where special tokens are not
        parsed. Without those that are white space only."""


@dataclass(frozen=True, slots=True)
class PromptText:
    """A text, and where its special tokens are.

    Attributes:
        key: the text with a mark before each special token; offsets below count in it.
        specials: ``(start, end)`` of each special token with its mark, ascending.
        literal: ``(start, end)`` of texts of special tokens that stand for their characters.
        starts: int64, where in the text (not in the key) each special token begins.
    """

    key: bytes
    specials: tuple[Range, ...]
    literal: tuple[Range, ...]
    starts: NDArray[np.int64]

    def in_key(self, offsets: Sequence[int]) -> NDArray[np.int64]:
        """Offsets in the text as offsets in the key."""
        places = np.asarray(offsets, np.int64)
        return places + np.searchsorted(self.starts, places, "left")


class Spelling:
    """Texts to keys, and keys to tokens, for one vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._texts: Mapping[bytes, bool] | None = None
        #: Lengths of special texts by their first two bytes, longest first.
        self._lengths: dict[bytes, list[int]] = {}
        self._head: re.Pattern[bytes] | None = None
        self._pieces: dict[int, bytes] = {}
        self._special: dict[int, bool] = {}

    @cached_property
    def added(self) -> tuple[list[int], list[int]]:
        """Tokens that the vocabulary adds before a prompt, and behind it."""
        return _added_tokens(self.tokenizer)

    def piece(self, token: int) -> bytes:
        """The key of a token."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self.tokenizer.piece(token)
            if self.is_special(token) and piece in self._special_texts():
                piece = MARK + piece
            self._pieces[token] = piece
        return piece

    def is_special(self, token: int) -> bool:
        """True if the tokenizer always splits before and after this token."""
        known = self._special.get(token)
        if known is None:
            known = self._special[token] = self.tokenizer.is_special(token)
        return known

    @cached_property
    def adds_space(self) -> bool:
        """True if the tokenizer puts a space before text, at its beginning and behind special
        tokens (SentencePiece)."""
        tokens = self.tokenizer.tokenize(b"a", add_special=False)
        return b"".join(map(self.tokenizer.piece, tokens)).startswith(b" ")

    def is_ambiguous(self, token: int) -> bool:
        """True for a token of bytes that cannot be told from a mark (no UTF-8 contains them)."""
        return MARK in self.piece(token)[1:] or self.piece(token) == MARK

    def _special_texts(self) -> Mapping[bytes, bool]:
        if self._texts is None:
            texts = self.tokenizer.special_texts()
            heads = {(text[:2], len(text)) for text in texts}
            for head, length in sorted(heads, key=lambda each: -each[1]):
                self._lengths.setdefault(head, []).append(length)
            if texts:  # looks ahead: the next one may begin within this one
                either = b"|".join(map(re.escape, sorted(self._lengths, reverse=True)))
                self._head = re.compile(b"(?=" + either + b")")
            self._texts = texts
        return self._texts

    # ---- where special tokens are --------------------------------------------------------------

    def mark(self, text: bytes, plain: Iterable[Range] = ()) -> PromptText:
        """The key of a text that special tokens are parsed in.

        Args:
            plain: ascending disjoint ranges of the text in which nothing is a special token.
        """
        inside = [*plain]
        found = self._find(text)
        literal = [each for each in found if _overlaps(each, inside)] if inside else []
        taken = _longest_first([each for each in found if not _overlaps(each, inside)])
        starts = np.array([start for start, _ in taken], np.int64)
        parts, at = [], 0
        for start, _ in taken:
            parts += [text[at:start], MARK]
            at = start
        parts.append(text[at:])
        shifted = tuple((start + i, end + i + 1) for i, (start, end) in enumerate(taken))
        begins = [start for start, _ in taken]
        kept = tuple(
            (start + (before := bisect_left(begins, start)), end + before)
            for start, end in sorted(literal)
        )
        return PromptText(b"".join(parts), shifted, kept, starts)

    def _find(self, text: bytes) -> list[Range]:
        """All occurrences of special texts, overlapping ones included."""
        texts = self._special_texts()
        if self._head is None:
            return []
        found: list[Range] = []
        for match in self._head.finditer(text):
            start = match.start()
            for head in {text[start : start + 2], text[start : start + 1]}:
                for length in self._lengths.get(head, ()):
                    if text[start : start + length] in texts:
                        found.append((start, start + length))
        return found

    # ---- tokens --------------------------------------------------------------------------------

    def read(self, text: PromptText, start: int = 0, *, add_special: bool) -> list[int]:
        """The tokenizer's tokens of ``text`` from ``start`` on, as they are in the whole.

        Args:
            start: offset in the key: 0, or where a special token begins, so that the tokenizer
                splits there whatever comes before.
        """
        if start == 0 and not text.literal:
            return self._read(text.key, add_special)
        before, behind = self.added if add_special else ([], [])
        tokens = [] if start else [*before]
        for begin, stop, literal in self._stretches(text, start):
            part = text.key[begin:stop]
            tokens += self._read_literal(text, begin, stop) if literal else self._read(part, False)
        return tokens + behind

    def _read(self, key: bytes, add_special: bool) -> list[int]:
        raw = key.replace(MARK, b"")
        return self.tokenizer.tokenize(raw, add_special=add_special, parse_special=True)

    def _stretches(self, text: PromptText, start: int) -> Iterable[tuple[int, int, bool]]:
        """The text from ``start`` on in parts: those between special tokens that hold literal
        texts of special tokens, and everything between them."""
        begins, ends = [a for a, _ in text.specials], [b for _, b in text.specials]
        at = start
        for first, last in text.literal:
            if first < at:
                continue
            left, right = bisect_right(ends, first), bisect_left(begins, last)
            begin = max(start, ends[left - 1]) if left else start
            stop = begins[right] if right < len(begins) else len(text.key)
            if at < begin:
                yield at, begin, False
            yield begin, stop, True
            at = stop
        if at < len(text.key):
            yield at, len(text.key), False

    def _read_literal(self, text: PromptText, begin: int, stop: int) -> list[int]:
        """Tokens of characters between two special tokens."""
        before = bisect_right(text.specials, begin, key=_end) - 1
        if before >= 0 and text.specials[before][1] == begin:
            token = self._token_of(text, text.specials[before])
            while begin < stop and token is not None and text.key[begin : begin + 1].isspace():
                if not self.tokenizer.strips_right(token):
                    break
                begin += 1
        texts = self._special_texts()
        # What is read as one token even where special tokens are not parsed is taken apart.
        first = bisect_left(text.literal, begin, key=_start)
        last = bisect_left(text.literal, stop, key=_start)
        cuts = {
            start + _first_character(text.key, start)
            for start, end in text.literal[first:last]
            if texts[text.key[start:end]]
        }
        places = [begin, *sorted(cuts), stop]
        tokens: list[int] = []
        for start, end in pairwise(places):
            if start < end:
                part = text.key[start:end]
                tokens += self._read_plain(part) if start == begin else self.read_apart(part)
        return tokens

    def _token_of(self, text: PromptText, place: Range) -> int | None:
        found = self._read(text.key[place[0] : place[1]], False)
        return found[0] if len(found) == 1 else None

    def _read_plain(self, part: bytes) -> list[int]:
        return self.tokenizer.tokenize(part, add_special=False)

    def read_apart(self, part: bytes, *, parse_special: bool = False) -> list[int]:
        """Tokens of text that other text stands before, and that is tokenized by itself.

        The space that SentencePiece puts before every text is not there.
        """
        tokens = self.tokenizer.tokenize(part, add_special=False, parse_special=parse_special)
        if not self.adds_space or not tokens or self.is_special(tokens[0]):
            return tokens
        behind = b"\n" + part
        tokens = self.tokenizer.tokenize(behind, add_special=False, parse_special=parse_special)
        for count, token in enumerate(tokens):
            if self.tokenizer.piece(token).endswith(b"\n"):
                return tokens[count + 1 :]
        return tokens


def _first_character(key: bytes, start: int) -> int:
    """Bytes of the UTF-8 character at ``start``."""
    lead = key[start]
    return 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def _start(place: Range) -> int:
    return place[0]


def _end(place: Range) -> int:
    return place[1]


def _overlaps(place: Range, ranges: Sequence[Range]) -> bool:
    at = bisect_right(ranges, place[0], key=_end)
    return at < len(ranges) and ranges[at][0] < place[1]


def _longest_first(found: list[Range]) -> list[Range]:
    """Those that the tokenizer takes of occurrences that may overlap, ascending."""
    if all(a[1] <= b[0] for a, b in pairwise(found)):
        return found
    taken: list[Range] = []
    for place in sorted(found, key=lambda each: (each[0] - each[1], each[0])):
        at = bisect_left(taken, place)
        free_before = at == 0 or taken[at - 1][1] <= place[0]
        if free_before and (at == len(taken) or place[1] <= taken[at][0]):
            taken.insert(at, place)
    return taken


def _added_tokens(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """What ``add_special`` puts before a text (BOS) and behind it (EOS)."""
    try:
        plain = tokenizer.tokenize(b"a", add_special=False)
        whole = tokenizer.tokenize(b"a", add_special=True)
    except TokenizationError:
        return [], []
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    return [], []
