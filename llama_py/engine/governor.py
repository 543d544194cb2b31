"""``ThreadGovernor``: how many threads to compute with, decided by how long steps take.

ggml's threads wait for each other in busy loops, many times in a step. When another program takes
one of the cores, the thread that shares it delays all others, and fewer threads are faster.

A governor *settles* on a count and compares it, now and then, with another one in a *trial* of a few
steps. What starts a trial is a hint (so many CPUs are free), steps that have become slower, or time.
What decides it is step times alone. Trials that lose cost time, which is a debt: it is paid off by
1 % of the time that steps take, and until then there are no further trials.

Pure: no clocks, no threads, nothing native.
"""

from __future__ import annotations

from collections import deque

__all__ = ["ThreadGovernor"]

#: The share of the time that lost trials may take, in the long run.
_SHARE = 0.01
#: Steps of the settled count that a trial is compared with.
_WINDOW = 6
#: Steps that say how long steps take, and how many seconds of them do (but not one step alone).
_ENOUGH, _ENOUGH_SECONDS = 3, 0.2
#: A trial of more threads wins with this share of the settled time, one of fewer with less: more
#: threads are the right answer on a free machine, where the two may differ by noise only.
_WINS_UP, _WINS_DOWN = 0.98, 0.9
#: A trial ends at once when a step takes as many times as long as the settled count's.
_HOPELESS = 1.4
#: Steps have become slower when they take as many times as long as they used to.
_SLOWER = 1.25
#: Seconds of steps between two trials that nothing but time asks for: the first time and the longest.
_REST, _LONGEST_REST = 0.3, 20.0
#: A new hint is followed at once, if no more than so many steps are owed.
_CREDIT = 3.0
#: How fast what is usual follows slow changes, such as a conversation that becomes longer.
_FOLLOW = 0.05


class ThreadGovernor:
    """Chooses a number of threads between 1 and ``most``.

    Attributes:
        most: the threads on a machine that nobody else uses.
        threads: those that the next step should have.
        debt: seconds that lost trials cost and that are not paid off.
    """

    def __init__(self, most: int) -> None:
        self.most = self.threads = most
        self.debt = 0.0
        counts = (most, most - 1, most * 3 // 4, most // 2, most // 4, 1)
        #: Not every count: each one that is tried gets threads of its own, which sleep otherwise.
        self._ladder = sorted({count for count in counts if count > 0})
        self._settled = most
        self._kind = 0
        self._window = _Steps(_WINDOW)
        self._trial = _Steps(_WINDOW)
        self._usual = 0.0
        self._hint: int | None = None
        self._refused: int | None = None
        self._upwards = False
        self._rest, self._pause = 0.0, _REST

    def hint(self, free: float) -> None:
        """Say how many CPUs other programs leave: a reason for a trial, no more."""
        there = int(free + 0.4)
        hint = max([count for count in self._ladder if count <= there], default=1)
        if hint != self._hint:
            self._hint, self._refused = hint, None

    def note(self, kind: int, seconds: float, work: float = 1.0) -> int:
        """Enter a step that took ``seconds``; returns ``threads``.

        Args:
            kind: only steps of one kind are compared.
            work: how much was done in it, where steps of one kind differ in that.
        """
        self.debt = max(0.0, self.debt - _SHARE * seconds)
        self._rest -= seconds
        if kind != self._kind:
            self._begin(kind)
        elif self.threads != self._settled:
            self._try(seconds, work)
        else:
            self._watch(seconds, work)
        return self.threads

    def _begin(self, kind: int) -> None:
        """Steps of another kind: nothing is known of how long they take."""
        self._owe()
        self.threads = self._settled
        self._kind, self._usual = kind, 0.0
        self._trial.clear()
        self._window.clear()

    def _watch(self, seconds: float, work: float) -> None:
        """A step of the settled count; begins a trial if there is a reason."""
        self._window.add(seconds, work)
        if self.most == 1 or not self._window.enough:
            return
        now = self._window.mean
        slower = bool(self._usual) and now > _SLOWER * self._usual
        candidate = self._candidate(now, slower)
        if candidate is not None:
            self.threads, self._upwards = candidate, candidate > self._settled
        elif not self._usual:
            self._usual = now
        elif not slower:
            self._usual += _FOLLOW * (now - self._usual)

    def _candidate(self, now: float, slower: bool) -> int | None:
        """The count to be tried next, or None. ``now``: seconds of a step at present."""
        hint = self._hint
        if hint not in (None, self._settled, self._refused) and self.debt <= _CREDIT * now:
            return hint
        if self.debt > 0 or self._rest > 0:
            return None
        if self._settled < self.most:
            return min(count for count in self._ladder if count > self._settled)
        if (slower or hint is None) and self._settled > 1:
            return max(count for count in self._ladder if count < self._settled)
        return None

    def _try(self, seconds: float, work: float) -> None:
        """A step of a trial; ends it when it is clear who wins."""
        self._trial.add(seconds, work)
        usual = self._window.mean
        if seconds > _HOPELESS * usual * work:
            self._refuse(usual)
        elif self._trial.enough:
            wins = _WINS_UP if self._upwards else _WINS_DOWN
            if self._trial.seconds < wins * usual * self._trial.work:
                self._settle()
            else:
                self._refuse(usual)

    def _settle(self) -> None:
        """The trial won."""
        self._settled = self.threads
        self._window, self._trial = self._trial, _Steps(_WINDOW)
        self._usual = 0.0
        self._rest = self._pause = _REST
        self._refused = None

    def _refuse(self, usual: float) -> None:
        """The settled count stays. The longer that is so, the more rarely it is doubted."""
        self._owe()
        if self.threads == self._hint:
            self._refused = self._hint
        self.threads = self._settled
        self._usual = usual
        self._rest, self._pause = self._pause, min(2 * self._pause, _LONGEST_REST)
        self._trial.clear()

    def _owe(self) -> None:
        """What the steps of the trial took longer than they would have taken without it."""
        if self._trial.work:
            usual = self._window.mean * self._trial.work
            self.debt += max(0.0, self._trial.seconds - usual)


class _Steps:
    """The last steps with one number of threads.

    Attributes:
        seconds, work: of all of them.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.clear()

    def clear(self) -> None:
        self._rates: deque[float] = deque(maxlen=self._most)
        self.seconds = self.work = 0.0

    def add(self, seconds: float, work: float) -> None:
        self._rates.append(seconds / work)
        self.seconds += seconds
        self.work += work

    @property
    def enough(self) -> bool:
        """Whether they say something."""
        count = len(self._rates)
        return count >= _ENOUGH or (count > 1 and self.seconds >= _ENOUGH_SECONDS)

    @property
    def mean(self) -> float:
        """Seconds per work, without the slowest step: that may have been anything."""
        rates = self._rates
        if len(rates) < _ENOUGH:
            return sum(rates) / len(rates)
        return (sum(rates) - max(rates)) / (len(rates) - 1)
