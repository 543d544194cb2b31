"""Draft models of llama-cpp-python."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LlamaDraftModel", "LlamaPromptLookupDecoding"]

Tokens = NDArray[np.intc]


class LlamaDraftModel(abc.ABC):
    """Guesses the tokens that come next."""

    @abc.abstractmethod
    def __call__(self, input_ids: Tokens, /, **kwargs: Any) -> Tokens:
        """The guess for what follows ``input_ids``, int32 ``(n,)``; it may be empty."""


class LlamaPromptLookupDecoding(LlamaDraftModel):
    """Guesses that what followed the last tokens before follows them again.

    Args:
        max_ngram_size: how many of the last tokens have to have occurred before, at most.
        num_pred_tokens: how many tokens to guess.
    """

    def __init__(self, max_ngram_size: int = 2, num_pred_tokens: int = 10) -> None:
        self.max_ngram_size = max_ngram_size
        self.num_pred_tokens = num_pred_tokens

    @staticmethod
    def find_candidate_pred_tokens(
        input_ids: Tokens, max_ngram_size: int, num_pred_tokens: int
    ) -> Tokens:
        """What followed the first earlier occurrence of the longest possible end."""
        length = len(input_ids)
        for size in range(min(max_ngram_size, length - 1), 0, -1):
            windows = np.lib.stride_tricks.sliding_window_view(input_ids, size)
            same = np.flatnonzero((windows == input_ids[-size:]).all(axis=1))
            starts = same[same + size < length] + size
            if len(starts):
                return input_ids[starts[0] : starts[0] + num_pred_tokens]
        return np.array([], np.intc)

    def __call__(self, input_ids: Tokens, /, **kwargs: Any) -> Tokens:
        """See ``LlamaDraftModel``."""
        return self.find_candidate_pred_tokens(input_ids, self.max_ngram_size, self.num_pred_tokens)
