"""``FreeCpus``: how many CPUs other programs leave to this process, as the system counts it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["FreeCpus"]

#: Seconds over which less than this was measured say nothing: the system counts in ticks of 10 ms.
_SHORTEST = 0.1
#: Columns of ``/proc/stat`` (user, nice, system, idle, iowait, ...) in which nobody computes.
_NICE, _IDLE, _IOWAIT = 1, 3, 4


class FreeCpus:
    """Call it now and then: it says what was free between two calls.

    Where there is no ``/proc/stat`` (outside of Linux), nothing is known. In a container it counts
    what the whole machine does on the CPUs that this process may use; of a quota it knows nothing.

    Args:
        root: where ``/proc`` is.
        allowed: the CPUs that this process may run on; by default, the system is asked.
        clock, own: wall-clock time, and the CPU time of this process, in seconds.
        polite: this process gives way itself (it is niced): programs that do so count, then.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        allowed: set[int] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        own: Callable[[], float] = time.process_time,
        polite: bool | None = None,
    ) -> None:
        self._path = root / "proc/stat"
        self._allowed = _affinity() if allowed is None else allowed
        self._clock, self._own = clock, own
        self._ticks = _ticks_per_second()
        self._polite = _niceness() > 0 if polite is None else polite
        self._last = self._read()

    @property
    def known(self) -> bool:
        """Whether the system tells."""
        return self._last is not None

    def __call__(self) -> float | None:
        """The CPUs that were idle or computed for this process since the last call, on average.

        None if that is not known, or if the last call was too short a time ago.
        """
        before, after = self._last, self._read()
        if before is None or after is None or after[0] - before[0] < _SHORTEST:
            return None
        self._last = after
        seconds = after[0] - before[0]
        others = (after[1] - before[1]) - (after[2] - before[2])
        return len(self._allowed) - min(max(0.0, others / seconds), float(len(self._allowed)))

    def _read(self) -> tuple[float, float, float] | None:
        """The time, and the seconds that everybody's and that this process's threads computed."""
        try:
            text = self._path.read_text(encoding="ascii")
            busy = sum(map(self._busy, text.splitlines()))
        except (OSError, ValueError):
            return None
        return (self._clock(), busy / self._ticks, self._own()) if self._allowed else None

    def _busy(self, line: str) -> int:
        """Ticks in which a CPU of ours computed. Programs that give way to us do not count."""
        name, *columns = line.split()
        if not (name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in self._allowed):
            return 0
        ticks = [int(column) for column in columns[:8]]
        if len(ticks) <= _IOWAIT:
            raise ValueError(line)
        gives_way = 0 if self._polite else ticks[_NICE]
        return sum(ticks) - ticks[_IDLE] - ticks[_IOWAIT] - gives_way


def _affinity() -> set[int]:
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # macOS and Windows, which have no /proc/stat either
        return set()


def _ticks_per_second() -> int:
    try:
        return os.sysconf("SC_CLK_TCK")
    except (AttributeError, ValueError, OSError):
        return 100


def _niceness() -> int:
    try:
        return os.getpriority(os.PRIO_PROCESS, 0)
    except (AttributeError, OSError):
        return 0
