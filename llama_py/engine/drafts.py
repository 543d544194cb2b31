"""``Drafts``: asks drafters for what may come next, before a step, and learns from what came.

A drafter is the caller's, and only ever makes a reply faster or slower: what it says is checked,
and one that raises is not asked again for that reply, which goes on without it.
"""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Mapping, Sequence
from itertools import islice

from llama_py.engine.drafting import Drafting, Pace
from llama_py.engine.requests import Requests
from llama_py.engine.running import RequestState, Running
from llama_py.engine.scheduler import StepPlan
from llama_py.errors import ParameterError
from llama_py.memory.cache import SequenceCache
from llama_py.options.drafters import MAX_DRAFT, Drafter, Speculative

__all__ = ["Drafts"]

_log = logging.getLogger("llama_py")

#: Steps without drafts after one for which there were not enough cells.
_WAIT = 16


class Drafts:
    """See the module.

    Args:
        requests: the requests that may have drafts.
        n_vocab: tokens in the vocabulary.
        default: who drafts for requests that say nothing, or None.

    Attributes:
        pace: what steps cost.
    """

    def __init__(
        self,
        requests: Requests,
        cache: SequenceCache,
        n_vocab: int,
        default: Speculative | None = None,
    ) -> None:
        self._requests = requests
        self._limit = cache.limit
        self._refusal = _refusal(cache)
        self._n_vocab = n_vocab
        self.default = default
        self.pace = Pace()
        self._waits = 0

    # -- the beginning --------------------------------------------------------------------------

    def begin(self, running: Running) -> None:
        """Let a request have drafts, if it is to have some and its memory can go back."""
        settings = running.request.speculative
        if settings is None:
            settings = self.default
        if settings is None or not (settings.drafters or settings.exact):
            return
        if running.request.generation.max_tokens in (0, 1):
            return
        if self._refusal:
            refused = self._requests.metrics.drafts_refused
            refused[self._refusal] = refused.get(self._refusal, 0) + 1
            return
        running.drafting = Drafting(settings)

    # -- before a step --------------------------------------------------------------------------

    def propose(self) -> dict[Running, Sequence[int]]:
        """A draft for each stream that should have one in the next step."""
        if self._waits:
            self._waits -= 1
            return {}
        streams = [
            each
            for each in self._requests.running
            if each.state is RequestState.DECODING and not each.paused
        ]
        rows, expected = len(streams), float(len(streams))
        drafts: dict[Running, Sequence[int]] = {}
        for running in streams:
            drafting = running.drafting
            if drafting is None:
                continue
            draft = self._draft(running, drafting, rows, expected)
            if draft:
                drafts[running] = draft
                rows += len(draft)
                expected += sum(drafting.rate**power for power in range(1, len(draft) + 1))
        return drafts

    def _draft(
        self, running: Running, drafting: Drafting, rows: int, expected: float
    ) -> Sequence[int]:
        most = self._room(running)
        length = most
        if drafting.settings.adaptive and most > 0:
            length = self.pace.best(rows, expected, most, drafting.rate)
            if not length:
                drafting.left_out()
                self._requests.metrics.drafts_skipped += 1
        draft = self._ask(running, drafting, length) if length > 0 else ()
        if not draft and drafting.settings.exact and self._cells_left(running) > 1:
            return (running.record.generated[-1],)  # a row that fills the step up to two
        return draft

    def _cells_left(self, running: Running) -> int:
        """Tokens that its sequence can hold behind the one that is decoded next."""
        held = running.lease.held if running.lease is not None else self._limit
        return self._limit - held - 1

    def _room(self, running: Running) -> int:
        """Most tokens that a draft can have and all be wanted."""
        most = min(MAX_DRAFT, self._cells_left(running))
        if running.drafting is not None and running.drafting.settings.exact:
            most -= 1  # the last place is always decoded alone
        asked = running.request.generation.max_tokens
        return most if asked is None else min(most, asked - len(running.record.generated) - 1)

    def _ask(self, running: Running, drafting: Drafting, most: int) -> Sequence[int]:
        """The first draft that is not empty."""
        start = time.perf_counter()
        tokens = running.seen()
        draft: Sequence[int] = ()
        for drafter in [*drafting.drafters]:
            try:
                draft = self._checked(drafter(tokens), most)
            except Exception as error:
                _log.warning("a drafter failed, and is not asked again for this reply: %r", error)
                drafting.drafters.remove(drafter)
                self._requests.metrics.draft_errors += 1
            if draft:
                break
        self._requests.metrics.draft_seconds += time.perf_counter() - start
        return draft

    def _checked(self, draft: Sequence[int], most: int) -> Sequence[int]:
        tokens = [operator.index(token) for token in islice(draft, most)]
        for token in tokens:
            if not 0 <= token < self._n_vocab:
                raise ParameterError(
                    f"a drafter gave token {token}, which is outside of the vocabulary "
                    f"(0 to {self._n_vocab - 1})"
                )
        return tokens

    # -- after a step ---------------------------------------------------------------------------

    def note(
        self, plan: StepPlan[Running], before: Mapping[Running, int], seconds: float | None
    ) -> None:
        """A step was decoded and sampled.

        Args:
            before: tokens that the requests with a draft had generated before it.
            seconds: how long the decode took, or None if it cannot be compared with others.
        """
        metrics = self._requests.metrics
        for entry in plan.verifies:
            running, drafted = entry.request, len(entry.draft)
            accepted = max(0, len(running.record.generated) - before[running] - 1)
            metrics.drafts += 1
            metrics.drafted += drafted
            metrics.accepted += accepted
            running.record.drafted += drafted
            running.record.accepted += accepted
            if running.drafting is not None:
                running.drafting.verified(drafted, accepted)
        if seconds is not None:
            self.pace.add(plan.rows, seconds)

    def wait(self) -> None:
        """There were not enough cells for the drafts: go on without for a while."""
        self._waits = _WAIT


def _refusal(cache: SequenceCache) -> str:
    """Why the memory of a sequence cannot go back a few tokens; empty if it can."""
    return cache.traits.why_not() if cache.traits.recurrent else ""
