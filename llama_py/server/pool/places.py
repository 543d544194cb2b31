"""``Place``: what the pool remembers about a model, and ``Waiter``: who waits for one."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from llama_py.dialects.failures import RequestError
from llama_py.server.pool.served_model import ModelStatus, ServedModel

__all__ = ["Backoff", "Place", "PoolCounters", "Waiter"]

#: What a model still takes of those who come later than somebody whom it has to make room for.
_TURN_REQUESTS, _TURN_SECONDS = 16, 2.0
#: Seconds until a model that could not be loaded is tried again: doubled each time, up to the last.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0


@dataclass(slots=True)
class PoolCounters:
    """Counts since the start.

    Attributes:
        loads: models that were loaded; it took ``load_seconds`` in all.
        failures: loads that failed.
        unloads: models that were unloaded, for whatever reason; ``evictions`` of them to make
            room for others.
        timeouts: requests that waited too long.
    """

    loads: int = 0
    load_seconds: float = 0.0
    failures: int = 0
    unloads: int = 0
    evictions: int = 0
    timeouts: int = 0


class Place:
    """The pool's record of one model.

    Attributes:
        backoff, error: after a load that failed.
        leases: those who use it.
        idle_seconds: after so long without use it is unloaded; None: never.
        used, loaded: when somebody last asked for it or had it, and when it was loaded.
        cramped: there was too little memory for it beside the others.
        timer: unloads it when it was idle for long enough.
    """

    def __init__(self, model: ServedModel, idle_seconds: float | None) -> None:
        self.model = model
        self.idle_seconds = idle_seconds
        self.backoff = Backoff()
        self.error: Exception | None = None
        self.leases = 0
        self.used = self.loaded = 0.0
        self.cramped = False
        self.timer: asyncio.TimerHandle | None = None
        self._turn_left = _TURN_REQUESTS
        self._turn_ends: float | None = None

    @property
    def status(self) -> ModelStatus:
        return self.model.status

    def begin_turn(self) -> None:
        """Somebody waits for it to go."""
        if self._turn_ends is None:
            self._turn_left, self._turn_ends = _TURN_REQUESTS, time.monotonic() + _TURN_SECONDS

    def end_turn(self) -> None:
        """Nobody does any more."""
        self._turn_ends = None

    def takes_one_more(self) -> bool:
        """Whether its turn has room for another request, which is counted."""
        if self._turn_ends is None:
            return True
        self._turn_left -= 1
        return self._turn_left >= 0 and time.monotonic() < self._turn_ends

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


@dataclass(eq=False, slots=True)
class Waiter:
    """Somebody in the queue.

    Attributes:
        wants: what the model has to be: loaded for a lease, or unloaded.
        served: done when it is; a lease is counted by then.
    """

    place: Place
    wants: ModelStatus
    served: asyncio.Future[None]

    def refuse(self, error: RequestError) -> None:
        if not self.served.done():
            self.served.set_exception(error)


class Backoff:
    """How long a model is left alone that could not be loaded."""

    def __init__(self) -> None:
        self._pause = 0.0
        self._until = 0.0

    def failed(self) -> None:
        """It failed again."""
        self._pause = min(max(_FIRST_PAUSE, self._pause * 2), _LONGEST_PAUSE)
        self._until = time.monotonic() + self._pause

    def worked(self) -> None:
        """It did not fail this time."""
        self._pause = self._until = 0.0

    def left(self) -> float:
        """Seconds until it may be tried again."""
        return max(0.0, self._until - time.monotonic())
