"""``Events``: the events of one call, for a thread that waits for them."""

from __future__ import annotations

import queue
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from typing_extensions import Self

from llama_py.engine.driver import Driver
from llama_py.engine.loop import LOOK, MOST_EVENTS, Command
from llama_py.engine.request import Event, FinishEvent, GenerationRequest, Output, Record

__all__ = ["Box", "Events"]


def _nobody() -> None:
    """Whom a mailbox belongs to at first."""


class Box(ABC):
    """The mailbox of a call. Subclasses say how its owner is woken.

    Args:
        unfinished: requests whose ends are awaited.
        whole: nothing is passed on before the last of them has ended or one has failed, so that
            the owner is woken once.

    Attributes:
        taken: events that the owner has read.
        owner: who reads them.
    """

    def __init__(self, unfinished: int, whole: bool) -> None:
        self.taken = 0
        self.owner: Callable[[], object] = _nobody
        self._delivered = 0
        self._unfinished = unfinished
        self._kept: list[Output] | None = [] if whole else None

    @property
    def bell(self) -> Command | None:
        """See ``Mailbox``."""
        return None

    @property
    def whole(self) -> bool:
        """See ``Mailbox``."""
        return self._kept is not None

    @property
    def abandoned(self) -> bool:
        """True if the owner is gone: it was dropped, or an interrupt came before it was made."""
        return self.owner() is None

    @property
    def backlog(self) -> int:
        """Events that the owner has not read yet; those that are kept back do not count."""
        return self._delivered - self.taken

    def deliver(self, outputs: list[Output]) -> None:
        """Take the outputs of a step."""
        if self._kept is None:
            self._delivered += len(outputs)
            self._pass_on(outputs)
            return
        self._kept += outputs
        ends = [event for _, event in outputs if type(event) is FinishEvent]
        self._unfinished -= len(ends)
        if ends and (not self._unfinished or any(event.error for event in ends)):
            kept, self._kept = self._kept, []
            self._pass_on(kept)

    @abstractmethod
    def _pass_on(self, outputs: list[Output]) -> None:
        """Give outputs to the owner, and wake it, unless that is what ``bell`` does."""


class _ThreadBox(Box):
    """The owner is a thread, which waits for ``arrived``."""

    def __init__(self, unfinished: int, whole: bool) -> None:
        super().__init__(unfinished, whole)
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
        driver: Driver,
        requests: Sequence[GenerationRequest],
        *,
        whole: bool = False,
        first: Command | None = None,
    ) -> None:
        self._driver = driver
        self._box = _ThreadBox(len(requests), whole)
        self._unread: deque[Output] = deque()
        self._unfinished = len(requests)
        self._box.owner = weakref.ref(self)
        self._ticket = driver.submit(requests, self._box, first=first)
        self._first = self._ticket.numbers[0]
        self.records: list[Record] = self._ticket.records

    def __next__(self) -> tuple[int, Event]:
        while not self._unread:
            if not self._unfinished:
                raise StopIteration
            self._take()
        number, event = self._unread.popleft()
        if type(event) is FinishEvent:
            self._unfinished -= 1
        return self._ticket.numbers.index(number) if number != self._first else 0, event

    def _take(self) -> None:
        """Wait for the outputs of a step."""
        driver, box, ticket = self._driver, self._box, self._ticket
        driver.wait_for(lambda: not box.arrived.empty())
        while True:
            try:
                outputs = box.arrived.get(timeout=LOOK)
            except queue.Empty:
                driver.check_alive()
                if not self._unfinished:  # another thread has read the end
                    return
            else:
                break
        self._unread.extend(outputs)
        box.taken += len(outputs)
        if ticket.paused and box.backlog < MOST_EVENTS:
            driver.resume(ticket)

    def close(self, *, wait: bool = True) -> None:
        """Cancel what is still running.

        Args:
            wait: return when it has ended (see ``Driver.cancel``).
        """
        self._driver.cancel(self._ticket, wait=wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After Ctrl-C nobody wants to wait for a step.
        self.close(wait=kind is None or issubclass(kind, (Exception, GeneratorExit)))

    def __del__(self) -> None:
        if hasattr(self, "_ticket"):  # whatever this thread is doing: do not wait for the engine
            self.close(wait=False)
