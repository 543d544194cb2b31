"""``Drafts``: asks drafters for what may come next, before a step, and learns from what came.

A drafter is the caller's, and only ever makes a reply faster or slower: what it says is checked,
and one that raises is not asked again for that reply, which goes on without it. The model's own
next-token heads are shown what it computes, beside that.
"""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from llama_py.core.context import Context
from llama_py.engine.draft_model import OpenDraftModel
from llama_py.engine.drafting import Drafting, StepCosts
from llama_py.engine.heads import OpenHeads
from llama_py.engine.requests import Requests
from llama_py.engine.running import RequestState, Running
from llama_py.engine.scheduler import Draft, Entry, Prefill, StepPlan, Verify
from llama_py.errors import ParameterError
from llama_py.memory.cache import SequenceCache
from llama_py.memory.sequences import Lease
from llama_py.options.drafters import MAX_DRAFT, MTP, Drafter, DraftModel, Speculative

__all__ = ["Drafts"]

_log = logging.getLogger("llama_py")

#: Steps without drafts after one for which there were not enough cells.
_WAIT = 16
#: How much the latest measurement of a duration counts.
_NEW = 0.2


class Drafts:
    """See the module.

    Args:
        requests: the requests that may have drafts.
        context: of the model that is drafted for.
        default: who drafts for requests that say nothing, or None.

    Attributes:
        costs: what steps cost.
    """

    def __init__(
        self,
        requests: Requests,
        cache: SequenceCache,
        context: Context,
        default: Speculative | None = None,
    ) -> None:
        self._requests = requests
        self._cache = cache
        self._limit = cache.limit
        self._n_vocab = context.n_vocab
        self.default = _opened(default, context)
        drafters = self.default.drafters if self.default is not None else ()
        self._heads = next((each for each in drafters if isinstance(each, OpenHeads)), None)
        self.costs = StepCosts()
        self._waits = 0
        #: Seconds that a draft costs for its being taken back, whether it is or not.
        self._going_back = 0.0

    def close(self) -> None:
        """Free the draft models, and the context of next-token heads."""
        for drafter in self.default.drafters if self.default is not None else ():
            if isinstance(drafter, (OpenDraftModel, OpenHeads)):
                drafter.close()

    # -- the beginning --------------------------------------------------------------------------

    def begin(self, running: Running) -> None:
        """Let a request have drafts, if it is to have some and its memory can go back."""
        settings = running.request.speculative
        if settings is None:
            settings = self.default
        if settings is None or not _drafts(settings):
            return
        if running.request.generation.max_tokens in (0, 1):
            return
        reason = self._refusal(settings)
        if reason:
            refused = self._requests.metrics.drafts_refused
            refused[reason] = refused.get(reason, 0) + 1
            return
        running.drafting = Drafting(settings)

    @property
    def by_default(self) -> bool:
        """Whether requests that say nothing have drafts."""
        settings = self.default
        return settings is not None and _drafts(settings) and not self._refusal(settings)

    def _refusal(self, settings: Speculative) -> str:
        """Why a request can have no drafts; empty if it can."""
        traits = self._cache.traits
        return traits.why_not() if traits.recurrent and settings.exact else ""

    # -- before a step --------------------------------------------------------------------------

    def propose(self) -> dict[Running, Draft]:
        """For each stream that decodes more than one token in the next step, what that is."""
        streams = [
            each
            for each in self._requests.running
            if each.state is RequestState.DECODING and not each.paused
        ]
        self._waits, waits = max(0, self._waits - 1), self._waits
        rows, expected = len(streams), float(len(streams))
        drafts: dict[Running, Draft] = {}
        for running in streams:
            drafting, lease = running.drafting, running.lease
            if drafting is None or lease is None:
                continue
            known = len(running.undecoded(lease))
            tokens: Sequence[int] = ()
            if not waits:
                tokens = self._draft(running, drafting, rows + known - 1, expected)
            if tokens and not self._prepare(lease):
                tokens = ()
            if tokens or known > 1:
                drafts[running] = Draft(tokens, known)
            rows += known - 1 + len(tokens)
            expected += sum(drafting.rate**power for power in range(1, len(tokens) + 1))
        return drafts

    def _prepare(self, lease: Lease) -> bool:
        """Let the memory be able to go back; loading a state takes as long as taking it."""
        start = time.perf_counter()
        done = self._cache.prepare_draft(lease)
        took = 2 * (time.perf_counter() - start)
        self._going_back += (took - self._going_back) * _NEW
        return done

    def _draft(
        self, running: Running, drafting: Drafting, rows: int, expected: float
    ) -> Sequence[int]:
        most = self._room(running)
        length = most
        if drafting.settings.adaptive and most > 0:
            length = self.costs.best(
                rows, expected, most, drafting.rate, drafting.seconds, self._going_back
            )
            if not length:
                drafting.left_out()
                self._requests.metrics.drafts_skipped += 1
        draft = self._ask(running, drafting, length) if length > 0 else ()
        if not draft and drafting.settings.exact and self._cells_left(running) > 1:
            return (running.record.generated[-1],)  # a row that fills the step up to two
        return draft

    def _cells_left(self, running: Running) -> int:
        """Tokens that its sequence can hold behind those that were sampled."""
        return self._limit - running.record.n_prompt - len(running.record.generated)

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
        each: float | None = None
        for drafter in [*drafting.drafters]:
            try:
                if isinstance(drafter, OpenDraftModel):
                    draft, each = drafter.draft(tokens, most), drafter.seconds
                elif isinstance(drafter, OpenHeads):
                    draft, each = drafter.draft(running, tokens, most), drafter.seconds
                else:
                    draft = self._checked(drafter(tokens), most)
            except Exception as error:
                self._leave_out(drafting, drafter, error)
            if draft:
                break
        took = time.perf_counter() - start
        self._requests.metrics.draft_seconds += took
        if each is not None:  # without what the prompt took
            drafting.seconds = each
        elif draft:
            drafting.seconds += (took / len(draft) - drafting.seconds) * _NEW
        return draft

    def _leave_out(self, drafting: Drafting, drafter: Drafter, error: Exception) -> None:
        _log.warning("a drafter failed, and is not asked again for this reply: %r", error)
        drafting.drafters.remove(drafter)
        self._requests.metrics.draft_errors += 1

    def _checked(self, draft: Iterable[int], most: int) -> Sequence[int]:
        tokens = [operator.index(token) for token in islice(draft, most)]
        for token in tokens:
            if not 0 <= token < self._n_vocab:
                raise ParameterError(
                    f"a drafter gave token {token}, which is outside of the vocabulary "
                    f"(0 to {self._n_vocab - 1})"
                )
        return tokens

    # -- what the model computes ----------------------------------------------------------------

    def watch(self, plan: StepPlan[Running] | None = None) -> None:
        """Before a step: let the model give hidden states, if heads are to draft from them."""
        if self._heads is not None:
            entries = plan.entries if plan is not None else ()
            self._heads.heads.watching = any(self._uses_heads(it.request) for it in entries)

    def observe(self, plan: StepPlan[Running], rows: Sequence[int]) -> None:
        """The step was decoded, and is not in the books yet: show it to the heads.

        Args:
            rows: for each entry, the row of its last token that is no draft.
        """
        heads = self._heads
        if heads is None or not heads.heads.watching:
            return
        start = time.perf_counter()
        heads.serve(self._requests.running)
        states = heads.heads.seen(sum(entry.rows for entry in plan.entries))
        for entry, row in zip(plan.entries, rows, strict=True):
            drafting = entry.request.drafting
            if drafting is None or not self._uses_heads(entry.request):
                continue
            drafted = len(entry.draft) if isinstance(entry, Verify) else 0
            first = row + drafted + 1 - entry.rows
            try:
                heads.observe(entry.request, _tokens(entry), states[first : first + entry.rows])
            except Exception as error:
                self._leave_out(drafting, heads, error)
        self._requests.metrics.draft_seconds += time.perf_counter() - start

    def _uses_heads(self, running: Running) -> bool:
        return running.drafting is not None and self._heads in running.drafting.drafters

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
            if not drafted:
                continue
            accepted = max(0, len(running.record.generated) - before[running] - 1)
            metrics.drafts += 1
            metrics.drafted += drafted
            metrics.accepted += accepted
            running.record.drafted += drafted
            running.record.accepted += accepted
            if running.drafting is not None:
                running.drafting.verified(drafted, accepted)
        if seconds is not None:
            drafts = any(entry.draft for entry in plan.verifies)
            self.costs.add(plan.rows, seconds, drafts=drafts)

    def wait(self) -> None:
        """There were not enough cells for the drafts: go on without for a while."""
        self._waits = _WAIT


