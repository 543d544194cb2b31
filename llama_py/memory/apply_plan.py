"""``PlanApplier``: carries out a ``ReusePlan``.

A checkpoint is always loaded before the tail is cut. Where cells are missing, idle sequences give
way. Whenever the memory refuses something even then, or says afterwards that it holds other
positions than it should, the sequence is dropped, and the prompt is evaluated from its beginning:
slower, and never wrong. ``CacheInfo.reason`` says why.
"""

from __future__ import annotations

from collections.abc import Callable

from llama_py.errors import ConversationBusyError, FingerprintError, StateError
from llama_py.memory.index import CacheIndex, CheckpointRecord
from llama_py.memory.kinds import MemoryTraits, SequenceMemory
from llama_py.memory.live import LiveSet
from llama_py.memory.plan import Action, ReusePlan
from llama_py.memory.positions import Positions
from llama_py.memory.saving import Saving, load_cells
from llama_py.memory.sequences import (
    CacheInfo,
    LiveSequence,
    Namespace,
    ResolvedPrompt,
    as_tokens,
    cut_at,
)
from llama_py.memory.state_loader import StateLoad, StateLoader
from llama_py.memory.stores import StoredSource, Stores
from llama_py.states.state import StoredState, why_refused

__all__ = ["PlanApplier"]


