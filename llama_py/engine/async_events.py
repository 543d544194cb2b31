"""``AsyncEvents``: the events of one call, for an event loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from llama_py.engine.loop import MOST_EVENTS
from llama_py.engine.mailbox import Command, Mailbox
from llama_py.engine.port import EnginePort
from llama_py.engine.request import Event, FinishEvent, GenerationRequest, Output, Record

__all__ = ["AsyncEvents"]


class _Bell:
    """Calls an event loop once for everything that came since it last looked."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._filled: deque[_TaskMailbox] = deque()
        self._rung = False

    def note(self, mailbox: _TaskMailbox) -> None:
        """There is something in a mailbox. Called by the threads of engines."""
        self._filled.append(mailbox)

    def ring(self) -> None:
        """Let the owners of those mailboxes be woken in the loop."""
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


class _TaskMailbox(Mailbox):
    """The owner is a task of an event loop."""

    def __init__(self, whole: bool, bell: _Bell) -> None:
        super().__init__(whole)
        self.unread: deque[Output] = deque()
        #: What the owner waits for, if it does.
        self.waiter: asyncio.Future[None] | None = None
        #: Takes what has come in the owner's place, and says whether that was all there is to do.
        self.proxy: Callable[[], bool] | None = None
        self._note, self.bell = bell.note, bell.ring

    def wake(self) -> None:
        """Let the owner go on if it waits. Called in the event loop."""
        waiter = self.waiter
        if waiter is None or waiter.done():
            return
        if self.proxy is None or not self.proxy():
            waiter.set_result(None)

    def _pass_on(self, outputs: list[Output]) -> None:
        self.unread.extend(outputs)
        self._note(self)


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
        driver: EnginePort,
        requests: Sequence[GenerationRequest],
        loop: asyncio.AbstractEventLoop,
        *,
        whole: bool = False,
        first: Command | None = None,
    ) -> None:
        self._driver = driver
        with _bells_lock:
            if loop not in _bells:
                _bells[loop] = _Bell(loop)
            bell = _bells[loop]
        self._mailbox = mailbox = _TaskMailbox(whole, bell)
        self.unfinished = len(requests)
        mailbox.owner = weakref.ref(self)
        driver.submit(requests, mailbox, read_here=False, first=first)
        self.records: list[Record] = mailbox.records

    async def __anext__(self) -> tuple[int, Event]:
        while not self._mailbox.unread:
            if not self.unfinished:
                raise StopAsyncIteration
            await self._wait()
        return self._take(1)[0]

    async def some(self) -> list[tuple[int, Event]]:
        """Wait for events, and take all that are there; none after ``wake``, or after the end."""
        if not self._mailbox.unread and self.unfinished:
            await self._wait()
        return self.ready()

    def ready(self) -> list[tuple[int, Event]]:
        """Those that are there already."""
        return self._take(len(self._mailbox.unread))

    def wake(self) -> None:
        """Let the task that waits in ``some`` go on, in the event loop's thread."""
        self._mailbox.wake()

    def handle(self, proxy: Callable[[], bool] | None) -> None:
        """Call ``proxy`` in place of waking the task that waits in ``some``.

        To wake a task costs more than what a stream does with an event.

        Args:
            proxy: takes what is ``ready``, in the event loop's thread, and must not raise; the task
                is woken all the same if it returns False. None: it is always woken.
        """
        self._mailbox.proxy = proxy

    async def _wait(self) -> None:
        self._driver.check_process()
        mailbox = self._mailbox
        mailbox.waiter = asyncio.get_running_loop().create_future()
        try:
            if not mailbox.unread:
                await mailbox.waiter
        finally:
            mailbox.waiter = None

    def _take(self, count: int) -> list[tuple[int, Event]]:
        mailbox = self._mailbox
        next_output, numbers = mailbox.unread.popleft, mailbox.numbers
        taken: list[tuple[int, Event]] = []
        for _ in range(count):
            number, event = next_output()
            taken.append((0 if len(numbers) == 1 else numbers.index(number), event))
            if type(event) is FinishEvent:
                self.unfinished -= 1
        mailbox.taken += count
        if mailbox.paused and mailbox.backlog < MOST_EVENTS:
            self._driver.resume(mailbox)
        return taken

    def cancel(self) -> None:
        """End what is still running; its last events come all the same. Returns at once."""
        self._driver.cancel(self._mailbox, wait=False)

    def __del__(self) -> None:
        if hasattr(self, "records"):
            self.cancel()
