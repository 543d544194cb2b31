"""``RequestsInFlight``: requests that the other process of a model has, and the calls they are of.

What comes for them is handed to the mailboxes of their calls, as an engine's thread would do it;
and nothing that comes is believed. They end here where the other process cannot end them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from llama_py.api.isolation.messages import Down, Row, note_event
from llama_py.engine.loop import MOST_EVENTS
from llama_py.engine.mailbox import Mailbox
from llama_py.engine.request import FinishEvent, Output, Record
from llama_py.errors import EngineDeadError, GenerationTimeout, LlamaError

__all__ = ["RequestsInFlight"]

#: Seconds that a request may run for longer than its own limit.
SLACK = 2.0
#: Characters of a reply, and of each of its tokens on top: more than any vocabulary has.
_CHARACTERS, _EACH = 1 << 16, 1 << 12


@dataclass(slots=True, eq=False)
class _Request:
    number: int
    call: int
    mailbox: Mailbox
    record: Record
    cancelled: bool = False
    characters: int = 0


class RequestsInFlight:
    """See the module. May be used by any thread.

    Args:
        send: tell the other process something about a call.

    Attributes:
        most: tokens that no reply has more of.
        worked: one has ended as it should since this was set to False.
    """

    def __init__(self, send: Callable[[Down, int], None]) -> None:
        self.most = float("inf")
        self.worked = False
        self._send = send
        self._known: dict[int, _Request] = {}
        self._delivering = threading.RLock()

    def add(self, call: int, mailbox: Mailbox) -> None:
        """The requests of a call are sent now."""
        for number, record in zip(mailbox.numbers, mailbox.records, strict=True):
            self._known[number] = _Request(number, call, mailbox, record)

    def forget(self, numbers: Iterable[int]) -> None:
        """Nobody waits for these any more."""
        for number in numbers:
            self._known.pop(number, None)

    def forget_queued(self, calls: Collection[int]) -> None:
        """Forget requests of these calls that have not begun."""
        for request in [*self._known.values()]:
            if request.call in calls and not request.record.started:
                self._known.pop(request.number, None)

    def call_of(self, mailbox: Mailbox) -> int | None:
        """The number of the call of a mailbox, unless it has ended."""
        return next((each.call for each in self._of(mailbox)), None)

    def _of(self, mailbox: Mailbox) -> list[_Request]:
        found = (self._known.get(number) for number in mailbox.numbers)
        return [each for each in found if each is not None]

    # -- what comes -----------------------------------------------------------------------------

    def note_start(self, number: int, when: float, cache: Any, tokens: Any) -> None:
        """One has begun."""
        request = self._known.get(number)
        if request is not None:
            request.record.cache, request.record.started = cache, when
            if tokens is not None:
                request.record.tokens = tokens.tolist()

    def note_progress(self, number: int, done: int, total: int) -> None:
        """A part of its prompt is evaluated."""
        request = self._known.get(number)
        told = request.record.request.on_progress if request is not None else None
        if request is None or told is None:
            return
        try:
            told(done, total)
        except BaseException as error:  # it is the caller's, and reaches the caller
            self._send(Down.CANCEL, request.call)
            self._end([request], error)

    def hand_out(self, rows: list[Row]) -> None:
        """Give each call what came for it in one step."""
        shares: dict[Mailbox, list[Output]] = {}
        calls: dict[Mailbox, int] = {}
        with self._delivering:
            for row in rows:
                request = self._known.get(row[0])
                if request is None:  # its call was given up
                    continue
                mailbox = request.mailbox
                event = note_event(row, request.record)
                self._check_length(request, event.text)
                shares.setdefault(mailbox, []).append((row[0], event))
                calls[mailbox] = request.call
            self._deliver(shares, calls)

    def _check_length(self, request: _Request, text: str) -> None:
        """Raise for a reply that is longer than any, before it takes the memory."""
        generated = len(request.record.generated)
        request.characters += len(text)
        if generated > self.most:
            raise LlamaError("a reply has more tokens than its context could hold")
        if not isinstance(text, str) or request.characters > _CHARACTERS + _EACH * generated:
            raise LlamaError("a reply has more text than its tokens could be")

    def _deliver(self, shares: dict[Mailbox, list[Output]], calls: dict[Mailbox, int]) -> None:
        for mailbox, outputs in shares.items():
            for number in mailbox.deliver(outputs):
                request = self._known.pop(number, None)
                if request is not None and request.record.reason in ("stop", "length"):
                    self.worked = True
            if mailbox.ended.is_set():
                continue
            if mailbox.abandoned:
                self._send(Down.CANCEL, calls[mailbox])
            elif mailbox.backlog >= MOST_EVENTS and not mailbox.paused:
                mailbox.paused = True
                self._send(Down.PAUSE, calls[mailbox])
                if mailbox.backlog < MOST_EVENTS:  # its owner read meanwhile, and saw no pause
                    mailbox.paused = False
                    self._send(Down.RESUME, calls[mailbox])
        for bell in {mailbox.bell for mailbox in shares}:
            if bell is not None:
                bell()

    # -- their ends -----------------------------------------------------------------------------

    def cancel(self, mailbox: Mailbox) -> bool:
        """Have those of a call end; False if they have ended."""
        requests = self._of(mailbox)
        for each in requests:
            each.cancelled = True
        if requests:
            self._send(Down.CANCEL, requests[0].call)
        return bool(requests)

    def expire(self, silent: EngineDeadError | None) -> None:
        """End those that the other process should have ended by now.

        Args:
            silent: the error for those that were cancelled, if it gives no sign of life.
        """
        now = time.perf_counter()
        for request in [*self._known.values()]:
            record = request.record
            timeout = record.request.generation.timeout
            if request.cancelled and silent is not None:
                self._end([request], silent)
            elif timeout is not None and now > record.submitted + timeout + SLACK:
                self._send(Down.CANCEL, request.call)
                message = f"the request took longer than timeout={timeout} seconds"
                self._end([request], GenerationTimeout(message))

    def end_all(self, error: BaseException) -> None:
        """End all of them with an error."""
        self._end([*self._known.values()], error)

    def _end(self, requests: Iterable[_Request], error: BaseException) -> None:
        shares: dict[Mailbox, list[Output]] = {}
        calls: dict[Mailbox, int] = {}
        with self._delivering:
            for request in requests:
                if request.number not in self._known:  # it has ended just now
                    continue
                record = request.record
                record.reason, record.ended = "error", time.perf_counter()
                record.request = record.request.without_callbacks()
                ended = request.number, FinishEvent("error", error=error)
                shares.setdefault(request.mailbox, []).append(ended)
                calls[request.mailbox] = request.call
            self._deliver(shares, calls)
