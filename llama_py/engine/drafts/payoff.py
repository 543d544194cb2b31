"""Which drafts pay: how much of them is accepted, and what a wider step costs. Pure.

A step that verifies a draft of ``k`` tokens computes ``k`` more rows. If each token is accepted
with probability ``p``, it gives ``1 + p + p**2 + ... + p**k`` tokens instead of one. What ``k``
rows cost depends on the machine, the model and the other streams of the step, so it is measured,
steps without drafts from time to time as well. The streams of a step share its rows: the next row
goes to whoever is most likely to get a token for it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from llama_py.options.drafters import MTP, Drafter, DraftModel, Speculative

__all__ = ["Drafting", "Durations", "StepCosts", "Wish"]

#: The last measurements of a step with so many rows; their median counts.
_MEASUREMENTS = 5
#: Measurements of steps without drafts before there are any, and steps with drafts between them.
_LEAST, _MOST_IN_A_ROW = 3, 64
#: A draft must be worth this much more than the step without it: measurements are not exact.
_MARGIN = 1.03
#: What is believed of a drafter before anything was verified: tokens, and how many were accepted.
#: Few and good ones: who is not tried cannot show what he knows, and one mistake says enough.
_TRIALS, _SUCCESSES = 1.5, 1.35
#: How much of what was seen still counts after one more draft, and after one that was left out:
#: what did not pay is tried again after about a hundred tokens.
_MEMORY, _FORGIVING = 0.9, 0.99
#: A token that is less likely than this is not worth thinking about.
_UNLIKELY = 0.01
#: Steps after which the cost of so many rows is not known any more, and how often that is checked.
#: What was measured less than ``_LEAST`` times, and may have been a hiccup, is forgotten then.
_OLD, _LOOK = 2048, 64


class Durations:
    """How long something takes: the median of the last measurements, which one hiccup leaves alone.

    Attributes:
        seconds: that; 0.0 before anything was measured.
    """

    __slots__ = ("_measured", "seconds")

    def __init__(self) -> None:
        self._measured: deque[float] = deque(maxlen=_MEASUREMENTS)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """It took so long."""
        self._measured.append(seconds)
        self.seconds = sorted(self._measured)[len(self._measured) // 2]

    def left_out(self) -> None:
        """It was not done, because it seemed too slow: that may have been the moment's fault."""
        self.seconds *= _FORGIVING


class Drafting:
    """What is known about the drafts of one request.

    Attributes:
        settings: who drafts, and when.
        drafters: those that have not failed.
        rate: the share of drafted tokens that is accepted, as far as one can tell.
        seconds: what drafting a token takes.
    """

    __slots__ = ("_successes", "_trials", "drafters", "seconds", "settings")

    def __init__(self, settings: Speculative) -> None:
        self.settings = settings
        self.drafters: list[Drafter] = [
            each for each in settings.drafters if not isinstance(each, (DraftModel, MTP))
        ]
        self._trials = self._successes = self.seconds = 0.0

    @property
    def rate(self) -> float:
        """See the class; begins at 0.9."""
        return (self._successes + _SUCCESSES) / (self._trials + _TRIALS)

    def verified(self, drafted: int, accepted: int) -> None:
        """``accepted`` of ``drafted`` tokens were right; what follows a wrong one was not tried."""
        self._successes = self._successes * _MEMORY + accepted
        self._trials = self._trials * _MEMORY + accepted + (accepted < drafted)

    def left_out(self) -> None:
        """Nothing was drafted, because it would not have paid."""
        self._successes *= _FORGIVING
        self._trials *= _FORGIVING
        self.seconds *= _FORGIVING


@dataclass(slots=True, eq=False)
class Wish:
    """A stream that could have a draft in the next step.

    Attributes:
        most: longest possible draft.
        rate: probability that a drafted token is accepted.
        seconds: how long it takes to draft one token.
        together: drafted together with those of other streams that have the same key, a token of
            each at a time; None is alone.
        fixed: seconds that a draft costs beside that, whatever its length.
    """

    most: int
    rate: float
    seconds: float = 0.0
    together: object = None
    fixed: float = 0.0


class StepCosts:
    """Seconds that a step takes, by its number of rows."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}
        self._rows: list[int] = []
        self._last: dict[int, int] = {}
        self._known: dict[int, float] = {}
        self._in_a_row = self._steps = 0

    def add(self, rows: int, seconds: float, *, drafts: bool = False) -> None:
        """A step with so many rows, ``drafts`` among them, took so long."""
        self._in_a_row = self._in_a_row + 1 if drafts else 0
        if rows not in self._seconds:
            self._seconds[rows] = deque(maxlen=_MEASUREMENTS)
            insort(self._rows, rows)
        self._seconds[rows].append(seconds)
        self._steps += 1
        self._last[rows] = self._steps
        self._known.clear()
        if self._steps % _LOOK:
            return
        for each in [*self._rows]:  # something else may have slowed down what was long ago
            known = _OLD if len(self._seconds[each]) >= _LEAST else _LOOK
            if self._steps - self._last[each] > known:
                self._rows.remove(each)
                del self._seconds[each], self._last[each]

    def of(self, rows: int) -> float:
        """Seconds of a step with so many rows, interpolated; 0.0 if nothing is known.

        More rows than ever measured are taken to be as quick as those, and so are tried; more than
        twice as many are never the best.
        """
        found = self._known.get(rows)
        if found is not None:
            return found
        measured, place = self._rows, bisect_left(self._rows, rows)
        if not measured:
            found = 0.0
        elif place == len(measured):
            most = measured[-1]
            found = self._median(most) * (1.0 if rows <= 2 * most else rows / most)
        elif measured[place] == rows or place == 0:
            found = self._median(measured[place])
        else:
            below, above = measured[place - 1], measured[place]
            share = (rows - below) / (above - below)
            found = self._median(below) * (1 - share) + self._median(above) * share
        self._known[rows] = found
        return found

    def _median(self, rows: int) -> float:
        measured = sorted(self._seconds[rows])
        return measured[len(measured) // 2]

    def best(self, rows: int, tokens: float, wishes: Sequence[Wish]) -> list[int]:
        """How long the draft of each stream should be; 0 if none pays, or steps without are due.

        Args:
            rows: the rows of the step without drafts.
            tokens: what that step is expected to give.
        """
        lengths = [0] * len(wishes)
        best = [*lengths]
        measured = sum(len(self._seconds[each]) for each in self._rows if each <= rows)
        if measured < _LEAST or self._in_a_row >= _MOST_IN_A_ROW:
            return best
        fastest = tokens / max(self.of(rows), 1e-9) * _MARGIN
        drafting, depths = 0.0, dict.fromkeys((wish.together for wish in wishes), 0)
        # The most likely of the tokens that may come next in each draft.
        heap = [(-wish.rate, number) for number, wish in enumerate(wishes) if wish.most > 0]
        heapify(heap)
        while heap:
            likely, number = heap[0]
            wish, length = wishes[number], lengths[number] + 1
            lengths[number], rows, tokens = length, rows + 1, tokens - likely
            drafting += wish.fixed if length == 1 else 0.0
            if wish.together is None or depths[wish.together] < length:
                drafting += wish.seconds
                depths[wish.together] = length
            speed = tokens / (self.of(rows) + drafting)
            if speed > fastest:
                best, fastest = [*lengths], speed
            likely *= wish.rate
            if length < wish.most and -likely > _UNLIKELY:
                heapreplace(heap, (likely, number))
            else:
                heappop(heap)
        return best
