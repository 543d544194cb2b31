"""``SequenceCache``: gives every prompt a sequence that already holds as much of it as possible.

The one door to the sequences of a context, composed of parts that own one thing each:

* ``index``: what is in memory, found by tokens or text (``index.py``, with the checkpoints);
* the live set: which sequences there are, and who has to go (``live.py``);
* the tiers: copies in the stores below (``stores.py``), and what is pinned (``pins.py``);
* ``resolve.py`` finds the tokens of a prompt, ``planner.py`` what of it is held where, and
  ``apply_plan.py`` begins a sequence with that.

It never decodes. One thread uses it; ``resolve_text`` and ``resolve_tokens`` may be called from
others meanwhile.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from llama_py.errors import LlamaError
from llama_py.memory.apply_plan import PlanApplier
from llama_py.memory.costs import Costs
from llama_py.memory.index import CacheIndex
from llama_py.memory.kinds import MemoryTraits, SequenceMemory
from llama_py.memory.live import LiveSet
from llama_py.memory.plan import Action, ReusePlan
from llama_py.memory.planner import Planner
from llama_py.memory.resolve import PromptResolver
from llama_py.memory.saving import Saving
from llama_py.memory.sequences import (
    CacheInfo,
    Lease,
    LiveSequence,
    Namespace,
    ResolvedPrompt,
    common_prefix,
)
from llama_py.memory.state_loader import StateLoad, StateLoader
from llama_py.memory.stores import Fingerprint, Refused, Stores
from llama_py.memory.text_keys import TextKeys, TextMedium, Tokenizer
from llama_py.memory.transfers import Transfers
from llama_py.states.prefix import TokenInput
from llama_py.states.state import StoredState
from llama_py.states.store import StateStore

__all__ = ["CacheLimits", "SequenceCache", "common_prefix"]

_log = logging.getLogger("llama_py")


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Budgets for what the cache keeps, and switches for reuse.

    Attributes:
        checkpoint_bytes, checkpoint_count: for checkpoints of all conversations together.
        reuse: False evaluates every prompt from its beginning.
        text: False looks for token prefixes only.
    """

    checkpoint_bytes: int = 512 << 20
    checkpoint_count: int = 256
    reuse: bool = True
    text: bool = True


