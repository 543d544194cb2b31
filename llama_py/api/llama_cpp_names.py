"""Small functions and classes of llama-cpp-python, for code that was written for it.

Nothing in this package uses them; each is a thin wrapper of other methods of ``Llama``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llama_py.errors import MissingPackageError

if TYPE_CHECKING:
    from llama_py.core.vocab import Vocab

__all__ = ["LlamaTokenizer", "logits_to_logprobs", "longest_token_prefix", "with_openai_types"]


class HasVocab(Protocol):
    """A ``Llama``, or another object with a vocabulary."""

    @property
    def vocab(self) -> Vocab: ...


class LlamaTokenizer:
    """What ``Llama.tokenizer()`` returns: the vocabulary by llama-cpp-python's names.

    Unlike ``Llama.tokenize``, it reads the texts of special tokens as those tokens by default.
    """

    def __init__(self, llm: HasVocab) -> None:
        self._vocab = llm.vocab

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of ``text``."""
        return self._vocab.tokenize(text, add_special=add_bos, parse_special=special)

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """The bytes of ``tokens``, as ``Llama.detokenize`` gives them."""
        return self._vocab.detokenize_prompt(tokens, special=special)

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """``tokenize`` of a string; lone surrogates, which have no bytes, are left out."""
        return self.tokenize(text.encode("utf-8", "ignore"), add_bos, special)

    def decode(self, tokens: Sequence[int]) -> str:
        """``detokenize`` to a string; bytes that are no UTF-8 are left out."""
        return self.detokenize(tokens).decode("utf-8", "ignore")


def with_openai_types(reply: Any) -> Any:
    """A chat completion, or a stream of its chunks, as objects of the package ``openai``.

    Raises:
        MissingPackageError: ``openai`` is not installed; also an ``ImportError``.
    """
    try:
        from openai.types.chat import ChatCompletion, ChatCompletionChunk
    except ImportError as error:
        raise MissingPackageError(
            "create_chat_completion_openai_v1 needs the package openai: pip install openai "
            f"({error})"
        ) from error
    if isinstance(reply, dict):
        return ChatCompletion(**reply)
    return _converted(reply, ChatCompletionChunk)


def logits_to_logprobs(logits: ArrayLike, axis: int = -1) -> NDArray[np.float32]:
    """Natural logarithms of the probabilities (log-softmax), float32, of the same shape.

    A logit of ``-inf`` stays ``-inf``.
    """
    row = np.asarray(logits, np.float32)
    top = row.max(axis=axis, keepdims=True)
    shifted = row - np.where(np.isfinite(top), top, np.float32(0))
    with np.errstate(divide="ignore"):  # a row of -inf has no probabilities
        sums = np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    result: NDArray[np.float32] = shifted - sums
    return result


def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginnings."""
    for count, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return count
    return min(len(a), len(b))


def _converted(chunks: Iterator[Any], kind: Any) -> Iterator[Any]:
    """Typed chunks; leaving the iterator ends the request, as it does for dictionaries."""
    try:
        for chunk in chunks:
            yield kind(**chunk)
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()
