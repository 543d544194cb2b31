"""``Events``: the events of one call, for a thread that waits for them."""

from __future__ import annotations

import queue
import weakref
from collections import deque
from collections.abc import Iterator, Sequence

from typing_extensions import Self

from llama_py.engine.loop import LOOK, MOST_EVENTS
from llama_py.engine.mailbox import Command, Mailbox
from llama_py.engine.port import EnginePort
from llama_py.engine.request import Event, FinishEvent, GenerationRequest, Output, Record

__all__ = ["Events"]


class _ThreadMailbox(Mailbox):
    """The owner is a thread, which waits for ``arrived``."""

    def __init__(self, whole: bool) -> None:
        super().__init__(whole)
        self.arrived: queue.SimpleQueue[list[Output]] = queue.SimpleQueue()

    def _pass_on(self, outputs: list[Output]) -> None:
        self.arrived.put(outputs)


class Events(Iterator[tuple[int, Event]]):
    """Submits requests, and iterates over (index of the request, event) until all have ended.

    Closing or dropping it cancels what is still running.

    Args:
        driver: where to submit.
        requests: the requests of one call.
        whole: wait for the end: events are all there at once.
        first: see ``Driver.submit``.

    Attributes:
        records: what is known of each request.

    Raises:
        as ``Driver.submit``.
    """

    def __init__(
        self,
        driver: EnginePort,
        requests: Sequence[GenerationRequest],
        *,
        whole: bool = False,
        first: Command | None = None,
    ) -> None:
        self._driver = driver
        self._mailbox = mailbox = _ThreadMailbox(whole)
        self._unread: deque[Output] = deque()
        mailbox.owner = weakref.ref(self)
        driver.submit(requests, mailbox, first=first)
        self._first = mailbox.numbers[0]
        self._unfinished = {*mailbox.numbers}
        self.records: list[Record] = mailbox.records

    def __next__(self) -> tuple[int, Event]:
        while True:
            while not self._unread:
                if not self._unfinished:
                    raise StopIteration
                self._take()
            number, event = self._unread.popleft()
            if type(event) is not FinishEvent:
                break
            if number in self._unfinished:  # not after an interrupt, which may end one once more
                self._unfinished.remove(number)
                break
        return self._mailbox.numbers.index(number) if number != self._first else 0, event

    def _take(self) -> None:
        """Wait for the outputs of a step."""
        driver, mailbox = self._driver, self._mailbox
        driver.wait_for(lambda: not mailbox.arrived.empty())
        while True:
            try:
                outputs = mailbox.arrived.get(timeout=LOOK)
            except queue.Empty:
                driver.check_alive()
                if not self._unfinished:  # another thread has read the end
                    return
            else:
                break
        self._unread.extend(outputs)
        mailbox.taken += len(outputs)
        if mailbox.paused and mailbox.backlog < MOST_EVENTS:
            driver.resume(mailbox)

    def close(self, *, wait: bool = True) -> None:
        """Cancel what is still running.

        Args:
            wait: return when it has ended (see ``Driver.cancel``).
        """
        if not self._mailbox.ended.is_set():
            self._driver.cancel(self._mailbox, wait=wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After Ctrl-C nobody wants to wait for a step.
        self.close(wait=kind is None or issubclass(kind, (Exception, GeneratorExit)))

    def __del__(self) -> None:
        if hasattr(self, "records"):  # whatever this thread is doing: do not wait for the engine
            self.close(wait=False)
