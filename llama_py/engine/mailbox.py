"""``Mailbox``: a call that was submitted, and what came of its requests for whoever reads it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from llama_py.engine.request import FinishEvent, Output, Record

__all__ = ["Command", "Mailbox"]

Command = Callable[[], None]


def _nobody() -> None:
    """Whom a mailbox belongs to at first."""


class Mailbox(ABC):
    """Takes the outputs of one call, once per step. Subclasses say how its owner is woken.

    Args:
        whole: nothing is passed on before the last of its requests has ended or one has failed, so
            that the owner is woken once.

    Attributes:
        numbers: the numbers of its requests in outputs, in the order of the call.
        records: what is known of each.
        open: the numbers of those whose last event was not delivered yet.
        ended: set when the last event of the last request was delivered.
        paused: its requests are left out of the steps, because nobody reads what comes.
        thread: the thread that submitted it, if that is the one to read its outputs, or None.
        whole: see above.
        taken: events that the owner has read.
        owner: who reads them.
        bell: wakes the owner, and those of all mailboxes with the same bell: called once, when
            everybody has got what a step made. None if ``deliver`` wakes the owner.
    """

    def __init__(self, whole: bool) -> None:
        self.numbers: list[int] = []
        self.records: list[Record] = []
        self.open: set[int] = set()
        self.ended = threading.Event()
        self.paused = False
        self.thread: int | None = None
        self.whole = whole
        self.taken = 0
        self.owner: Callable[[], object] = _nobody
        self.bell: Command | None = None
        self._delivered = 0
        self._kept: list[Output] = []

    def expect(self, numbers: Sequence[int], records: Sequence[Record], thread: int | None) -> None:
        """Take the outputs of the requests of these numbers, which are about to be queued."""
        self.numbers = [*numbers]
        self.records = [*records]
        self.open = {*self.numbers}
        self.thread = thread

    @property
    def abandoned(self) -> bool:
        """True if the owner is gone: it was dropped, or an interrupt came before it was made."""
        return self.owner() is None

    @property
    def backlog(self) -> int:
        """Events that the owner has not read yet; those that are kept back do not count."""
        return self._delivered - self.taken

    def deliver(self, outputs: list[Output]) -> list[int]:
        """Take the outputs of a step, in the engine's thread.

        Returns:
            The numbers of the requests that have ended with them.
        """
        ended = [number for number, event in outputs if type(event) is FinishEvent]
        if not self.whole:
            self._delivered += len(outputs)
            self._pass_on(outputs)
        else:
            self._kept += outputs
            if ended:
                failed = any(type(event) is FinishEvent and event.error for _, event in outputs)
                if failed or self.open.issubset(ended):
                    self._pass_on(self._kept)
                    self._kept = []
        # Last: if an interrupt comes before, a request ends once more, and no end is lost.
        self.open.difference_update(ended)
        if ended and not self.open:
            self.ended.set()
        return ended

    @abstractmethod
    def _pass_on(self, outputs: list[Output]) -> None:
        """Give outputs to the owner, and wake it, unless that is what ``bell`` does.

        It must return at once, and not raise.
        """