def _drafts(settings: Speculative) -> bool:
    return bool(settings.drafters or settings.exact)


def _tokens(entry: Entry[Running]) -> list[int]:
    """What was decoded of a request."""
    lease = entry.request.lease
    if lease is None:
        raise RuntimeError("a request without a sequence was decoded")
    if isinstance(entry, Prefill):
        tokens: list[int] = lease.prompt.tokens[lease.held : lease.held + entry.count].tolist()
        return tokens
    draft = entry.draft if isinstance(entry, Verify) else ()
    return [*entry.request.undecoded(lease), *draft]


def _opened(settings: Speculative | None, target: Context) -> Speculative | None:
    """The same settings, with their draft models loaded: all of them, or none."""
    if settings is None:
        return None
    opened: list[OpenDraftModel | OpenHeads] = []
    drafters: list[Drafter | DraftModel | MTP] = []
    try:
        for drafter in settings.drafters:
            if isinstance(drafter, DraftModel):
                opened.append(OpenDraftModel(drafter, target))
                drafters.append(opened[-1])
            elif isinstance(drafter, MTP):
                opened.append(OpenHeads(drafter, target))
                drafters.append(opened[-1])
            else:
                drafters.append(drafter)
    except BaseException:
        for each in opened:
            each.close()
        raise
    return replace(settings, drafters=tuple(drafters))
