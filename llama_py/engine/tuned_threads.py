"""``TunedThreads``: computes with as many threads as are fastest now, if none were set."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llama_py.core.context import Context
from llama_py.core.host.free_cpus import FreeCpus
from llama_py.engine.clock import Clock
from llama_py.engine.thread_tuner import ThreadTuner

__all__ = ["TunedThreads"]

#: Seconds between two looks at what other programs do, and the share of the time that looks take.
_LOOK, _LOOK_SHARE = 0.2, 0.002
#: Seconds without a step after which the load is looked at before the next one.
_IDLE = 5.0
#: Batches of this many tokens and more are compared by the time of one token.
_MANY = 64


class TunedThreads:
    """The threads of one context: one tuner for single tokens, and one for batches.

    Args:
        context: computes on the CPU, with numbers of threads that nobody fixed.
        free: says how many CPUs were free since it was asked last.
        free_now: says how many are free before a step that none preceded; by default ``free``.
        clock: that of the times which ``after`` gets.

    Attributes:
        threads: for one token, and for many.
    """

    def __init__(
        self,
        context: Context,
        free: Callable[[], float | None] | None = None,
        free_now: Callable[[], float | None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._context = context
        self._one = ThreadTuner(context.params.n_threads or 1)
        self._many = ThreadTuner(context.params.n_threads_batch or 1)
        self.threads = (self._one.threads, self._many.threads)
        cpus = FreeCpus()
        self._free = free or cpus
        self._free_now = free_now or free or cpus.before
        self._clock = clock or Clock()
        self._next_look = self._ended = float("-inf")
        #: The system has no more threads: they stay as they are.
        self._stuck = False

    @staticmethod
    def of(context: Context, clock: Clock | None = None) -> TunedThreads | None:
        """The tuner of a context; None if its threads are fixed, or there is nothing to choose."""
        params = context.params
        most = max(params.n_threads or 1, params.n_threads_batch or 1)
        return (
            TunedThreads(context, clock=clock) if context.threads_may_change and most > 1 else None
        )

    def before(self, now: float) -> None:
        """A step is about to begin, which may be the first one, or a long prompt after a pause."""
        if now - self._ended >= _IDLE:
            self._ended, self._next_look = now, now + _LOOK
            self._hint(self._free_now())
            self._apply()

    def after(self, tokens: int, seconds: float, now: float) -> None:
        """Enter a step of this many tokens, which ended ``now``, and prepare the next one."""
        self._ended = now
        if now >= self._next_look:
            free = self._free()
            self._next_look = now + max(_LOOK, (self._clock() - now) / _LOOK_SHARE)
            self._hint(free)
        if tokens == 1:
            self._one.note(1, seconds)
        elif tokens < _MANY:
            self._many.note(tokens, seconds)
        else:
            self._many.note(_MANY, seconds, tokens)
        self._apply()

    def _apply(self) -> None:
        wanted = (self._one.threads, self._many.threads)
        if wanted != self.threads and not self._stuck:
            if self._context.try_threads(*wanted):
                self.threads = wanted
            else:
                self._stuck = True

    def after_steps(self, tokens: int, times: Sequence[float], now: float) -> None:
        """Enter several steps, which had the same threads, and prepare the next one."""
        threads = self.threads
        for seconds in times:
            self.after(tokens, seconds, now)
            if self.threads != threads:  # what was asked for is not what the others had
                return

    def _hint(self, free: float | None) -> None:
        if free is not None:
            self._one.hint(free)
            self._many.hint(free)
