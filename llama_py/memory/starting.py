"""``PromptStarter``: carries out a ``ReusePlan``.

A checkpoint is always loaded before the tail is cut. Whenever the memory refuses something, or says
afterwards that it holds other positions than it should, the sequence is dropped, and the prompt is
evaluated from its beginning: slower, and never wrong.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from llama_py.errors import StateError
from llama_py.memory.changes import changing
from llama_py.memory.checkpoints import CheckpointRecord
from llama_py.memory.plan import Action, ReusePlan
from llama_py.memory.pool import SequencePool
from llama_py.memory.sequences import CacheInfo, Lease, LiveSequence, ResolvedPrompt
from llama_py.memory.state import Key, StateStore, StoredState

__all__ = ["PromptStarter"]


class PromptStarter(SequencePool):
    """Begins sequences with what a plan says can be kept."""

    def _begin(self, plan: ReusePlan, prompt: ResolvedPrompt, info: CacheInfo) -> Lease | None:
        sequence: LiveSequence | None = None
        if plan.action in (Action.CONTINUE, Action.FORK):
            source = self.live[plan.source]  # type: ignore[index]
            sequence = self._continue_or_fork(source, plan, prompt, info)
        elif plan.action is Action.LOAD:
            sequence = self._load(plan, info)
        elif plan.action is Action.RESTORE:
            sequence = self._restore_alone(plan, prompt, info)
        if sequence is None:
            info.action = Action.EVALUATE.value
            sequence = self._obtain()
        return None if sequence is None else Lease(sequence, prompt, [], info)

    def _continue_or_fork(
        self, source: LiveSequence, plan: ReusePlan, prompt: ResolvedPrompt, info: CacheInfo
    ) -> LiveSequence | None:
        length = len(source.tokens)
        extends = length - plan.keep <= 1 and not source.busy and not source.pinned
        record = self._checkpoint_at(prompt, plan.keep) if plan.checkpoint else None
        if plan.checkpoint and record is None:
            return None
        if not extends:
            target = self._obtain(keep=source)
            if target is not None and target is not source:
                info.action = Action.FORK.value
                return self._fork(source, target, plan.keep, record, info)
            if source.busy:
                return None
            self._park(source)
        if plan.keep == length:
            self._take_checkpoint(source)
        info.action = Action.CONTINUE.value
        return source if self._cut(source, plan.keep, record, info) else None

    @changing
    def copy_prefix(self, source: LiveSequence, length: int) -> LiveSequence:
        """A sequence that holds the first ``length`` tokens of another.

        Raises:
            StateError: this memory cannot give them back, or every sequence is busy.
        """
        tokens = np.array(source.tokens[:length], np.int32)
        record = None
        if not self._resumable(source, length):
            record = self.checkpoints.along(self.index.match_tokens(tokens)).get(length)
            if record is None:
                raise StateError(
                    f"the first {length} of {len(source.tokens)} tokens cannot be copied: "
                    f"{self.traits.why_not()}, and there is no checkpoint at {length}"
                )
        target = self._obtain(keep=source)
        if target is None or target is source:
            raise StateError("every sequence is busy; wait for a request, or raise n_seq_max")
        copy = self._fork(source, target, length, record, CacheInfo())
        if copy is None:
            raise StateError(f"the first {length} tokens could not be copied")
        return copy

    def _fork(
        self,
        source: LiveSequence,
        target: LiveSequence,
        keep: int,
        record: CheckpointRecord | None,
        info: CacheInfo,
    ) -> LiveSequence | None:
        """Let ``target``, which is empty, begin with the first ``keep`` tokens of ``source``."""
        memory = self.memory
        if keep == len(source.tokens):
            memory.seq_cp(source.number, target.number)
        elif self.traits.copies_parts:
            memory.seq_cp(source.number, target.number, 0, keep)
        else:
            memory.state_set(target.number, memory.state_get(source.number))
        self._inherit(target, source, len(source.tokens))
        if record is None and self.traits.forgets:
            record = self._window_of(target)
        if record is not None and not self._load_checkpoint(target, record, info):
            return None
        # The range was copied exactly, except where a checkpoint or a whole copy brought more.
        target.tokens = source.tokens[:keep]
        target.forget_text_after(keep)
        target.forget_segments_after(keep)
        if not self._tail_removed(target, keep):
            self._empty(target)
            self.drop(target)
            return None
        self.commit(target)
        return target

    def _window_of(self, target: LiveSequence) -> CheckpointRecord:
        """The window of a sequence that was just copied, so that it can get cells of its own.

        Cells of a window's cache that two sequences share are not used again when the window has
        passed them, and a cache of such cells is soon full.
        """
        state = self.memory.state_get(target.number, partial=True)
        return CheckpointRecord(self.memory.pos_max(target.number) + 1, state)

    def _inherit(self, target: LiveSequence, source: LiveSequence, count: int) -> None:
        target.tokens = source.tokens[:count]
        target.spell(source.text, source.offsets, source.sources)
        target.segments = source.segments
        target.forget_text_after(count)

    def _cut(
        self, sequence: LiveSequence, keep: int, record: CheckpointRecord | None, info: CacheInfo
    ) -> bool:
        """Shorten a sequence in place; False if it had to be dropped."""
        if self.memory.pos_max(sequence.number) + 1 != len(sequence.tokens):
            self.drop(sequence)  # an interrupt came between the memory and the bookkeeping
            return False
        if keep == len(sequence.tokens):
            return True
        self.saving.finish(sequence)
        if record is not None and not self._load_checkpoint(sequence, record, info):
            return False
        if record is None and not self._resumable(sequence, keep):
            self.drop(sequence)
            return False
        if not self._tail_removed(sequence, keep):
            self.drop(sequence)
            return False
        del sequence.tokens[keep:]
        sequence.pending = None
        sequence.forget_text_after(keep)
        sequence.forget_stored()
        self.commit(sequence)
        return True

    def _resumable(self, sequence: LiveSequence, keep: int) -> bool:
        """What was planned, asked of the memory itself: a loaded state may hold less."""
        pos_min = max(0, self.memory.pos_min(sequence.number))
        return self.traits.can_resume(pos_min, len(sequence.tokens), keep)

    def _tail_removed(self, sequence: LiveSequence, keep: int) -> bool:
        """Remove everything from ``keep`` on, and see whether the memory really did.

        Hybrid memory reports the smaller end of its two parts, so ``pos_max`` alone cannot tell
        whether attention cells are left behind a restored recurrent state: always ask to remove.
        """
        removed = self.memory.seq_rm(sequence.number, keep, -1)
        return removed and self.memory.pos_max(sequence.number) + 1 == keep

    def _load_checkpoint(
        self, sequence: LiveSequence, record: CheckpointRecord, info: CacheInfo
    ) -> bool:
        try:
            self.memory.state_set(sequence.number, record.state, partial=True)
        except StateError:
            self.drop(sequence)
            return False
        info.restored_bytes += record.state.nbytes
        self.checkpoints.touch(record)
        return True

    def _restore_alone(
        self, plan: ReusePlan, prompt: ResolvedPrompt, info: CacheInfo
    ) -> LiveSequence | None:
        record = self._checkpoint_at(prompt, plan.keep)
        target = self._obtain() if record is not None else None
        if record is None or target is None or not self._load_checkpoint(target, record, info):
            return None
        target.tokens = prompt.tokens[: plan.keep]
        if not self._tail_removed(target, plan.keep):
            self.drop(target)
            return None
        self.commit(target, prompt)
        return target

    def _checkpoint_at(self, prompt: ResolvedPrompt, position: int) -> CheckpointRecord | None:
        matches = self.index.match_tokens(np.array(prompt.tokens[:position], np.int32))
        return self.checkpoints.along(matches).get(position)

    def _load(self, plan: ReusePlan, info: CacheInfo) -> LiveSequence | None:
        store, key = cast("tuple[StateStore, Key]", plan.source)
        stored = store.get(key)
        if stored is None:
            return None
        try:
            sequence = self.bring_in(stored)
        except StateError as error:
            info.reason = str(error)
            return None
        if sequence is None:
            return None
        info.restored_bytes += stored.state.nbytes + sum(each.nbytes for each in stored.segments)
        self._remember_origin(sequence, store, key, stored)
        record = None
        if plan.checkpoint:
            along = self.checkpoints.along(self.index.match_tokens(stored.tokens[: plan.keep]))
            record = along.get(plan.keep)
            if record is None:
                self.drop(sequence)
                return None
        return sequence if self._cut(sequence, plan.keep, record, info) else None

    def _remember_origin(
        self, sequence: LiveSequence, store: StateStore, key: Key, stored: StoredState
    ) -> None:
        """A longer state of the same sequence will replace this entry, until it is cut."""
        if store is self.saved:
            sequence.saved_key, sequence.saved_length = key, len(sequence.tokens)
            sequence.segments = tuple(replace(each, state=None) for each in stored.segments)
        else:
            sequence.parked_key = key
            self.saving.unparked(sequence, key)
