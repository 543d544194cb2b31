"""``Loop``: what the engine's thread does: commands, steps, and outputs to whom they belong."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from llama_py.engine.engine import Engine
from llama_py.engine.generation import Generation
from llama_py.engine.mailbox import Command, Mailbox
from llama_py.engine.request import FinishEvent, Output
from llama_py.errors import ClosedError, DeviceLostError

__all__ = ["CLOSED", "LOOK", "MOST_EVENTS", "EngineJob", "Loop"]

_log = logging.getLogger("llama_py")
T = TypeVar("T")

#: Events a consumer may leave unread before its request is paused.
MOST_EVENTS = 256
#: Seconds between two looks at whether what is waited for can still come.
LOOK = 0.5
#: Most seconds in one wait: a timeout may be longer than what a clock can express.
_LONGEST = 3600.0
#: Seconds without a request after which the engine copies ahead what will have to make room.
_PAUSE = 0.05
#: Seconds that the end of the process waits for a store to write what was left.
_LAST_MOMENTS = 10.0
#: Steps, and seconds of them, that may be made at once for whole replies: time that nobody sees,
#: so that the engine does not spend it on thread switches, and on Python whose code and data the
#: last step has taken out of the caches. A command of another thread waits for the step in progress
#: and no longer; where the caller makes the steps, Ctrl-C waits for all of them.
_WHOLE, _WHOLE_IN_PLACE = (64, 0.1), (64, 0.03)
#: The same for streams: thirty times a second, so that text still flows; the first token comes
#: alone. What a hand-over costs all threads and the reader together, a millisecond in a server, is
#: three percent of a reply where a token takes 8 ms and two are handed over at a time.
#: In place, handing over costs little.
_STREAM, _STREAM_IN_PLACE = (64, 0.033), (1, 0.0)
CLOSED = "the model was closed while this request was running"


class EngineJob(Generic[T]):
    """A function that a caller waits for.

    Attributes:
        wanted: False when the caller has left.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function: Callable[[], T] | None = function
        self._done = threading.Lock()
        self._done.acquire()
        self._result: list[T] = []
        self._error: BaseException | None = None
        self.wanted = True

    def __call__(self) -> None:
        """Run it in the engine's thread, unless its caller has left."""
        function, self._function = self._function, None  # which may refer to this job
        try:
            if self.wanted and function is not None:
                self._result.append(function())
        except BaseException as error:
            self._error = error
        finally:
            del function
            self._done.release()

    @property
    def done(self) -> bool:
        """True when it has returned or raised, or never will."""
        return not self._done.locked()

    def wait(self, alive: Callable[[], bool]) -> T:
        """The function's result; its error is raised."""
        while not self._done.acquire(timeout=LOOK):
            if not alive():
                raise ClosedError(CLOSED)
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # whose traceback refers to this frame
        return self._result[0]


