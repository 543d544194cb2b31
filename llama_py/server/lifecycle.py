"""``Lifecycle``: whether the server is loading, ready or draining, and how much is in flight.

One event loop uses it. ``guard`` asks it whether to let a request in and tells it about each one;
``serve`` moves it on.
"""

from __future__ import annotations

import asyncio
from enum import Enum

from llama_py.dialects.failures import Failure, Kind

__all__ = ["Lifecycle", "Phase"]

#: Seconds after which to try again.
_WHILE_LOADING, _WHILE_DRAINING = 2.0, 5.0


class Phase(Enum):
    """The state of the server as a whole."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"


class Lifecycle:
    """The phase of the server, and how much is in flight.

    Attributes:
        phase: where it is. It begins as ready: who loads a model first says so.
        in_flight: requests that were let in and are not over.
    """

    def __init__(self) -> None:
        self.phase = Phase.READY
        self.in_flight = 0
        self._idle: asyncio.Event | None = None
        self._over = asyncio.Event()

    def refusal(self) -> Failure | None:
        """Why no request is let in now, or None."""
        if self.phase is Phase.READY:
            return None
        if self.phase is Phase.LOADING:  # llama-server's words, which its clients wait for
            return Failure(Kind.UNAVAILABLE, "Loading model", retry_after=_WHILE_LOADING)
        message = "the server is about to stop; try again later"
        return Failure(Kind.UNAVAILABLE, message, retry_after=_WHILE_DRAINING)

    def begin(self) -> None:
        """A request was let in."""
        self.in_flight += 1

    def end(self) -> None:
        """A request is over."""
        self.in_flight -= 1
        if self._idle is not None and not self.in_flight:
            self._idle.set()

    async def until_idle(self, seconds: float) -> bool:
        """Wait until no request is in flight; False if that takes longer."""
        if not self.in_flight:
            return True
        self._idle = asyncio.Event()
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        finally:
            self._idle = None
        return True

    def give_up(self) -> None:
        """The time for draining is over: what is still in flight has to end."""
        self._over.set()

    async def until_over(self) -> None:
        """Wait until that is so."""
        await self._over.wait()

    def interrupted(self) -> Failure:
        """The error for the client of a request that has to end."""
        message = "the server stopped before this reply was complete"
        return Failure(Kind.UNAVAILABLE, message, retry_after=_WHILE_DRAINING)
