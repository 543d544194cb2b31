"""``TextChunks``: a text in pieces of one length, and a model's logits for the second half of each.

The pieces, their first token, the halves and the order are those of llama.cpp's
``llama-perplexity``, so that figures can be compared with its.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from llama_py.core import backend
from llama_py.core.batch import Batch
from llama_py.core.context import Context
from llama_py.core.model import Model
from llama_py.errors import ContextCreationError, ParameterError
from llama_py.params import ContextParams, ModelParams

__all__ = ["ChunkLogits", "TextChunks"]


@dataclass(frozen=True, slots=True)
class ChunkLogits:
    """The counted rows of one piece.

    Attributes:
        number: of the piece, from 0.
        logits: float32 ``(n, n_vocab)``; a view that the next piece overwrites.
        following: the tokens that came next: int32 ``(n,)``.
    """

    number: int
    logits: NDArray[np.float32]
    following: NDArray[np.int32]


class TextChunks:
    """A model that evaluates pieces of a text.

    Args:
        n_ctx: tokens of a piece.
        n_batch: tokens that are evaluated at once; several pieces beside each other.
    """

    def __init__(
        self,
        path: Path,
        n_ctx: int = 512,
        n_batch: int = 2048,
        n_threads: int | None = None,
        watcher: Callable[[Any], None] | None = None,
    ) -> None:
        if n_ctx < 8 or n_batch < 1 or (n_batch > n_ctx and n_batch % n_ctx):
            raise ParameterError(
                f"n_batch={n_batch} is not a multiple of n_ctx={n_ctx}, which is 8 at least"
            )
        backend.start()
        self.n_ctx, self.first = n_ctx, n_ctx // 2
        self.n_seq = max(1, n_batch // n_ctx)
        self._model = Model(path, ModelParams())
        try:
            self._context = Context(
                self._model,
                ContextParams(
                    n_ctx=n_ctx * self.n_seq,
                    n_batch=min(n_batch, n_ctx * self.n_seq),
                    n_seq_max=self.n_seq,
                    kv_unified=False,
                    n_threads=n_threads,
                    n_threads_batch=n_threads,
                ),
                watcher=watcher,
            )
        except BaseException:
            self._model.close()
            raise
        self.n_vocab = self._model.vocab.n_tokens

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._context.close()
        self._model.close()

    def tokens(self, text: str, chunks: int | None = None) -> NDArray[np.int32]:
        """The tokens of a text, as many as whole pieces take.

        Raises:
            ParameterError: it has fewer than two pieces.
        """
        if chunks is not None and chunks < 1:
            raise ParameterError(f"chunks must be at least 1, not {chunks}")
        found = self._model.vocab.tokenize(text)
        count = len(found) // self.n_ctx
        if count < 2:
            raise ParameterError(
                f"the text has {len(found)} tokens, and at least {2 * self.n_ctx} are needed (two "
                f"pieces of n_ctx={self.n_ctx})"
            )
        count = count if chunks is None else min(chunks, count)
        return np.asarray(found[: count * self.n_ctx], np.int32)

    def evaluate(self, tokens: NDArray[np.int32]) -> Iterator[ChunkLogits]:
        """The logits of the second half of each piece but of its last token."""
        pieces = self._pieces(tokens)
        following = tokens.reshape(-1, self.n_ctx)[:, self.first + 1 :]
        for start in range(0, len(pieces), self.n_seq):
            group = pieces[start : start + self.n_seq]
            for number, logits in enumerate(self._logits(group), start):
                yield ChunkLogits(number, logits, following[number])

    def run(self, tokens: NDArray[np.int32]) -> Iterator[int]:
        """Evaluate all tokens of all pieces; how many pieces are done."""
        pieces = self._pieces(tokens)
        for start in range(0, len(pieces), self.n_seq):
            group = pieces[start : start + self.n_seq]
            for _ in self._steps(group, 0):
                pass
            yield start + len(group)

    def _pieces(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        pieces: NDArray[np.int32] = tokens.reshape(-1, self.n_ctx).copy()
        vocab = self._model.vocab
        if vocab.add_bos:
            pieces[:, 0] = vocab.bos
        return pieces

    def _steps(self, group: NDArray[np.int32], first: int) -> Iterator[NDArray[np.bool_]]:
        """Evaluate pieces beside each other; after each step, which of its tokens are outputs."""
        context, width = self._context, min(self.n_ctx, self._context.n_batch)
        context.clear(data=True)
        batch = Batch(context.n_batch)
        for at in range(0, self.n_ctx, width):
            positions = np.arange(at, min(at + width, self.n_ctx), dtype=np.int32)
            wanted = positions >= first
            batch.clear()
            for seq, tokens in enumerate(group):
                batch.add(tokens[positions], positions, seq, wanted.astype(np.int8))
            code = context.decode(batch)
            if code:
                raise ContextCreationError(f"a piece could not be evaluated (llama_decode: {code})")
            yield wanted

    def _logits(self, group: NDArray[np.int32]) -> Iterator[NDArray[np.float32]]:
        context, counted = self._context, self.n_ctx - 1 - self.first
        kept: list[NDArray[np.float32]] = []
        for wanted in self._steps(group, self.first):
            if context.n_batch < self.n_ctx:  # one piece in several steps
                kept += [context.logits(int(i)).copy() for i in np.flatnonzero(wanted)]
        if kept:
            yield np.stack(kept)[:counted]
            return
        for seq in range(len(group)):
            first = seq * self.n_ctx + self.first
            yield context.logits_rows(first, counted)
