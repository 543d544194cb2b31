"""``Driver``: lets any number of threads, and asyncio, use one engine.

The engine belongs to one thread, which runs commands from a queue and steps while there is work.
Callers post a request, or a function to be run between two steps, and wait; signals reach only the
main thread, so that Ctrl-C hits a wait and never a half-done change of the engine's books.

Where no thread can be started (WebAssembly), or none is wanted, the engine is stepped *in place*,
by the thread that waits.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from llama_py import forks
from llama_py.engine.engine import Engine
from llama_py.engine.generation import prepare
from llama_py.engine.loop import CLOSED, LOOK, EngineJob, Loop
from llama_py.engine.mailbox import Command, Mailbox
from llama_py.engine.request import GenerationRequest
from llama_py.errors import ClosedError, LlamaError, QueueFullError

if TYPE_CHECKING:
    from llama_py.engine.media import MediaEncoder

__all__ = ["Driver"]

_log = logging.getLogger("llama_py")
T = TypeVar("T")

#: Seconds that a driver which nobody refers to any more waits for its thread.
_PATIENCE = 5.0


def _look() -> None:
    """A command for an engine that waits for something that is there now."""


class Driver:
    """See the module.

    In a forked child its methods raise ``ForkedProcessError``, because its thread stayed behind.

    Args:
        engine: the engine, which nobody else may call from now on.
        max_waiting: requests that may wait for a sequence; one more raises ``QueueFullError``.
        in_place: start no thread; whoever waits steps. Only one thread may use it then.
    """

    def __init__(self, engine: Engine, *, max_waiting: int = 1024, in_place: bool = False) -> None:
        self.engine = engine
        self._loop = Loop(engine)
        self._max_waiting = max_waiting
        self._process = forks.current()
        self._starting = threading.RLock()
        self._in_place = in_place
        #: In place, the books are being changed. Still true afterwards: that was interrupted.
        self._inside = False
        #: Threads that prepare requests, for which they need the vocabulary.
        self._preparing: set[int] = set()
        self._closed = False
        _drivers.add(self)

    # -- requests -------------------------------------------------------------------------------

    def submit(
        self,
        requests: Sequence[GenerationRequest],
        mailbox: Mailbox,
        *,
        read_here: bool = True,
        first: Command | None = None,
    ) -> None:
        """Check and queue the requests of a call: all of them, or none.

        Args:
            mailbox: takes their outputs. It must not refer to the driver.
            read_here: this thread will read them.
            first: run in the engine's thread just before they are queued.

        Raises:
            ContextOverflowError: a prompt does not fit; nothing was touched.
            QueueFullError: too many requests are waiting.
            GrammarError, ParameterError: a sampler cannot be made.
            ClosedError, ForkedProcessError: it cannot be used any more, or not here.
            ModelChangedError: the model's file was changed in place.
            LlamaError: a callback of a request calls it.
        """
        engine, loop, me = self.engine, self._loop, threading.get_ident()
        try:
            # ``close`` waits until nobody needs the vocabulary any more, and posts after them.
            self._preparing.add(me)
            self.check()
            engine.context.model.check_file()
            waiting = self.in_flight - engine.context.n_seq_max
            if waiting + len(requests) > self._max_waiting:
                raise QueueFullError(
                    f"{max(0, waiting)} requests are waiting already, and the limit is "
                    f"{self._max_waiting}; try again later, or raise max_waiting"
                )
            prepared = prepare(
                requests, engine.cache, engine.vocab, engine.requests.ended, engine.clock
            )
            engine.media.keep(requests)
            mailbox.expect(
                [running.number for running in prepared],
                [running.record for running in prepared],
                me if read_here else None,
            )
            try:
                for number in mailbox.numbers:  # they count from now on
                    loop.mailboxes[number] = mailbox
                self.post(lambda: loop.begin(prepared, mailbox, first))
            except BaseException:  # Ctrl-C, maybe when they are queued, and nobody will read
                self.post(lambda: loop.give_up(mailbox))
                raise
        finally:
            self._preparing.discard(me)

    def cancel(self, mailbox: Mailbox, *, wait: bool = True) -> None:
        """End a call; its sequences keep what was decoded. Does nothing if it has ended.

        Args:
            wait: return when it has ended, which takes at most one step, and less where its own
                prompt is being evaluated (on the CPU, but for recurrent states). Within a callback
                it ends after the step all the same.
        """
        if mailbox.ended.is_set() or self.inherited:
            return
        loop = self._loop
        self.post(lambda: loop.cancel(mailbox))
        prefilling = self.engine.runner.prefilling
        if prefilling and {*prefilling} <= {*mailbox.numbers}:
            self.engine.context.abort.ask()
        if wait and not self._in_callback and not _exiting:
            self.wait_for(mailbox.ended.is_set)
            while not mailbox.ended.wait(LOOK):
                self.check_alive()

    def attach_media(self, encoder: MediaEncoder) -> None:
        """From now on prompts may have pictures and sounds, which this encodes."""
        # Neither the engine nor the loop, which refer to this.
        commands, media, runner = self._loop.commands, self.engine.media, self.engine.runner

        def wake() -> None:
            commands.put(_look)
            runner.hurry()

        media.encoder, media.wake = encoder, None if self._in_place else wake

    def pause(self, mailbox: Mailbox) -> None:
        """Leave a call out of the steps until ``resume``: whoever gets its events is behind."""
        loop = self._loop
        self.post(lambda: loop.pause(mailbox))

    def resume(self, mailbox: Mailbox) -> None:
        """Go on with a call that was paused because nobody read what came."""
        loop = self._loop
        self.post(lambda: loop.resume(mailbox))

    # -- everything else ------------------------------------------------------------------------

    def run(self, function: Callable[[], T]) -> T:
        """Run a function between two steps, in the engine's thread, and return what it returns.

        An interrupt while it waits leaves the function alone if it has begun, and else drops it.
        """
        return self.run_abortable(lambda _: function())

    def run_abortable(self, function: Callable[[Callable[[], bool]], T]) -> T:
        """``run`` for a function that decodes, and stops when its argument returns False."""
        self.check()
        self.engine.context.model.check_file()
        job: EngineJob[T] = EngineJob(lambda: function(lambda: job.wanted))
        self.post(job)
        try:
            if self._in_place:
                self._round(step=False)
            return job.wait(self._alive)
        except BaseException as error:
            job.wanted = False
            self._note_interrupt(error)
            if self.engine.runner.abortable and not self._closed:
                self.engine.context.abort.ask()
            raise

    def run_when_quiet(self, function: Callable[[], T], *, cancel: bool = False) -> T:
        """``run``, at a moment when no request is in flight.

        Calls of other threads that are in flight are waited for, and those that come meanwhile
        begin afterwards. Calls of this thread are cancelled, because it cannot read them.

        Args:
            cancel: end the calls of other threads as well.
        """
        self.check()
        job = EngineJob(function)
        loop, me = self._loop, threading.get_ident()
        self.post(lambda: loop.when_quiet(job, cancel=cancel, thread=me))
        if cancel and self.engine.runner.prefilling:
            self.engine.context.abort.ask()
        try:
            self.wait_for(lambda: job.done)
            return job.wait(self._alive)
        except BaseException as error:
            job.wanted = False
            self._note_interrupt(error)
            self.post(loop.forget_unwanted)
            raise

    def wait_for(self, done: Callable[[], bool]) -> None:
        """In place: step until ``done()`` is true. Where there is a thread, it sees to that.

        Raises:
            LlamaError: a callback would wait for the step that it is a part of.
        """
        self.check_process()
        if self._in_callback and not done():
            self.refuse_callbacks()
        while self._in_place and not done():
            if not self._round() and not done():
                raise LlamaError("there is nothing left to be done that this call could wait for")

    def check_alive(self) -> None:
        """Raise ``ClosedError`` if nobody is there any more who could deliver something.

        At the end of the process, threads that wait are left waiting: they end with it. The main
        thread is what ends it, and must go on.
        """
        main = threading.current_thread() is threading.main_thread()
        if not self._alive() and (main or not _exiting):
            raise ClosedError(CLOSED)

    def post(self, command: Command) -> None:
        """Let the engine's thread run something between two steps. Returns at once."""
        self._loop.commands.put(command)
        self.engine.runner.hurry()
        if self._loop.thread is None and not self._in_place:
            self._start()

    # -- the thread -----------------------------------------------------------------------------

    def _start(self) -> None:
        with self._starting:
            if self._loop.thread is not None or self._in_place:
                return
            # Interrupted here, it may run or not: should two be started, the second one ends.
            thread = threading.Thread(target=self._loop.run, name="llama_py-engine", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # there are no threads here (WebAssembly), or no more of them
                _log.info("no thread can be started; the engine is stepped by its callers")
                self._in_place = True
            else:
                self._loop.begun.wait()

    def _alive(self) -> bool:
        thread = self._loop.thread
        return thread is None or thread.is_alive()

    def step(self) -> bool:
        """In place: run the commands that have come, and step; False if there was nothing to do.

        Raises:
            LlamaError: the engine has a thread of its own, or this is a callback of a request.
        """
        self.refuse_callbacks()
        if not self._in_place:
            raise LlamaError("this model has a thread that steps; load it with in_place=True")
        return self._round()

    @property
    def in_flight(self) -> int:
        """How many requests were submitted and have not ended."""
        return len(self._loop.mailboxes)

    def _note_interrupt(self, error: BaseException) -> None:
        """In place, it may have come in the middle of a change of the books."""
        if self._in_place and not isinstance(error, Exception):
            self._inside = True

    def _round(self, *, step: bool = True) -> bool:
        """In place: the commands that have come, and a step; False if there was nothing to do."""
        if self._inside:
            self._start_over()
        self._inside = True
        loop = self._loop
        had_commands = loop.has_commands()
        loop.obey()
        worked = step and not loop.stopped and loop.step()
        self._inside = False
        return worked or had_commands

    def _start_over(self) -> None:
        """An interrupt came in the middle of a step: nothing in memory is certain any more."""
        _log.warning("a step was interrupted: requests in flight fail, and the cache is cleared")
        self._loop.start_over(LlamaError("a step of the engine was interrupted"))
        self._inside = False

    # -- life -----------------------------------------------------------------------------------

    @property
    def inherited(self) -> bool:
        """True in a child of the process that made it."""
        return self._process.inherited

    @property
    def _in_callback(self) -> bool:
        thread = self._loop.thread
        if thread is None:
            return self.engine.stepping
        # The number of a thread that has ended may be that of another one.
        return thread.ident == threading.get_ident() and thread.is_alive()

    def check_process(self) -> None:
        """Raise ``ForkedProcessError`` in a child of the process that made it."""
        if self._process.inherited:
            raise forks.refuse()

    def check(self) -> None:
        """Raise unless it can be used here and now (see ``submit``)."""
        self.check_process()
        if self._closed:
            raise ClosedError("this model was closed; load it again")
        self.refuse_callbacks()
        if self._inside and self._in_place:  # and not in a callback
            self._start_over()

    def refuse_callbacks(self) -> None:
        """Raise ``LlamaError`` in a callback of a request, which would wait for itself."""
        if self._in_callback:
            raise LlamaError(
                "a callback of a request (logits processor, stopping criterion, progress) cannot "
                "call, reset or close the model it belongs to; do it when the reply has ended"
            )

    def close(self) -> None:
        """Fail everything that is in flight, and end the thread. Closing twice does nothing.

        Raises:
            LlamaError: it is called from a callback of a request.
        """
        if self.inherited:
            return
        self.refuse_callbacks()
        self._closed = True
        while self._preparing - {threading.get_ident()}:
            time.sleep(0.001)
        loop = self._loop
        if not loop.stopped:
            loop.commands.put(loop.stop)
            if self.engine.runner.prefilling:
                self.engine.context.abort.ask()
        if loop.obey_without_thread():
            return
        loop.begun.wait()
        thread = self._loop.thread
        while thread is not None and thread.is_alive():
            thread.join(LOOK)

    def halt(self) -> None:
        """Let the thread end after its step, without a word to anybody: the process ends.

        It is not waited for in a callback, which may wait for something that never comes.
        """
        thread = self._loop.thread
        if self.inherited:
            return
        if thread is None:
            if not self._inside:  # else what is in memory is not certain
                self._loop.halt()
            return
        self._loop.commands.put(self._loop.halt)
        if self.engine.runner.prefilling:
            self.engine.context.abort.ask()
        thread.join(_PATIENCE)
        while thread.is_alive() and self.engine.runner.decoding:
            thread.join(LOOK)

    def __del__(self) -> None:
        # ``None``: the interpreter has taken the globals of this module away already.
        if not hasattr(self, "_closed") or _exiting is not False or self.inherited:
            return
        loop, thread = self._loop, self._loop.thread
        self._closed = True
        loop.commands.put(loop.stop)
        if thread is None:
            loop.obey_without_thread()
        elif not self._in_callback:  # else the engine's thread has the last reference, and ends
            if self.engine.runner.prefilling:
                self.engine.context.abort.ask()
            # Not for ever: the garbage collector may run this while a lock is held that the thread
            # needs. The thread keeps what it works with alive until it ends.
            thread.join(_PATIENCE)


_drivers: weakref.WeakSet[Driver] = weakref.WeakSet()
_exiting = False


@atexit.register
def _close_all() -> None:
    """At the end of the process no thread may be inside of llama.cpp."""
    global _exiting
    _exiting = True
    for driver in [*_drivers]:
        driver.halt()
