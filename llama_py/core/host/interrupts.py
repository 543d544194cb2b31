"""Ctrl-C during a computation in C.

Python runs signal handlers in its main thread, between two of its own instructions, so a main
thread that is inside ``llama_decode`` hears nothing until it returns. Worse, one that is inside a
callback of C (the log, the progress of loading) runs the handler there, and what it raises is lost,
because no exception passes through C. So what may take long, or calls back, is computed by another
thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["in_main_thread", "run_interruptibly"]

_T = TypeVar("_T")

#: Seconds between two looks for signals: on Windows, no wait is ended by one.
_LOOK = 0.1


def in_main_thread() -> bool:
    """Whether this thread is the one that gets the signals."""
    return threading.current_thread() is threading.main_thread()


def run_interruptibly(
    compute: Callable[[], _T],
    stop: Callable[[], None],
    attend: Callable[[float], None] | None = None,
    patience: float | None = None,
) -> _T:
    """``compute()`` in another thread; ``stop()`` ends it early if a signal handler raises.

    What the handler raised comes out of here when nothing is computed any more. A result is lost
    then: what has to be freed must be put where the caller finds it.

    Args:
        attend: what this thread does meanwhile, once at least and again and again, for so many
            seconds at most; what it raises ends the computation as well.
        patience: seconds to wait for one that was stopped. After that it is left alone: it must
            need nothing that the caller takes away, and clean up after itself.
    """
    job = _Job(compute, patience)
    try:
        try:
            # What is left alone must not keep the process from ending.
            daemon = patience is not None
            threading.Thread(target=job.run, name="llama_py-compute", daemon=daemon).start()
        except RuntimeError:  # there may be no more threads, or the interpreter is shutting down
            job.run()
        if attend:
            attend(_LOOK)
        while not job.ended.wait(0 if attend else _LOOK):
            if attend:
                attend(_LOOK)
    except BaseException:
        job.end_surely(stop)
        raise
    return job.result()


class _Job(Generic[_T]):
    """A computation that is either never begun, or waited for."""

    def __init__(self, compute: Callable[[], _T], patience: float | None) -> None:
        self.patience = patience
        self._compute = compute
        self._claim = threading.Lock()
        self._begun = self._unwanted = False
        self._results: list[_T] = []
        self._errors: list[BaseException] = []
        self.ended = threading.Event()

    def run(self) -> None:
        """The thread's main function."""
        with self._claim:
            if self._unwanted:
                return  # the interrupt came first
            self._begun = True
        try:
            self._results.append(self._compute())
        except BaseException as error:
            self._errors.append(error)
        finally:
            self.ended.set()

    def end_surely(self, stop: Callable[[], None]) -> None:
        """After an interrupt, wherever it came, and through further ones: nothing computes then.

        Two threads in one context would end the process. (Unless patience has an end.)
        """
        while True:
            try:
                return self._end(stop)
            except BaseException:
                continue

    def _end(self, stop: Callable[[], None]) -> None:
        self._unwanted = True
        with self._claim:
            begun = self._begun
        if begun:
            stop()
            self.ended.wait(self.patience)

    def result(self) -> _T:
        if self._errors:
            raise self._errors[0]
        return self._results[0]
