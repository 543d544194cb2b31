"""``TextKeys``: a prompt's text in which a special token and the same characters differ.

``<|im_end|>`` in a prompt is a control token, or ten characters that a user typed: the same bytes,
and another prompt. So what is compared is not the text but its *key*: the text with a mark before
each special token. The mark is a byte that no UTF-8 text contains. A token's key is its text, with
the mark if the token is special; tokens stand for a text exactly where their keys spell its key.

Which texts are special is asked of the vocabulary, and where they stand is found as llama.cpp's
tokenizer finds it (``tokenizer_st_partition`` of llama-vocab.cpp): longer ones first.

A picture or a sound in a prompt has tokens of its own (``positions``), and what stands for it in
the key is what spells them. The texts before and behind it are tokenized each by itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import TokenizationError

__all__ = ["MARK", "PromptText", "TextKeys", "TextMedium", "TokenKey", "Tokenizer"]

#: Stands before a special token in a key.
MARK = b"\xff"

Range = tuple[int, int]

#: Bytes of a long text that are looked at in one go.
_STEP = 1 << 16
#: A text with fewer bytes per token than this may fit; it is tokenized to find out.
_ORDINARY_TOKEN = 16
#: Characters whose UTF-8 contains every byte that can stand in it, but for the rarest.
_ALL_BYTES = "".join(map(chr, [*range(0x80, 0x800, 31), *range(0x800, 0xD800, 997), 0x1F600]))


class Tokenizer(Protocol):
    """The part of a vocabulary that is needed (``core.vocab.Vocab`` has it)."""

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

    def longest_piece(self) -> int:
        """Bytes of the longest token."""


class TextMedium(NamedTuple):
    """A picture or a sound in a text, or in its key: where its place is, and its tokens."""

    start: int
    end: int
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class PromptText:
    """A text, and where its special tokens are.

    Attributes:
        key: the text with a mark before each special token; offsets below count in it.
        specials: ``(start, end)`` of each special token with its mark, ascending.
        literal: ``(start, end)`` of texts of special tokens that stand for their characters.
        starts: int64 ``(n,)``, where in the text (not in the key) the special tokens begin, and the
            places of pictures and sounds.
        longer: int64 ``(n + 1,)``, by how many bytes the key is longer than the text behind so many
            of these.
        media: pictures and sounds, in order.
    """

    key: bytes
    specials: tuple[Range, ...]
    literal: tuple[Range, ...]
    starts: NDArray[np.int64]
    longer: NDArray[np.int64]
    media: tuple[TextMedium, ...] = ()

    def in_key(self, offsets: Sequence[int]) -> NDArray[np.int64]:
        """Offsets in the text as offsets in the key."""
        places = np.asarray(offsets, np.int64)
        return places + self.longer[np.searchsorted(self.starts, places, "left")]

    def between(self, start: int, stop: int) -> PromptText:
        """A stretch of the key without pictures, to be tokenized by itself."""
        specials = _within(self.specials, start, stop)
        literal = _within(self.literal, start, stop)
        none = np.zeros(0, np.int64)
        return PromptText(self.key[start:stop], specials, literal, none, np.zeros(1, np.int64))


class TokenKey(NamedTuple):
    """How a token stands in keys.

    Attributes:
        text: its bytes, with the mark if it is special.
        special: the tokenizer always splits before and after it.
        strips: the tokenizer drops white space behind it, and it is special.
        ambiguous: its bytes cannot be told from a mark (no UTF-8 contains them).
    """

    text: bytes
    special: bool
    strips: bool
    ambiguous: bool


class TextKeys:
    """Texts to keys, and keys to tokens, for one vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        #: What ``of`` has found out, by token: loops look here first.
        self.known: dict[int, TokenKey] = {}

    @cached_property
    def added(self) -> tuple[list[int], list[int]]:
        """Tokens that the vocabulary adds before a prompt (BOS), and behind it (EOS)."""
        try:
            plain = self.tokenizer.tokenize(b"a", add_special=False)
            whole = self.tokenizer.tokenize(b"a", add_special=True)
        except TokenizationError:
            return [], []
        for start in range(len(whole) - len(plain) + 1):
            if whole[start : start + len(plain)] == plain:
                return whole[:start], whole[start + len(plain) :]
        return [], []

    def of(self, token: int) -> TokenKey:
        """The key of a token, and what the tokenizer does around it."""
        known = self.known.get(token)
        if known is None:
            if token < 0:  # of a picture: there are too many to remember
                return TokenKey(MARK + b"%08x" % -token, True, False, False)
            special, text = self.tokenizer.is_special(token), self.tokenizer.piece(token)
            if special and text in self._special_texts:
                text = MARK + text
            strips = special and self.tokenizer.strips_right(token)
            ambiguous = MARK in text[1:] or text == MARK
            known = self.known[token] = TokenKey(text, special, strips, ambiguous)
        return known

    @cached_property
    def adds_space(self) -> bool:
        """True if the tokenizer puts a space before text, at its beginning and behind special
        tokens (SentencePiece)."""
        tokens = self.tokenizer.tokenize(b"a", add_special=False)
        return b"".join(map(self.tokenizer.piece, tokens)).startswith(b" ")

    @cached_property
    def _special_texts(self) -> Mapping[bytes, bool]:
        return self.tokenizer.special_texts()

    @cached_property
    def _heads(self) -> _Heads:
        return _Heads(self._special_texts)

    # ---- where special tokens are --------------------------------------------------------------

    def mark(
        self, text: bytes, plain: Iterable[Range] = (), media: Sequence[TextMedium] = ()
    ) -> PromptText:
        """The key of a text that special tokens are parsed in.

        Args:
            plain: ascending disjoint ranges of the text in which nothing is a special token.
            media: pictures and sounds, in order, in place of what the text has there.
        """
        inside = [*plain]
        if media:  # what is between them is marked by itself
            whole, behind = _Joined(), 0
            for medium in media:
                between = _within(inside, behind, medium.start)
                whole.add(self.mark(text[behind : medium.start], between), behind)
                whole.add_medium(medium, self._spelled(medium.tokens))
                behind = medium.end
            rest = _within(inside, behind, len(text))
            whole.add(self.mark(text[behind:], rest), behind)
            return whole.text()
        found = free = self._heads.find(text)
        literal: list[Range] = []
        if inside:
            literal = [each for each in found if _overlaps(each, inside)]
            free = [each for each in found if not _overlaps(each, inside)]
        taken = _longest_first(free)
        begins = [start for start, _ in taken]
        parts, specials, at = [], list[Range](), 0
        for before, (start, end) in enumerate(taken):
            parts += [text[at:start], MARK]
            specials.append((start + before, end + before + 1))
            at = start
        parts.append(text[at:])
        kept = tuple(
            (start + (before := bisect_left(begins, start)), end + before)
            for start, end in sorted(literal)
        )
        starts = np.array(begins, np.int64)
        longer = np.arange(len(begins) + 1, dtype=np.int64)
        return PromptText(b"".join(parts), tuple(specials), kept, starts, longer)

    def _spelled(self, tokens: Sequence[int]) -> bytes:
        """The key of tokens that follow each other, as ``prompt_tokens.align`` reads them."""
        pieces, opens = list[bytes](), True
        for token in tokens:
            opened, of_token = opens, self.of(token)
            piece, opens = of_token.text, of_token.special
            drops = opened and not opens and self.adds_space
            pieces.append(piece.removeprefix(b" ") if drops else piece)
        return b"".join(pieces)

    # ---- tokens --------------------------------------------------------------------------------

    def read(self, text: PromptText, start: int = 0, *, add_special: bool) -> list[int]:
        """The tokenizer's tokens of ``text`` from ``start`` on, as they are in the whole.

        Args:
            start: offset in the key: 0, or where a special token begins, so that the tokenizer
                splits there whatever comes before.
        """
        if start == 0 and not text.literal and not text.media:
            return self._read(text.key, add_special)
        before, behind = self.added if add_special else ([], [])
        tokens = [] if start else [*before]
        if text.media:  # ``start`` is in none of them
            at = start
            for medium in text.media:
                if medium.start >= start:
                    tokens += self._read_between(text, at, medium.start)
                    tokens += medium.tokens
                    at = medium.end
            return tokens + self._read_between(text, at, len(text.key)) + behind
        for begin, stop, literal in self._stretches(text, start):
            part = text.key[begin:stop]
            tokens += self._read_literal(text, begin, stop) if literal else self._read(part, False)
        return tokens + behind

    def _read_between(self, text: PromptText, start: int, stop: int) -> list[int]:
        part = text.between(start, stop)
        return self.read(part, add_special=False) if part.key else []

    def fewest_tokens(self, text: bytes, enough: int) -> int:
        """A number of tokens that a text has at least, found without tokenizing it.

        It is what the text's length and the vocabulary's longest token say. 0 where that is not
        known; the count stops soon after ``enough``.
        """
        if len(text) <= enough * _ORDINARY_TOKEN or not self._keeps_text:
            return 0
        longest = max(1, self.tokenizer.longest_piece())
        count = at = 0
        while at < len(text) and count <= enough * longest:  # short steps: others go on meanwhile
            # White space behind a special token may be dropped.
            count += len(text[at : at + _STEP].translate(None, b" \t\n\v\f\r"))
            at += _STEP
        return -(-count // longest)

    @cached_property
    def _keeps_text(self) -> bool:
        """True if tokens spell the text that they are made of: nothing is normalised or unknown."""
        probe = bytes(range(1, 128)).decode() + "  a\n\n" + _ALL_BYTES
        try:
            tokens = self.tokenizer.tokenize(probe, add_special=False)
        except TokenizationError:
            return False
        spelled = b"".join(map(self.tokenizer.piece, tokens))
        return spelled.removeprefix(b" ") == probe.encode()

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
            special = self._read(text.key[text.specials[before][0] : begin], False)
            while begin < stop and len(special) == 1 and text.key[begin : begin + 1].isspace():
                if not self.tokenizer.strips_right(special[0]):
                    break
                begin += 1
        texts = self._special_texts
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
                if start == begin:
                    tokens += self.tokenizer.tokenize(part, add_special=False)
                else:
                    tokens += self.read_apart(part)
        return tokens

    def read_apart(self, part: bytes, *, parse_special: bool = False) -> list[int]:
        """Tokens of text that other text stands before, and that is tokenized by itself.

        The space that SentencePiece puts before every text is not there.
        """
        tokens = self.tokenizer.tokenize(part, add_special=False, parse_special=parse_special)
        if not self.adds_space or not tokens or self.of(tokens[0]).special:
            return tokens
        behind = b"\n" + part
        tokens = self.tokenizer.tokenize(behind, add_special=False, parse_special=parse_special)
        for count, token in enumerate(tokens):
            if self.tokenizer.piece(token).endswith(b"\n"):
                return tokens[count + 1 :]
        return tokens


class _Joined:
    """The key of a text that is put together from parts."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0
        self._specials: list[Range] = []
        self._literal: list[Range] = []
        self._media: list[TextMedium] = []
        self._starts: list[int] = []
        self._longer = [0]

    def add(self, part: PromptText, at: int) -> None:
        """Append a part, which begins at ``at`` in the text."""
        self._specials += [(a + self._length, b + self._length) for a, b in part.specials]
        self._literal += [(a + self._length, b + self._length) for a, b in part.literal]
        self._starts += (part.starts + at).tolist()
        self._longer += (part.longer[1:] + self._longer[-1]).tolist()
        self._append(part.key)

    def add_medium(self, medium: TextMedium, key: bytes) -> None:
        """Append what stands for a picture."""
        end = self._length + len(key)
        self._media.append(TextMedium(self._length, end, medium.tokens))
        self._starts.append(medium.start)
        self._longer.append(self._longer[-1] + len(key) - (medium.end - medium.start))
        self._append(key)

    def _append(self, key: bytes) -> None:
        self._parts.append(key)
        self._length += len(key)

    def text(self) -> PromptText:
        """The whole."""
        return PromptText(
            b"".join(self._parts),
            tuple(self._specials),
            tuple(self._literal),
            np.array(self._starts, np.int64),
            np.array(self._longer, np.int64),
            tuple(self._media),
        )


class _Heads:
    """Finds special texts, by their first two bytes.

    A long text is looked through in steps, in numpy: no other thread has to wait for it.
    """

    def __init__(self, texts: Mapping[bytes, bool]) -> None:
        self._texts = texts
        lengths: dict[bytes, set[int]] = {}
        for text in texts:
            lengths.setdefault(text[:2], set()).add(len(text))
        #: Lengths of special texts by their first two bytes, longest first.
        self._lengths = {head: sorted(each, reverse=True) for head, each in lengths.items()}
        self._pairs = np.zeros(1 << 16, np.bool_)
        for head in self._lengths:
            first, last = head[0] << 8, head[0] << 8 | 0xFF
            self._pairs[first + head[1] if len(head) > 1 else slice(first, last + 1)] = True

    def find(self, text: bytes) -> list[Range]:
        """All occurrences of special texts, overlapping ones included."""
        found: list[Range] = []
        if not self._lengths:
            return found
        data = np.frombuffer(text, np.uint8)
        for at in range(0, len(data), _STEP):
            part = data[at : at + _STEP + 1]
            pairs = part.astype(np.uint16) << 8  # the last byte stands alone
            pairs[:-1] |= part[1:]
            places = np.flatnonzero(self._pairs[pairs[:_STEP]]) + at
            found += [
                (start, start + length)
                for start in places.tolist()
                for head in {text[start : start + 2], text[start : start + 1]}
                for length in self._lengths.get(head, ())
                if text[start : start + length] in self._texts
            ]
        return found


def _first_character(key: bytes, start: int) -> int:
    """Bytes of the UTF-8 character at ``start``."""
    lead = key[start]
    return 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def _start(place: Range) -> int:
    return place[0]


def _end(place: Range) -> int:
    return place[1]


def _within(ranges: Sequence[Range], start: int, stop: int) -> tuple[Range, ...]:
    """The ranges that lie in ``[start, stop)``, counted from there."""
    return tuple((a - start, b - start) for a, b in ranges if start <= a and b <= stop)


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
