"""``Drafts``: asks drafters for what may come next, before a step, and learns from what came.

A drafter is the caller's, and only ever makes a reply faster or slower: what it says is checked,
and one that raises is not asked again for that reply, which goes on without it. The model's own
next-token heads are shown what it computes, beside that.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeAlias

from llama_py.core.context import Context
from llama_py.engine.clock import Clock
from llama_py.engine.drafts.draft_model import OpenDraftModel
from llama_py.engine.drafts.mtp import OpenHeads
from llama_py.engine.drafts.payoff import Drafting, StepCosts, Wish
from llama_py.engine.generation import Generation, RequestState
from llama_py.engine.in_flight import InFlight
from llama_py.engine.scheduler import Draft, Entry, Prefill, StepPlan, Verify
from llama_py.errors import ParameterError
from llama_py.memory.cache import SequenceCache
from llama_py.memory.sequences import Lease
from llama_py.options.drafters import (
    MAX_DRAFT,
    MTP,
    Drafter,
    DraftModel,
    PromptLookup,
    Speculative,
)

__all__ = ["Drafts"]

_log = logging.getLogger("llama_py")

#: Steps without drafts after one for which there were not enough cells.
_WAIT = 16
#: How much the latest measurement of a duration counts.
_NEW = 0.2


_Batched: TypeAlias = "OpenDraftModel | OpenHeads"
_BATCHED = (OpenDraftModel, OpenHeads)


@dataclass(slots=True, eq=False)
class _Asked:
    """A stream that may have a draft.

    Attributes:
        most: longest draft that could be wanted.
        rest: drafters that were not asked yet.
        next: the one to ask if there is no guess, and it pays.
        length: how long the draft should be.
        tokens: the draft.
    """

    running: Generation
    drafting: Drafting
    most: int
    rest: Iterator[Drafter]
    next: Drafter | None = None
    length: int = 0
    tokens: Sequence[int] = ()

    @property
    def possible(self) -> int:
        """How long the draft could be."""
        if self.tokens or self.next is None:
            return len(self.tokens)
        drafter = self.next
        return min(self.most, drafter.spec.n_draft) if isinstance(drafter, _BATCHED) else self.most

    def wish(self, fixed: float) -> Wish:
        """What it takes to decide about it."""
        rate = self.drafting.rate
        if self.tokens:
            return Wish(self.possible, rate, fixed=fixed)
        if isinstance(self.next, _BATCHED):
            return Wish(self.possible, rate, self.next.durations.seconds, self.next, fixed)
        return Wish(self.possible, rate, self.drafting.seconds, fixed=fixed)


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
        requests: InFlight,
        cache: SequenceCache,
        context: Context,
        default: Speculative | None = None,
    ) -> None:
        self._requests = requests
        self._cache = cache
        self._limit = cache.limit
        self._n_vocab = context.n_vocab
        self.default = _opened(default, context, requests.clock)
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

    def begin(self, running: Generation) -> None:
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

    def propose(self) -> dict[Generation, Draft]:
        """For each stream that decodes more than one token in the next step, what that is."""
        streams = [
            each
            for each in self._requests.running
            if each.state is RequestState.DECODING and not each.paused
        ]
        self._waits, waits = max(0, self._waits - 1), self._waits
        known: dict[Generation, int] = {}
        asked: list[_Asked] = []
        for running in streams:
            if running.drafting is None or running.lease is None:
                continue
            known[running] = len(running.undecoded(running.lease))
            if not waits:
                rest = iter([*running.drafting.drafters])
                each = _Asked(running, running.drafting, self._room(running), rest)
                if each.most > 0:
                    self._look_up(each)
                asked.append(each)
        if asked:
            rows = len(streams) + sum(known.values()) - len(known)
            self._choose(asked, rows, float(len(streams)))
            self._ask(asked)
        drafts: dict[Generation, Draft] = {}
        for each in asked:
            running, tokens = each.running, each.tokens
            exact = each.drafting.settings.exact
            if exact and not tokens and self._cells_left(running) > 1:
                tokens = running.record.generated[-1:]  # fills a step up to two rows
            if tokens and (lease := running.lease) is not None and self._prepare(lease):
                drafts[running] = Draft(tokens, known[running])
        for running, count in known.items():
            if count > 1 and running not in drafts:
                drafts[running] = Draft((), count)
        return drafts

    def _prepare(self, lease: Lease) -> bool:
        """Let the memory be able to go back; loading a state takes as long as taking it."""
        start = self._requests.clock()
        done = self._cache.prepare_draft(lease)
        took = 2 * (self._requests.clock() - start)
        self._going_back += (took - self._going_back) * _NEW
        return done

    def _look_up(self, each: _Asked) -> None:
        """Ask those that take no time, up to the first that does, which is ``next`` then."""
        each.next = None
        for drafter in each.rest:
            if not isinstance(drafter, PromptLookup):
                each.next = drafter
                return
            each.tokens = self._said(each, drafter, each.most)
            if each.tokens:
                return

    def _choose(self, asked: Sequence[_Asked], rows: int, expected: float) -> None:
        """How long the drafts should be."""
        wishes = [each for each in asked if each.possible]
        for each in wishes:
            each.length = each.possible
        adaptive = [each for each in wishes if each.drafting.settings.adaptive]
        if not adaptive:
            return
        for each in wishes:
            if not each.drafting.settings.adaptive:
                rows += each.length
                expected += sum(each.drafting.rate**n for n in range(1, each.length + 1))
        lengths = self.costs.best(
            rows, expected, [each.wish(self._going_back) for each in adaptive]
        )
        for each, length in zip(adaptive, lengths, strict=True):
            each.length = length
            if not length:
                each.drafting.left_out()
                self._requests.metrics.drafts_skipped += 1
            each.tokens = each.tokens[:length]
        if not any(lengths):
            for drafter in {each.next for each in adaptive if isinstance(each.next, _BATCHED)}:
                drafter.durations.left_out()

    def _ask(self, asked: Sequence[_Asked]) -> None:
        """Let those draft who take time; a model drafts for all streams at once."""
        due = [each for each in asked if each.length > 0 and not each.tokens]
        while due:
            together: dict[_Batched, list[_Asked]] = {}
            for each in due:
                if isinstance(each.next, _BATCHED):
                    together.setdefault(each.next, []).append(each)
                elif each.next is not None:
                    each.tokens = self._said(each, each.next, each.length)
            for drafter, group in together.items():
                self._draft_together(drafter, group)
            due = [each for each in due if not each.tokens and each.next is not None]
            for each in due:
                self._look_up(each)
                each.tokens = each.tokens[: each.length]
            due = [each for each in due if not each.tokens]

    def _draft_together(self, drafter: _Batched, group: Sequence[_Asked]) -> None:
        start = self._requests.clock()
        asks = [(each.running, each.running.seen(), each.length) for each in group]
        try:
            for each, draft in zip(group, drafter.drafts(asks), strict=True):
                each.tokens = draft
        except Exception as error:
            for each in group:
                self._leave_out(each.drafting, drafter, error)
        self._requests.metrics.draft_seconds += self._requests.clock() - start

    def _said(self, each: _Asked, drafter: Drafter, most: int) -> Sequence[int]:
        """The draft of a function."""
        start = self._requests.clock()
        draft: Sequence[int] = ()
        try:
            given = islice(drafter(each.running.seen()), most)
            tokens = [operator.index(token) for token in given]
            for token in tokens:
                if not 0 <= token < self._n_vocab:
                    raise ParameterError(
                        f"a drafter gave token {token}, which is outside of the vocabulary "
                        f"(0 to {self._n_vocab - 1})"
                    )
            draft = tokens
        except Exception as error:
            self._leave_out(each.drafting, drafter, error)
        took = self._requests.clock() - start
        self._requests.metrics.draft_seconds += took
        if draft and not isinstance(drafter, PromptLookup):
            seconds = each.drafting.seconds
            each.drafting.seconds += (took / len(draft) - seconds) * _NEW
        return draft

    def _cells_left(self, running: Generation) -> int:
        """Tokens that its sequence can hold behind those that were sampled."""
        return self._limit - running.record.n_prompt - len(running.record.generated)

    def _room(self, running: Generation) -> int:
        """Most tokens that a draft can have and all be wanted."""
        most = min(MAX_DRAFT, self._cells_left(running))
        if running.drafting is not None and running.drafting.settings.exact:
            most -= 1  # the last place is always decoded alone
        asked = running.request.generation.max_tokens
        return most if asked is None else min(most, asked - len(running.record.generated) - 1)

    def _leave_out(self, drafting: Drafting, drafter: Drafter, error: Exception) -> None:
        _log.warning("a drafter failed, and is not asked again for this reply: %r", error)
        drafting.drafters.remove(drafter)
        self._requests.metrics.draft_errors += 1

    # -- what the model computes ----------------------------------------------------------------

    def watch(self, plan: StepPlan[Generation] | None = None) -> None:
        """Before a step: let the model give hidden states, if heads are to draft from them."""
        if self._heads is not None:
            entries = plan.entries if plan is not None else ()
            self._heads.heads.watching = self.watching([entry.request for entry in entries])

    def watching(self, streams: Sequence[Generation]) -> bool:
        """Whether heads draft for one of these, and so are to see what is computed."""
        return self._heads is not None and any(map(self._uses_heads, streams))

    def observe(self, plan: StepPlan[Generation], rows: Sequence[int]) -> None:
        """The step was decoded, and is not in the books yet: show it to the heads.

        Args:
            rows: for each entry, the row of its last token that is no draft.
        """
        heads = self._heads
        if heads is None or not heads.heads.watching:
            return
        start = self._requests.clock()
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
        self._requests.metrics.draft_seconds += self._requests.clock() - start

    def _uses_heads(self, running: Generation) -> bool:
        return running.drafting is not None and self._heads in running.drafting.drafters

    # -- after a step ---------------------------------------------------------------------------

    def note(
        self, plan: StepPlan[Generation], before: Mapping[Generation, int], seconds: float | None
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


def _tokens(entry: Entry[Generation]) -> list[int]:
    """What was decoded of a request."""
    lease = entry.request.lease
    if lease is None:
        raise RuntimeError("a request without a sequence was decoded")
    if isinstance(entry, Prefill):
        tokens: list[int] = lease.prompt.tokens[lease.held : lease.held + entry.count].tolist()
        return tokens
    draft = entry.draft if isinstance(entry, Verify) else ()
    return [*entry.request.undecoded(lease), *draft]


def _opened(settings: Speculative | None, target: Context, clock: Clock) -> Speculative | None:
    """The same settings, with their draft models loaded: all of them, or none."""
    if settings is None:
        return None
    opened: list[OpenDraftModel | OpenHeads] = []
    drafters: list[Drafter | DraftModel | MTP] = []
    try:
        for drafter in settings.drafters:
            if isinstance(drafter, DraftModel):
                opened.append(OpenDraftModel(drafter, target, clock))
                drafters.append(opened[-1])
            elif isinstance(drafter, MTP):
                opened.append(OpenHeads(drafter, target, clock))
                drafters.append(opened[-1])
            else:
                drafters.append(drafter)
    except BaseException:
        for each in opened:
            each.close()
        raise
    return replace(settings, drafters=tuple(drafters))
