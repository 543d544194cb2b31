"""``Lifecycle``: whether the server is loading, ready or draining, and what it is doing.

One event loop uses it. ``guard`` asks it whether to let a request in and tells it about each one;
``serve`` moves it on. It never waits itself.
"""

from __future__ import annotations

import asyncio
from enum import Enum

from llama_py.dialects.failures import Failure, Kind
from llama_py.server.records import RequestRecord

__all__ = ["Lifecycle", "Phase"]

#: Seconds after which to try again.
_RETRY = {"loading": 2, "draining": 5}


class Phase(Enum):
    """What the server is doing as a whole."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"


class Lifecycle:
    """See the module.

    Attributes:
        phase: where it is. It begins as ready: who loads first says so.
        live: the requests in flight.
    """

    def __init__(self) -> None:
        self.phase = Phase.READY
        self.live: set[RequestRecord] = set()
        self._idle: asyncio.Event | None = None

    def refusal(self) -> Failure | None:
        """Why no request is let in now, or None."""
        if self.phase is Phase.READY:
            return None
        if self.phase is Phase.LOADING:
            return Failure(Kind.UNAVAILABLE, "Loading model", retry_after=_RETRY["loading"])
        message = "the server is about to stop; try again later"
        return Failure(Kind.UNAVAILABLE, message, retry_after=_RETRY["draining"])

    def begin(self, record: RequestRecord) -> None:
        """A request was let in."""
        self.live.add(record)

    def end(self, record: RequestRecord) -> None:
        """A request is over."""
        self.live.discard(record)
        if self._idle is not None and not self.live:
            self._idle.set()

    async def until_idle(self, seconds: float) -> bool:
        """Wait until no request is in flight; False if that took longer."""
        if not self.live:
            return True
        self._idle = asyncio.Event()
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        finally:
            self._idle = None
        return True

    def abort(self) -> int:
        """End what is in flight, each reply in the form of its dialect; how many there were."""
        failure = Failure(Kind.UNAVAILABLE, "the server stopped before this reply was complete")
        live = [*self.live]
        for record in live:
            record.abort(failure)
        return len(live)
