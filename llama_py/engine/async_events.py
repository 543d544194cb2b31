"""``AsyncEvents``: the events of one call, for an event loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Sequence

from llama_py.engine.driver import Driver
from llama_py.engine.events import Box
from llama_py.engine.loop import MOST_EVENTS, Command
from llama_py.engine.request import Event, FinishEvent, GenerationRequest, Output, Record

__all__ = ["AsyncEvents"]


class _Bell:
    """Calls an event loop once for everything that came since it last looked."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._waiting: deque[asyncio.Event] = deque()
        self._rung = False

    def ring(self, arrived: asyncio.Event) -> None:
        """Let ``arrived`` be set in the loop. Called by the threads of engines."""
        self._waiting.append(arrived)
        loop = self._loop()
        if self._rung or loop is None:
            return
        self._rung = True
        try:
            loop.call_soon_threadsafe(self._look)
        except RuntimeError:  # the loop was closed, and nobody reads any more
            self._rung = False
            self._waiting.clear()

    def _look(self) -> None:
        self._rung = False
        while self._waiting:
            self._waiting.popleft().set()


_bells: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Bell] = weakref.WeakKeyDictionary()
_bells_lock = threading.Lock()


def _bell_of(loop: asyncio.AbstractEventLoop) -> _Bell:
    with _bells_lock:
        if loop not in _bells:
            _bells[loop] = _Bell(loop)
        return _bells[loop]


class _LoopBox(Box):
    """The owner is a task of an event loop."""

    def __init__(self, unfinished: int, whole: bool, bell: _Bell) -> None:
        super().__init__(unfinished, whole)
        self.arrived = asyncio.Event()
        self.unread: deque[Output] = deque()
        self._bell = bell

    def _pass_on(self, outputs: list[Output]) -> None:
        self.unread.extend(outputs)
        self._bell.ring(self.arrived)


class AsyncEvents(AsyncIterator[tuple[int, Event]]):
    """Submits requests, and iterates over (index of the request, event) until all have ended.

    It may be made by any thread; only tasks of ``loop`` may iterate, one at a time. Dropping it
    cancels what is still running.

    Args:
        driver: where to submit.
        requests: the requests of one call.
        loop: whose tasks read the events.
        whole: wait for the end: events are all there at once.
        first: see ``Driver.submit``.

    Attributes:
        records: what is known of each request.
        unfinished: requests whose last event was not read yet.

    Raises:
        as ``Driver.submit``.
    """

    def __init__(
        self,
        driver: Driver,
        requests: Sequence[GenerationRequest],
        loop: asyncio.AbstractEventLoop,
        *,
        whole: bool = False,
        first: Command | None = None,
    ) -> None:
        self._driver = driver
        self._box = _LoopBox(len(requests), whole, _bell_of(loop))
        self.unfinished = len(requests)
        self._box.owner = weakref.ref(self)
        self._ticket = driver.submit(requests, self._box, read_here=False, first=first)
        self.records: list[Record] = self._ticket.records

    async def __anext__(self) -> tuple[int, Event]:
        while not self._box.unread:
            if not self.unfinished:
                raise StopAsyncIteration
            await self._wait()
        return self._take()

    async def some(self) -> list[tuple[int, Event]]:
        """Wait for events, and take all that are there; none after ``wake``, or after the end."""
        if not self._box.unread and self.unfinished:
            await self._wait()
        return self.ready()

    def ready(self) -> list[tuple[int, Event]]:
        """Those that are there already."""
        return [self._take() for _ in range(len(self._box.unread))]

    def wake(self) -> None:
        """Let the task that waits in ``some`` go on, in the event loop's thread."""
        self._box.arrived.set()

    async def _wait(self) -> None:
        box = self._box
        self._driver.check_process()
        box.arrived.clear()
        if not box.unread:
            await box.arrived.wait()

    def _take(self) -> tuple[int, Event]:
        box, ticket = self._box, self._ticket
        number, event = box.unread.popleft()
        box.taken += 1
        if ticket.paused and box.backlog < MOST_EVENTS:
            self._driver.resume(ticket)
        if type(event) is FinishEvent:
            self.unfinished -= 1
        return ticket.numbers.index(number), event

    def cancel(self) -> None:
        """End what is still running; its last events come all the same. Returns at once."""
        self._driver.cancel(self._ticket, wait=False)

    def __del__(self) -> None:
        if hasattr(self, "_ticket"):
            self.cancel()
