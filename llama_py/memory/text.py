"""Text beside tokens: where each token lies in a prompt, and where a prompt may be cut.

Tokens that a model sampled need not be those that tokenizing their text gives, so what is cached is
never tokenized again: the cached tokens are kept as far as their *text* agrees with the prompt, and
only the rest is tokenized. A cut is safe where the tokenizer splits anyway. That is asked of the
tokenizer itself: a window of text around the cut is tokenized, and the cut is safe if a token ends
exactly there. The rest is tokenized with that window before it, as it would be in the whole text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import TokenizationError

__all__ = ["Tokenizer", "added_tokens", "align", "safe_cut", "tokenize_after"]

#: Bytes on each side of a cut that the tokenizer is shown.
_WINDOW = 48
#: How many token borders to try before the last resort, which is the border of a special token.
_TRIES = 16


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


def align(
    tokenizer: Tokenizer, tokens: Sequence[int], text: bytes, start: int = 0
) -> NDArray[np.int64] | None:
    """Byte offsets in ``text`` at which each token begins, and where the last one ends.

    Args:
        start: where the first token begins.

    Returns:
        int64 ``(len(tokens) + 1,)``, or None if the pieces do not spell the text (a tokenizer that
        normalises). A token that a tokenizer adds (BOS, a leading space) has no bytes of its own.
    """
    offsets = _places(tokenizer, tokens, text, start)
    return offsets if offsets is not None and offsets[-1] == len(text) else None


def _places(
    tokenizer: Tokenizer, tokens: Sequence[int], text: bytes, start: int = 0
) -> NDArray[np.int64] | None:
    """``align`` for tokens that may spell only the beginning of the text."""
    offsets = np.empty(len(tokens) + 1, np.int64)
    place = start
    piece_of = tokenizer.piece
    for index, token in enumerate(tokens):
        offsets[index] = place
        piece = piece_of(token)
        if text.startswith(piece, place):
            place += len(piece)
        elif piece.startswith(b" ") and text.startswith(piece[1:], place):
            place += len(piece) - 1
        elif not tokenizer.is_special(token):
            return None
    offsets[len(tokens)] = place
    return offsets


def safe_cut(
    tokenizer: Tokenizer,
    tokens: Sequence[int] | NDArray[np.int32],
    offsets: NDArray[np.int64],
    text: bytes,
) -> int:
    """How many of ``tokens``, whose text begins ``text``, may be kept before the rest is tokenized.

    Never those alone that have no text: an added BOS, or space, comes with the rest.

    Args:
        offsets: int64 ``(len(tokens) + 1,)``, from ``align``.
    """
    count = len(tokens)
    if not offsets[count]:
        return 0
    if offsets[count] == len(text):
        return count
    for kept in range(count, max(0, count - _TRIES), -1):
        if _splits_at(tokenizer, tokens, offsets, text, kept):
            return kept
    for kept in range(max(0, count - _TRIES), 0, -1):
        if offsets[kept] and tokenizer.is_special(int(tokens[kept - 1])):
            return kept
    return 0


def _splits_at(
    tokenizer: Tokenizer,
    tokens: Sequence[int] | NDArray[np.int32],
    offsets: NDArray[np.int64],
    text: bytes,
    kept: int,
) -> bool:
    place = int(offsets[kept])
    if place >= len(text):
        return True
    if text[place] & 0xC0 == 0x80:  # inside of a UTF-8 character
        return False
    if place == offsets[kept - 1]:  # a token without text comes with the rest
        return False
    if tokenizer.is_special(int(tokens[kept - 1])):
        return True
    return _tokens_behind(tokenizer, text, place, place + _WINDOW) is not None


def _tokens_behind(tokenizer: Tokenizer, text: bytes, place: int, stop: int) -> list[int] | None:
    """Tokens of ``text[place:stop]`` as they are behind what comes before; None if none ends there.

    Text that begins in the middle is not tokenized alone: SentencePiece puts a space before it.
    """
    first = _whole_character(text, max(0, place - _WINDOW), place)
    window = text[first:stop]
    try:
        found = tokenizer.tokenize(window, add_special=False, parse_special=True)
    except TokenizationError:  # a reply of any bytes at all stands before the cut
        return None
    ends = _places(tokenizer, found[: 2 * _WINDOW], window)
    if ends is None or not len(found):
        return None
    before = int(np.searchsorted(ends, place - first))
    return found[before:] if before < len(ends) and ends[before] == place - first else None


def _whole_character(text: bytes, first: int, stop: int) -> int:
    while first < stop and text[first] & 0xC0 == 0x80:
        first += 1
    return first


def tokenize_after(
    tokenizer: Tokenizer, text: bytes, start: int, *, add_special: bool
) -> list[int]:
    """Tokens of ``text[start:]``, where a cut is safe; BOS is added only where the text begins."""
    if start == 0:
        return tokenizer.tokenize(text, add_special=add_special, parse_special=True)
    rest = _tokens_behind(tokenizer, text, start, len(text)) if start < len(text) else []
    if rest is None:
        rest = tokenizer.tokenize(text[start:], add_special=False, parse_special=True)
    return rest + added_tokens(tokenizer)[1] if add_special else rest


def added_tokens(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """What ``add_special`` puts before a text (BOS) and behind it (EOS)."""
    plain = tokenizer.tokenize(b"a", add_special=False)
    whole = tokenizer.tokenize(b"a", add_special=True)
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    return [], []
