"""The inputs of callers as tokens: read, checked and, if that is wanted, truncated."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import (
    InputTooLongError,
    ParameterError,
    ParameterTypeError,
    TokenizationError,
    shown,
)
from llama_py.options.checks import whole_text

if TYPE_CHECKING:
    from llama_py.core.vocab import Vocab

__all__ = ["EmbeddingInput", "Tokens", "as_list", "fitted", "is_single", "tokenized"]

Tokens = NDArray[np.int32]
#: A text, or its tokens.
EmbeddingInput: TypeAlias = "str | bytes | Sequence[int]"


def is_single(inputs: Any) -> bool:
    """Whether this is one input, and not a list of them: a text, or a list of token ids."""
    if isinstance(inputs, (str, bytes, bytearray)):
        return True
    if isinstance(inputs, np.ndarray):
        return inputs.ndim == 1 and inputs.dtype.kind in "iu"
    first = inputs[0] if isinstance(inputs, (list, tuple)) and inputs else None
    return isinstance(first, (int, np.integer)) and not isinstance(first, bool)


def as_list(inputs: Any, name: str = "inputs") -> list[Any]:
    """The inputs of a call, whether there is one or a collection of them.

    Raises:
        ParameterTypeError: it is neither.
    """
    if is_single(inputs):
        return [inputs]
    if not isinstance(inputs, Iterable) or isinstance(inputs, dict):
        raise ParameterTypeError(f"{name} must be texts or lists of token ids, not {shown(inputs)}")
    return [*inputs]


def tokenized(vocab: Vocab, inputs: Sequence[Any], name: str = "inputs") -> list[Tokens]:
    """The tokens of each input; texts get the special tokens that the model was trained with.

    Raises:
        ParameterTypeError, ParameterError, TokenizationError: one cannot be embedded; the message
            has its place.
    """
    return [_tokens(vocab, each, f"{name}[{index}]") for index, each in enumerate(inputs)]


def _tokens(vocab: Vocab, given: Any, where: str) -> Tokens:
    try:
        if isinstance(given, (str, bytes, bytearray)):
            text = whole_text(given, where) if isinstance(given, str) else bytes(given)
            ids = vocab.tokenize(text)
        else:
            ids = _token_ids(vocab, given, where)
    except TokenizationError as error:
        raise TokenizationError(f"{where}: {error}") from None
    if not ids:
        raise ParameterError(f"{where} has no tokens, so that there is nothing to embed")
    return np.array(ids, np.int32)


def _token_ids(vocab: Vocab, given: Any, where: str) -> list[int]:
    try:
        if isinstance(given, (dict, set)) or any(isinstance(each, bool) for each in given):
            raise TypeError
        ids = [*map(operator.index, given)]
    except TypeError:
        raise ParameterTypeError(
            f"{where} must be a text or a list of token ids, not {shown(given)}"
        ) from None
    vocab.check_tokens(ids)
    return ids


def fitted(
    vocab: Vocab, inputs: Sequence[Tokens], limit: int, truncate: bool, name: str = "inputs"
) -> Sequence[Tokens]:
    """Inputs of at most ``limit`` tokens.

    Args:
        truncate: leave out what is too much, at the end of the text; the special token behind it
            stays, because models read from it that the text is over.

    Raises:
        InputTooLongError: one is longer, and it was not to be truncated.
    """
    if all(len(each) <= limit for each in inputs):
        return inputs
    if truncate:
        return [_cut(vocab, each, limit) for each in inputs]
    index = next(index for index, each in enumerate(inputs) if len(each) > limit)
    raise InputTooLongError(index, len(inputs[index]), limit, name)


def _cut(vocab: Vocab, tokens: Tokens, limit: int) -> Tokens:
    if len(tokens) <= limit:
        return tokens
    last = int(tokens[-1])
    if limit > 1 and last in (vocab.eos, vocab.sep):
        return np.append(tokens[: limit - 1], np.int32(last))
    return tokens[:limit]