class Loop:
    """What the engine's thread works with. It does not refer to the driver, whose end ends it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        #: The mailbox of each request in flight, by the request's number.
        self.mailboxes: dict[int, Mailbox] = {}
        self.stopped = False
        #: The thread that works with it, and that it has begun to.
        self.thread: threading.Thread | None = None
        self.begun = threading.Event()
        self._working = threading.Lock()
        #: Jobs that wait until nothing is in flight, and calls that wait for those.
        self._quiet: deque[EngineJob[Any]] = deque()
        self._held: deque[tuple[Sequence[Generation], Mailbox]] = deque()

    def run(self) -> None:
        """Run commands and step, until ``stop``; of several threads, only the first does."""
        if not self._working.acquire(blocking=False):
            return
        self.thread = threading.current_thread()
        self.begun.set()
        while not self.stopped:
            if self.has_commands():
                self.obey()
            elif not self.step():
                self._await_command()
        self.obey()  # who comes too late finds the engine closed

    def _await_command(self) -> None:
        """Wait for a command, or until somebody's time is over.

        Whoever goes on at once with a conversation that just ended finds the engine waiting; a
        little later it uses the time.
        """
        ends = [end for end in map(_end_of, self._held) if end is not None]
        left = [max(0.0, min(ends) - self.engine.clock())] if ends else []
        first, ahead = self.engine.requests.time_left(), self.engine.may_copy_ahead
        if first is not None:
            left.append(first)
        if ahead:
            left.append(_PAUSE)
        timeout = min(*left, _LONGEST) if left else None
        try:
            command = self.commands.get(timeout=timeout)
        except queue.Empty:
            if ahead:
                self.engine.copy_ahead()
        else:
            self._run_command(command)

    def has_commands(self) -> bool:
        """Whether commands have come. Those that come from now on are waited for (``hurry``)."""
        self.engine.runner.hurry(False)
        return not self.commands.empty()

    def obey_without_thread(self) -> bool:
        """``obey``, in a thread of the caller's; False if there is one that does."""
        if not self._working.acquire(blocking=False):
            return False
        try:
            self.obey()
        finally:
            self._working.release()
        return True

    def obey(self) -> None:
        """Run the commands that have come."""
        with suppress(queue.Empty):
            while True:
                self._run_command(self.commands.get_nowait())

    def _run_command(self, command: Command) -> None:
        try:
            command()
        except Exception:  # of what nobody waits for; the thread must live on
            _log.exception("a command to the engine failed")
        self._hand_out(self.engine.take_outputs())
        if self._quiet:
            self._use_the_quiet()

    def step(self) -> bool:
        """One step; False if there was nothing to do."""
        if self._held:  # calls whose time was over before they could begin are told so
            now, ends = self.engine.clock(), [(_end_of(entry), entry) for entry in self._held]
            self._begin_held([entry for end, entry in ends if end is not None and now > end])
        try:
            outputs = self.engine.step()
        except DeviceLostError as error:  # each request that comes learns it again
            _log.error("%s", error)
            self.engine.fail_all(error)
            outputs = self.engine.take_outputs()
        except Exception as error:  # a fault of ours, of which nobody else would ever hear
            _log.exception("a step of the engine failed")
            self.engine.fail_all(error)
            outputs = self.engine.take_outputs()
        self._hand_out(outputs)
        if self._quiet:
            self._use_the_quiet()
        return bool(outputs) or self.engine.worked

    def _hand_out(self, outputs: list[Output]) -> None:
        """Give each call what came for it in this step."""
        if len(outputs) == 1:  # one stream, as a rule
            self._deliver_all({self.mailboxes[outputs[0][0]]: outputs})
            return
        shares: dict[Mailbox, list[Output]] = {}
        for output in outputs:
            shares.setdefault(self.mailboxes[output[0]], []).append(output)
        self._deliver_all(shares)

    def _deliver_all(self, shares: Mapping[Mailbox, list[Output]]) -> None:
        for mailbox, outputs in shares.items():
            for number in mailbox.deliver(outputs):
                self.mailboxes.pop(number, None)
            if mailbox.abandoned:
                self.cancel(mailbox)
            elif mailbox.backlog >= MOST_EVENTS and not self._quiet:
                self.pause(mailbox)
                if mailbox.backlog < MOST_EVENTS:  # its owner read meanwhile, and saw no pause
                    self.resume(mailbox)
        for bell in {mailbox.bell for mailbox in shares}:
            if bell is not None:
                bell()

    def pause(self, mailbox: Mailbox) -> None:
        """Leave a call out of the steps, unless somebody waits for all calls to end."""
        if not self._quiet:
            mailbox.paused = True
            for number in mailbox.numbers:
                self.engine.pause(number)

    def resume(self, mailbox: Mailbox) -> None:
        """The owner of a call that was paused has read what there was."""
        mailbox.paused = False
        for number in mailbox.numbers:
            self.engine.pause(number, False)

    def when_quiet(self, job: EngineJob[Any], *, cancel: bool, thread: int) -> None:
        """Run a job as soon as nothing is in flight. Calls that come meanwhile begin after it.

        Args:
            cancel: end everything. Otherwise only the calls of ``thread`` end, which waits and
                reads nothing; others go on to their end, even if nobody reads.
        """
        for mailbox in {*self.mailboxes.values()}:
            if cancel or mailbox.thread == thread:
                self.cancel(mailbox)
            elif mailbox.paused:
                self.resume(mailbox)
        self._quiet.append(job)

    def _use_the_quiet(self) -> None:
        if self.engine.requests:
            return
        while self._quiet:
            self._quiet.popleft()()
        while self._held:
            self.add(*self._held.popleft())

    def begin(
        self, requests: Sequence[Generation], mailbox: Mailbox, first: Command | None = None
    ) -> None:
        """Begin a call; ``first`` is run before, and its failure is not the call's."""
        if first is not None:
            self._run_command(first)
        self.add(requests, mailbox)

    def add(self, requests: Sequence[Generation], mailbox: Mailbox) -> None:
        """Begin a call, or let it wait for those who want a quiet moment."""
        if self._quiet and not self.stopped:
            self._held.append((requests, mailbox))
            return
        if self.thread is None:
            at_once = _WHOLE_IN_PLACE if mailbox.whole else _STREAM_IN_PLACE
        else:
            at_once = _WHOLE if mailbox.whole else _STREAM
        for running in requests:
            self.mailboxes[running.number] = mailbox
            running.at_once = at_once
            running.read = not mailbox.whole
            self.engine.add(running)
        if self.stopped:
            self.engine.fail_all(ClosedError(CLOSED))

    def forget_unwanted(self) -> None:
        """The caller that queued an idle job has left."""
        self._quiet = deque(job for job in self._quiet if job.wanted)
        while self._held and not self._quiet:
            self.add(*self._held.popleft())

    def _begin_held(self, entries: Sequence[tuple[Sequence[Generation], Mailbox]]) -> None:
        """Begin calls that waited for others, and are about to end: the engine tells them so."""
        for entry in entries:
            self._held.remove(entry)
            for running in entry[0]:
                self.engine.add(running)

    def give_up(self, mailbox: Mailbox) -> None:
        """A call that nobody will read; it may have begun, or not."""
        self.cancel(mailbox)
        self._hand_out(self.engine.take_outputs())
        for number in mailbox.numbers:
            self.mailboxes.pop(number, None)

    def cancel(self, mailbox: Mailbox) -> None:
        """End the requests of a call."""
        self._begin_held([entry for entry in self._held if entry[1] is mailbox])
        for number in mailbox.numbers:
            self.engine.cancel(number)

    def start_over(self, error: BaseException) -> None:
        """Fail whatever is in flight, and forget what is in memory: neither is certain any more."""
        self.engine.start_over()
        self._quiet.clear()
        self._held.clear()
        self._deliver_all(
            {
                mailbox: [(number, FinishEvent("error", error=error)) for number in mailbox.open]
                for mailbox in {*self.mailboxes.values()}
            }
        )
        self.mailboxes.clear()

    def halt(self) -> None:
        """The process ends: no step follows, and nobody is told."""
        self.stopped = True
        cache = self.engine.cache
        cache.saving.flush()
        store = cache.stores.saved
        if store is not None and not store.closed:
            store.wait(0, _LAST_MOMENTS)  # it may have waited for the last time already

    def stop(self) -> None:
        """Fail what is in flight. No step follows."""
        self.stopped = True
        while self._held:
            self.add(*self._held.popleft())
        self.engine.close()


def _end_of(held: tuple[Sequence[Generation], Mailbox]) -> float | None:
    """When the time of all requests of a call is over, or None."""
    ends = [running.deadline for running in held[0]]
    return max((end for end in ends if end is not None), default=None) if None not in ends else None
