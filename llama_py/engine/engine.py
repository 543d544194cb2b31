"""``Engine``: requests in, events out, for any number of threads.

The thread that waits for an event drives: whoever gets the lock runs a step, and the others, whose
requests ride along in the same batch, sleep until they have an event or it is their turn to drive.
A background thread can drive instead, for asyncio and for servers.

What a step does is in ``stepping``; who gets a sequence, in ``admission``; how a token is chosen,
in ``choosing``; how a request ends, in ``board``. A request that fails, is cancelled or runs out of
time ends alone.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from llama_py import forks
from llama_py.core.context import Context
from llama_py.engine.admission import Admission
from llama_py.engine.board import Board
from llama_py.engine.choosing import Choosing
from llama_py.engine.lock import EngineLock
from llama_py.engine.metrics import Metrics
from llama_py.engine.request import MOST_EVENTS, Event, Request
from llama_py.engine.runner import Runner
from llama_py.engine.stepping import Stepper
from llama_py.errors import ClosedError
from llama_py.memory.cache import SequenceCache
from llama_py.memory.sequences import LiveSequence

__all__ = ["Engine"]

_log = logging.getLogger("llama_py")

#: Seconds after which a sleeping thread looks for itself; it is woken long before, as a rule.
_NAP = 0.05


class Engine:
    """Drives one context.

    Args:
        context: the context; nothing else may decode with it.
        cache: its sequences.
        max_waiting: requests that may wait for a sequence; one more raises ``QueueFullError``.

    Attributes:
        lock: held during a step; take it for anything that touches the context or the cache.
    """

    def __init__(self, context: Context, cache: SequenceCache, *, max_waiting: int = 1024) -> None:
        self.context = context
        self.cache = cache
        self.vocab = context.model.vocab
        self.lock = EngineLock(self._before_release, self._after_release)
        # What an aborted decode did to a recurrent state cannot be undone.
        self._runner = Runner(context, Metrics(), abortable=not cache.traits.recurrent)
        self._board = Board(cache, self._runner.logits)
        self._board.metrics = self._runner.metrics
        self._admission = Admission(self._board, cache, self.vocab, context.n_seq_max, max_waiting)
        self._choosing = Choosing(self._board, self._runner, self.vocab)
        self._stepper = Stepper(self._board, self._admission, self._choosing, self._runner)
        self._cancelled: deque[Request] = deque()
        self._sleepers: dict[threading.Event, Sequence[Request]] = {}
        self._closed = False
        #: The threads that compile grammars just now, which need the vocabulary.
        self._compiling: list[int] = []
        self._background: threading.Thread | None = None
        self._background_users = 0
        self._signal = threading.Event()

    @property
    def metrics(self) -> Metrics:
        """What was done since loading, or since ``reset_counters``."""
        return self._board.metrics

    @property
    def last_logits(self) -> NDArray[np.float32] | None:
        """A copy of the logits at the last evaluated position of the request that ended last.

        float32 ``(n_vocab,)``; ``last_sequence`` is the sequence they belong to.
        """
        return self._board.last_logits

    @last_logits.setter
    def last_logits(self, logits: NDArray[np.float32] | None) -> None:
        self._board.last_logits = logits

    @property
    def last_sequence(self) -> LiveSequence | None:
        """The sequence at whose end ``last_logits`` are; None if there is none any more."""
        return self._board.last_sequence

    @last_sequence.setter
    def last_sequence(self, sequence: LiveSequence | None) -> None:
        self._board.last_sequence = sequence

    def reset_counters(self) -> None:
        """Begin the metrics anew, and forget the last logits."""
        self._board.metrics = self._runner.metrics = Metrics()
        self.last_logits = self.last_sequence = None

    # -- requests -------------------------------------------------------------------------------

    def submit(self, *requests: Request) -> None:
        """Queue requests: all of them, or none.

        Raises:
            ContextOverflowError: a prompt does not fit; nothing was touched.
            QueueFullError: too many requests are waiting.
            GrammarError, ParameterError: a sampler cannot be made.
        """
        try:
            self._compile(requests)
            with self.lock:
                self._check_open()
                self._admission.enqueue(requests)
        except BaseException:  # also Ctrl-C, when they are queued already
            self.discard(requests)
            raise

    def _compile(self, requests: Sequence[Request]) -> None:
        """Make the samplers while others generate; ``close`` waits until that is done."""
        me = threading.get_ident()
        self._compiling.append(me)
        try:
            self._check_open()
            self._admission.compile(requests)
        finally:
            self._compiling.remove(me)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this model was closed; load it again")
        if self.lock.mine:
            self._stepper.forbid_callbacks()

    def discard(self, requests: Sequence[Request]) -> None:
        """End requests whose events nobody will ever read. Returns at once."""
        for request in requests:
            self.cancel(request, wait=False)

    def events(self, request: Request) -> Iterator[Event]:
        """The events of a submitted request, until the last. Closing the iterator cancels it."""
        events = request.events
        try:
            while True:
                while events:
                    yield self._take(request)
                if request.closed and not events:
                    return
                self._drive_until_event(request)
        finally:
            if not request.cancelled:
                self.cancel(request)

    def events_of(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Event]]:
        """The events of several requests as they come. Closing the iterator cancels them all."""
        pending = [*requests]
        try:
            while pending:
                for request in [*pending]:
                    while request.events:
                        yield request, self._take(request)
                    if request.closed and not request.events:
                        pending.remove(request)
                if pending:
                    self._drive_until_event(*pending)
        finally:
            for request in pending:
                if not request.cancelled:
                    self.cancel(request)

    def _take(self, request: Request) -> Event:
        if self.lock.inherited:
            raise forks.refuse()
        if len(request.events) == MOST_EVENTS:
            event = request.events.popleft()
            self.resume()
            return event
        return request.events.popleft()

    def resume(self) -> None:
        """There may be work again: a consumer that was behind has read something."""
        if self.lock.inherited:
            return
        self._after_release()

    def cancel(self, request: Request, *, wait: bool = True) -> None:
        """End a request; its sequence keeps what was decoded. Does nothing if it has ended.

        Args:
            wait: return when it has ended: at once while its own prompt is being evaluated on the
                CPU (but for recurrent states), else after the step in progress. False
                returns at once (for event loops). Within a callback or under the engine's lock
                it ends when the lock is released.
        """
        if request.done or self.lock.inherited:  # a forked child has nothing that runs
            return
        request.cancelled = True
        self._cancelled.append(request)
        self._stepper.abort(request)
        if wait:
            with self.lock:
                pass
        elif self.lock.try_enter():
            self.lock.__exit__()

    def forbid_callbacks(self) -> None:
        """Raise ``LlamaError`` if the calling thread is in a callback of a request.

        What takes sequences or samplers away must not run there: the step goes on with them.
        """
        if self.lock.mine:
            self._stepper.forbid_callbacks()

    def cancel_all(self) -> None:
        """End every request, running or waiting.

        Raises:
            LlamaError: it is called from a callback of a request.
        """
        self.forbid_callbacks()
        for request in self._board.everything:
            self.cancel(request, wait=False)
        self._stepper.abort()
        with self.lock:
            for request in self._board.everything:
                self._board.cancel(request)

    def close(self) -> None:
        """Fail everything that is still in flight, and stop the background thread.

        Raises:
            LlamaError: it is called from a callback of a request.
        """
        if self.lock.inherited:
            return
        self.forbid_callbacks()
        self._stepper.abort()
        with self.lock:
            self._closed = True
            for request in self._board.everything:
                error = ClosedError("the model was closed while this request was running")
                self._board.fail(request, error)
            self._choosing.close()
        self._background_users = 0
        self._join_background()
        while any(thread != threading.get_ident() for thread in self._compiling):
            time.sleep(_NAP)

    # -- driving --------------------------------------------------------------------------------

    def step(self) -> bool:
        """One step; False if there was nothing to do."""
        with self.lock:
            return self._stepper.step()

    def _drive_until_event(self, *requests: Request) -> None:
        """Drive or sleep until one of the requests has an event, or has ended."""
        while not _news(requests):
            worked = False
            mine = self.lock.try_enter()
            if mine:
                try:
                    worked = self._drive(requests)
                finally:
                    try:
                        self.lock.__exit__()
                    except BaseException:  # Ctrl-C may come before its first line
                        self.lock.undo()
                        raise
            if not worked:
                self._sleep(requests, mine)

    def _drive(self, requests: Sequence[Request]) -> bool:
        """Under the lock: steps until one of the requests has news or somebody else wants in.

        Returns:
            False if the last step had nothing to do.
        """
        worked = True
        while worked and not _news(requests):
            worked = self._stepper.step()
            if self.lock.wanted or self._cancelled or self._sleepers or self._background:
                break
        return worked

    def _sleep(self, requests: Sequence[Request], had_nothing_to_do: bool) -> None:
        """Wait until there is an event, or until it is this thread's turn to drive."""
        wakeup = requests[0].wakeup
        self._sleepers[wakeup] = requests
        try:
            # Whoever released the lock before this line did not see this thread.
            missed = not had_nothing_to_do and self.lock.idle
            if not missed and not _news(requests):
                wakeup.wait(_NAP)
        finally:
            self._sleepers.pop(wakeup, None)
        wakeup.clear()

    def _before_release(self) -> None:
        """Under the lock, and never within a step: see to those that were cancelled meanwhile."""
        self._stepper.stepping = False  # an interrupt may have come before the step said so
        if self._board.interrupted:
            self._stepper.recover()
        while self._cancelled:
            self._board.cancel(self._cancelled.popleft())

    def _after_release(self) -> None:
        if self._cancelled and self.lock.try_enter():
            self.lock.__exit__()
        if self._sleepers:
            self._wake()
        background = self._background
        if background is not None and background is not threading.current_thread():
            self._signal.set()

    def _wake(self) -> None:
        """Wake those who have something to read, and one more, who will drive."""
        driver: threading.Event | None = None
        for wakeup, requests in list(self._sleepers.items()):
            if _news(requests):
                wakeup.set()
            else:
                driver = wakeup
        if driver is not None:
            driver.set()

    # -- the background thread ------------------------------------------------------------------

    def run_in_background(self) -> None:
        """Let a thread drive whenever there is work (for asyncio and servers).

        Each call is to be balanced by one of ``stop_background``.
        """
        with self.lock:
            if self._closed:
                raise ClosedError("this model was closed; load it again")
            self._background_users += 1
            if self._background is None:
                weakref.finalize(self, _wake_up, self._signal, forks.current()).atexit = False
                self._background = threading.Thread(
                    target=_drive_forever,
                    args=(weakref.ref(self), self._signal),
                    name="llama_py-engine",
                    daemon=True,
                )
                self._background.start()

    def stop_background(self) -> None:
        """Undo one ``run_in_background``; the thread ends with the last one."""
        with self.lock:
            self._background_users = max(0, self._background_users - 1)
            last = not self._background_users
        if last:
            self._join_background()

    def _join_background(self) -> None:
        thread = self._background
        if thread is not None and thread is not threading.current_thread():
            self._signal.set()
            thread.join()

    def _drive_once(self) -> float | None:
        """A step of the background thread.

        Returns:
            Seconds until there may be something to do, or None for "until there is a signal".
        """
        if not self.lock.try_enter():
            return _NAP
        try:
            if self._stepper.step():
                return 0.0
            return _NAP if self._board.everything else None
        except Exception as error:  # nobody else would ever hear of it
            _log.exception("a step of the engine failed")
            for request in self._board.everything:
                self._board.fail(request, error)
            return 0.0
        finally:
            self.lock.__exit__()

    def _leaves_background(self) -> bool:
        with self.lock:
            if self._background_users:
                return False
            self._background = None
            return True

    # -- without a request ----------------------------------------------------------------------

    def evaluate(
        self, sequence: LiveSequence, tokens: Sequence[int], *, every: bool = False
    ) -> list[NDArray[np.float32]]:
        """Append tokens to a sequence that no request uses (``Llama.eval``).

        Args:
            every: return the logits of each token and not only of the last.

        Returns:
            Copies of rows, float32 ``(n_vocab,)``.

        Raises:
            ContextOverflowError: they do not fit; nothing was evaluated.
            DecodeError: llama_decode failed; the sequence holds what was evaluated before.
        """
        with self.lock:
            self._board.moves_on(sequence)
            rows = self._stepper.evaluate(sequence, tokens, every)
            self.last_logits, self.last_sequence = rows[-1], sequence
            return rows


def _news(requests: Sequence[Request]) -> bool:
    """True if one of them has an event that its consumer wants, or has ended."""
    for request in requests:  # noqa: SIM110 - it runs for every token, without a generator
        if request.closed or (request.events and not request.whole):
            return True
    return False


def _wake_up(signal: threading.Event, process: int) -> None:
    """The engine is gone. In a forked child there is no thread to be woken."""
    if process == forks.current():
        signal.set()


def _drive_forever(find: weakref.ref[Engine], signal: threading.Event) -> None:
    """Drive until nobody wants it any more. Holds no reference to the engine while it sleeps."""
    while True:
        signal.clear()
        engine = find()
        if engine is None or (not engine._background_users and engine._leaves_background()):
            return
        pause = engine._drive_once()
        del engine
        if pause is None or pause:
            signal.wait(pause)
