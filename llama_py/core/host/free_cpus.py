"""``FreeCpus``: how many CPUs other programs leave to this process, as the system counts it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from llama_py.core.host.machine import allowed_cpus

__all__ = ["FreeCpus"]

#: Seconds over which less than this was measured say nothing: the system counts in ticks of 10 ms.
_SHORTEST = 0.1
#: Seconds after which an average says little of what is so now.
_LONGEST = 5.0
#: How often it is looked how many threads want to compute, and the seconds between two looks: what
#: is there each time is not a program that has something to do for a moment.
_LOOKS, _PAUSE = 3, 0.001
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
        sleep: waits this many seconds.
        polite: this process gives way itself (it is niced): programs that do so count, then.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        allowed: set[int] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        own: Callable[[], float] = time.process_time,
        polite: bool | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = root / "proc/stat"
        self._allowed = allowed_cpus() if allowed is None else allowed
        self._clock, self._own = clock, own
        try:
            self._ticks = os.sysconf("SC_CLK_TCK")
        except (AttributeError, ValueError, OSError):
            self._ticks = 100
        if polite is None:
            try:
                polite = os.getpriority(os.PRIO_PROCESS, 0) > 0
            except (AttributeError, OSError):
                polite = False
        self._polite = polite
        self._sleep = sleep
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

    def before(self) -> float | None:
        """The same for somebody who is about to begin, and was not computing before.

        The average since the last call, if that was neither too short nor too long a time ago;
        otherwise what is so at this moment, by the number of threads that want to compute (those of
        programs that give way are among them).
        """
        last = self._last
        if last is None:
            return None
        if self._clock() - last[0] <= _LONGEST and (free := self()) is not None:
            return free
        counts = []
        for number in range(_LOOKS):
            if number:
                self._sleep(_PAUSE)
            try:
                text = self._path.read_text(encoding="ascii")
                (wanting,) = re.findall(r"^procs_running (\d+)$", text, re.MULTILINE)
            except (OSError, ValueError):
                return None
            counts.append(int(wanting) - 1)  # this thread is one of them
        cpus = len(re.findall(r"^cpu\d", text, re.MULTILINE))
        if not cpus:
            return None
        # Threads may be anywhere: our CPUs have their share of them.
        return len(self._allowed) * max(0.0, 1 - max(0, min(counts)) / cpus)

    def _read(self) -> tuple[float, float, float] | None:
        """The time, and the seconds that everybody's and that this process's threads computed.

        Of everybody's, those on our CPUs. Programs that give way to us do not count.
        """
        busy = 0
        try:
            for line in self._path.read_text(encoding="ascii").splitlines():
                name, *columns = line.split()
                number = name.removeprefix("cpu")
                if number == name or not number.isdigit() or int(number) not in self._allowed:
                    continue
                ticks = [int(column) for column in columns[:8]]
                if len(ticks) <= _IOWAIT:
                    return None
                gives_way = 0 if self._polite else ticks[_NICE]
                busy += sum(ticks) - ticks[_IDLE] - ticks[_IOWAIT] - gives_way
        except (OSError, ValueError):
            return None
        return (self._clock(), busy / self._ticks, self._own()) if self._allowed else None
