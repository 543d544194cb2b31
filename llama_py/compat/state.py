"""``LlamaState`` of llama-cpp-python, which carries a state of llama_py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LlamaState"]


class LlamaState:
    """The return value of ``save_state``.

    Args:
        input_ids: int32 ``(n_ctx,)``, of which the first ``n_tokens`` count.
        scores: float32 ``(n_tokens, n_vocab)``.
        llama_state, llama_state_size: bytes of the state of the sequence.
        seed: of the model when it was saved.

    Attributes:
        native: the state of llama_py, which ``load_state`` brings back. A state that a program puts
            together itself has none, and cannot be loaded.
    """

    def __init__(
        self,
        input_ids: NDArray[np.intc],
        scores: NDArray[np.single],
        n_tokens: int,
        llama_state: bytes,
        llama_state_size: int,
        seed: int,
    ) -> None:
        self.input_ids = input_ids
        self.scores = scores
        self.n_tokens = n_tokens
        self.llama_state = llama_state
        self.llama_state_size = llama_state_size
        self.seed = seed
        self.native: Any = None