class SequenceCache:
    """The sequences of one context, and everything that can be reused from them.

    Args:
        memory: the context.
        traits: what its memory can do.
        tokenizer: its vocabulary.
        fingerprint: everything that the saved states of a namespace depend on.
        limits: how much may be kept.
        offload_store: the store for sequences that had to leave the context, or None.
        clock: seconds, for work that is done piece by piece.
        costs: of copies, where they are dear: on a device. It learns them from what is done.

    Attributes:
        namespace: that of prompts which name none: the adapters that the context uses.
        limit: tokens that one sequence can hold.
        live: the sequences in memory.
        index: where tokens and texts are found in them, and their checkpoints.
        stores: the tiers below, and the pins.
        applier: begins a sequence, or a copy of one.
        text_keys: texts as keys.
        saving: conversations on their way to the saving store.
        loader: conversations on their way back from a store.
        transfers: both, in the order in which they are worked on.
    """

    def __init__(
        self,
        memory: SequenceMemory,
        traits: MemoryTraits,
        tokenizer: Tokenizer,
        fingerprint: Fingerprint,
        limits: CacheLimits | None = None,
        offload_store: StateStore | None = None,
        clock: Callable[[], float] = time.perf_counter,
        costs: Costs | None = None,
    ) -> None:
        self.costs = costs
        self.memory = memory
        self.traits = traits
        self.tokenizer = tokenizer
        self.fingerprint = fingerprint
        self.limits = limits = limits or CacheLimits()
        self.namespace: Namespace = ()
        self.limit = min(memory.n_ctx_seq, traits.max_position or memory.n_ctx_seq)
        self.text_keys = TextKeys(tokenizer)
        self.index = CacheIndex(self.text_keys, limits.checkpoint_bytes, limits.checkpoint_count)
        self.stores = Stores(memory, traits, self.index, fingerprint, offload_store, costs)
        self.saving = Saving(self.stores, clock)
        self.live = LiveSet(memory, traits, self.index, self.stores, self.saving)
        self._planner = Planner(memory, traits, self.index, self.stores)
        self.loader = StateLoader(memory, self.live, self.stores, self.saving, clock)
        self.applier = PlanApplier(
            memory, traits, self.index, self.live, self.stores, self.saving, self.loader
        )
        own: Any = weakref.proxy(self)  # in a circle, it would be freed by the collector only
        self.transfers = Transfers(
            traits,
            self.index,
            self.live,
            self.stores,
            self.saving,
            self.loader,
            partial(SequenceCache._planned, own),
        )
        self._resolver = PromptResolver(
            self.text_keys,
            self.index,
            self.stores,
            self.limit,
            use_text=limits.reuse and limits.text,
        )

    # -- prompts --------------------------------------------------------------------------------

    def resolve_tokens(
        self, tokens: TokenInput, *, namespace: Namespace | None = None
    ) -> ResolvedPrompt:
        """Resolve a prompt given as tokens. It is found only by its tokens, and indexes no text.

        From any thread. Raises like ``resolve_text``.
        """
        return self._resolver.from_tokens(tokens, self._or_default(namespace))

    def resolve_text(
        self,
        text: bytes,
        boundaries: Sequence[int] = (),
        *,
        plain: Sequence[tuple[int, int]] = (),
        add_special: bool = True,
        namespace: Namespace | None = None,
        fresh: bool = False,
        media: Sequence[TextMedium] = (),
    ) -> ResolvedPrompt:
        """Resolve a prompt given as text. Cached replies in it keep their tokens.

        From any thread.

        Args:
            boundaries: byte offsets at which messages begin.
            plain: ascending disjoint byte ranges in which nothing is read as a special token.
            namespace: that of the cache by default.
            fresh: all of its tokens are those of its text, whatever is cached.
            media: pictures and sounds, in order, in place of what the text has there.

        Raises:
            ContextOverflowError: it does not fit, with a token left to generate.
            ParameterError: it is empty.
        """
        own = self._or_default(namespace)
        return self._resolver.from_text(
            text, boundaries, plain, own, add_special=add_special, fresh=fresh, media=media
        )

    def _or_default(self, namespace: Namespace | None) -> Namespace:
        return self.namespace if namespace is None else namespace

    def best_keep(self, prompt: ResolvedPrompt) -> int:
        """How many tokens ``acquire`` would not have to evaluate."""
        return self._planned(prompt, reuse=True, most=None).keep

    def _planned(self, prompt: ResolvedPrompt, *, reuse: bool, most: int | None) -> ReusePlan:
        if not (reuse and self.limits.reuse):
            return ReusePlan(Action.EVALUATE)
        return self._planner.decide(prompt, most).plan

    # -- requests -------------------------------------------------------------------------------

    def acquire(
        self,
        prompt: ResolvedPrompt,
        session: str | None = None,
        *,
        reuse: bool = True,
        most: int | None = None,
        owner: object = None,
    ) -> Lease | None:
        """Begin a prompt: returns a lease of a sequence that holds its longest available prefix.

        Returns None if all sequences are busy.

        Args:
            most: tokens that may be reused; all but the last one by default.
            owner: who waited until its transfers were ``ready``; what was loaded for it is taken.
        """
        if reuse and self.limits.reuse:
            decision = self._planner.decide(prompt, most)
            plan, why = decision.plan, self._planner.why(prompt, decision)
        else:
            plan, why = ReusePlan(Action.EVALUATE), Refused("", "reuse is off")
        info = CacheInfo(action=plan.action.value, reason=why.why, refused=why.kind)
        sequence = self.applier.begin(plan, prompt, info, self.transfers.load_of(owner))
        if sequence is None:
            return None
        self.transfers.forget(owner)
        sequence.busy = True
        sequence.pending, sequence.transient = (), False
        if sequence.session not in (None, session):
            self.saving.finish(sequence)
            sequence.pass_on()
        sequence.session = info.session = session
        sequence.positions = prompt.positions
        sequence.touch()
        info.sequence, info.reused = sequence.number, len(sequence.tokens)
        info.evaluated = len(prompt.tokens) - info.reused
        if info.reused:
            info.path = "text" if prompt.by_text else "tokens"
        if info.reused == len(prompt.tokens) - 1:
            info.reason = info.refused = ""
            # A prompt that is evaluated gets a checkpoint here; so that it is found again when what
            # follows has passed its window, one that a longer sequence held gets it, too.
            self.live.take_checkpoint(sequence)
        cuts = self._planner.cuts(prompt, info.reused) if self.limits.reuse else []
        return Lease(sequence, prompt, cuts, info)

    def advance(self, lease: Lease, count: int) -> None:
        """``count`` further prompt tokens were decoded."""
        tokens = lease.sequence.tokens
        tokens.extend(lease.prompt.tokens[len(tokens) : len(tokens) + count].tolist())
        if lease.cuts and lease.cuts[0] <= len(tokens):
            place = lease.cuts.pop(0)
            if place == len(tokens) and self.limits.reuse:
                self.live.take_checkpoint(lease.sequence)

    def release(
        self,
        lease: Lease,
        pending: Sequence[int] = (),
        ends: Collection[int] = (),
        *,
        transient: bool = False,
    ) -> None:
        """The request is done with its sequence, which stays in memory for others to reuse.

        Args:
            pending: the tokens that follow, which were sampled and are not in memory.
            ends: after how many tokens of the sequence, ``pending`` included, its reply may end in
                a prompt that contains it.
            transient: nobody will ask for it again. A fork is dropped at once; a sequence that had
                to be continued is kept for its beginning, as long as there is room.
        """
        sequence = lease.sequence
        if transient and lease.info.action == Action.FORK.value:
            self.live.drop(sequence)
            return
        sequence.busy, sequence.transient = False, transient
        sequence.pending, sequence.pending_ends = tuple(pending), frozenset()
        sequence.touch()
        if not sequence.tokens:
            self.live.drop(sequence)
            return
        self.index.commit(sequence, lease.prompt, ends)
        self.saving.begin(sequence)

    def repair(self, lease: Lease) -> None:
        """A decode failed: find out what is left in memory, and keep only what is certain."""
        self.live.trim(lease.sequence)
        lease.drafted, lease.restart = 0, None
        lease.cuts = [cut for cut in lease.cuts if cut > lease.held]

    def prepare_draft(self, lease: Lease) -> bool:
        """Before a draft is decoded: see to it that the memory can go back; False if it cannot."""
        if not self.traits.recurrent:
            return True
        sequence = lease.sequence
        try:
            state = self.memory.state_get(sequence.number, partial=True)
        except (LlamaError, MemoryError) as error:
            _log.warning("no state could be taken before a draft: %r", error)
            return False
        lease.restart = (len(sequence.tokens), state)
        return True

    def rewind(self, lease: Lease) -> None:
        """A draft was verified: remove from memory what of it was not accepted.

        Memory that cannot be cut goes back to before the draft, so that accepted tokens are not in
        memory either. The sequence is empty if even that fails.
        """
        sequence, restart = lease.sequence, lease.restart
        lease.drafted, lease.restart = 0, None
        if sequence not in self.live:
            return
        if restart is not None and not self.live.agrees(sequence):
            self.live.go_back(sequence, *restart)
        else:
            self.live.trim(sequence)

    def add_cut(self, lease: Lease, length: int) -> None:
        """Let a chunk of its prompt end after this many tokens: somebody goes on from there.

        A checkpoint is taken there if the memory needs one. Nothing happens if they are evaluated.
        """
        if length > lease.held:
            lease.cuts = sorted({*lease.cuts, length})

    # -- sequences ------------------------------------------------------------------------------

    def take(self, *, namespace: Namespace | None = None) -> LiveSequence | None:
        """An empty sequence for a caller who evaluates by hand; None if all are busy."""
        sequence = self.live.obtain(self._or_default(namespace))
        if sequence is not None:
            sequence.busy = sequence.by_hand = True
        return sequence

    def give_back(self, sequence: LiveSequence) -> None:
        """The caller of ``take`` is done: what it evaluated may be reused."""
        sequence.busy = sequence.by_hand = False
        sequence.touch()
        if sequence.tokens:
            self.index.commit(sequence)
        else:
            self.live.drop(sequence)

    def clear(self) -> None:
        """Forget every sequence, checkpoint and pin, and clear the context's memory."""
        self.saving.flush()
        self.live.clear()
        self.stores.clear()

    # -- stores ---------------------------------------------------------------------------------

    def bring_in(
        self,
        stored: StoredState,
        *,
        namespace: Namespace | None = None,
        loading: StateLoad | None = None,
    ) -> LiveSequence | None:
        """Load a stored state into a sequence; None if there is no room for it.

        Args:
            loading: of this state, begun in this namespace; what it has is not loaded again.

        Raises:
            FingerprintError: it was made in another namespace, or under other settings.
            StateError: the state does not fit this context.
        """
        return self.applier.bring_in(stored, self._or_default(namespace), loading)
