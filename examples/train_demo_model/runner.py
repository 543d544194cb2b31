"""Runs an exported model through llama_py, one sequence at a time.

Owns: logits of a token sequence, and greedy replies to rendered prompts. Both use
`llama_py.core`, so that neither a cache nor a sampler stands between the weights and the score.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llama_py.core.batch import Batch
from llama_py.core.context import Context
from llama_py.core.model import Model
from llama_py.params import ContextParams

LONGEST = 2048


class Runner:
    """A model and one context."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self.model = Model(path)
        params = ContextParams(
            n_ctx=LONGEST, n_batch=LONGEST, n_threads=threads, n_threads_batch=threads
        )
        self.context = Context(self.model, params)
        self.batch = Batch(LONGEST)

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a rendered text, special tokens included."""
        return self.model.vocab.tokenize(text, add_special=False, parse_special=True)

    def _decode(self, tokens: list[int], position: int, outputs: NDArray[np.int8] | bool) -> None:
        self.batch.set(tokens, position, 0, outputs)
        code = self.context.decode(self.batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code} for {len(tokens)} tokens")

    def logits(self, tokens: list[int]) -> NDArray[np.float32]:
        """The logits after every token, `(tokens, vocabulary)`."""
        self.context.clear()
        self._decode(tokens, 0, True)
        return np.stack([self.context.logits(at).copy() for at in range(len(tokens))])

    def reply(self, prompt: str, limit: int = 120) -> str:
        """What the model answers to a rendered prompt when the likeliest token is taken."""
        tokens = self.tokenize(prompt)
        last = np.zeros(len(tokens), np.int8)
        last[-1] = 1
        self.context.clear()
        self._decode(tokens, 0, last)
        index, said = len(tokens) - 1, list[int]()
        while len(said) < limit:
            token = int(self.context.logits(index).argmax())
            if self.model.vocab.is_eog(token):
                break
            said.append(token)
            self._decode([token], len(tokens) + len(said) - 1, True)
            index = 0
        return self.model.vocab.detokenize(said, special=True).decode("utf-8", "replace")
