"""``ModelProcess``: the other process of a model, started, listened to, and started again.

One thread listens, hands over what comes, and finds out when the process is gone. Whoever waited
for something then gets an ``EngineDeadError``, and the process is started again: at once the first
time, and after pauses that grow when it dies again before it has finished a request. Calls that
come while it is being loaded wait for it; those that come in such a pause are refused.

The two are bound to each other by their socket alone: whichever ends, the other one sees the end of
what it reads. That holds for every way to die.
"""

from __future__ import annotations

import atexit
import json
import logging
import multiprocessing.spawn
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

from llama_py import forks
from llama_py.api.facts import ProcessStatus
from llama_py.api.isolation.codec import Codec
from llama_py.api.isolation.connection import MessageSocket
from llama_py.api.isolation.messages import Down, Facts, Row, Up, note_event
from llama_py.embeddings.queue import EmbeddingJob
from llama_py.engine.loop import CLOSED, LOOK, MOST_EVENTS
from llama_py.engine.mailbox import Mailbox
from llama_py.engine.metrics import Metrics
from llama_py.engine.request import FinishEvent, Output, Record
from llama_py.errors import (
    ClosedError,
    EngineDeadError,
    InvalidModelError,
    IsolationError,
    LlamaError,
)
from llama_py.quick_dataclass import dataclass
from llama_py.version import __version__

__all__ = ["ModelProcess"]

_log = logging.getLogger("llama_py")

#: What the interpreter of the other process runs, with the socket's number and ``sys.path``.
_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from llama_py.api.isolation.child import main; main(int(sys.argv[1]), sys.argv[3])"
)
#: Seconds that a process has to write its conversations when its model is closed.
_PATIENCE = 20.0
#: Seconds to wait for a process whose socket is closed already.
_LAST_MOMENTS = 5.0
#: Lines of what it wrote on standard error that are kept, and that an error shows.
_LINES, _SHOWN = 60, 8
#: Characters of such a line.
_LONGEST = 400
#: Seconds: the longest pause before it is started again, and after how long of work all is well.
_LONGEST_PAUSE, _WELL = 60.0, 60.0


class _Phase(Enum):
    """Where a model's process is in its life."""

    LOADING = "loading"
    READY = "ready"
    PAUSING = "pausing"
    CLOSED = "closed"


@dataclass(slots=True, eq=False)
class _Request:
    """A request in flight."""

    number: int
    call: int
    mailbox: Mailbox
    record: Record


