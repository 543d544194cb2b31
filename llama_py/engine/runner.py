"""``Runner``: the only place that calls ``llama_decode`` for requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llama_py.core.batch import Batch
from llama_py.core.context import Context
from llama_py.core.steps import Steps
from llama_py.engine.clock import Clock
from llama_py.engine.generation import Generation
from llama_py.engine.media_steps import MediaVectors
from llama_py.engine.metrics import Metrics
from llama_py.engine.scheduler import Decode, Entry, Prefill, StepPlan, Verify
from llama_py.engine.tuned_threads import TunedThreads

__all__ = ["Runner", "StepOutcome"]


@dataclass(slots=True)
class StepOutcome:
    """What a planned step gave.

    Attributes:
        code: what ``llama_decode`` returned; of several steps, the last one.
        rows: of each entry of the plan, the row of logits at its end; of a draft, that of the token
            before it.
        seconds: spent in ``llama_decode``.
        last: seconds of the last step, choosing in C included.
        chosen: where C chose the tokens: those of each entry, one of each step that succeeded.
        ends: when each of these steps ended, by the engine's clock.
    """

    code: int
    rows: list[int]
    seconds: float
    last: float
    chosen: Sequence[list[int]] = ()
    ends: Sequence[float] = ()


class Runner:
    """Turns a planned step into one batch, decodes it, and hands out its rows of logits.

    Whether that is one row, a batch, or a loop in C, is its own affair.

    Attributes:
        n_batch: most tokens in one step.
        abortable: what an aborted decode leaves behind can be removed (not a recurrent state).
        prefilling: numbers of the requests whose prompts the decode in progress evaluates. Read by
            other threads, which abort a decode that nobody wants any more.
        decoding: a decode is in progress.
        steps: room for what steps in C give; None if they cannot be made.
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
        self._unified = context.params.kv_unified
        self._batch = Batch(self.n_batch)
        self._clock = clock
        self._tuned_threads = TunedThreads.of(context, clock)
        self.steps = Steps.of(context.n_seq_max)
        self.last_step = 0.0

    def run(self, plan: StepPlan[Generation]) -> StepOutcome:
        """Decode a step, or several where C chooses the tokens."""
        if plan.steps and self.steps is not None:
            return self._run_steps(plan, self.steps)
        if isinstance(plan.vectors, MediaVectors):
            return self._run_media(plan.prefills[0], plan.vectors)
        self._batch.struct.n_tokens = 0
        rows = self._add(plan)
        if not (self.abortable and plan.prefills):
            return StepOutcome(self._decode(), rows, self.last_step, self.last_step)
        abort = self.context.abort
        self.prefilling = tuple(entry.request.number for entry in plan.prefills)
        abort.after(plan.seconds)
        try:
            return StepOutcome(self._decode(), rows, self.last_step, self.last_step)
        finally:
            self.prefilling = ()
            abort.after(None)

    def _run_steps(self, plan: StepPlan[Generation], steps: Steps) -> StepOutcome:
        """The hot path: streams whose tokens C chooses alone, in one call."""
        self._batch.struct.n_tokens = 0
        entries, most = plan.decodes, plan.steps
        if not self._unified:  # see ``_add``
            entries = tuple(sorted(entries, key=lambda entry: _number(entry.request)))
        count, drawn = len(entries), list[tuple[int, int]]()
        for row, entry in enumerate(entries):
            running = entry.request
            self._add_one(running)
            drawn.append(running.sampler.of_steps)
            steps.endless[row] = most > 1 and running.request.generation.ignore_eos
        steps.choose(drawn)
        clock = self._clock
        most, seconds = clock.within(count, most, plan.seconds or 0.0)
        now = clock()
        self.decoding = True
        try:
            self.context.decode_steps(self._batch, steps, most, seconds)
        finally:
            self.decoding = False
        ends: list[float] = []
        decoded: list[float] = []
        metrics, total = self.metrics, 0.0
        for one, other in steps.times:
            decoding, choosing = clock.took(count, one), clock.took(0, other)
            self.last_step = decoding + choosing
            now += self.last_step
            total += decoding
            ends.append(now)
            decoded.append(decoding)
            metrics.sample_seconds += choosing
        metrics.decode_seconds += total
        metrics.steps += len(ends)
        if self._tuned_threads is not None and not steps.code:
            self._tuned_threads.after_steps(count, decoded, now)
        rows, ends = [*range(count)], ends[: steps.done]
        chosen = steps.chosen if ends else []
        outcome = StepOutcome(steps.code, rows, total, self.last_step, chosen, ends)
        if not self._unified:
            outcome.rows = [entries.index(entry) for entry in plan.decodes]
            outcome.chosen = [chosen[row] for row in outcome.rows] if ends else []
        return outcome

    def _run_media(self, entry: Prefill[Generation], media: MediaVectors) -> StepOutcome:
        """A picture or a sound: all of its cells."""
        running, lease = entry.request, entry.request.lease
        if lease is None:
            raise RuntimeError("a request without a sequence was scheduled")
        cells, clock = media.cells, self._clock
        self.prefilling = (running.number,) if self.abortable else ()
        start, self.decoding = clock(), True
        try:
            code = self.context.decode_vectors(
                media.rows,
                cells.placed(lease.position),
                lease.sequence.number,
                output=lease.held + entry.count == len(lease.prompt.tokens),
                causal=cells.causal,
            )
            self.context.synchronize()
        finally:
            self.decoding, self.prefilling = False, ()
        seconds = clock.took(entry.count, clock() - start)
        self.metrics.decode_seconds += seconds
        self.metrics.steps += 1
        # The index counts within the last batch that the cells were evaluated in.
        last = (entry.count - 1) % self.n_batch
        return StepOutcome(code, [last], seconds, seconds)

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
        if len(plan.decodes) == 1 and not (plan.verifies or plan.prefills):
            return [self._add_one(plan.decodes[0].request)]
        entries: list[Entry[Generation]] = [*plan.decodes, *plan.verifies, *plan.prefills]
        if self._unified:
            return [self._add_entry(entry) for entry in entries]
        order = sorted(range(len(entries)), key=lambda index: _number(entries[index].request))
        rows = [0] * len(entries)
        for index in order:
            rows[index] = self._add_entry(entries[index])
        return rows

    def _add_entry(self, entry: Entry[Generation]) -> int:
        """Append an entry; returns the row of its last token, of a draft that of the last known."""
        if isinstance(entry, Decode):
            return self._add_one(entry.request)
        running, lease, batch = entry.request, entry.request.lease, self._batch
        if lease is None:
            raise RuntimeError("a request without a sequence was scheduled")
        if isinstance(entry, Verify):
            tokens = [*running.undecoded(lease), *entry.draft]
            start = batch.add(tokens, lease.position, lease.sequence.number, False)
            first = start + entry.known - 1
            batch.outputs[first : start + len(tokens)] = True
            return first
        held, count = lease.held, entry.count
        chunk = lease.prompt.tokens[held : held + count]
        start = batch.add(chunk, lease.position, lease.sequence.number, False)
        # A request that was preempted has generated tokens behind its prompt.
        first = running.first_output if not running.n_resumed else len(lease.prompt.tokens) - 1
        batch.outputs[start + max(0, first - held) : start + count] = True
        return start + count - 1

    def _add_one(self, running: Generation) -> int:
        lease = running.lease
        return self._batch.add_one(
            running.record.generated[-1],
            lease.position,  # type: ignore[union-attr]
            lease.sequence.number,  # type: ignore[union-attr]
        )


def _number(running: Generation) -> int:
    """The sequence of a request in the context."""
    return running.lease.sequence.number if running.lease is not None else -1