class PlanApplier:
    """Begins sequences with what a plan says can be kept."""

    def __init__(
        self,
        memory: SequenceMemory,
        traits: MemoryTraits,
        index: CacheIndex,
        live: LiveSet,
        stores: Stores,
        saving: Saving,
        loader: StateLoader,
    ) -> None:
        self._loader = loader
        self._memory = memory
        self._traits = traits
        self._index = index
        self._live = live
        self._stores = stores
        self._saving = saving

    def begin(
        self,
        plan: ReusePlan,
        prompt: ResolvedPrompt,
        info: CacheInfo,
        loading: StateLoad | None = None,
    ) -> LiveSequence | None:
        """A sequence that holds what can be kept; ``info`` says what was done. None if all are
        busy.

        Args:
            loading: what the plan loads, if that was begun before.
        """
        sequence: LiveSequence | None = None
        try:
            if plan.action in (Action.CONTINUE, Action.FORK):
                source = self._live.by_number[plan.source]  # type: ignore[index]
                sequence = self._continue_or_fork(source, plan, prompt, info)
            elif plan.action is Action.LOAD:
                sequence = self._load(plan, prompt, info, loading)
            elif plan.action is Action.RESTORE:
                sequence = self._restore(plan, prompt, info)
        except StateError as error:
            info.reason = f"what is cached could not be used: {error}"
        if sequence is None:
            info.action, info.restored_bytes = Action.EVALUATE.value, 0
            sequence = self._live.obtain(prompt.namespace)
        return sequence

    # -- from a sequence in memory --------------------------------------------------------------

    def _continue_or_fork(
        self, source: LiveSequence, plan: ReusePlan, prompt: ResolvedPrompt, info: CacheInfo
    ) -> LiveSequence | None:
        """None if every sequence is busy.

        Raises:
            StateError: the memory could not give back what the plan keeps.
        """
        record = self._checkpoint(prompt, plan.keep) if plan.checkpoint else None
        if not self._live.extends(source, plan.keep):
            target = self._live.obtain(prompt.namespace, keep=source)
            if target is not None and target is not source:
                info.action = Action.FORK.value
                return self._fork(source, target, plan.keep, record, info)
            if source.busy:
                return None
            if self._stores.is_worth_keeping(source, plan.keep):
                self._live.offload(source)
        if plan.keep == len(source.tokens):
            self._live.take_checkpoint(source)
        info.action = Action.CONTINUE.value
        self._shorten(source, plan.keep, record, info)
        return source

    def copy_prefix(self, source: LiveSequence, length: int) -> LiveSequence:
        """A sequence that holds the first ``length`` tokens of another.

        Raises:
            StateError: this memory cannot give them back.
            ConversationBusyError: every sequence is busy.
        """
        record = None
        if not self._live.can_resume(source, length, forked=True):
            along = self._index.checkpoints_along(as_tokens(source.tokens), source.namespace)
            record = along.get(length)
            if record is None:
                longest = sorted([*along, len(source.tokens)])[-8:]
                raise StateError(
                    f"the first {length} of {len(source.tokens)} tokens cannot be copied: "
                    f"{self._traits.why_not()}, and there is no checkpoint at {length}; "
                    f"possible are {', '.join(map(str, longest))}"
                )
        target = self._live.obtain(source.namespace, keep=source)
        if target is None or target is source:
            raise ConversationBusyError(
                "every sequence is busy; wait for a request, or raise n_seq_max"
            )
        return self._fork(source, target, length, record, CacheInfo())

    def cut_back(self, sequence: LiveSequence, length: int) -> bool:
        """Cut an idle sequence to its first ``length`` tokens.

        Returns:
            False if this memory cannot give them back; it may have been dropped then.
        """
        record = None
        if not self._live.can_resume(sequence, length):
            along = self._index.checkpoints_along(as_tokens(sequence.tokens), sequence.namespace)
            record = along.get(length)
            if record is None:
                return False
        try:
            self._shorten(sequence, length, record, CacheInfo())
        except StateError:
            return False
        return True

    def _fork(
        self,
        source: LiveSequence,
        target: LiveSequence,
        keep: int,
        record: CheckpointRecord | None,
        info: CacheInfo,
    ) -> LiveSequence:
        """Let ``target``, which is empty, begin with the first ``keep`` tokens of ``source``.

        Where there is no room for both, ``source`` is evicted behind all others, if it is idle.

        Raises:
            StateError: that is not possible; ``target`` is dropped.
        """
        # Asked before ``source`` may have to make room for its own copy, and forgets all of it.
        tokens, positions = [*source.tokens], source.positions
        spelling = source.text, source.offsets, source.sources
        runs, shares = cut_at(source.runs, keep), cut_at(source.shares, keep)
        try:
            if self._copy_cells(source, target, keep):
                target.shares = shares
            # More than ``keep`` may have been copied; it is cut below.
            target.tokens, target.positions = tokens, positions
            target.spell(*spelling)
            if record is None and self._traits.forgets and self._traits.shares_cells:
                # It gets cells of its own: those of a window's cache that two sequences share are
                # not used again when the window has passed them, and such a cache is soon full.
                state = self._memory.state_get(target.number, partial=True)
                record = CheckpointRecord(len(target.tokens), state)
            if record is not None:
                self._load_checkpoint(target, record, info, last=source)
            elif not self._live.can_resume(target, keep):
                # a copy has less of the window than its source
                raise StateError(f"what could be copied does not do: {self._traits.why_not()}")
            del target.tokens[keep:]
            target.forget_text_after(keep)
            target.runs = runs
            if not self._live.cut(target, keep):
                raise StateError(f"a copy could not be cut to {keep} tokens")
        except BaseException:
            self._live.drop(target)
            raise
        self._index.commit(target)
        return target

    def _copy_cells(self, source: LiveSequence, target: LiveSequence, keep: int) -> bool:
        """Returns whether both have the same cells now, and not the same in cells of their own."""
        memory = self._memory
        if keep == len(source.tokens) or self._traits.cuts_copies:
            memory.seq_cp(source.number, target.number)
        elif self._traits.copies_parts:
            memory.seq_cp(source.number, target.number, 0, source.positions.after(keep))
        else:
            state = memory.state_get(source.number)
            self._load_state(target, lambda: memory.state_set(target.number, state), last=source)
            # An idle source needs no more than what was copied, while ``target`` may be cut.
            if not source.busy and not self._traits.shares_cells:
                self._live.swap(source, target)
            return False
        return True

    def _shorten(
        self, sequence: LiveSequence, keep: int, record: CheckpointRecord | None, info: CacheInfo
    ) -> None:
        """Cut a sequence in place.

        Raises:
            StateError: that is not possible; the sequence is dropped.
        """
        if keep == len(sequence.tokens):
            return
        self._saving.finish(sequence)
        try:
            if record is not None:
                self._load_checkpoint(sequence, record, info)
            elif not self._live.can_resume(sequence, keep):
                raise StateError(f"it cannot be cut to {keep} tokens: {self._traits.why_not()}")
            if not self._live.cut(sequence, keep):
                raise StateError(f"it could not be cut to {keep} tokens")
        except BaseException:
            self._live.drop(sequence)
            raise
        del sequence.tokens[keep:]
        sequence.pending = ()
        sequence.forget_text_after(keep)
        sequence.forget_stored()
        self._index.commit(sequence)

    # -- from a checkpoint ----------------------------------------------------------------------

    def _checkpoint(self, prompt: ResolvedPrompt, length: int) -> CheckpointRecord:
        """The checkpoint after this many tokens of a prompt.

        Raises:
            StateError: it is not there any more.
        """
        along = self._index.checkpoints_along(prompt.tokens[:length], prompt.namespace)
        record = along.get(length)
        if record is None:
            raise StateError(f"the checkpoint at {length} tokens is gone")
        return record

    def _load_checkpoint(
        self,
        sequence: LiveSequence,
        record: CheckpointRecord,
        info: CacheInfo,
        *,
        last: LiveSequence | None = None,
    ) -> None:
        self._live.load_part(sequence, record.state, last=last)
        info.restored_bytes += record.state.nbytes
        self._index.checkpoints.touch(record)

    def _restore(
        self, plan: ReusePlan, prompt: ResolvedPrompt, info: CacheInfo
    ) -> LiveSequence | None:
        record = self._checkpoint(prompt, plan.keep)
        target = self._live.obtain(prompt.namespace)
        if target is None:
            return None
        try:
            self._load_checkpoint(target, record, info)
            target.tokens = prompt.tokens[: plan.keep].tolist()
            target.positions = prompt.positions
            if not self._live.cut(target, plan.keep):
                raise StateError(f"it does not end after {plan.keep} tokens")
        except BaseException:
            self._live.drop(target)
            raise
        self._index.commit(target, prompt)
        return target

    # -- from a store ---------------------------------------------------------------------------

    def _load(
        self, plan: ReusePlan, prompt: ResolvedPrompt, info: CacheInfo, loading: StateLoad | None
    ) -> LiveSequence | None:
        assert isinstance(plan.source, StoredSource)
        if loading is None or loading.source != plan.source or loading.stored is None:
            stored, loading = plan.source.store.get(plan.source.key), None
        else:
            stored = loading.stored
        if stored is None:
            raise StateError("it is gone from its store, or cannot be read")
        sequence = self.bring_in(stored, prompt.namespace, loading)
        if sequence is None:
            return None
        info.restored_bytes += stored.state.nbytes + sum(each.nbytes for each in stored.segments)
        self._stores.remember_origin(sequence, plan.source, stored)
        self._saving.loaded(sequence, plan.source, stored)
        record = self._checkpoint(prompt, plan.keep) if plan.checkpoint else None
        self._shorten(sequence, plan.keep, record, info)
        return sequence

    def bring_in(
        self, stored: StoredState, namespace: Namespace, loading: StateLoad | None = None
    ) -> LiveSequence | None:
        """Load a stored state into a sequence; None if there is no room for it.

        Args:
            loading: that was begun with this state; what it has loaded is not loaded again.

        Raises:
            FingerprintError: it was made in another namespace, or under other settings.
            StateError: the state does not fit this context.
        """
        if stored.fingerprint != self._stores.fingerprint(namespace):
            own = self._stores.fingerprint(namespace)
            raise FingerprintError(f"a stored state {why_refused(own, stored.fingerprint)}")
        sequence = self._loader.take(loading) if loading is not None else None
        if sequence is None:
            sequence = self._live.obtain(namespace)
            if sequence is None:
                return None
            self._load_state(sequence, lambda: load_cells(self._memory, sequence.number, stored))
            sequence.tokens = stored.tokens.tolist()
        sequence.positions = Positions.of(stored.tokens)
        if not self._live.agrees(sequence):
            self._live.drop(sequence)
            raise StateError("a stored state holds other positions than it says; it was not used")
        if stored.text is not None and stored.offsets is not None and stored.sources is not None:
            sequence.spell(stored.text, stored.offsets, stored.sources)
        sequence.session = stored.session
        sequence.touch()
        self._index.commit(sequence)
        known = self._index.checkpoints_along(stored.tokens, namespace)
        pinned = self._stores.pins.lengths_along(stored.tokens, namespace)
        for each in stored.checkpoints:
            if each.position not in known:
                tokens, is_pinned = stored.tokens[: each.position], each.position in pinned
                self._index.checkpoints.add(tokens, each.state, namespace, pinned=is_pinned)
        return sequence

    def _load_state(
        self,
        sequence: LiveSequence,
        load: Callable[[], None],
        *,
        last: LiveSequence | None = None,
    ) -> None:
        """Load, offloading idle sequences until there is room for the cells.

        Args:
            last: all others make room before this one, except those that are pinned.

        Raises:
            StateError: it does not fit, or is damaged; the sequence is dropped.
        """
        sequence.busy = True  # not a victim itself
        try:
            while True:
                try:
                    load()
                    return
                except StateError:
                    if not self._live.make_room(last):
                        self._live.drop(sequence)
                        raise
        finally:
            sequence.busy = False
