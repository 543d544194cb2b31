"""``ThreadTuner``: how many threads to compute with, decided by how long steps take.

ggml's threads wait for each other in busy loops, many times in a step. When another program takes
one of the cores, the thread that shares it delays all others, and fewer threads are faster.

A tuner *settles* on a count, measures its steps in *blocks*, and now and then compares the last
block with one of another count, a *trial*. A hint (so many CPUs are free), blocks that became
slower, or time are reasons for a trial; what decides it is step times alone. Trials that lose cost
time, which is a debt: it is paid off by 1 % of the time that steps take, and until then there are
no further trials, but for a new hint.

Pure: no clocks, no threads, nothing native.
"""

from __future__ import annotations

__all__ = ["ThreadTuner"]

#: The share of the time that lost trials may take, in the long run.
_SHARE = 0.01
#: A block: so many steps, and so many seconds of them; of fewer steps, more seconds. Shorter ones
#: say little: another program and one of our threads take turns on a core, for milliseconds each.
_STEPS, _SECONDS, _FEW_SECONDS = 3, 0.04, 0.6
#: A trial wins when its block takes less than this share of the settled one's: one of more or of
#: fewer threads, when a hint speaks for it or nothing does. More threads are right on a free
#: machine, where noise must not reduce them.
_WINS = {(True, True): 1.03, (True, False): 0.98, (False, True): 0.95, (False, False): 0.88}
#: A trial ends at once when it takes as many times as long, after so many seconds.
_HOPELESS, _SOON = 1.4, 0.01
#: Steps have become slower when two blocks take as many times as long as they used to.
_SLOWER = 1.25
#: Seconds of steps between two trials of the same: the first time, and the longest.
_REST, _LONGEST_REST = 0.3, 20.0
#: A new hint is followed at once, if no more than so many steps are owed.
_CREDIT = 4.0
#: How fast what is usual follows slow changes, such as a conversation that becomes longer.
_FOLLOW = 0.2


class ThreadTuner:
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
        self._block = _Trial()
        #: Seconds per work of the settled count: of the last block, and as it has been for long.
        self._now = self._usual = 0.0
        self._slow_blocks = 0
        self._hint: int | None = None
        self._new_hint = False
        self._rest, self._pause = 0.0, _REST

    def hint(self, free: float) -> None:
        """Say how many CPUs other programs leave: a reason for a trial, no more."""
        there = int(free + 0.4)
        hint = max([count for count in self._ladder if count <= there], default=1)
        if hint != self._hint:
            self._hint, self._new_hint, self._pause = hint, True, _REST
            if not self._now:  # nothing else is known yet
                self._settled = self.threads = hint
                self._new_hint, self._rest = False, _REST
            if self.threads == self._settled:
                self._block = _Trial()  # what was measured before may be true no more

    def note(self, kind: int, seconds: float, work: float = 1.0) -> int:
        """Enter a step that took ``seconds``; returns ``threads``.

        Args:
            kind: only steps of one kind are compared.
            work: how much was done in it, where steps of one kind differ in that.
        """
        if self.debt:
            self.debt = max(0.0, self.debt - _SHARE * seconds)
        self._rest -= seconds
        if kind != self._kind:  # nothing is known of how long these take
            if self.threads != self._settled:
                self._owe()
            self.threads = self._settled
            self._kind, self._usual, self._slow_blocks = kind, 0.0, 0
            self._block = _Trial()
        else:
            self._block.add(seconds, work)
            if self.threads != self._settled:
                self._try()
            elif self._block.whole:
                self._watch()
        return self.threads

    def _watch(self) -> None:
        """A block of the settled count is whole; begins a trial if there is a reason."""
        self._now, self._block = self._block.mean, _Trial()
        usual = self._usual
        if not usual or self._now < _SLOWER * usual:
            self._usual = usual + _FOLLOW * (self._now - usual) if usual else self._now
            self._slow_blocks = 0
        else:
            self._slow_blocks += 1
        candidate = self._candidate() if self.most > 1 else None
        if candidate is not None:
            self.threads = candidate

    def _candidate(self) -> int | None:
        """The count to be tried next, or None."""
        hint, settled = self._hint, self._settled
        differs = hint is not None and hint != settled
        if self._new_hint and self.debt <= _CREDIT * self._now:
            self._new_hint = False
            if differs:
                return hint
        if self.debt > 0 or self._rest > 0:
            return None
        if differs:
            return hint
        if self._slow_blocks < 2:  # one slow block is no reason, and must not decide either
            self._now = min(self._now, self._usual)
        if settled < self.most:
            return min(count for count in self._ladder if count > settled)
        if (self._slow_blocks > 1 or hint is None) and settled > 1:
            return max(count for count in self._ladder if count < settled)
        return None

    def _try(self) -> None:
        """A step of a trial; ends it when it is clear who wins."""
        block = self._block
        if block.seconds > max(_SOON, _HOPELESS * self._now * block.work):
            self._refuse()
        elif block.whole:
            hint, settled = self._hint or self._settled, self._settled
            more = self.threads > settled
            hinted = hint > settled if more else hint < settled
            if block.mean >= _WINS[more, hinted] * self._now:
                self._refuse()
                return
            self._settled = self.threads
            self._now = self._usual = block.mean
            self._slow_blocks = 0
            self._rest = self._pause = _REST
            self.debt = 0.0  # the way back must be open, in case that was noise
            self._block = _Trial()

    def _refuse(self) -> None:
        """The settled count stays. The longer that is so, the more rarely it is doubted."""
        self._owe()
        self.threads = self._settled
        self._usual = self._now
        self._slow_blocks = 0
        self._rest, self._pause = self._pause, min(2 * self._pause, _LONGEST_REST)
        self._block = _Trial()

    def _owe(self) -> None:
        """What the steps of the trial took longer than they would have taken without it."""
        self.debt += max(0.0, self._block.seconds - self._now * self._block.work)


class _Trial:
    """Steps with one number of threads.

    Attributes:
        seconds, work: of all of them.
    """

    __slots__ = ("_rates", "seconds", "work")

    def __init__(self) -> None:
        self._rates: list[float] = []
        self.seconds = self.work = 0.0

    def add(self, seconds: float, work: float) -> None:
        self._rates.append(seconds / work)
        self.seconds += seconds
        self.work += work

    @property
    def whole(self) -> bool:
        """Whether they say something."""
        enough = _SECONDS if len(self._rates) >= _STEPS else _FEW_SECONDS
        return self.seconds >= enough

    @property
    def mean(self) -> float:
        """Seconds per work, without the slowest steps: those may have been anything."""
        rates = sorted(self._rates)
        kept = rates[: len(rates) - max(1, len(rates) // 10)] or rates
        return sum(kept) / len(kept)
