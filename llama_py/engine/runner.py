"""``Runner``: the only place that calls ``llama_decode`` for requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from llama_py.core.batch import Batch
from llama_py.core.context import Context
from llama_py.core.steps import Steps
from llama_py.engine.clock import Clock
from llama_py.engine.generation import Generation
from llama_py.engine.metrics import Metrics
from llama_py.engine.scheduler import Decode, Prefill, StepPlan, Verify
from llama_py.engine.tuned_threads import TunedThreads

__all__ = ["Runner", "by_sequence"]

_Entry: TypeAlias = "Decode[Generation] | Verify[Generation] | Prefill[Generation]"


class Runner:
    """Turns a planned step into one batch, decodes it, and hands out its rows of logits.

    Attributes:
        n_batch: most tokens in one step.
        abortable: what an aborted decode leaves behind can be removed (not a recurrent state).
        prefilling: numbers of the requests whose prompts the decode in progress evaluates. Read by
            other threads, which abort a decode that nobody wants any more.
        decoding: a decode is in progress.
        steps: what the last ``decode_steps`` gave; None if that cannot be done.
        last_step: seconds that the last step took.
    """

    def __init__(
        self, context: Context, metrics: Metrics, clock: Clock, *, abortable: bool
    ) -> None:
        self.context = context
        self.metrics = metrics
        self.n_batch = context.n_batch
        self.abortable = abortable
        self.prefilling: tuple[int, ...] = ()
        self.decoding = False
        self._batch = Batch(self.n_batch)
        self._clock = clock
        self._tuned_threads = TunedThreads.of(context, clock)
        self.steps = Steps.of(context.n_seq_max)
        self.last_step = 0.0

    def decode(self, plan: StepPlan[Generation], seconds: float | None) -> tuple[int, list[int]]:
        """Decode one step.

        Args:
            seconds: abort it after that time, if there are prompts in it and it can be aborted.

        Returns:
            What ``llama_decode`` returned, and the row of logits at the end of each entry of the
            plan; of a draft, the row of the token before it.
        """
        self._batch.clear()
        rows = self._add(plan)
        if not (self.abortable and plan.prefills):
            return self._decode(), rows
        abort = self.context.abort
        self.prefilling = tuple(entry.request.number for entry in plan.prefills)
        abort.after(seconds)
        try:
            return self._decode(), rows
        finally:
            self.prefilling = ()
            abort.after(None)

    def decode_one(self, running: Generation) -> int:
        """The hot path: one stream, one token. Its logits are in row 0."""
        self._batch.struct.n_tokens = 0
        self._add_one(running)
        return self._decode()

    def decode_steps(
        self, steps: Steps, streams: Sequence[Generation], most: int, seconds: float
    ) -> list[float]:
        """The hot path: streams whose tokens C chooses alone.

        Args:
            most, seconds: after how many steps, or when, it ends at the latest.

        Returns:
            When each step ended, by the engine's clock.
        """
        self._batch.struct.n_tokens = 0
        for running in streams:
            self._add_one(running)
        steps.choose([running.sampler.of_steps for running in streams])
        if most > 1:
            for row, running in enumerate(streams):
                steps.endless[row] = running.request.generation.ignore_eos
        clock, rows = self._clock, len(streams)
        most, seconds = clock.within(rows, most, seconds)
        now = clock()
        self.decoding = True
        try:
            self.context.decode_steps(self._batch, steps, most, seconds)
        finally:
            self.decoding = False
        ends: list[float] = []
        metrics = self.metrics
        times = [(clock.took(rows, one), clock.took(0, other)) for one, other in steps.times]
        for decoding, choosing in times:
            self.last_step = decoding + choosing
            now += self.last_step
            ends.append(now)
            metrics.decode_seconds += decoding
            metrics.sample_seconds += choosing
        metrics.steps += len(ends)
        if self._tuned_threads is not None and not steps.code:
            self._tuned_threads.after_steps(rows, [decoding for decoding, _ in times], now)
        return ends[: steps.done]

    def hurry(self, wanted: bool = True) -> None:
        """Let no further step begin before commands are looked for. From any thread."""
        if self.steps is not None:
            self.steps.hurry[0] = wanted

    def decode_tokens(
        self, tokens: Sequence[int], position: int, sequence: int, every: bool
    ) -> int:
        """A chunk of a sequence that belongs to no request (``Llama.eval``)."""
        outputs = np.zeros(len(tokens), np.int8)
        outputs[slice(None) if every else slice(-1, None)] = 1
        self._batch.set(tokens, position, sequence, outputs)
        return self._decode()

    def logits(self, row: int) -> NDArray[np.float32]:
        """The logits of one output of the last step: a view, float32 ``(n_vocab,)``."""
        return self.context.logits(row)

    def _decode(self) -> int:
        clock, rows = self._clock, self._batch.struct.n_tokens
        start = clock()
        if self._tuned_threads is not None:
            self._tuned_threads.before(start)
            start = clock()
        self.decoding = True
        try:
            code = self.context.decode(self._batch)
            if self.context.asynchronous:  # the time until the logits are there belongs to it
                self.context.synchronize()
        finally:
            self.decoding = False
        self.last_step = seconds = clock.took(rows, clock() - start)
        self.metrics.decode_seconds += seconds
        self.metrics.steps += 1
        if self._tuned_threads is not None and not code:
            self._tuned_threads.after(rows, seconds, start + seconds)
        return code

    def _add(self, plan: StepPlan[Generation]) -> list[int]:
        """Append all entries; returns a row for each, in the order of the plan.

        Where each sequence has its own buffer of cells, llama.cpp computes those together that
        follow each other by number, both in the batch and in memory.
        """
        entries: list[_Entry] = [*plan.decodes, *plan.verifies, *plan.prefills]
        if self.context.params.kv_unified:
            return [self._add_entry(entry) for entry in entries]
        order = sorted(range(len(entries)), key=lambda index: _number(entries[index].request))
        rows = [0] * len(entries)
        for index in order:
            rows[index] = self._add_entry(entries[index])
        return rows

    def _add_entry(self, entry: _Entry) -> int:
        if isinstance(entry, Decode):
            return self._add_one(entry.request)
        if isinstance(entry, Verify):
            return self._add_draft(entry)
        return self._add_chunk(entry.request, entry.count)

    def _add_one(self, running: Generation) -> int:
        lease = running.lease
        return self._batch.add_one(
            running.record.generated[-1],
            lease.position,  # type: ignore[union-attr]
            lease.sequence.number,  # type: ignore[union-attr]
        )

    def _add_draft(self, entry: Verify[Generation]) -> int:
        """Append known tokens and a draft; returns the row of the last known one."""
        running, lease = entry.request, entry.request.lease
        if lease is None:
            raise RuntimeError("a request without a sequence was scheduled")
        tokens = [*running.undecoded(lease), *entry.draft]
        start = self._batch.add(tokens, lease.position, lease.sequence.number, False)
        first = start + entry.known - 1
        self._batch.outputs[first : start + len(tokens)] = True
        return first

    def _add_chunk(self, running: Generation, count: int) -> int:
        """Append a chunk; returns the row of its last token."""
        lease = running.lease
        if lease is None:
            raise RuntimeError("a request without a sequence was scheduled")
        held = lease.held
        tokens = lease.prompt.tokens[held : held + count]
        start = self._batch.add(tokens, lease.position, lease.sequence.number, False)
        # A request that was preempted has generated tokens behind its prompt.
        first = running.first_output if not running.n_resumed else len(lease.prompt.tokens) - 1
        self._batch.outputs[start + max(0, first - held) : start + count] = True
        return start + count - 1


def by_sequence(streams: Sequence[Generation]) -> list[Generation]:
    """In the order of their sequences (see ``Runner._add``)."""
    return sorted(streams, key=_number)


def _number(running: Generation) -> int:
    """The sequence of a request in the context."""
    return running.lease.sequence.number if running.lease is not None else -1
