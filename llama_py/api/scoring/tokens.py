"""The tokens of a prefix and of its continuations, for ``Llama.score``.

The tokens of a text depend on what stands before it: ``"yes"`` behind ``"The answer is "`` is not
``"yes"`` alone, because the space becomes part of its token. So a continuation is tokenized with
the end of its prefix, and compared with that end tokenized alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np

from llama_py.core.vocab import Vocab
from llama_py.engine.generation import whole_characters
from llama_py.errors import ParameterError, ParameterTypeError
from llama_py.memory.prompt_tokens import align
from llama_py.memory.text_keys import TextKeys
from llama_py.options.checks import whole_text
from llama_py.params import check_number

__all__ = ["Continuations", "Prefix", "read_continuations", "read_prefix"]

Tokens: TypeAlias = tuple[int, ...]

#: Bytes of a prefix that a continuation is tokenized with.
_TAIL = 1024
#: Tokens whose text a continuation of tokens is shown.
_TAIL_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Prefix:
    """The common beginning of the continuations.

    Attributes:
        tokens: at least one.
        text: its text if that is what was given, so that a continuation may change how it ends.
    """

    tokens: Tokens
    text: bytes | None = None


@dataclass(frozen=True, slots=True)
class Continuations:
    """The candidates: the tokens of each, and its text."""

    tokens: list[Tokens]
    texts: list[str]


def read_prefix(vocab: Vocab, prefix: Any) -> Prefix:
    """A text or token ids.

    Raises:
        ParameterError: it is neither, or there is no token to begin with.
    """
    if isinstance(prefix, str):
        text = whole_text(prefix, "prefix").encode()
        # An end-of-sequence token that some models add would stand in the middle.
        first, _ = TextKeys(vocab).added
        tokens = (*first, *vocab.tokenize(text, add_special=False, parse_special=True))
        if text and tokens:
            return Prefix(tokens, text)
    else:
        tokens = _ids(vocab, prefix, "prefix", "a text, token ids or messages")
    if not tokens and vocab.bos < 0:
        raise ParameterError("prefix is empty, and this model has no BOS token to begin with")
    return Prefix(tokens or (vocab.bos,))


def read_continuations(
    vocab: Vocab, prefix: Prefix, continuations: Any
) -> tuple[Prefix, Continuations]:
    """The tokens behind the prefix, which may have become shorter by its last tokens.

    Raises:
        ParameterError: naming the index of what is neither a text nor token ids.
    """
    if isinstance(continuations, (str, bytes)) or not isinstance(continuations, Sequence):
        raise ParameterTypeError(
            f"continuations must be a list of texts or of token ids, not {continuations!r}"
        )
    border = _Border(vocab, prefix)
    parts: list[tuple[int, Tokens]] = []
    for index, item in enumerate(continuations):
        name = f"continuations[{index}]"
        if isinstance(item, str):
            parts.append(border.continue_with(whole_text(item, name).encode()))
        else:
            parts.append((border.place, _ids(vocab, item, name, "a text or token ids")))
    start = min((place for place, _ in parts), default=len(prefix.tokens))
    tokens = [(*prefix.tokens[start:place], *own) for place, own in parts]
    texts = [
        item if isinstance(item, str) else whole_characters(vocab.detokenize(own, special=True))
        for item, (_, own) in zip(continuations, parts, strict=True)
    ]
    return Prefix(prefix.tokens[:start], prefix.text), Continuations(tokens, texts)


def _ids(vocab: Vocab, value: Any, name: str, what: str) -> Tokens:
    items = value.tolist() if isinstance(value, np.ndarray) else value
    listed = isinstance(items, Sequence) and not isinstance(items, (str, bytes))
    if not listed or not all(isinstance(i, Integral) and not isinstance(i, bool) for i in items):
        raise ParameterTypeError(f"{name} must be {what}, not {value!r:.80}")
    for token in items:
        check_number(f"{name}: token", token, 0, vocab.n_tokens - 1, integer=True)
    return tuple(int(token) for token in items)


class _Border:
    """Where a prefix ends.

    Attributes:
        place: tokens before it.
    """

    def __init__(self, vocab: Vocab, prefix: Prefix) -> None:
        self.place = len(prefix.tokens)
        self._vocab, self._text_keys = vocab, TextKeys(vocab)
        self._may_melt = prefix.text is not None
        if prefix.text is not None:
            tail = prefix.text[-_TAIL:]
            first = 0  # of a whole character
            while first < len(tail) < len(prefix.text) and tail[first] & 0xC0 == 0x80:
                first += 1
            self._tail = tail[first:]
        else:
            last = prefix.tokens[-_TAIL_TOKENS:]
            self._tail = b"".join([vocab.piece(token) for token in last])
        self._alone = self._tokenize(self._tail)

    def continue_with(self, text: bytes) -> tuple[int, Tokens]:
        """Behind how many tokens of the prefix a text goes on, and its tokens from there on."""
        if not text:
            return self.place, ()
        if self._may_melt:
            whole, alone = self._tokenize(self._tail + text), self._alone
            shared = next(
                (i for i, pair in enumerate(zip(whole, alone, strict=False)) if pair[0] != pair[1]),
                min(len(whole), len(alone)),
            )
            place = self.place - (len(alone) - shared)
            if place > 0:
                return place, tuple(whole[shared:])
        # Its tokens are those that it has behind the tail, if a token ends there.
        marked = self._text_keys.mark(self._tail + text)
        tokens = self._text_keys.read(marked, add_special=False)
        offsets = align(self._text_keys, tokens, marked.key)
        (end,) = marked.in_key([len(self._tail)])
        if offsets is not None and end in offsets:
            return self.place, tuple(tokens[int(np.searchsorted(offsets, end)) :])
        return self.place, tuple(self._text_keys.read_apart(text, parse_special=True))

    def _tokenize(self, text: bytes) -> list[int]:
        return self._vocab.tokenize(text, add_special=False, parse_special=True)
