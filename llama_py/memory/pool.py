"""``SequencePool``: the sequences of a context, what each holds, and the tiers below it.

The invariant: ``sequence.tokens`` is what the context's memory holds for it, no more and no less.
It is extended only after a decode succeeded; a sequence of which that is not certain is dropped.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from llama_py.errors import LlamaError, StateError
from llama_py.memory.changes import changing
from llama_py.memory.checkpoints import CheckpointRecord, Checkpoints
from llama_py.memory.kinds import MemoryTraits, SequenceMemory
from llama_py.memory.prefix import PrefixIndex
from llama_py.memory.saving import WORTH_SAVING, Saving, load_cells
from llama_py.memory.sequences import LiveSequence, ResolvedPrompt
from llama_py.memory.spelling import Spelling, Tokenizer
from llama_py.memory.state import Checkpoint, Key, StateStore, StoredState
from llama_py.memory.text import Source

__all__ = ["CacheLimits", "SequencePool", "common_prefix"]

_log = logging.getLogger("llama_py")

#: A sequence whose own tail is shorter than this is not worth a place in the store.
_WORTH_PARKING = 32
#: Checkpoints that travel with a stored state.
_STORED_CHECKPOINTS = 8


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """How much may be kept.

    Attributes:
        checkpoint_bytes, checkpoint_count: for checkpoints of all conversations together.
        reuse: False evaluates every prompt from its beginning.
        text: False looks for token prefixes only.
    """

    checkpoint_bytes: int = 512 << 20
    checkpoint_count: int = 256
    reuse: bool = True
    text: bool = True


class SequencePool:
    """Owns the bookkeeping of all sequences: free, live and busy ones, index, checkpoints, stores.

    Args:
        memory: the context.
        traits: what its memory can do.
        tokenizer: its vocabulary.
        fingerprint: everything that saved states depend on; asked at each use, because adapters
            may change.
        limits: how much may be kept.
        parking: where sequences are parked when there is no room for them, or None.

    Attributes:
        saved: a store that every conversation is written to when a request ends, or None. It may
            outlive the process and be shared with others.
        live: the sequences in memory, by number.
        parked, dropped: how often a sequence had to go, with and without a copy.
        suspect: a change was interrupted; ``start_over`` has to come before anything else.
    """

    def __init__(
        self,
        memory: SequenceMemory,
        traits: MemoryTraits,
        tokenizer: Tokenizer,
        fingerprint: Callable[[], str],
        limits: CacheLimits | None = None,
        parking: StateStore | None = None,
    ) -> None:
        self.memory = memory
        self.traits = traits
        self.tokenizer = tokenizer
        self.fingerprint = fingerprint
        self.limits = limits or CacheLimits()
        self.parking = parking
        self.saved: StateStore | None = None
        self.index: PrefixIndex[LiveSequence | CheckpointRecord] = PrefixIndex()
        self.checkpoints = Checkpoints(
            self.index, self.limits.checkpoint_bytes, self.limits.checkpoint_count
        )
        self.live: dict[int, LiveSequence] = {}
        self.spelling = Spelling(tokenizer)
        self.parked = 0
        self.dropped = 0
        self.suspect = False
        self.saving = Saving(self)

    @property
    def limit(self) -> int:
        """Tokens that one sequence can hold."""
        longest = self.memory.n_ctx_seq
        return min(longest, self.traits.max_position or longest)

    @property
    def stores(self) -> list[StateStore]:
        """The tiers below the context, fastest first. One that its owner has closed is given up."""
        if self.saved is not None and self.saved.closed:
            _log.warning("the cache that was set is closed, and not used any more")
            self.saved = None
        return [store for store in (self.parking, self.saved) if store is not None]

    @changing
    def take(self) -> LiveSequence | None:
        """An empty sequence for a caller who evaluates by hand; None if all are busy."""
        sequence = self._obtain()
        if sequence is not None:
            sequence.busy = sequence.by_hand = True
        return sequence

    @changing
    def give_back(self, sequence: LiveSequence) -> None:
        """The caller of ``take`` is done: what it evaluated may be reused."""
        sequence.busy = sequence.by_hand = False
        sequence.touch()
        if sequence.tokens:
            self.commit(sequence)
        else:
            self.drop(sequence)

    @changing
    def trim(self, sequence: LiveSequence) -> None:
        """Remove from the memory what was decoded beyond ``sequence.tokens``."""
        before = len(sequence.tokens)
        present = self.memory.pos_max(sequence.number) + 1
        if present > before and not self.traits.recurrent:
            self.memory.seq_rm(sequence.number, before, -1)
            present = self.memory.pos_max(sequence.number) + 1
        if present != before or not self._window_whole(sequence):
            self._empty(sequence)

    def _window_whole(self, sequence: LiveSequence) -> bool:
        """False if cells that the next token sees were overwritten by tokens that are gone.

        Beside a recurrent state this cannot be asked, and need not be: what overwrites cells has
        advanced the state as well, and a sequence whose state is too far on is emptied.
        """
        if self.traits.recurrent:
            return True
        # A token sees itself and ``window - 1`` before it.
        needed = max(0, len(sequence.tokens) - self.traits.window + 1)
        return not self.traits.window or self.memory.pos_min(sequence.number) <= needed

    @changing
    def commit(
        self,
        sequence: LiveSequence,
        prompt: ResolvedPrompt | None = None,
        ends: Collection[int] = (),
    ) -> None:
        """Make what ``sequence`` holds findable.

        Args:
            prompt: what it was evaluated for; tokens behind that were sampled. Without a prompt
                nobody knows a text for tokens that have none yet, and they get none.
            ends: after how many tokens (the pending one included) a reply may end.
        """
        known = sequence.indexed == len(sequence.tokens) and sequence in self.index
        if known and not ends and (sequence.pending is None or prompt is None):
            return
        if ends:
            sequence.pending_ends = len(sequence.tokens) + 1 in ends
        if prompt is not None:
            self._complete_text(sequence, prompt)
        self._mark_ends(sequence, ends)
        self.index.remove(sequence)
        tokens, spelled = np.array(sequence.tokens, np.int32), sequence.spelled
        self.index.insert(
            sequence, tokens[:spelled], sequence.offsets, sequence.text, sequence.sources
        )
        if spelled < len(tokens):
            self.index.extend(sequence, tokens[spelled:])
        else:
            self._index_pending(sequence)
        sequence.indexed = len(tokens)

    def _index_pending(self, sequence: LiveSequence) -> None:
        """Let the index find the token that was sampled last, which is not in memory."""
        token = sequence.pending
        if token is not None and not self.spelling.is_ambiguous(token):
            piece = self.spelling.piece(token)
            source = np.array(
                [Source.SAMPLED | (Source.LAST if sequence.pending_ends else 0)], np.uint8
            )
            self.index.extend(sequence, [token], [0, len(piece)], piece, source)

    def _mark_ends(self, sequence: LiveSequence, ends: Collection[int]) -> None:
        places = [end - 1 for end in ends if 0 < end <= sequence.spelled]
        if places:
            sources = sequence.sources.copy()
            sources[places] |= np.where(sources[places] & Source.SAMPLED, Source.LAST, 0).astype(
                np.uint8
            )
            sequence.spell(sequence.text, sequence.offsets, sources)

    def _complete_text(self, sequence: LiveSequence, prompt: ResolvedPrompt) -> None:
        """Extend the text to all tokens: the prompt's own text, then that of sampled tokens."""
        if prompt.offsets is None or prompt.text is None or prompt.sources is None:
            return
        count = min(len(sequence.tokens), len(prompt.tokens))
        if sequence.spelled < count:
            offsets = prompt.offsets[: count + 1]
            sequence.spell(prompt.text[: int(offsets[-1])], offsets, prompt.sources[:count])
        if sequence.spelled >= len(prompt.tokens):
            self._spell_sampled(sequence)

    def _spell_sampled(self, sequence: LiveSequence) -> None:
        pieces = []
        for token in sequence.tokens[sequence.spelled :]:
            if self.spelling.is_ambiguous(token):
                break
            pieces.append(self.spelling.piece(token))
        if pieces:
            ends = np.cumsum([len(piece) for piece in pieces]) + sequence.offsets[-1]
            sampled = np.full(len(pieces), Source.SAMPLED, np.uint8)
            sequence.spell(
                sequence.text + b"".join(pieces),
                np.concatenate([sequence.offsets, ends]),
                np.concatenate([sequence.sources, sampled]),
            )

    def _take_checkpoint(self, sequence: LiveSequence) -> None:
        """Keep a partial state of where ``sequence`` is now, unless there is one already."""
        if not self.traits.needs_checkpoints or not self.limits.reuse or not sequence.tokens:
            return
        tokens = np.array(sequence.tokens, np.int32)
        if len(tokens) in self.checkpoints.along(self.index.match_tokens(tokens)):
            return
        try:
            state = self.memory.state_get(sequence.number, partial=True)
        except (LlamaError, MemoryError) as error:
            _log.warning("no checkpoint could be taken at %d tokens: %r", len(tokens), error)
        else:
            self.checkpoints.add(tokens, state)

    def _obtain(self, keep: LiveSequence | None = None) -> LiveSequence | None:
        """An empty sequence; ``keep`` is not evicted for it (then None, or ``keep`` itself)."""
        if len(self.live) >= self.memory.n_seq_max:
            victim = self._victim()
            if victim is None or victim is keep:
                return victim
            self.evict(victim)
        # Derived, and not kept: an interrupt must not lose a number for good.
        number = min({*range(self.memory.n_seq_max)} - self.live.keys())
        self.memory.seq_rm(number, -1, -1)
        self.live[number] = sequence = LiveSequence(number)
        return sequence

    def _victim(self, exclude: LiveSequence | None = None) -> LiveSequence | None:
        """The idle sequence that was not used for longest; pinned ones last."""
        idle = [seq for seq in self.live.values() if not seq.busy and seq is not exclude]
        return min(idle, key=lambda seq: (seq.pinned, seq.last_used), default=None)

    @changing
    def make_room(self) -> bool:
        """Park the least recently used idle sequence; False if there is none."""
        victim = self._victim()
        if victim is None:
            return False
        self.evict(victim)
        return True

    @changing
    def evict(self, sequence: LiveSequence) -> None:
        """Park a sequence in the store, and free its cells."""
        self.saving.finish(sequence)
        self._park(sequence)
        self.drop(sequence)

    @changing
    def drop(self, sequence: LiveSequence) -> None:
        """Forget a sequence and free its cells."""
        if self.live.get(sequence.number) is not sequence:
            return
        sequence.busy = False
        self.saving.finish(sequence)
        self._empty(sequence)
        del self.live[sequence.number]

    def _empty(self, sequence: LiveSequence) -> None:
        self.saving.give_up(sequence)
        self.index.remove(sequence)
        sequence.tokens = []
        sequence.forget_segments_after(0)
        sequence.pending = None
        sequence.forget_text_after(0)
        sequence.indexed = 0
        self.memory.seq_rm(sequence.number, -1, -1)  # removing a whole sequence never fails

    def _park(self, sequence: LiveSequence) -> None:
        transient = sequence.transient
        if self.parking is None or transient or self._own_tail(sequence) < _WORTH_PARKING:
            self.dropped += 1
            return
        sequence.parked_key = self._put(self.parking, sequence, sequence.parked_key)
        self.saving.parked(sequence)
        self.parked += sequence.parked_key is not None
        self.dropped += sequence.parked_key is None

    @changing
    def save(self, sequence: LiveSequence, *, least: int = WORTH_SAVING) -> None:
        """Have a sequence written to the saving store, if it grew by ``least`` tokens since."""
        self.saving.begin(sequence, least=least)

    def _put(self, store: StateStore, sequence: LiveSequence, replaces: Key | None) -> Key | None:
        """Write a sequence to a store. What cannot be written is lost, and fails no request."""
        try:
            if not store.accepts(self.memory.state_size(sequence.number)):
                return None  # asked before gigabytes are copied for nothing
            return store.put(self.export(sequence), replaces=replaces)
        except (LlamaError, MemoryError, OSError) as error:
            count = len(sequence.tokens)
            _log.warning("a conversation of %d tokens could not be stored: %r", count, error)
            return None

    def _own_tail(self, sequence: LiveSequence) -> int:
        """Tokens of ``sequence`` that no other one in memory holds as well."""
        matches = self.index.match_tokens(np.array(sequence.tokens, np.int32))
        others = [
            min(matched, holder.indexed)
            for holder, matched in matches
            if isinstance(holder, LiveSequence) and holder is not sequence
        ]
        return len(sequence.tokens) - max(others, default=0)

    def export(self, sequence: LiveSequence) -> StoredState:
        """Everything that is needed to bring ``sequence`` back, elsewhere or later."""
        state = self.describe(sequence)
        return dataclasses.replace(state, state=self.memory.state_get(sequence.number))

    def describe(self, sequence: LiveSequence) -> StoredState:
        """The same without the cells: what says what they are, and checkpoints."""
        self.commit(sequence)
        tokens = np.array(sequence.tokens, np.int32)
        along = self.checkpoints.along(self.index.match_tokens(tokens))
        positions = sorted(along)[-_STORED_CHECKPOINTS:]
        known = sequence.spelled == len(tokens)
        return StoredState(
            tokens=tokens,
            offsets=sequence.offsets if known else None,
            text=sequence.text if known else None,
            sources=sequence.sources if known else None,
            state=np.zeros(0, np.uint8),
            checkpoints=tuple(Checkpoint(place, along[place].state) for place in positions),
            # A saved state leaves out cells that the window has passed, also those still in memory.
            pos_min=max(0, self.memory.pos_min(sequence.number), self._window_start(len(tokens))),
            fingerprint=self.fingerprint(),
            session=sequence.session,
        )

    def _window_start(self, length: int) -> int:
        return length - self.traits.window if self.traits.window else 0

    @changing
    def bring_in(self, stored: StoredState) -> LiveSequence | None:
        """Load a stored state into a sequence; None if there is no room for it.

        Raises:
            StateError: the state does not fit this context.
        """
        sequence = self._obtain()
        if sequence is None:
            return None
        self._load_state(sequence, stored)
        sequence.tokens = stored.tokens.tolist()
        if self.memory.pos_max(sequence.number) + 1 != len(sequence.tokens):
            self.drop(sequence)
            raise StateError("a stored state holds other positions than it says; it was not used")
        if stored.text is not None and stored.offsets is not None and stored.sources is not None:
            sequence.spell(stored.text, stored.offsets, stored.sources)
        sequence.session = stored.session
        sequence.touch()
        self.commit(sequence)
        self._adopt_checkpoints(stored)
        return sequence

    def _load_state(self, sequence: LiveSequence, stored: StoredState) -> None:
        """Load, parking idle sequences until there is room for the cells."""
        while True:
            try:
                load_cells(self.memory, sequence.number, stored)
                return
            except StateError:
                sequence.busy = True  # not a victim itself
                made_room = self.make_room()
                sequence.busy = False
                if not made_room:
                    self.drop(sequence)
                    raise

    def _adopt_checkpoints(self, stored: StoredState) -> None:
        known = self.checkpoints.along(self.index.match_tokens(stored.tokens))
        for checkpoint in stored.checkpoints:
            if checkpoint.position not in known:
                self.checkpoints.add(stored.tokens[: checkpoint.position], checkpoint.state)

    def cells_used(self) -> int:
        """Cells in use: tokens of all sequences, those that share a prefix counted once."""
        total = 0
        seen: list[list[int]] = []
        for sequence in self.live.values():
            shared = max((common_prefix(sequence.tokens, other) for other in seen), default=0)
            total += len(sequence.tokens) - shared
            seen.append(sequence.tokens)
        return total

    @changing
    def clear(self) -> None:
        """Forget every sequence and every checkpoint, and clear the context's memory."""
        self.saving.flush()
        self.memory.clear()
        self.checkpoints.clear()
        self.index.clear()
        self.live.clear()
        if self.parking is not None:
            self.parking.clear()
        self.parked = self.dropped = 0

    def start_over(self) -> None:
        """After an interrupt in the middle of a change: keep only sequences that are in use.

        Of the others it is not certain that memory and bookkeeping agree; nor is the index.
        """
        _log.info("interrupted in the middle of a change: idle conversations are forgotten")
        self.suspect = True
        self.saving.give_up()
        self.live = {number: each for number, each in self.live.items() if each.busy}
        for number in range(self.memory.n_seq_max):
            if number not in self.live:
                self.memory.seq_rm(number, -1, -1)
        self.index = PrefixIndex()
        self.checkpoints = Checkpoints(
            self.index, self.limits.checkpoint_bytes, self.limits.checkpoint_count
        )
        if self.parking is not None:
            self.parking.clear()
        for sequence in self.live.values():
            sequence.indexed = 0
            sequence.forget_stored()
        self.suspect = False


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of leading tokens that two prompts share."""
    shorter = min(len(a), len(b))
    first = np.array(a[:shorter], np.int32)
    differs = np.flatnonzero(first != np.array(b[:shorter], np.int32))
    return int(differs[0]) if len(differs) else shorter