class ModelProcess:
    """See the module. Nothing in it refers to who uses it, whose end closes it.

    Args:
        path: the model's file.
        options: arguments of ``Llama`` for it.
        verbose: print what it writes on standard error.

    Attributes:
        codec: of what is sent and received.
        facts: of the model, once it was ready.
        pid: of the process that is running now.
        restarts: how often it was started again.
        last_death: why, the last time.
    """

    def __init__(self, path: str, options: Mapping[str, Any], *, verbose: bool = False) -> None:
        if sys.platform in ("win32", "emscripten"):
            raise IsolationError(
                "a model can have a process of its own on Linux, macOS and other systems with "
                f"POSIX sockets, and this is {sys.platform}; load it without isolate=True"
            )
        self.codec = Codec()
        self.name = Path(path).name
        self._loading = (path, dict(options))
        self._verbose = verbose
        self.facts: Facts | None = None
        self.pid = 0
        self.restarts = 0
        self.last_death: EngineDeadError | None = None
        self.process = forks.current()
        self._changed = threading.Condition()
        self._phase = _Phase.LOADING
        self._once_ready = False
        self._failed: BaseException | None = None
        self._progress: float | None = None
        #: What has to be done again in a process that was started again.
        self._again: dict[str, tuple[Any, ...]] = {}
        self._number = 0
        self._answers: dict[int, Future[Any]] = {}
        self._requests: dict[int, _Request] = {}
        self._jobs: dict[int, EmbeddingJob] = {}
        self._counted, self._metrics = Metrics(), Metrics()
        self._deaths = 0
        self._worked = False
        self._since = self._until = 0.0
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: MessageSocket | None = None
        self._reader: threading.Thread | None = None
        self.thread = threading.Thread(target=self._run, name="llama_py-isolated", daemon=True)
        _processes.add(self)
        self.thread.start()

    # -- asking ---------------------------------------------------------------------------------

    @property
    def status(self) -> ProcessStatus:
        """How it is now."""
        ready = self._phase is _Phase.READY
        return ProcessStatus(self.pid, ready, self.pause_left, self.restarts, self.last_death)

    @property
    def pause_left(self) -> float:
        """Seconds until it is started again."""
        return max(0.0, self._until - time.monotonic()) if self._phase is _Phase.PAUSING else 0.0

    @property
    def metrics(self) -> Metrics:
        """What was counted since the model was loaded, as far as it was told: the engine tells it
        with the ends of requests."""
        return self._counted + self._metrics

    def note_metrics(self, metrics: Metrics) -> None:
        """What the engine of the process that is running has counted by now."""
        self._metrics = metrics

    def wait_until_loaded(self, progress: Callable[[float], bool | None] | None) -> Facts:
        """Wait until it is ready for the first time.

        Args:
            progress: as of ``Llama``.

        Raises:
            LlamaError: what its loading ended with; or ``progress`` wanted it to end, also where it
                was there before it heard of that.
        """
        told: float | None = None
        stopped = False
        with self._changed:
            while self._phase is _Phase.LOADING and not self._once_ready:
                done = self._progress
                if progress is not None and done is not None and done != told:
                    told = done
                    self._changed.release()
                    try:
                        wanted = progress(done)
                    finally:
                        self._changed.acquire()
                    if wanted is False:
                        self.send(Down.STOP_LOADING)
                        progress, stopped = None, True
                    continue
                self._changed.wait(LOOK)
            if self._failed is not None:
                raise self._failed
            if self.facts is None:
                raise ClosedError(CLOSED)
            if stopped:
                raise InvalidModelError("the loading was stopped, because progress returned False")
            return self.facts

    def ask(self, name: str, *arguments: Any, tenant: str = "") -> Any:
        """Have a function of the other process called (``child.SERVICES``); what it returns.

        Raises:
            EngineDeadError: it died meanwhile, or is not there.
            BaseException: what the function raised.
        """
        call, answer = self._begin()
        return self.wait_for_answer(call, answer, Down.ASK, name, arguments, tenant)

    def remember(self, name: str, *arguments: Any) -> None:
        """``ask`` this, and again whenever the process was started again."""
        self.ask(name, *arguments)
        with self._changed:
            self._again[name] = arguments

    def wait_for_answer(self, call: int, answer: Future[Any], kind: Down, *contents: Any) -> Any:
        """Send the message of a call that was begun, and wait for what comes of it.

        Raises:
            IsolationError: something in it cannot cross.
        """
        try:
            self.send_bytes(self.codec.encode((int(kind), call, *contents)))
            return answer.result()
        except BaseException:
            with self._changed:
                self._answers.pop(call, None)
            if not answer.done():  # Ctrl-C, after which nobody wants it
                self.send(Down.CANCEL, call)
            raise

    def _begin(self) -> tuple[int, Future[Any]]:
        """The number of a call, and its answer, when the process is ready."""
        with self._changed:
            while self._phase is not _Phase.READY:
                self._check()
                if threading.current_thread() is self.thread:
                    break
                self._changed.wait(LOOK)
            self._number += 1
            answer = self._answers[self._number] = Future()
            return self._number, answer

    def begin(self, mailbox: Mailbox) -> tuple[int, Future[Any]]:
        """The same for a call whose outputs ``mailbox`` takes."""
        call, answer = self._begin()
        with self._changed:
            if not answer.done():
                for number, record in zip(mailbox.numbers, mailbox.records, strict=True):
                    self._requests[number] = _Request(number, call, mailbox, record)
        return call, answer

    def begin_job(self, job: EmbeddingJob) -> int:
        """The same for inputs that are to be embedded."""
        call, answer = self._begin()
        with self._changed:
            self._answers.pop(call, None)
            if not answer.done():
                self._jobs[call] = job
                return call
        answer.result()  # it died just now, and raises
        raise ClosedError(CLOSED)

    def check(self) -> None:
        """Raise unless it is there, or will be in a moment."""
        with self._changed:
            self._check()

    def _check(self) -> None:
        if self._phase is _Phase.CLOSED:
            raise ClosedError("this model was closed; load it again")
        if self._phase is _Phase.PAUSING:
            raise self._death(self.pause_left)

    def send(self, kind: Down, *contents: Any) -> None:
        """Send a message of numbers and texts."""
        self.send_bytes(self.codec.encode_plain((int(kind), *contents)))

    def send_bytes(self, message: bytes) -> None:
        """Send what was encoded."""
        connection = self._connection
        if connection is not None:
            connection.send(message)

    def forget(self, numbers: Iterable[int]) -> None:
        """Nobody waits for these requests any more."""
        with self._changed:
            for number in numbers:
                self._requests.pop(number, None)

    def call_of(self, mailbox: Mailbox) -> int | None:
        """The number of the call of a mailbox, unless it has ended."""
        with self._changed:
            known = (self._requests.get(number) for number in mailbox.numbers)
            return next((each.call for each in known if each is not None), None)

    # -- its life -------------------------------------------------------------------------------

    def _run(self) -> None:
        """Start it, listen, and start it again, until it is closed."""
        while self._phase is not _Phase.CLOSED:
            try:
                connection = self._start()
            except OSError as error:
                self._failed = LlamaError(f"no process can be started for {self.name}: {error}")
            except LlamaError as error:  # what it should be told cannot cross
                self._failed = error
            else:
                self._listen(connection)
            self._bury()

    def _start(self) -> MessageSocket:
        own, theirs = socket.socketpair()
        with theirs:
            child = subprocess.Popen(
                [
                    os.fsdecode(multiprocessing.spawn.get_executable() or sys.executable),
                    "-c",
                    _BOOT,
                    str(theirs.fileno()),
                    json.dumps(sys.path),
                    __version__,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                # A debugger that ggml calls for the trace of an abort would hold up the restart.
                env={"GGML_NO_BACKTRACE": "1", **os.environ},
            )
        connection = MessageSocket(own)
        _connections.add(connection)
        path, options = self._loading
        with self._changed:
            self._child, self._connection, self.pid = child, connection, child.pid
            self._lines = deque(maxlen=_LINES)
            self._since, self._worked = time.monotonic(), False
            closed = self._phase is _Phase.CLOSED
        self._reader = threading.Thread(
            target=self._read_lines, args=(child, self._lines), daemon=True
        )
        self._reader.start()
        level = _log.getEffectiveLevel()
        again = [*self._again.items()]
        connection.send(self.codec.encode((int(Down.LOAD), path, options, level, again)))
        if closed:
            connection.shut()
        return connection

    def _read_lines(self, child: subprocess.Popen[bytes], lines: deque[str]) -> None:
        """Keep what it writes on standard error."""
        if child.stdout is None:
            return
        with child.stdout as output:
            for line in output:
                text = line.decode("utf-8", "replace").rstrip()[:_LONGEST]
                if not text:
                    continue
                lines.append(text)
                if self._verbose and sys.stderr is not None:
                    print(text, file=sys.stderr)
                _log.info("%s (pid %d): %s", self.name, child.pid, text)

    def _listen(self, connection: MessageSocket) -> None:
        while (data := connection.receive()) is not None:
            try:
                self._handle(self.codec.decode(data))
            except Exception:  # of what cannot be understood, the process is no use
                _log.exception("a message of the process of %s was not understood", self.name)
                break
        connection.close()

    def _handle(self, message: tuple[Any, ...]) -> None:
        kind = message[0]
        if kind == Up.EVENTS:
            self._hand_out(message[1])
        elif kind == Up.ENDS:
            if message[2] is not None:
                self._metrics = message[2]
            self._hand_out(message[1])
        elif kind == Up.STARTED:
            number, when, cache, tokens = message[1:]
            request = self._requests.get(number)
            if request is not None:
                request.record.cache, request.record.started = cache, when
                if tokens is not None:
                    request.record.tokens = tokens.tolist()
        elif kind == Up.PROGRESS:
            self._note_progress(*message[1:])
        elif kind in (Up.ANSWER, Up.REFUSED):
            self._note_answer(*message)
        elif kind == Up.VECTORS:
            job = self._jobs.get(message[1])
            if job is not None:
                job.put(message[2], message[3])
        elif kind == Up.LOG:
            level, text = message[1:]
            _log.log(level, "%s", text)
        else:
            self._note_loading(kind, message[1])

    def _note_loading(self, kind: int, value: Any) -> None:
        with self._changed:
            if kind == Up.LOADING:
                self._progress = value
            elif kind == Up.FAILED:
                self._failed = value
            elif kind == Up.READY and self._phase is _Phase.LOADING:
                self.facts, self._phase, self._once_ready = value, _Phase.READY, True
                self._failed, self._since = None, time.monotonic()
            self._changed.notify_all()

    def _note_answer(self, kind: int, call: int, value: Any) -> None:
        with self._changed:
            answer = self._answers.pop(call, None)
            job = self._jobs.pop(call, None)
        if job is not None and kind == Up.REFUSED:
            job.fail(value)
        if answer is None:
            if kind == Up.REFUSED and job is None:
                _log.debug("a call that nobody waits for failed: %s", value)
            return
        with suppress(InvalidStateError):  # it was given up
            if kind == Up.ANSWER:
                answer.set_result(value)
            else:
                answer.set_exception(value)

    # -- what comes for requests ----------------------------------------------------------------

    def _note_progress(self, number: int, done: int, total: int) -> None:
        request = self._requests.get(number)
        told = request.record.request.on_progress if request is not None else None
        if request is None or told is None:
            return
        try:
            told(done, total)
        except BaseException as error:  # it is the caller's, and reaches the caller
            self.send(Down.CANCEL, request.call)
            self._end([request], error)

    def _hand_out(self, rows: list[Row]) -> None:
        """Give each call what came for it in one step."""
        requests = self._requests
        shares: dict[Mailbox, list[Output]] = {}
        calls: dict[Mailbox, int] = {}
        for row in rows:
            request = requests.get(row[0])
            if request is None:  # its call was given up
                continue
            mailbox = request.mailbox
            shares.setdefault(mailbox, []).append((row[0], note_event(row, request.record)))
            calls[mailbox] = request.call
        self._deliver(shares, calls)

    def _deliver(
        self, shares: Mapping[Mailbox, list[Output]], calls: Mapping[Mailbox, int]
    ) -> None:
        for mailbox, outputs in shares.items():
            for number in mailbox.deliver(outputs):
                request = self._requests.pop(number, None)
                if request is not None and request.record.reason in ("stop", "length"):
                    self._worked = True
            if mailbox.ended.is_set():
                continue
            if mailbox.abandoned:
                self.send(Down.CANCEL, calls[mailbox])
            elif mailbox.backlog >= MOST_EVENTS and not mailbox.paused:
                mailbox.paused = True
                self.send(Down.PAUSE, calls[mailbox])
                if mailbox.backlog < MOST_EVENTS:  # its owner read meanwhile, and saw no pause
                    mailbox.paused = False
                    self.send(Down.RESUME, calls[mailbox])
        for bell in {mailbox.bell for mailbox in shares}:
            if bell is not None:
                bell()

    def _end(self, requests: Iterable[_Request], error: BaseException) -> None:
        """End requests here, with an error."""
        shares: dict[Mailbox, list[Output]] = {}
        calls: dict[Mailbox, int] = {}
        for request in requests:
            record = request.record
            record.reason, record.ended = "error", time.perf_counter()
            record.request = record.request.without_callbacks()
            ended = request.number, FinishEvent("error", error=error)
            shares.setdefault(request.mailbox, []).append(ended)
            calls[request.mailbox] = request.call
        self._deliver(shares, calls)

    # -- its end --------------------------------------------------------------------------------

    def _bury(self) -> None:
        """It is gone: tell everybody, and decide when it is started again."""
        child, reader = self._child, self._reader
        with self._changed:
            if self._phase is _Phase.READY:  # who comes now waits
                self._phase = _Phase.LOADING
        if child is not None:
            try:
                child.wait(_LAST_MOMENTS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if reader is not None:
            reader.join(1.0)
        with self._changed:
            self._connection = None
            self._counted, self._metrics = self._counted + self._metrics, Metrics()
            for number, request in [*self._requests.items()]:
                # Who is told that it was not queued gets no events of it, and may queue it again.
                if request.call in self._answers and not request.record.started:
                    del self._requests[number]
            answers, self._answers = [*self._answers.values()], {}
            jobs, self._jobs = [*self._jobs.values()], {}
            closed = self._phase is _Phase.CLOSED
            if closed:
                error: BaseException = ClosedError(CLOSED)
            elif not self._once_ready:
                error = self._failed = self._failed or self._describe(child)
                self._phase = _Phase.CLOSED
            else:
                error = self._note_death(child)
            self._changed.notify_all()
        for answer in answers:
            with suppress(InvalidStateError):
                answer.set_exception(error)
        for job in jobs:
            job.fail(error)
        self._end([*self._requests.values()], error)
        with self._changed:
            while self._phase is _Phase.PAUSING and self.pause_left:
                self._changed.wait(min(LOOK, self.pause_left))
            if self._phase is not _Phase.CLOSED:
                self._phase = _Phase.LOADING
                self.restarts += 1
                self._changed.notify_all()

    def _note_death(self, child: subprocess.Popen[bytes] | None) -> EngineDeadError:
        """Remember why it died, and for how long it is left alone."""
        well = self._worked or time.monotonic() - self._since >= _WELL
        self._deaths = 1 if well else self._deaths + 1
        pause = 0.0 if self._deaths == 1 else min(2.0 ** (self._deaths - 2), _LONGEST_PAUSE)
        self.last_death = self._describe(child)
        self._failed = None
        self._until = time.monotonic() + pause
        self._phase = _Phase.PAUSING if pause else _Phase.LOADING
        error = self._death(pause)
        _log.error("%s", error)
        return error

    def _describe(self, child: subprocess.Popen[bytes] | None) -> EngineDeadError:
        """How it ended, in words."""
        code = child.returncode if child is not None else None
        name: str | None = None
        if code is not None and code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
        how = f"ended with exit code {code}" if name is None else f"was ended by {name}"
        if self._failed is not None:
            how = f"could not load it again: {self._failed}"
        elif name == "SIGKILL":
            how += " (somebody sent it, or the system did, which was out of memory)"
        lines = [*self._lines]
        said = f"; its last words: {' | '.join(lines[-_SHOWN:])}" if lines else ""
        message = f"the process of {self.name} (pid {self.pid}) {how}{said}"
        public = "the model's process died while it worked on this request" + (
            f" ({name})" if name else ""
        )
        return EngineDeadError(message, code, name, tuple(lines), 1.0, public)

    def _death(self, pause: float) -> EngineDeadError:
        """The error for those whom the last death concerns."""
        last = self.last_death or EngineDeadError("the model's process is not there")
        when = "it is being started again, so call again"
        if pause:
            when = (
                f"it died {self._deaths} times without finishing a request, so it is started "
                f"again in {pause:.0f} s"
            )
        return EngineDeadError(
            f"{last}; {when}",
            last.exit_code,
            last.signal,
            last.log,
            max(1.0, pause),
            f"{last.public}; {when}",
        )

    def close(self) -> None:
        """End it, when it has written what it has to write. Closing twice does nothing."""
        if self.process.inherited:
            return
        with self._changed:
            before, self._phase = self._phase, _Phase.CLOSED
            self._changed.notify_all()
        child = self._child
        if before is not _Phase.CLOSED:
            self.send(Down.CLOSE)
        if not self._once_ready and child is not None:  # it has nothing to write
            child.kill()
        if threading.current_thread() is self.thread:
            return
        self.thread.join(_PATIENCE)
        if self.thread.is_alive() and child is not None:
            _log.warning("the process of %s did not end in order, and is killed", self.name)
            child.kill()
            self.thread.join(_LAST_MOMENTS)

    def close_soon(self) -> None:
        """Let it end; nobody waits."""
        if not self.process.inherited and self._phase is not _Phase.CLOSED:
            with self._changed:
                self._phase = _Phase.CLOSED
                self._changed.notify_all()
            self.send(Down.CLOSE)


_processes: weakref.WeakSet[ModelProcess] = weakref.WeakSet()
_connections: weakref.WeakSet[MessageSocket] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """At the end of this process the others write what they have to, and end."""
    for each in [*_processes]:
        each.close()


def _leave_to_the_parent() -> None:
    """In a forked child: its copies of the sockets would keep processes alive for nobody."""
    for each in [*_connections]:
        each.drop()


forks.after_in_child(_leave_to_the_parent)
