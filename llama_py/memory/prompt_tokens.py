"""A prompt's tokens: those of cached replies where their text stands, else the tokenizer's.

Tokens that a model sampled need not be those that tokenizing their text gives, so a reply is never
tokenized again: where a prompt goes on behind a cached reply, the reply's own tokens stay. They
stand in for nothing else. Everything around them is what the tokenizer makes of the whole text,
and the beginning that was tokenized before is only taken over up to a special token, where the
tokenizer splits whatever follows.

A reply stands in as a whole, or but for white space at its end (which templates cut off): a prompt
that goes on otherwise in the middle of it was not written behind that reply.

All texts here are keys (``text_keys.py``): a special token is never the same as its characters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntFlag

import numpy as np
from numpy.typing import NDArray

from llama_py.memory.text_keys import MARK, PromptText, TextKeys
from llama_py.states.prefix import TextPath

__all__ = ["Reading", "Source", "align", "read_prompt", "reply_ends"]


class Source(IntFlag):
    """Where a token comes from; an array of these, uint8, stands beside the tokens."""

    READ = 0
    SAMPLED = 1
    #: A reply that the model gave ends behind this token.
    LAST = 2


@dataclass(frozen=True, slots=True)
class Reading:
    """The tokens of a prompt.

    Attributes:
        tokens: all of them.
        offsets: int64 ``(len(tokens) + 1,)``, where each begins in the key; None if the tokens do
            not spell it (a tokenizer that normalises).
        sources: uint8 ``(len(tokens),)``, a ``Source`` for each token.
        kept: how many come from the cached path.
    """

    tokens: list[int]
    offsets: NDArray[np.int64] | None
    sources: NDArray[np.uint8]
    kept: int = 0


def read_prompt(
    text_keys: TextKeys, text: PromptText, path: TextPath | None, *, add_special: bool
) -> Reading:
    """The tokens of a prompt.

    Args:
        path: cached tokens whose key ``text.key`` begins with, as ``match_text`` finds them.
    """
    certain = _certain(path, text) if path is not None else 0
    place = int(path.offsets[certain]) if path is not None else 0
    rest = text_keys.read(text, place, add_special=add_special)
    added = len(text_keys.added[0]) if add_special and not place else 0
    offsets = align(text_keys, rest, text.key, place, added=added)
    kept = certain
    if path is not None and offsets is not None:
        kept = _behind_replies(path, certain, offsets)
    if path is None or not kept:
        return Reading(rest, offsets, np.zeros(len(rest), np.uint8))
    if offsets is not None:
        behind = int(np.searchsorted(offsets, path.offsets[kept]))
        rest, offsets = rest[behind:], np.concatenate([path.offsets[:kept], offsets[behind:]])
    sources = np.concatenate([path.sources[:kept], np.zeros(len(rest), np.uint8)])
    return Reading(path.tokens[:kept].tolist() + rest, offsets, sources, kept)


def _certain(path: TextPath, text: PromptText) -> int:
    """How many tokens of the path are before its last special token, or before or behind a picture.

    There the tokenizer splits, in what was cached and in the prompt. (A special token that only the
    prompt has there does not count: what is before it was tokenized together with other text.) 0 if
    nothing that has any text is before it. A special token within a reply does not count either:
    the reply stays whole. Nor do those of a picture: it has all of its tokens, or none.
    """
    marked = np.frombuffer(text.key, np.uint8)[path.offsets[:-1]] == MARK[0]
    marked[1:] &= path.sources[:-1] != Source.SAMPLED
    found = np.flatnonzero(marked)
    count = int(found[-1]) if len(found) else 0
    place, end = int(path.offsets[count]), int(path.offsets[-1])
    for medium in text.media:
        whole = medium.end <= end
        if medium.start < place < medium.end or (whole and place < medium.end):
            place = medium.end if whole else medium.start
            count = int(np.searchsorted(path.offsets, place))
    return count if path.offsets[count] else 0


def _behind_replies(path: TextPath, certain: int, offsets: NDArray[np.int64]) -> int:
    """How many tokens of the path stay: up to the end of the last whole reply, if the tokenizer,
    too, splits there (``offsets``); ``certain`` if there is none. What was tokenized behind a reply
    is not certain: it may have been followed by other text."""
    sampled = np.flatnonzero(path.sources[certain:] & Source.SAMPLED)
    if not len(sampled):
        return certain
    first = certain + int(sampled[0])
    splits = np.isin(path.offsets[first + 1 :], offsets)
    splits &= path.sources[first:] & Source.LAST != 0
    last = np.flatnonzero(splits)
    return first + 1 + int(last[-1]) if len(last) else certain


def align(
    text_keys: TextKeys, tokens: Sequence[int], key: bytes, start: int = 0, *, added: int = 0
) -> NDArray[np.int64] | None:
    """Offsets in ``key`` at which each token begins, and where the last one ends.

    Args:
        start: where the first token begins.
        added: how many tokens at the beginning (BOS) stand for nothing in the text.

    Returns:
        int64 ``(len(tokens) + 1,)``, or None if the tokens do not spell the text (a tokenizer that
        normalises). A token that a tokenizer adds (BOS, a leading space) has no bytes of its own;
        white space that it drops behind a special token belongs to that token.
    """
    offsets = np.empty(len(tokens) + 1, np.int64)
    place, opens = start, True
    known = text_keys.known
    for index, token in enumerate(tokens):
        opened, of_token = opens, known.get(token) or text_keys.of(token)
        piece, opens = of_token.text, of_token.special
        if index < added:
            piece = b""
        if opened and not opens and text_keys.adds_space:
            piece = piece.removeprefix(b" ")
        elif opens and not key.startswith(piece, place):
            piece = b""  # it was added, or does not stand here
        if not key.startswith(piece, place):
            return None
        offsets[index] = place
        place += len(piece)
        if of_token.strips:
            while key[place : place + 1].isspace():
                place += 1
    offsets[len(tokens)] = place
    return offsets if place == len(key) else None


def reply_ends(
    tokens: Sequence[int], shown: Callable[[int], bytes], stop: bytes | None = None
) -> list[int]:
    """After how many tokens of a reply a prompt may go on that contains the reply.

    Args:
        tokens: the reply.
        shown: the text of a token as the reply's reader gets it (control tokens are nothing).
        stop: the stop string that ended it and is not part of what its reader got.

    Returns:
        Counts of tokens: all of them, those that make up what the reader got, and those before
        them as far as only white space is left away.
    """
    ends = [len(tokens)]
    whole = len(tokens)
    if stop is not None:
        pieces = [*map(shown, tokens)]
        places = np.cumsum([0, *map(len, pieces)])
        found = np.flatnonzero(places == b"".join(pieces).find(stop))
        whole = int(found[-1]) if len(found) else 0  # 0: it begins within a piece
    for count in range(whole, 0, -1):
        ends.append(count)
        if shown(tokens[count - 1]).strip():
            break
    return ends
