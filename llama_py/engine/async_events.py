"""``AsyncEvents``: the events of one call, for an event loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from llama_py.engine.driver import Driver
from llama_py.engine.events import Box
from llama_py.engine.loop import MOST_EVENTS, Command
from llama_py.engine.request import Event, FinishEvent, GenerationRequest, Output, Record

__all__ = ["AsyncEvents"]


class _Bell:
    """Calls an event loop once for everything that came since it last looked."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._filled: deque[_LoopBox] = deque()
        self._rung = False

    def note(self, box: _LoopBox) -> None:
        """There is something in a box. Called by the threads of engines."""
        self._filled.append(box)

    def ring(self) -> None:
        """Let the owners of those boxes be woken in the loop."""
        loop = self._loop()
        if self._rung or loop is None:
            return
        self._rung = True
        try:
            loop.call_soon_threadsafe(self._look)
        except RuntimeError:  # the loop was closed, and nobody reads any more
            self._rung = False
            self._filled.clear()

    def _look(self) -> None:
        self._rung = False
        while self._filled:
            self._filled.popleft().wake()


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
        self.unread: deque[Output] = deque()
        #: What the owner waits for, if it does.
        self.waiter: asyncio.Future[None] | None = None
        #: Takes what has come in the owner's place, and says whether that was all there is to do.
        self.proxy: Callable[[], bool] | None = None
        self._bell = bell

    @property
    def bell(self) -> Command:
        return self._bell.ring

    def wake(self) -> None:
        """Let the owner go on if it waits. Called in the event loop."""
        waiter = self.waiter
        if waiter is None or waiter.done():
            return
        if self.proxy is None or not self.proxy():
            waiter.set_result(None)

    def _pass_on(self, outputs: list[Output]) -> None:
        self.unread.extend(outputs)
        self._bell.note(self)


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
        return self._take(1)[0]

    async def some(self) -> list[tuple[int, Event]]:
        """Wait for events, and take all that are there; none after ``wake``, or after the end."""
        if not self._box.unread and self.unfinished:
            await self._wait()
        return self.ready()

    def ready(self) -> list[tuple[int, Event]]:
        """Those that are there already."""
        return self._take(len(self._box.unread))

    def wake(self) -> None:
        """Let the task that waits in ``some`` go on, in the event loop's thread."""
        self._box.wake()

    def handle(self, proxy: Callable[[], bool] | None) -> None:
        """Call ``proxy`` in place of waking the task that waits in ``some``.

        To wake a task costs more than what a stream does with an event.

        Args:
            proxy: takes what is ``ready``, in the event loop's thread, and must not raise; the task
                is woken all the same if it returns False. None: it is always woken.
        """
        self._box.proxy = proxy

    async def _wait(self) -> None:
        self._driver.check_process()
        box = self._box
        box.waiter = asyncio.get_running_loop().create_future()
        try:
            if not box.unread:
                await box.waiter
        finally:
            box.waiter = None

    def _take(self, count: int) -> list[tuple[int, Event]]:
        box, ticket = self._box, self._ticket
        next_output, numbers = box.unread.popleft, ticket.numbers
        taken: list[tuple[int, Event]] = []
        for _ in range(count):
            number, event = next_output()
            taken.append((0 if len(numbers) == 1 else numbers.index(number), event))
            if type(event) is FinishEvent:
                self.unfinished -= 1
        box.taken += count
        if ticket.paused and box.backlog < MOST_EVENTS:
            self._driver.resume(ticket)
        return taken

    def cancel(self) -> None:
        """End what is still running; its last events come all the same. Returns at once."""
        self._driver.cancel(self._ticket, wait=False)

    def __del__(self) -> None:
        if hasattr(self, "_ticket"):
            self.cancel()
