"""The oracle of every reuse test: a context that evaluates the same tokens from the beginning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llama_py.core.batch import Batch
from llama_py.core.context import Context
from llama_py.core.model import Model
from llama_py.params import ContextParams, ModelParams

Row = NDArray[np.float32]


def nmse(found: Row, expected: Row) -> float:
    """Normalised mean squared error: 0 is equal, 1 is unrelated."""
    difference = np.sum((found.astype(np.float64) - expected) ** 2)
    return float(difference / np.sum(expected.astype(np.float64) ** 2))


class Oracle:
    """Evaluates tokens in an empty memory.

    Flash attention is off and the cells are in F32, so that the cuts hardly matter; for models in
    F32. Quantized ones have other kernels for one row than for several on CPUs with AMX.

    Args:
        on_cpu: not on a GPU, where there is one.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        n_ctx: int = 1024,
        flash_attn: bool = False,
        on_cpu: bool = False,
    ) -> None:
        self.model = Model(path, ModelParams(devices=()) if on_cpu else None)
        self.context = Context(
            self.model,
            ContextParams(
                n_ctx=n_ctx,
                n_seq_max=1,
                n_threads=1,
                flash_attn=flash_attn,
                swa_full=True,
                type_k=0,
                type_v=0,
            ),
        )
        self.batch = Batch(self.context.n_batch)

    def logits(self, tokens: Sequence[int], runs: Sequence[Sequence[int]] | None = None) -> Row:
        """Logits after ``tokens``, float32 ``(n_vocab,)``; ``runs`` are the tokens as cut."""
        copy: Row = self._evaluate(tokens, runs).copy()
        return copy

    def _evaluate(self, tokens: Sequence[int], runs: Sequence[Sequence[int]] | None) -> Row:
        self.context.clear()
        position = 0
        for run in runs or [tokens]:
            self._decode(run, position)
            position += len(run)
        row: Row = self.context.logits(len(run) - 1)
        return row

    def greedy(
        self, tokens: Sequence[int], count: int, runs: Sequence[Sequence[int]] | None = None
    ) -> tuple[list[int], Row]:
        """``count`` most likely tokens after ``tokens``, and the logits that gave the last one."""
        row = self._evaluate(tokens, runs)
        found = [int(row.argmax())]
        while len(found) < count:
            self._decode(found[-1:], len(tokens) + len(found) - 1)
            row = self.context.logits(0)
            found.append(int(row.argmax()))
        return found, row.copy()

    def _decode(self, tokens: Sequence[int], position: int) -> None:
        outputs = np.zeros(len(tokens), np.int8)
        outputs[-1] = 1
        self.batch.set([*tokens], position, 0, outputs)
        code = self.context.decode(self.batch)
        assert code == 0, code

    def close(self) -> None:
        self.model.close()
