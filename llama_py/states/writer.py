"""``Writer``: does the slow work of a store beside the threads that ask for it, in order."""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

__all__ = ["Writer"]

_log = logging.getLogger("llama_py")

#: Seconds after which a thread without work ends.
_IDLE = 1.0
#: Seconds that the end of the process waits for what is still to be written.
_LAST_MOMENTS = 10.0


class Writer:
    """A queue, and a thread that exists while there is something in it.

    Where no thread can be started, jobs are done at once by whoever brings them.

    Attributes:
        backlog: bytes that the jobs in the queue, and the one that is being done, hold.
    """

    def __init__(self) -> None:
        self.backlog = 0
        self._changed = threading.Condition()
        self._jobs: deque[tuple[Callable[[], object], int]] = deque()
        self._thread: threading.Thread | None = None
        self._working = False
        _writers.add(self)

    def submit(self, job: Callable[[], object], nbytes: int = 0) -> None:
        """Do ``job``, which keeps ``nbytes`` bytes in memory, after all that came before it."""
        with self._changed:
            self._jobs.append((job, nbytes))
            self.backlog += nbytes
            if self._thread is not None:
                self._changed.notify_all()
                return
            thread = threading.Thread(target=self._run, name="llama_py-store", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads, or none at all on this platform
                threadless = True
            else:
                threadless, self._thread = False, thread
        if threadless:
            self._do_all()

    def wait(self, backlog: int, timeout: float) -> bool:
        """Wait until the backlog is that small (0: until all is done); False if time is over."""
        if threading.current_thread() is self._thread:
            return True  # a job must not wait for itself

        def done() -> bool:
            busy = bool(self._jobs) or self._working
            return self.backlog <= backlog and not (busy and backlog == 0)

        with self._changed:
            return self._changed.wait_for(done, timeout)

    def _run(self) -> None:
        while True:
            self._do_all()
            with self._changed:
                self._changed.wait_for(lambda: bool(self._jobs), _IDLE)
                if not self._jobs:
                    self._thread = None
                    return

    def _do_all(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    return
                job, nbytes = self._jobs.popleft()
                self._working = True
            try:
                job()
            except Exception as error:  # nobody is there whom it could be told
                _log.warning("a stored state could not be written: %r", error)
            finally:
                del job  # and what it holds
                with self._changed:
                    self.backlog -= nbytes
                    self._working = False
                    self._changed.notify_all()


_writers: weakref.WeakSet[Writer] = weakref.WeakSet()


def _finish() -> None:
    """What was handed over is written before the process ends, if that does not take for ever."""
    end = time.monotonic() + _LAST_MOMENTS
    for writer in list(_writers):
        writer.wait(0, max(0.0, end - time.monotonic()))


atexit.register(_finish)
