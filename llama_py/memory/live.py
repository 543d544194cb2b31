"""``LiveSet``: the sequences of a context, and which of them is evicted when there is no room.

The invariant: ``sequence.tokens`` is what the context's memory holds for it, no more and no less.
It is extended only after a decode succeeded; a sequence of which that is not certain is emptied.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import LlamaError, StateError
from llama_py.memory.index import CacheIndex
from llama_py.memory.kinds import MemoryKind, MemoryTraits, SequenceMemory
from llama_py.memory.positions import TEXT
from llama_py.memory.saving import Saving
from llama_py.memory.sequences import (
    LiveSequence,
    Namespace,
    ResolvedPrompt,
    as_tokens,
    cut_at,
    shared_by,
)
from llama_py.memory.stores import Stores

__all__ = ["LiveSet"]

_log = logging.getLogger("llama_py")


class LiveSet:
    """The sequences of a context, by number; evicts, cuts and checkpoints them.

    Attributes:
        by_number: the sequences in memory.
        displaced: one had to make room for another one since this was set to False.
    """

    def __init__(
        self,
        memory: SequenceMemory,
        traits: MemoryTraits,
        index: CacheIndex,
        stores: Stores,
        saving: Saving,
    ) -> None:
        self._memory = memory
        self._traits = traits
        self._index = index
        self._stores = stores
        self._saving = saving
        self.by_number: dict[int, LiveSequence] = {}
        self.displaced = False

    def __contains__(self, sequence: LiveSequence) -> bool:
        return self.by_number.get(sequence.number) is sequence

    def __iter__(self) -> Iterator[LiveSequence]:
        return iter(self.by_number.values())

    # -- getting and giving back ----------------------------------------------------------------

    def obtain(
        self, namespace: Namespace, *, keep: LiveSequence | None = None
    ) -> LiveSequence | None:
        """An empty sequence, in place of an idle one if need be; None if all are busy.

        Args:
            keep: it is not evicted; if there is no other one, it is returned as it is.
        """
        if len(self.by_number) >= self._memory.n_seq_max:
            victim = self._victim()
            if victim is None or victim is keep:
                return victim
            self.evict(victim)
        number = min({*range(self._memory.n_seq_max)} - self.by_number.keys())
        self._memory.seq_rm(number, -1, -1)
        self.by_number[number] = sequence = LiveSequence(number, namespace)
        return sequence

    def next_to_leave(self) -> LiveSequence | None:
        """The sequence that makes room when cells run out; None if none does."""
        return self._victim() if self._traits.shares_cells else None

    def _victim(self, last: LiveSequence | None = None) -> LiveSequence | None:
        """The least recently used idle sequence; pinned ones only if there is no other."""
        return next(iter(self._idle(last)), None)

    def _idle(self, last: LiveSequence | None = None) -> list[LiveSequence]:
        """Idle sequences in the order in which they have to make room.

        Args:
            last: all others go before this one, except those that are pinned.
        """
        idle = [sequence for sequence in self.by_number.values() if not sequence.busy]
        kept = self._stores.pins.keepers()
        return sorted(
            idle, key=lambda each: (each.reserved or each in kept, each is last, each.last_used)
        )

    def leaving(self, cells: int, *, besides: LiveSequence | None = None) -> list[LiveSequence]:
        """Idle sequences that have to make room for ``cells`` more cells.

        Args:
            besides: the sequence that gets them; None: a new one.
        """
        taken = besides is None and len(self.by_number) >= self._memory.n_seq_max
        idle = [sequence for sequence in self._idle() if sequence is not besides]
        missing = self.missing(cells) if idle else 0
        leaving: list[LiveSequence] = []
        for sequence in idle:
            if missing <= 0 and not (taken and not leaving):
                break
            leaving.append(sequence)
            missing -= self._index.own_tail(sequence)
        return leaving

    def missing(self, cells: int) -> int:
        """How many of ``cells`` more cells there are not."""
        if not self._traits.shares_cells:
            return 0
        n_ctx = self._memory.n_ctx
        if sum(len(sequence.tokens) for sequence in self.by_number.values()) + cells <= n_ctx:
            return 0  # also if no beginning is shared: that takes longer to count
        return self.cells_used() + cells - n_ctx

    def make_room(self, last: LiveSequence | None = None) -> bool:
        """Offload the least recently used idle sequence; False if there is none.

        Nor if that makes no room for others, because each sequence has cells of its own.

        Args:
            last: all others go before this one, except those that are pinned.
        """
        victim = self._victim(last) if self._traits.shares_cells else None
        if victim is None:
            return False
        self.evict(victim)
        return True

    def make_room_for(self, cells: int) -> None:
        """Offload idle sequences until this many cells are free, but for those that are pinned.

        None if that is not to be had, because others are busy with too many; nor where sequences
        take no cells.
        """
        busy = sum(len(each.tokens) for each in self.by_number.values() if each.busy)
        if self._traits.kind is MemoryKind.RECURRENT or busy + cells > self._memory.n_ctx:
            return
        kept = self._stores.pins.keepers()
        while self.missing(cells) > 0:
            victim = self.next_to_leave()
            if victim is None or victim.reserved or victim in kept:
                return
            self.evict(victim)

    def evict(self, sequence: LiveSequence) -> None:
        """Offload a sequence in the store, and free its cells."""
        self.offload(sequence)
        self.drop(sequence)

    def offload(self, sequence: LiveSequence) -> None:
        """Copy a sequence that is about to go to the offload store, if that is worth it.

        It is copied in pieces, also at once, so that it can be loaded in pieces.
        """
        self.displaced = True
        if self._stores.must_be_offloaded(sequence):
            self._saving.offload(sequence, at_once=True)
        self._saving.finish(sequence, offloads=True)
        self._stores.offload(sequence)
        self._saving.note_offloaded(sequence)

    def drop(self, sequence: LiveSequence) -> None:
        """Forget a sequence and free its cells."""
        if sequence in self:
            sequence.busy = False
            self._saving.finish(sequence)
            self.empty(sequence)
            del self.by_number[sequence.number]

    def empty(self, sequence: LiveSequence) -> None:
        """Forget what a sequence holds."""
        self._saving.give_up(sequence)
        self._index.remove(sequence)
        sequence.tokens, sequence.positions = [], TEXT
        sequence.pending = ()
        sequence.forget_text_after(0)
        sequence.forget_stored()
        self._memory.seq_rm(sequence.number, -1, -1)  # removing a whole sequence never fails

    def clear(self) -> None:
        """Forget every sequence, and clear the context's memory."""
        self._memory.clear()
        self._index.clear()
        self.by_number.clear()

    # -- what the memory really holds -----------------------------------------------------------

    def agrees(self, sequence: LiveSequence) -> bool:
        """Whether the memory ends where ``sequence`` does."""
        return self._memory.pos_max(sequence.number) == sequence.last

    def trim(self, sequence: LiveSequence) -> None:
        """Remove from the memory what was decoded beyond ``sequence.tokens``."""
        present = self._memory.pos_max(sequence.number) + 1
        if present > sequence.end and not self._traits.recurrent:
            self._memory.seq_rm(sequence.number, sequence.end, -1)
        whole = self.agrees(sequence)
        # Cells that the next token sees (itself and ``window - 1`` before it) may have been
        # overwritten by tokens that are gone. Beside a recurrent state this cannot be asked, and
        # need not be: what overwrites cells has advanced the state as well, and a sequence whose
        # state is too far on is emptied.
        if whole and self._traits.window and not self._traits.recurrent:
            needed = max(0, sequence.end - self._traits.window + 1)
            whole = self._memory.pos_min(sequence.number) <= needed
        if not whole:
            self.empty(sequence)

    def swap(self, one: LiveSequence, other: LiveSequence) -> None:
        """Two idle sequences hold the same: let each have the other's cells."""
        one.number, other.number = other.number, one.number
        self.by_number[one.number], self.by_number[other.number] = one, other

    def extends(self, sequence: LiveSequence, keep: int) -> bool:
        """Whether to go on in ``sequence`` itself, because nobody else needs what it holds."""
        if sequence.busy or sequence.reserved or len(sequence.tokens) - keep > 1:
            return False
        pin = self._stores.pins.keepers().get(sequence)
        return pin is None or not pin.is_all_of(sequence)

    def can_resume(self, sequence: LiveSequence, keep: int, *, forked: bool = False) -> bool:
        """Whether a mere cut to ``keep`` tokens is enough, asked of the memory itself.

        Args:
            forked: the sequence stays as it is, and a fork of it is cut.
        """
        pos_min = self._stores.first_position(sequence, forked=forked)
        return self._traits.can_resume(pos_min, len(sequence.tokens), keep, sequence.positions)

    def cut(self, sequence: LiveSequence, keep: int) -> bool:
        """Remove everything behind ``keep`` tokens, and see whether the memory really did.

        Hybrid memory reports the smaller end of its two parts, so ``pos_max`` alone cannot tell
        whether attention cells are left behind a restored recurrent state: always ask to remove.
        """
        end = sequence.positions.after(keep)
        removed = self._memory.seq_rm(sequence.number, end, -1)
        return removed and self._memory.pos_max(sequence.number) == sequence.positions.last(keep)

    def load_part(
        self,
        sequence: LiveSequence,
        state: NDArray[np.uint8],
        *,
        last: LiveSequence | None = None,
    ) -> None:
        """Load a partial state; idle sequences give way where its cells find no room.

        Each sequence has cells of its own in the cache of a sliding window, also of what it shares
        with others. So that cache may be full while there are cells enough of the other kind, which
        are the only ones that ``cells_used`` counts.

        Args:
            last: all others give way before this one, except those that are pinned.

        Raises:
            StateError: it cannot be loaded; the sequence is of no use then, and must be emptied.
        """
        busy, sequence.busy = sequence.busy, True  # it does not give way itself
        try:
            while True:
                try:
                    self._memory.state_set(sequence.number, state, partial=True, keeps=True)
                    return
                except StateError:
                    if not self._traits.window or not self.make_room(last):
                        raise
        finally:
            sequence.busy = busy

    def go_back(self, sequence: LiveSequence, keep: int, state: NDArray[np.uint8]) -> None:
        """Load the partial state after ``keep`` tokens, and remove what came behind.

        The sequence is emptied if that fails.
        """
        try:
            self.load_part(sequence, state)
        except StateError as error:
            _log.warning("a sequence could not go back to %d tokens: %r", keep, error)
            self.empty(sequence)
            return
        if self.cut(sequence, keep):
            del sequence.tokens[keep:]
            sequence.runs = cut_at(sequence.runs, keep)
            sequence.shares = cut_at(sequence.shares, keep)
        else:
            self.empty(sequence)

    def take_checkpoint(self, sequence: LiveSequence) -> None:
        """Keep a partial state of where ``sequence`` is now, unless there is one already."""
        if not self._traits.needs_checkpoints or not sequence.tokens:
            return
        if not self.agrees(sequence):  # a draft is being verified there: it would be in the state
            return
        tokens, namespace = as_tokens(sequence.tokens), sequence.namespace
        pinned = len(tokens) in self._stores.pins.lengths_along(tokens, namespace)
        record = self._index.checkpoints_along(tokens, namespace).get(len(tokens))
        if record is not None:
            record.pinned |= pinned
            return
        try:
            state = self._memory.state_get(sequence.number, partial=True)
        except (LlamaError, MemoryError) as error:
            _log.warning("no checkpoint could be taken at %d tokens: %r", len(tokens), error)
        else:
            self._index.checkpoints.add(tokens, state, namespace, pinned=pinned)

    def cells_used(self) -> int:
        """Cells in use: tokens of all sequences, those that are copies of others counted once.

        From any thread: while sequences change, it is about as many.
        """
        if not self._traits.shares_cells:
            return sum(len(sequence.tokens) for sequence in [*self.by_number.values()])
        total = 0
        seen: list[LiveSequence] = []
        for sequence in [*self.by_number.values()]:
            most = 0
            for other in seen:  # equal tokens that were evaluated twice have cells twice
                shortest = min(len(sequence.tokens), len(other.tokens))
                shared = shared_by(sequence.shares, other.shares)
                most = max(most, shortest if shared is None else min(shared, shortest))
            total += len(sequence.tokens) - most
            seen.append(sequence)
        return total

    # -- pins -----------------------------------------------------------------------------------

    def pin(self, prompt: ResolvedPrompt) -> int:
        """Keep the beginning that ``prompt`` is, as long as there is room for anything else.

        A pin belongs to these tokens, not to the sequence that holds them now: a prompt that goes
        on behind them gets a sequence of its own, if there is one, and otherwise a copy of them is
        offloaded. Pinning again changes nothing.

        Returns:
            How many of the tokens are in memory now; what is missing is kept once it is evaluated.
        """
        pin = self._stores.pins.add(prompt)
        found = self._index.holders(pin.tokens, pin.namespace)
        for sequence, matched in found:
            if matched == len(pin.tokens) == len(sequence.tokens):
                self.take_checkpoint(sequence)
        self._pin_checkpoint(prompt, pinned=True)
        return max((matched for _, matched in found), default=0)

    def unpin(self, prompt: ResolvedPrompt) -> bool:
        """Release the pin of a prompt (the same tokens or text); False if it was not pinned."""
        gone = self._stores.pins.remove(prompt)
        if gone:
            self._pin_checkpoint(prompt, pinned=False)
        return bool(gone)

    def unpin_all(self) -> None:
        """Let everything be evicted."""
        for pin in self._stores.pins:
            self.unpin(ResolvedPrompt(pin.tokens, namespace=pin.namespace))

    def _pin_checkpoint(self, prompt: ResolvedPrompt, *, pinned: bool) -> None:
        along = self._index.checkpoints_along(prompt.tokens, prompt.namespace)
        record = along.get(len(prompt.tokens))
        if record is not None:
            record.pinned = pinned
