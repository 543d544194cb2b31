"""``PrefillBudget``: how much of a prompt a step evaluates beside streams that are read.

A chunk of ``n_ubatch`` tokens may take seconds, and so long each stream would stand still. So a
step with both gets as much of a prompt as lets it take about two steps of the streams alone, and
20 ms: the prompt gets half of the time, or more. The more prompts wait for the fewer streams, the
longer the step becomes; but no gap is longer than three usual ones and 50 ms. What tokens cost is
seen in the steps; now and then the streams have one to themselves, which shows what is usual.

Where many begin, the last one would wait several times as long as all their prompts take. So a
step beside them may take longer (``pause``): a quarter of a second for each request that begins but
two, one second at most, and no more than a quarter of the time that the last one waits in all.
Those that begin are the prompts that wait, and streams with few tokens, which waited with them a
moment ago: so the last ones go on as fast as the first. Streams have a token with each of these
steps. One prompt that comes alone changes nothing, however long it is.

Streams that have only just begun wait longer for several prompts, or for short ones: when several
requests come at once, the first is evaluated alone, and its next tokens may come a moment later if
the others begin the sooner.

Pure: no clocks, nothing native.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from llama_py.engine.scheduler import Schedulable

__all__ = ["PrefillBudget", "Readable"]

#: A step takes as many usual ones, and seconds, at most.
_STEPS, _SECONDS = 2.0, 0.02
#: Usual steps and seconds more, for as many prompts as there can be: short of what is allowed,
#: because what a token costs is an estimate.
_MORE_STEPS, _MORE_SECONDS = 0.4, 0.016
#: Where many begin: seconds of a step for each of them but so few, and at most, and the part of the
#: time that the last one waits in all.
_SECONDS_EACH, _FEW, _SECONDS_OF_MANY, _PART = 0.25, 2, 1.0, 0.25
#: Seconds that streams wait which have only just begun.
_SECONDS_AT_FIRST = 0.2
#: Fewer tokens are no faster by much: weights are read once for all of them.
_LEAST = 4
#: From one step to the next, a chunk grows by this factor at most.
_GROWTH = 2.0
#: Steps with prompts after which the streams have one to themselves.
_DUE = 64
#: A stream with this many tokens has only just begun.
_AT_FIRST = 2
#: A stream with up to this many is counted with those that begin: it waited with them.
_BEGINS = 8
#: How fast what is usual follows steps that take longer; those that take less show it at once.
_FOLLOW = 0.1


class Readable(Schedulable, Protocol):
    """The budget's view of a request."""

    @property
    def read(self) -> bool:
        """Somebody reads its tokens as they come."""

    @property
    def to_evaluate(self) -> int:
        """Tokens of its prompt that were not reused."""

    @property
    def written(self) -> int:
        """Tokens of its reply."""

    @property
    def started(self) -> float:
        """When it began, in seconds."""


class PrefillBudget:
    """Chooses the chunk of a prompt (``beside``); enter every step (``note``)."""

    def __init__(self) -> None:
        #: By the number of streams: seconds of a step of theirs, and when that was seen last.
        self._usual: dict[int, tuple[float, int]] = {}
        self._steps = 0
        #: Seconds of a token of a prompt, and the chunk that was chosen last.
        self._token = 0.0
        self._chunk = 0

    def note(self, streams: int, tokens: int, seconds: float) -> None:
        """Enter a step of this many streams, and tokens of prompts."""
        if not tokens:
            usual, _ = self._usual.get(streams, (seconds, 0))
            followed = min(seconds, usual + _FOLLOW * (seconds - usual))
            self._usual[streams] = followed, self._steps
        elif not streams:
            if tokens >= _LEAST:
                # With what a step takes in any case: few tokens cost hardly more than that, and
                # would seem to cost nothing, which many do not.
                self._token, self._chunk = seconds / tokens, 0
        else:
            self._steps += 1
            usual = self.usual(streams)
            short = seconds <= _STEPS * usual + _SECONDS
            if 2 * tokens < self._chunk and short:  # the end of a prompt says little
                return
            self._chunk = tokens
            token, before = max(0.0, seconds - usual) / tokens, self._token
            # What took too long may have been anything, once.
            self._token = token if token < before or not before else before + (token - before) / 2

    def usual(self, streams: int) -> float:
        """Seconds that a step of this many streams takes at least; 0 if nothing is known."""
        known = [usual for count, (usual, _) in self._usual.items() if count <= streams]
        return max(known, default=0.0)

    def beside(self, running: Sequence[Readable], chunk: int, now: float) -> int | None:
        """Most tokens of prompts in a step beside these; None if nobody reads what it delays.

        Args:
            chunk: tokens of a step with prompts alone, at most.
            now: seconds, of the clock that ``started`` is of.
        """
        ready = [each for each in running if not each.paused]
        streams = [each for each in ready if not each.prompt_left]
        waiting = [each for each in ready if each.prompt_left]
        if not waiting or not any(each.read for each in streams):
            return None
        young = sum(each.read for each in ready if each.written <= _BEGINS)
        left = sum(each.prompt_left for each in waiting)
        pause = self.pause(young, left, now - min(each.started for each in waiting))
        most, at_first, together = max(1, chunk // 2), 0, 0
        if all(each.written <= _AT_FIRST for each in streams):
            at_first = min(most, self.at_first())
            # Short prompts that fit into one step, first ones first.
            for each in waiting:
                if each.to_evaluate > at_first or together + each.prompt_left > at_first:
                    break
                together += each.prompt_left
            if together and not pause:
                return together
        size = self.size(len(streams), most, len(waiting), pause)
        return max(size, at_first if len(waiting) > 1 else together)

    def at_first(self) -> int:
        """Tokens of prompts for a step beside streams that have only just begun."""
        return int(_SECONDS_AT_FIRST / self._token) if self._token else 0

    def pause(self, begin: int, left: int, waited: float) -> float:
        """Seconds that a step beside streams may take because many begin; 0 if it may not.

        Args:
            begin: requests that begin: whose prompts wait, or that have few tokens yet.
            left: tokens of all prompts that wait.
            waited: seconds for which the first of them has waited.
        """
        if begin <= _FEW or not self._token:
            return 0.0
        whole = waited + left * self._token
        return min(_SECONDS_OF_MANY, (begin - _FEW) * _SECONDS_EACH, _PART * whole)

    def size(self, streams: int, most: int, waiting: int = 1, pause: float = 0.0) -> int:
        """Tokens of prompts for the next step beside this many streams.

        Args:
            most: of them, at most.
            waiting: how many prompts wait.
            pause: seconds that the step may take, if that is more than it may take otherwise.

        Returns:
            0 if the streams are to have it to themselves.
        """
        more = (waiting - 1) / (waiting - 1 + streams)  # from 0 for one to nearly 1 for many
        usual = self.usual(streams)
        room = (_STEPS - 1 + more * _MORE_STEPS) * usual + _SECONDS + more * _MORE_SECONDS
        longer = pause - usual > room
        if longer:
            room = pause - usual
        # Steps of about this many streams that were seen not long ago say how long these take.
        seen = [last for count, (_, last) in self._usual.items() if count <= streams <= 2 * count]
        is_known = any(self._steps - last < _DUE for last in seen)
        if self._token and most * self._token <= room:
            self._chunk = most
        elif not longer and not is_known:
            return 0
        else:
            wanted = room / self._token if self._token else _LEAST
            if self._chunk:
                wanted = min(wanted, _GROWTH * self._chunk)
            self._chunk = min(most, max(_LEAST, int(wanted)))
        return self._chunk
