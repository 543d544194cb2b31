"""``Runner``: the only place that calls ``llama_decode`` for requests."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llama_py.core.batch import Batch
from llama_py.core.context import Context
from llama_py.core.interrupts import in_main_thread, run_interruptibly
from llama_py.engine.metrics import Metrics
from llama_py.engine.request import Request
from llama_py.engine.scheduler import Chunk

__all__ = ["Runner"]

#: Seconds of a decode during which nobody should have to wait for Ctrl-C.
_LONG = 0.1


class Runner:
    """Turns a planned step into one batch, decodes it, and hands out its rows of logits.

    Attributes:
        n_batch: most tokens in one step.
        abortable: what an aborted decode leaves behind can be removed (not a recurrent state).
    """

    def __init__(self, context: Context, metrics: Metrics, *, abortable: bool) -> None:
        self.context = context
        self.metrics = metrics
        self.n_batch = context.n_batch
        self.abortable = abortable
        self._batch = Batch(self.n_batch)
        self._seconds_per_token = float("inf")

    def decode(self, running: Sequence[Request], chunks: Sequence[Chunk]) -> tuple[int, list[int]]:
        """Decode one step.

        Returns:
            What ``llama_decode`` returned, and for each chunk the index of its last token, at
            which its logits are.
        """
        self._batch.clear()
        rows = [self._add(running[chunk.index], chunk.count) for chunk in chunks]
        return self._decode_many(), rows

    def decode_one(self, request: Request) -> int:
        """The hot path: one stream, one token. Its logits are at index 0."""
        lease = request.lease
        batch = self._batch
        batch.struct.n_tokens = 0
        batch.add_one(request.generated[-1], lease.position, lease.sequence.number)  # type: ignore[union-attr]
        return self._decode()

    def decode_tokens(
        self, tokens: Sequence[int], position: int, sequence: int, every: bool
    ) -> int:
        """A chunk of a sequence that belongs to no request (``Llama.eval``)."""
        outputs = np.zeros(len(tokens), np.int8)
        outputs[slice(None) if every else slice(-1, None)] = 1
        self._batch.set(tokens, position, sequence, outputs)
        return self._decode_many()

    def logits(self, row: int) -> NDArray[np.float32]:
        """The logits of one output of the last step: a view, float32 ``(n_vocab,)``."""
        return self.context.logits(row)

    def _decode_many(self) -> int:
        """One decode; the main thread can be interrupted in the middle of a long one."""
        count = len(self._batch)
        long = self.abortable and count * self._seconds_per_token > _LONG
        start = time.perf_counter()
        if long and not self.context.asynchronous and in_main_thread():
            code = run_interruptibly(self._decode, self.context.abort.ask)
        else:
            code = self._decode()
        self._seconds_per_token = (time.perf_counter() - start) / count
        return code

    def _decode(self) -> int:
        start = time.perf_counter()
        code = self.context.decode(self._batch)
        if self.context.asynchronous:  # the time until the logits are there belongs to the decode
            self.context.synchronize()
        self.metrics.decode_seconds += time.perf_counter() - start
        self.metrics.steps += 1
        return code

    def _add(self, request: Request, count: int) -> int:
        """Append a chunk; returns the index of its last token."""
        lease = request.lease
        if lease is None:
            raise RuntimeError("a request without a sequence was scheduled")
        position, number = lease.position, lease.sequence.number
        if count == 0:
            return self._batch.add_one(request.generated[-1], position, number)
        tokens = lease.prompt.tokens[position : position + count]
        start = self._batch.add(tokens, position, number, False)
        # A request that was preempted has generated tokens behind its prompt.
        first = request.first_output if not request.n_resumed else len(lease.prompt.tokens) - 1
        self._batch.outputs[start + max(0, first - position) : start + count] = True
        return start + count - 1
