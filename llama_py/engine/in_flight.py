"""``InFlight``: the requests in flight, what they put out in this step, and how each of them ends.

What a request holds (its sequence, its sampler) is released in exactly one place, ``end``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from llama_py.engine.clock import Clock
from llama_py.engine.generation import Generation, RequestState
from llama_py.engine.metrics import Metrics
from llama_py.engine.request import Event, FinishEvent, Output
from llama_py.errors import GenerationTimeout, RequestCancelled
from llama_py.memory.cache import SequenceCache
from llama_py.memory.prompt_tokens import reply_ends
from llama_py.memory.sequences import Lease, LiveSequence

__all__ = ["InFlight"]

_STATES = {"cancelled": RequestState.CANCELLED, "error": RequestState.FAILED}


class InFlight:
    """The books of the engine.

    Attributes:
        waiting: requests without a sequence, in the order in which they will get one.
        running: requests with a sequence, in the order in which they are served.
        outputs: what came out since the engine last handed it over.
        deadlines: how many of both have a timeout.
        drafting: how many of both may have drafts.
        ended: how many requests have ended so far.
        metrics: counters since loading.
        clock: what time it is, for everybody who works with these books.
        last_logits: a copy of the logits at the last position of the request that ended last,
            float32 ``(n_vocab,)``.
        last_sequence: the sequence at whose end they are; None when it got other tokens since.
    """

    def __init__(
        self,
        cache: SequenceCache,
        logits: Callable[[int], NDArray[np.float32]],
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self.cache = cache
        self.waiting: list[Generation] = []
        self.running: list[Generation] = []
        self.outputs: list[Output] = []
        self.deadlines = 0
        self.drafting = 0
        self.ended = 0
        self.metrics = metrics
        self.clock = clock
        self.last_logits: NDArray[np.float32] | None = None
        self.last_sequence: LiveSequence | None = None
        self._logits = logits

    def __iter__(self) -> Iterator[Generation]:
        """All requests in flight, also while they are ended."""
        return iter([*self.waiting, *self.running])

    def __bool__(self) -> bool:
        """True while something is in flight."""
        return bool(self.waiting or self.running)

    def find(self, number: int) -> Generation | None:
        """The request of this number, unless it has ended."""
        return next((each for each in self if each.number == number), None)

    # -- moving ---------------------------------------------------------------------------------

    def add(self, running: Generation) -> None:
        """Put a new request among the waiting ones: by priority, then in the order they came."""
        self.metrics.requests += 1
        self.deadlines += running.deadline is not None
        self.drafting += running.drafting is not None
        self.waiting.append(running)
        self.waiting.sort(key=_order)

    def start(self, running: Generation) -> None:
        """A waiting request has got a sequence."""
        self.waiting.remove(running)
        self.running.append(running)
        self.running.sort(key=_order)

    def send_back(self, running: Generation) -> None:
        """A running request has lost its sequence, and waits for another one."""
        running.state = RequestState.WAITING
        self.running.remove(running)
        self.waiting.append(running)
        self.waiting.sort(key=_order)

    def moves_on(self, sequence: LiveSequence) -> None:
        """``sequence`` gets other tokens: the last logits are not those at its end any more."""
        if self.last_sequence is sequence:
            self.last_sequence = None

    def report(self, running: Generation, held: int) -> None:
        """Tell the owner of a request how much of its prompt is in memory, if it wants to know."""
        told, total = running.request.on_progress, running.record.n_prompt
        if told is not None:
            try:
                told(min(held, total), total)
            except BaseException as error:  # it is the caller's, and reaches the caller
                self.fail(running, error)

    # -- endings --------------------------------------------------------------------------------

    def put(self, running: Generation, event: Event) -> None:
        """Hand out an event."""
        self.outputs.append((running.number, event))

    def end(self, running: Generation, event: FinishEvent, row: int | None = None) -> None:
        """Release what a request holds, and hand out its last event. Does nothing a second time.

        Args:
            row: where the logits of its last token are, if they are still there.
        """
        if running.ended:
            return
        lease = running.lease
        if row is not None:
            self.last_logits = self._logits(row).copy()
            self.last_sequence = lease.sequence if lease else None
            if running.request.keep_logits:
                running.record.logits = self.last_logits
        self._withdraw(running, event.reason)
        self.put(running, event)
        try:
            running.record.request = running.record.request.without_callbacks()
            self.cache.transfers.forget(running)
            running.sampler.close()
            if lease is not None and lease.sequence in self.cache.live:
                self._give_back(running, lease, pinned=event.error is None)
        except BaseException:  # nobody else knows of the sequence, whose state is not certain now
            if lease is not None:
                self.cache.live.drop(lease.sequence)
            raise
        finally:
            running.lease = None

    def _give_back(self, running: Generation, lease: Lease, *, pinned: bool) -> None:
        """Leave the sequence of a request that ends to others, and what it holds for reuse."""
        if running.request.pin and pinned:
            self.cache.live.pin(running.prompt)
        if lease.drafted:
            self.cache.rewind(lease)
        ends, transient = self._reply_ends(running), bool(running.request.targets)
        self.cache.release(lease, running.undecoded(lease), ends, transient=transient)

    def _withdraw(self, running: Generation, reason: str) -> None:
        """Take a request that ends out of the books, and count it."""
        (self.waiting if running in self.waiting else self.running).remove(running)
        self.deadlines -= running.deadline is not None
        self.drafting -= running.drafting is not None
        running.state = state = _STATES.get(reason, RequestState.FINISHED)
        record, metrics = running.record, self.metrics
        self.ended += 1
        metrics.finished += state is RequestState.FINISHED
        metrics.cancelled += state is RequestState.CANCELLED
        metrics.failed += state is RequestState.FAILED
        record.reason, record.ended = reason, self.clock()
        metrics.stopped += reason == "stop"
        metrics.longest = max(metrics.longest, record.n_prompt + len(record.generated))
        metrics.request_seconds.add(record.ended - record.submitted)

    def _reply_ends(self, running: Generation) -> list[int]:
        """After how many tokens of its sequence the reply ends, in a prompt that contains it."""
        generated, visible = running.record.generated, running.request.visible
        if not generated:
            return []
        vocab = self.cache.tokenizer

        def shown(token: int) -> bytes:
            hidden = vocab.is_special(token) and token not in visible
            return b"" if hidden else vocab.piece(token)

        stop = running.text.stopped_by
        ends = reply_ends(generated, shown, stop.encode() if stop is not None else None)
        return [running.record.n_prompt + count for count in ends]

    def fail(self, running: Generation, error: BaseException) -> None:
        """End a request with an error."""
        if not running.ended:
            self.end(running, FinishEvent("error", running.text.finish(), error=error))

    def cancel(self, running: Generation) -> None:
        """End a request that its owner does not want any more."""
        error = RequestCancelled("the request was cancelled (reset, or its stream was closed)")
        if not running.ended:
            self.end(running, FinishEvent("cancelled", running.text.finish(), error=error))

    # -- time -----------------------------------------------------------------------------------

    def time_left(self, *, running_only: bool = False) -> float | None:
        """Seconds until somebody's time is over, or None if nobody has a timeout."""
        if not self.deadlines:
            return None
        asked = self.running if running_only else self
        ends = [each.deadline for each in asked if each.deadline is not None]
        return max(0.0, min(ends) - self.clock()) if ends else None

    def expire(self) -> None:
        """Fail the requests whose time is over."""
        now = self.clock()
        for running in self:
            deadline = running.deadline
            if deadline is not None and now > deadline:
                timeout = running.request.generation.timeout
                message = f"the request took longer than timeout={timeout} seconds"
                self.fail(running, GenerationTimeout(message))


def _order(running: Generation) -> tuple[int, int]:
    return running.order
