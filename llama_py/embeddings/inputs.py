"""The inputs of callers as tokens: read, checked and, if that is wanted, truncated.

One with pictures or sounds has vectors among them (``MediaInput``).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
from llama_py.media.objects import Audio, Image
from llama_py.options.checks import whole_text

if TYPE_CHECKING:
    from llama_py.core.projector import Cells
    from llama_py.core.vocab import Vocab

__all__ = [
    "EmbeddingInput",
    "Input",
    "MediaInput",
    "Tokens",
    "VectorPiece",
    "as_list",
    "fitted",
    "has_parts",
    "is_single",
    "tokenized",
]

Tokens = NDArray[np.int32]
#: A text, or its tokens; a picture or a sound, or ``{"content": [PART, ...]}`` with several.
EmbeddingInput: TypeAlias = "str | bytes | Sequence[int] | Image | Audio | Mapping[str, Any]"


@dataclass(frozen=True, slots=True, eq=False)
class VectorPiece:
    """A stretch of a picture or a sound.

    Attributes:
        rows: float32 ``(n, n_embd_inp)``.
        cells: where they go.
    """

    rows: NDArray[np.float32] = field(repr=False)
    cells: Cells

    def __len__(self) -> int:
        """Cells."""
        return len(self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class MediaInput:
    """An input with pictures or sounds.

    Attributes:
        pieces: in order, tokens, and vectors in place of them.
    """

    pieces: tuple[Tokens | VectorPiece, ...]

    def __len__(self) -> int:
        """Cells of the memory that it takes."""
        return sum(map(len, self.pieces))


#: What is computed.
Input: TypeAlias = "Tokens | MediaInput"


def is_single(inputs: Any) -> bool:
    """Whether this is one input, and not a list of them: a text, a list of token ids, a picture."""
    if isinstance(inputs, (str, bytes, bytearray)) or has_parts(inputs):
        return True
    if isinstance(inputs, np.ndarray):
        return inputs.ndim == 1 and inputs.dtype.kind in "iu"
    first = inputs[0] if isinstance(inputs, (list, tuple)) and inputs else None
    return isinstance(first, (int, np.integer)) and not isinstance(first, bool)


def has_parts(given: Any) -> bool:
    """Whether an input is a picture, a sound, or an object with several of them and texts."""
    return isinstance(given, (Image, Audio)) or (isinstance(given, Mapping) and "content" in given)


def as_list(inputs: Any, name: str = "inputs") -> list[Any]:
    """The inputs of a call, whether there is one or a collection of them.

    Raises:
        ParameterTypeError: it is neither.
    """
    if is_single(inputs):
        return [inputs]
    if not isinstance(inputs, Iterable) or isinstance(inputs, Mapping):
        raise ParameterTypeError(
            f"{name} must be texts, lists of token ids, pictures, or objects with parts in "
            f'"content", not {shown(inputs)}'
        )
    return [*inputs]


def tokenized(vocab: Vocab, given: Any, where: str) -> Tokens:
    """The tokens of an input; a text gets the special tokens that the model was trained with.

    Raises:
        ParameterTypeError, ParameterError, TokenizationError: it cannot be embedded; the message
            begins with ``where``.
    """
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
            f'{where} must be a text or a list of token ids, or an object with parts in "content", '
            f"not {shown(given)}"
        ) from None
    vocab.check_tokens(ids)
    return ids


def fitted(
    vocab: Vocab, inputs: Sequence[Input], limit: int, truncate: bool, name: str = "inputs"
) -> Sequence[Input]:
    """Inputs of at most ``limit`` tokens.

    Args:
        truncate: leave out what is too much, at the end of the text; the special token behind it
            stays, because models read from it that the text is over. Pictures are not cut off.

    Raises:
        InputTooLongError: one is longer, and it was not to be truncated.
    """
    if all(len(each) <= limit for each in inputs):
        return inputs
    if truncate:
        inputs = [
            each if isinstance(each, MediaInput) else _cut(vocab, each, limit) for each in inputs
        ]
    index = next((index for index, each in enumerate(inputs) if len(each) > limit), None)
    if index is None:
        return inputs
    raise InputTooLongError(index, len(inputs[index]), limit, name)


def _cut(vocab: Vocab, tokens: Tokens, limit: int) -> Tokens:
    if len(tokens) <= limit:
        return tokens
    last = int(tokens[-1])
    if limit > 1 and last in (vocab.eos, vocab.sep):
        return np.append(tokens[: limit - 1], np.int32(last))
    return tokens[:limit]
