"""Small calls of llama-cpp-python that code written for it may use. Part of ``Llama``.

Nothing in the package needs them: each says in a line what the rest of ``Llama`` offers already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llama_py.api.lowlevel import LowLevelInterface
from llama_py.errors import MissingPackageError

if TYPE_CHECKING:
    from llama_py.core.vocab import Vocab

__all__ = ["CompatInterface", "LlamaTokenizer"]


class LlamaTokenizer:
    """What ``Llama.tokenizer()`` returns: the vocabulary by llama-cpp-python's names.

    Unlike ``Llama.tokenize``, it reads the texts of special tokens as those tokens by default.
    """

    def __init__(self, llm: Any) -> None:
        self._vocab: Vocab = llm.vocab

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


class CompatInterface(LowLevelInterface):
    """See the module."""

    create_chat_completion: Any

    @property
    def input_ids(self) -> NDArray[np.intc]:
        """``eval_tokens`` as an array, int32 ``(n_tokens,)``; a copy."""
        return np.array(self.eval_tokens, np.intc)

    @property
    def eval_logits(self) -> deque[list[float]]:
        """The rows of ``scores`` as lists; without ``logits_all`` only the last one."""
        rows = self.scores if self._logits_all else self.scores[-1:]
        return deque(rows.tolist(), maxlen=None if self._logits_all else 1)

    def tokenizer(self) -> LlamaTokenizer:
        """The vocabulary as an object of its own."""
        return LlamaTokenizer(self)

    def create_chat_completion_openai_v1(self, *args: Any, **kwargs: Any) -> Any:
        """``create_chat_completion`` with the types of the package ``openai``.

        Returns:
            A ``ChatCompletion``; with ``stream=True`` an iterator of ``ChatCompletionChunk``.

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
        reply = self.create_chat_completion(*args, **kwargs)
        if isinstance(reply, dict):
            return ChatCompletion(**reply)
        return _converted(reply, ChatCompletionChunk)

    @staticmethod
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

    @staticmethod
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
