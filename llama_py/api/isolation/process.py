"""``ModelProcess``: the other process of a model, started, listened to, and started again.

One thread listens, hands over what comes, and finds out when the process is gone. Whoever waited
for something then gets an ``EngineDeadError``, and the process is started again: at once the first
time, and after pauses that grow when it dies again before it has finished a request. Calls that
come while it is being loaded wait for it; those that come in such a pause are refused.

The two are bound to each other by their socket alone: whichever ends, the other one sees the end of
what it reads. That holds for every way to die. A process that hangs is found out by another thread,
which asks for a sign of life each second: calls fail that wait for one that is silent, and it is
killed when it goes on. The same happens to one that says what nobody understands.
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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

from llama_py import forks
from llama_py.api.facts import ProcessStatus
from llama_py.api.isolation.codec import Codec
from llama_py.api.isolation.connection import Frame, MessageSocket, QueuedSocket
from llama_py.api.isolation.messages import LARGE, STATES, USUAL, Down, Facts, Row, Up
from llama_py.api.isolation.requests import RequestsInFlight
from llama_py.embeddings.queue import EmbeddingJob
from llama_py.engine.loop import CLOSED, LOOK
from llama_py.engine.mailbox import Mailbox
from llama_py.engine.metrics import Metrics
from llama_py.errors import (
    ClosedError,
    EngineDeadError,
    InvalidModelError,
    IsolationError,
    LlamaError,
    shown,
)
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
#: Seconds between two questions whether it is alive. It is silent, and hangs, when this many of
#: them in a row had no answer; and before it has said anything, as long as it takes to start.
_BEAT, _SILENT, _HANGS, _STARTS = 1.0, 3, 10, 120
#: Bytes a second by which it may be silent for longer, while a long message is under way.
_BYTES_PER_BEAT = 10_000_000
#: Seconds within which a request is queued, and everything else answered but what computes.
_QUEUED, _ANSWERED = 60.0, 600.0
#: Seconds to wait for a process whose socket is closed already.
_LAST_MOMENTS = 5.0
#: Lines of what it wrote on standard error that are kept, and that an error shows.
_LINES, _SHOWN = 60, 8
#: Characters of such a line.
_LONGEST = 400
#: Bytes that are taken for a line although none has ended, and characters of a line of its log.
_LONGEST_READ, _LONGEST_LOG = 1 << 16, 1 << 13
#: Seconds: the longest pause before it is started again, and after how long of work all is well.
_LONGEST_PAUSE, _WELL = 60.0, 60.0


class _Phase(Enum):
    """Where a model's process is in its life."""

    LOADING = "loading"
    READY = "ready"
    PAUSING = "pausing"
    CLOSED = "closed"


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
        self.requests = RequestsInFlight(self.send)
        self._jobs: dict[int, EmbeddingJob] = {}
        self._large: set[int] = set()
        self._silence = 0
        self._heard = self._spoke = False
        #: Why it was ended here, or "".
        self._fault = ""
        self._counted, self._metrics = Metrics(), Metrics()
        self._deaths = 0
        self._since = self._until = 0.0
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: MessageSocket | None = None
        self._reader: threading.Thread | None = None
        self.thread = threading.Thread(target=self._run, name="llama_py-isolated", daemon=True)
        _processes.add(self)
        self.thread.start()
        threading.Thread(target=self._watch, name="llama_py-heartbeat", daemon=True).start()

    # -- asking ---------------------------------------------------------------------------------

    @property
    def status(self) -> ProcessStatus:
        """How it is now."""
        ready = self._phase is _Phase.READY and not self.silent
        return ProcessStatus(self.pid, ready, self.pause_left, self.restarts, self.last_death)

    @property
    def silent(self) -> bool:
        """Whether it has given no sign of life for some seconds."""
        return self._silence >= _SILENT

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
        _ = self._counted + metrics  # numbers: else it raises here
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
        """Have a function of the other process called (see ``child``); what it returns.

        Raises:
            EngineDeadError: it died meanwhile, or is not there.
            BaseException: what the function raised.
        """
        call, answer = self._begin()
        limit = None if name == "score" else _ANSWERED  # which computes, and has its own
        if name in STATES:
            self._expect_large(call)
        return self.wait_for_answer(call, answer, limit, Down.ASK, name, arguments, tenant)

    def remember(self, name: str, *arguments: Any) -> None:
        """``ask`` this, and again whenever the process was started again."""
        self.ask(name, *arguments)
        with self._changed:
            self._again[name] = arguments

    def queue(self, call: int, answer: Future[Any], *contents: Any) -> Any:
        """Send the requests of a call that was begun; their tokens. See ``wait_for_answer``."""
        return self.wait_for_answer(call, answer, _QUEUED, Down.SUBMIT, *contents)

    def wait_for_answer(
        self, call: int, answer: Future[Any], limit: float | None, kind: Down, *contents: Any
    ) -> Any:
        """Send the message of a call that was begun, and wait for what comes of it.

        Args:
            limit: seconds after which the process is ended that does not answer.

        Raises:
            IsolationError: something in it cannot cross.
            EngineDeadError: it died, or gives no sign of life.
        """
        end = float("inf") if limit is None else time.monotonic() + limit
        try:
            self.send_frame(self.codec.encode((int(kind), call, *contents)))
            while not wait([answer], LOOK).done:
                if self.silent:
                    raise self._no_answer()
                if time.monotonic() > end:
                    self._end_process(f"did not answer a call within {limit:.0f} s")
            return answer.result()
        except BaseException:
            with self._changed:
                self._answers.pop(call, None)
            if not answer.done():  # Ctrl-C, after which nobody wants it
                self.send(Down.CANCEL, call)
            raise

    def _no_answer(self) -> EngineDeadError:
        message = f"the process of {self.name} (pid {self.pid}) does not answer"
        later = (
            f"it is started again if that goes on for {_HANGS * _BEAT:.0f} s, so call again then"
        )
        public = f"the model's process does not answer; {later}"
        return EngineDeadError(f"{message}; {later}", retry_after=_HANGS * _BEAT, public=public)

    def _expect_large(self, call: int) -> None:
        """The answer to a call may be as long as a conversation."""
        with self._changed:
            self._large.add(call)
            if self._connection is not None:
                self._connection.limits = LARGE

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
                self.requests.add(call, mailbox)
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
        self.send_frame(self.codec.encode_plain((int(kind), *contents)))

    def send_frame(self, frame: Frame) -> None:
        """Send what was encoded; it does not wait for that."""
        connection = self._connection
        if connection is not None:
            connection.send(frame)

    def cancel(self, mailbox: Mailbox) -> None:
        """Have the requests of a call end: there, or if it does not answer, here."""
        if self.requests.cancel(mailbox):
            self._expire()

    # -- its life -------------------------------------------------------------------------------

    def _run(self) -> None:
        """Start it, listen, and start it again, until it is closed."""
        while self._phase is not _Phase.CLOSED:
            try:
                connection = self._start()
            except LlamaError as error:  # what it should be told cannot cross
                self._failed = error
            except Exception as error:
                self._failed = LlamaError(f"no process can be started for {self.name}: {error}")
            else:
                self._listen(connection)
            self._bury()

    def _watch(self) -> None:
        """Ask it for a sign of life, and end it when none comes, until it is closed."""
        while self.thread.is_alive():
            self._beat()
            self._expire()
            self.thread.join(_BEAT)

    def _beat(self) -> None:
        """A second has passed. (One in which this process was stopped counts as one.)"""
        connection = self._connection
        if connection is None:
            return
        self._silence, self._heard = 0 if self._heard else self._silence + 1, False
        most = (_HANGS if self._spoke else _STARTS) + connection.moving / _BYTES_PER_BEAT
        if self._silence > most:
            self._end_process(f"gave no sign of life for {self._silence * _BEAT:.0f} s")
        elif not self._silence or not self._spoke:  # else the last question waits there
            self.send(Down.PING)

    def _expire(self) -> None:
        """End the requests that the other process should have ended by now."""
        self.requests.expire(self._no_answer() if self.silent else None)

    def _end_process(self, fault: str) -> None:
        """Kill it, which the thread that listens sees."""
        child, self._fault = self._child, self._fault or fault
        if child is not None:
            child.kill()

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
        connection = QueuedSocket(own, USUAL)
        _connections.add(connection)
        path, options = self._loading
        with self._changed:
            self._child, self._connection, self.pid = child, connection, child.pid
            self._lines = deque(maxlen=_LINES)
            self._since, self.requests.worked = time.monotonic(), False
            self._silence, self._heard, self._spoke, self._fault = 0, False, False, ""
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
            while line := output.readline(_LONGEST_READ):
                text = line.decode("utf-8", "replace").rstrip()[:_LONGEST]
                if not text:
                    continue
                lines.append(text)
                if self._verbose and sys.stderr is not None:
                    print(text, file=sys.stderr)
                _log.info("%s (pid %d): %s", self.name, child.pid, text)

    def _listen(self, connection: MessageSocket) -> None:
        try:
            while (data := connection.receive()) is not None:
                self._heard = self._spoke = True
                self._handle(self.codec.decode(data))
        except Exception as error:  # of what cannot be understood, the process is no use
            _log.exception("a message of the process of %s was not understood", self.name)
            self._end_process(f"was ended, because of a message: {shown(error, 200)}")
        connection.close()

    def _handle(self, message: Sequence[Any]) -> None:
        kind, *contents = message
        handler = _HANDLERS.get(kind)
        if handler is None:
            raise LlamaError(f"there is no message of the kind {shown(kind)}")
        handler(self, *contents)

    def _note_ends(self, rows: list[Row], metrics: Metrics | None) -> None:
        if metrics is not None:
            self.note_metrics(metrics)
        self.requests.hand_out(rows)

    def _note_vectors(self, call: int, index: int, rows: Any) -> None:
        job = self._jobs.get(call)
        if job is not None:
            job.put(index, rows)

    def _note_loading(self, done: float) -> None:
        with self._changed:
            self._progress = float(done)
            self._changed.notify_all()

    def _note_failure(self, error: BaseException) -> None:
        with self._changed:
            self._failed = error
            self._changed.notify_all()

    def _note_ready(self, facts: Facts) -> None:
        with self._changed:
            if self._phase is _Phase.LOADING:
                self.facts, self._phase, self._once_ready = facts, _Phase.READY, True
                self._failed, self._since = None, time.monotonic()
                if facts.context is not None:  # also with what is sampled beyond the last cell
                    self.requests.most = 2 * facts.context.n_ctx
            self._changed.notify_all()

    def _asked(self, call: int) -> tuple[Future[Any] | None, EmbeddingJob | None]:
        """Who waits for the answer that has come."""
        with self._changed:
            self._large.discard(call)
            if self._connection is not None and not self._large:
                self._connection.limits = USUAL
            return self._answers.pop(call, None), self._jobs.pop(call, None)

    def _note_answer(self, call: int, value: Any) -> None:
        answer, _ = self._asked(call)
        if answer is not None:
            with suppress(InvalidStateError):  # it was given up
                answer.set_result(value)

    def _note_refusal(self, call: int, error: BaseException) -> None:
        answer, job = self._asked(call)
        if job is not None:
            job.fail(error)
        elif answer is not None:
            with suppress(InvalidStateError):  # it was given up
                answer.set_exception(error)
        else:
            _log.debug("a call that nobody waits for failed: %s", error)

    # -- its end --------------------------------------------------------------------------------

    def _bury(self) -> None:
        """It is gone: tell everybody, and decide when it is started again."""
        child, reader = self._child, self._reader
        with self._changed:
            self._large.clear()
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
            self._connection, self._silence = None, 0
            self._counted, self._metrics = self._counted + self._metrics, Metrics()
            # Who is told that it was not queued gets no events of it, and may queue it again.
            self.requests.forget_queued(self._answers)
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
            for answer in answers:  # before anybody takes its call for one that goes on
                with suppress(InvalidStateError):
                    answer.set_exception(error)
            self._changed.notify_all()
        for job in jobs:
            job.fail(error)
        self.requests.end_all(error)
        with self._changed:
            while self._phase is _Phase.PAUSING and self.pause_left:
                self._changed.wait(min(LOOK, self.pause_left))
            if self._phase is not _Phase.CLOSED:
                self._phase = _Phase.LOADING
                self.restarts += 1
                self._changed.notify_all()

    def _note_death(self, child: subprocess.Popen[bytes] | None) -> EngineDeadError:
        """Remember why it died, and for how long it is left alone."""
        well = self.requests.worked or time.monotonic() - self._since >= _WELL
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
        if self._fault:
            how = self._fault
        elif self._failed is not None:
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
        end = time.monotonic() + _PATIENCE
        while self.thread.is_alive() and not self.silent and time.monotonic() < end:
            self.thread.join(LOOK)
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


_HANDLERS: Mapping[int, Callable[..., None]] = {
    Up.LOADING: ModelProcess._note_loading,
    Up.READY: ModelProcess._note_ready,
    Up.FAILED: ModelProcess._note_failure,
    Up.LOG: lambda self, level, text: _log.log(level, "%s", text[:_LONGEST_LOG]),
    Up.ANSWER: ModelProcess._note_answer,
    Up.REFUSED: ModelProcess._note_refusal,
    Up.STARTED: lambda self, *start: self.requests.note_start(*start),
    Up.PROGRESS: lambda self, *told: self.requests.note_progress(*told),
    Up.EVENTS: lambda self, rows: self.requests.hand_out(rows),
    Up.ENDS: ModelProcess._note_ends,
    Up.VECTORS: ModelProcess._note_vectors,
    Up.PONG: lambda self: None,
}
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
