"""``Transfers``: what is copied out of the context and into it beside the streams, as one queue.

A request may have to wait before it begins: until the conversations that make room for it were
copied for the offload store (``saving``), or until the one that it goes on from was loaded
(``state_loader``). ``ready`` says whether it still has to. ``work`` does a piece between two steps:
of what is loaded first, then of what makes room, then of what is saved.

Nothing here fails a request. What goes wrong ahead is a line in the log; if it happens again when
the request begins, that is where it is told.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

from llama_py.memory.index import CacheIndex
from llama_py.memory.kinds import MemoryKind, MemoryTraits
from llama_py.memory.live import LiveSet
from llama_py.memory.plan import Action, ReusePlan
from llama_py.memory.saving import Copying, Saving, hurried
from llama_py.memory.sequences import Lease, LiveSequence, ResolvedPrompt
from llama_py.memory.state_loader import StateLoad, StateLoader
from llama_py.memory.stores import StoredSource, Stores

__all__ = ["Transfers"]

#: How often a request waits while what has to make room for it is copied.
_MOST_WAITS = 3

_log = logging.getLogger("llama_py")


class _Planned(Protocol):
    def __call__(self, prompt: ResolvedPrompt, *, reuse: bool, most: int | None) -> ReusePlan: ...


@dataclass(slots=True, eq=False)
class _Wait:
    """What a request waits for.

    Attributes:
        copies: of conversations that have to make room for it.
        rounds: how often it waited for such copies.
        load: the conversation that it goes on from.
    """

    copies: list[Copying] = field(default_factory=list)
    rounds: int = 0
    load: StateLoad | None = None


class Transfers:
    """See the module. Calls must not overlap: the engine's thread.

    Args:
        planned: how ``acquire`` would begin a prompt.
    """

    def __init__(
        self,
        traits: MemoryTraits,
        index: CacheIndex,
        live: LiveSet,
        stores: Stores,
        saving: Saving,
        loader: StateLoader,
        planned: _Planned,
    ) -> None:
        self._traits = traits
        self._index = index
        self._live = live
        self._stores = stores
        self._saving = saving
        self._loader = loader
        self._planned = planned
        #: By owner, in the order in which they began to wait.
        self._waits: dict[Hashable, _Wait] = {}
        self._loads: list[StateLoad] = []

    @property
    def pending(self) -> bool:
        """True if ``work`` may have something to do."""
        return bool(self._loads or self._saving.jobs)

    def work(self, took: float, usual: float) -> bool:
        """Copy or load a piece, at least; True if there is more to do.

        Args:
            took, usual: of the step of the streams (see ``hurried``).
        """
        for load in self._loads:
            if not load.ended:
                self._load(load, hurried(took, usual))
                return True
        return self._saving.step(took, usual)

    def offload_soon(self, streams: int, steps: int, last: Lease | None = None) -> None:
        """Begin to copy what has to make room when cells run out, if that is soon.

        Soon is before it would be copied, if it is begun ``steps`` steps later.

        Args:
            streams: how many get a token with each step.
            last: of the request that has to begin again later when nothing is idle; None if there
                is none. What it gets after its copy is added when it goes.
        """
        if self._saving.pending:
            return
        sequence = self._live.next_to_leave()
        if sequence is None and last is not None and self._traits.shares_cells:
            sequence = last.sequence if self._saving.grew(last.sequence) else None
        if sequence is None:
            return
        cells = streams * (self._saving.pieces(sequence) + steps)
        if self._live.missing(cells) <= 0:
            return
        if last is not None and sequence is last.sequence:
            self._index.commit(sequence, last.prompt)
        if self._stores.must_be_offloaded(sequence):
            self._saving.offload(sequence)

    @property
    def may_copy_ahead(self) -> bool:
        """Whether conversations make room for each other, so that ``copy_ahead`` is worth it."""
        return self._live.displaced

    def copy_ahead(self) -> None:
        """Nothing runs: begin to copy what has to make room for the next conversation.

        Where one has had to lately, the next one that comes back will find its copy made, and need
        not wait for it. That next one is taken to be as long as the last one.
        """
        self._live.displaced = False
        latest = max(self._live.by_number.values(), key=lambda each: each.last_used, default=None)
        if latest is None or self._saving.pending:
            return
        for sequence in self._live.leaving(max(1, len(latest.tokens))):
            if self._stores.must_be_offloaded(sequence):
                self._saving.offload_ahead(sequence)

    # -- for a request that waits ---------------------------------------------------------------

    def ready(
        self,
        owner: Hashable,
        prompt: ResolvedPrompt,
        *,
        reuse: bool,
        most: int | None,
        beside: bool,
    ) -> bool:
        """Whether a request may begin; else it asks again before the next step.

        Args:
            owner: names the request.
            reuse, most: as ``acquire`` gets them.
            beside: streams generate, which what it begins with would hold up.
        """
        wait = self._waits.get(owner)
        if wait is None:
            if not beside:
                return True
            wait = self._waits[owner] = _Wait()
        if wait.load is None and beside:
            if self._saving.hurry(wait.copies):
                return False
            # What somebody goes on with meanwhile makes no room, and others go in its place. After
            # a few times whatever has to go is copied at once.
            again = wait.rounds == 0 or any(
                it.error is not None or it.sequence.busy or not it.sequence.tokens
                for it in wait.copies
            )
            wait.copies = []
            try:
                if again and wait.rounds < _MOST_WAITS:
                    wait.copies = self._offload_ahead(prompt, reuse=reuse, most=most)
                    wait.rounds += bool(wait.copies)
                    if self._saving.hurry(wait.copies):
                        return False
                if self._load_ahead(wait, prompt, reuse=reuse, most=most):
                    return False
            except Exception as error:
                _log.warning("what a request begins with is not prepared ahead: %r", error)
        if wait.load is None:
            return True
        if not beside:
            self._load(wait.load, None)
        return wait.load.ended

    def stored_cells(self, prompt: ResolvedPrompt, *, reuse: bool, most: int | None) -> int:
        """Cells that a request has to find free for the stored conversation that it goes on from.

        0 if it goes on from none, or needs none that others might have.

        Args:
            reuse, most: as ``acquire`` gets them.
        """
        if not self._traits.shares_cells or self._traits.kind is MemoryKind.RECURRENT:
            return 0
        source = self._planned(prompt, reuse=reuse, most=most).source
        entry = source.store.info(source.key) if isinstance(source, StoredSource) else None
        return entry.length if entry is not None else 0

    def load_of(self, owner: Hashable) -> StateLoad | None:
        """What was loaded for a request."""
        wait = self._waits.get(owner)
        return wait.load if wait is not None else None

    def forget(self, owner: Hashable) -> None:
        """A request has begun, or has ended: free what was loaded for it and not handed over."""
        wait = self._waits.pop(owner, None)
        if wait is not None and wait.load is not None:
            self._loads.remove(wait.load)
            self._loader.release(wait.load)

    def give_up(self) -> None:
        """Forget everything: what is in memory is not certain any more."""
        self._saving.give_up()
        self._waits.clear()
        self._loads.clear()

    def free_loaded(self) -> bool:
        """Cells ran out: free those of what is being loaded; False if nothing is."""
        for load in self._loads:
            if load.sequence is not None:
                self._loader.release(load)
                return True
        return False

    def _offload_ahead(
        self, prompt: ResolvedPrompt, *, reuse: bool, most: int | None
    ) -> list[Copying]:
        """Begin to copy what ``acquire`` would offload; what is small is left to that."""
        count = len(prompt.tokens)
        if not self._live.leaving(count):
            return []
        plan = self._planned(prompt, reuse=reuse, most=most)
        source: LiveSequence | None = None
        if plan.action is Action.CONTINUE:
            source = self._live.by_number[plan.source]  # type: ignore[index]
            if not self._live.extends(source, plan.keep):
                source = None
        in_memory = plan.action in (Action.CONTINUE, Action.FORK)
        cells = count - plan.keep if in_memory else count
        begun = [
            self._saving.offload(sequence)
            for sequence in self._live.leaving(cells, besides=source)
            if self._stores.must_be_offloaded(sequence)
        ]
        return [copying for copying in begun if copying is not None]

    def _load_ahead(
        self, wait: _Wait, prompt: ResolvedPrompt, *, reuse: bool, most: int | None
    ) -> bool:
        """Whether what a request goes on from is being loaded from now on, for it or another one.

        Of two that go on from the same, the second one forks from what the first one has loaded.
        What is small is left to ``acquire``.
        """
        if not (reuse and self._stores.open):
            return False
        source = self._planned(prompt, reuse=reuse, most=most).source
        if not isinstance(source, StoredSource):
            return False
        if any(load.source == source and not load.ended for load in self._loads):
            return True
        wait.load = self._loader.begin(source, prompt.namespace)
        if wait.load is not None:
            self._loads.append(wait.load)
        return wait.load is not None

    def _load(self, load: StateLoad, seconds: float | None) -> None:
        """Load for so long; None: to the end."""
        try:
            if seconds is None:
                self._loader.finish(load)
            else:
                self._loader.step(load, seconds)
        except Exception as error:
            _log.warning("what a request goes on from is not loaded ahead: %r", error)
            self._loader.release(load)
