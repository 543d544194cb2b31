"""``Board``: the requests in flight, and how each of them ends.

Everything here runs under the engine's lock. What a request holds (its sequence, its samplers) is
released in exactly one place, ``end``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_py.engine.metrics import Metrics
from llama_py.engine.request import Event, FinishEvent, Request, RequestState
from llama_py.errors import GenerationTimeout, RequestCancelled
from llama_py.memory.cache import SequenceCache
from llama_py.memory.sequences import LiveSequence
from llama_py.memory.text import reply_ends

__all__ = ["Board"]


class Board:
    """See the module.

    Attributes:
        waiting: requests without a sequence, in the order in which they will get one.
        running: requests with a sequence, in the order in which they are served.
        deadlines: how many of both have a timeout.
        ended: how many requests have ended so far.
        metrics: what was done so far.
        last_logits, last_sequence: see ``Engine``. The sequence is None when it got other tokens.
    """

    def __init__(self, cache: SequenceCache, logits: Callable[[int], NDArray[np.float32]]) -> None:
        self.cache = cache
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.deadlines = 0
        self.ended = 0
        self.metrics = Metrics()
        self.last_logits: NDArray[np.float32] | None = None
        self.last_sequence: LiveSequence | None = None
        self._logits = logits
        self._ending: tuple[Request, FinishEvent] | None = None

    @property
    def everything(self) -> list[Request]:
        """All requests in flight."""
        return [*self.waiting, *self.running]

    def enqueue(self, request: Request) -> None:
        """Put a new request among the waiting ones: by priority, then in the order they came."""
        self.metrics.requests += 1  # nothing can come between this and the next lines
        self.deadlines += request.generation.timeout is not None
        self.waiting.append(request)
        self.waiting.sort(key=_turn)

    def set_running(self, request: Request) -> None:
        """Move a request, which has got a sequence, from the waiting to the running ones."""
        self.running.append(request)
        self.waiting.remove(request)
        self.running.sort(key=_turn)

    def moves_on(self, sequence: LiveSequence) -> None:
        """``sequence`` gets other tokens: the last logits are not those at its end any more."""
        if self.last_sequence is sequence:
            self.last_sequence = None

    def set_waiting(self, request: Request) -> None:
        """Move a request, which has lost its sequence, back to the waiting ones."""
        request.state = RequestState.WAITING
        if request not in self.waiting:
            self.waiting.append(request)
        self.running.remove(request)
        self.waiting.sort(key=_turn)

    @property
    def interrupted(self) -> bool:
        """True if the ending of a request was interrupted."""
        return self._ending is not None

    def recover(self) -> None:
        """After an interrupt: finish what was begun, so that no request is lost."""
        ending, self._ending = self._ending, None
        if ending is not None:
            self._finish(*ending)
        for request in [*self.running]:
            if request.lease is None:
                self.set_waiting(request)
        self.waiting[:] = [request for request in self.waiting if request not in self.running]
        for request in self.waiting:  # one that did not get as far as to run lets go
            request.lease, request.state = None, RequestState.WAITING
        self.deadlines = sum(each.generation.timeout is not None for each in self.everything)

    # -- events ---------------------------------------------------------------------------------

    def put(self, request: Request, event: Event) -> None:
        """Hand out an event."""
        if request.on_event is None:
            request.events.append(event)
            return
        try:
            request.on_event(event)
        except Exception as error:
            request.on_event = None
            self.fail(request, error)

    def guard(self, request: Request, call: Callable[..., Any], *arguments: Any) -> None:
        """Run a callback of the request's owner; its failure is this request's failure."""
        try:
            call(*arguments)
        except Exception as error:
            self.fail(request, error)

    # -- endings --------------------------------------------------------------------------------

    def end(self, request: Request, event: FinishEvent, row: int | None = None) -> None:
        """Release what a request holds, and hand out its last event. Does nothing a second time.

        Args:
            row: where the logits of its last token are, if they are still there.
        """
        if request.done:
            return
        if row is not None:
            self.last_logits = self._logits(row).copy()
            self.last_sequence = request.lease.sequence if request.lease else None
        self._ending = request, event
        self._finish(request, event)

    def _finish(self, request: Request, event: FinishEvent) -> None:
        """What ``end`` does, or what is left of it after an interrupt."""
        self._withdraw(request)
        if not request.done:
            self._count(request, _STATES.get(event.reason, RequestState.FINISHED))
            request.ended = time.perf_counter()
        lease = request.lease
        if lease is not None and self.cache.live.get(lease.sequence.number) is lease.sequence:
            ends, transient = self._reply_ends(request), bool(request.targets)
            lease.sequence.pinned |= request.pin and event.error is None
            self.cache.release(lease, request.undecoded(lease), ends, transient=transient)
        request.lease = None
        if request.sampler is not None:
            request.sampler.close()
        if not request.closed:
            self.put(request, event)
            request.closed = True
        self._ending = None

    def _reply_ends(self, request: Request) -> list[int]:
        """After how many tokens of its sequence the reply ends, in a prompt that contains it."""
        if not request.generated:
            return []
        vocab = self.cache.tokenizer

        def shown(token: int) -> bytes:
            hidden = vocab.is_special(token) and token not in request.visible
            return b"" if hidden else vocab.piece(token)

        stop = request.text.stopped_by
        ends = reply_ends(request.generated, shown, stop.encode() if stop is not None else None)
        return [request.n_prompt + count for count in ends]

    def _withdraw(self, request: Request) -> None:
        for requests in (self.running, self.waiting):
            if request in requests:
                requests.remove(request)
                self.deadlines -= request.generation.timeout is not None

    def _count(self, request: Request, state: RequestState) -> None:
        metrics = self.metrics
        request.state = state  # nothing can come between these lines
        self.ended += 1
        metrics.finished += state is RequestState.FINISHED
        metrics.cancelled += state is RequestState.CANCELLED
        metrics.failed += state is RequestState.FAILED

    def fail(self, request: Request, error: BaseException) -> None:
        """End a request with an error."""
        if not request.done:
            self.end(request, FinishEvent("error", request.text.finish(), error=error))

    def cancel(self, request: Request) -> None:
        """End a request that its owner does not want any more, if it was queued at all."""
        if not request.done and (request in self.waiting or request in self.running):
            error = RequestCancelled("the request was cancelled (reset, or its stream was closed)")
            self.end(request, FinishEvent("cancelled", request.text.finish(), error=error))

    def time_left(self) -> float | None:
        """Seconds until the first running request's time is over, or None without a timeout."""
        if not self.deadlines:
            return None
        ends = [
            request.submitted + request.generation.timeout
            for request in self.running
            if request.generation.timeout is not None
        ]
        return max(0.0, min(ends) - time.perf_counter()) if ends else None

    def expire(self) -> None:
        """Fail the requests whose time is over."""
        now = time.perf_counter()
        for request in self.everything:
            timeout = request.generation.timeout
            if timeout is not None and now - request.submitted > timeout:
                message = f"the request took longer than timeout={timeout} seconds"
                self.fail(request, GenerationTimeout(message))


_STATES = {"cancelled": RequestState.CANCELLED, "error": RequestState.FAILED}


def _turn(request: Request) -> tuple[int, int]:
    return request.priority, request.number
