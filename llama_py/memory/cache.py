"""``SequenceCache``: gives every prompt a sequence that already holds as much of it as possible.

It owns the bookkeeping of all sequences of one context: which tokens and which text each of them
holds, the prefix index over them, the checkpoints, and the store behind them. It *decides* through
``plan_reuse`` and *acts* through the ``SequenceMemory`` protocol; it never decodes. All of it runs
under the engine's lock.

The invariant: ``sequence.tokens`` is what the context's memory holds for it, no more and no less.
It is extended only after a decode succeeded, and whenever the memory refuses an operation the
sequence is dropped and the prompt evaluated from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import ContextOverflowError, ParameterError, StateError
from llama_py.memory.checkpoints import CheckpointRecord, Checkpoints
from llama_py.memory.kinds import MemoryTraits, SequenceMemory
from llama_py.memory.plan import Action, Held, ReusePlan, plan_reuse
from llama_py.memory.prefix import PrefixIndex, TextPath
from llama_py.memory.sequences import CacheInfo, Lease, LiveSequence, ResolvedPrompt
from llama_py.memory.state import Checkpoint, Key, StateStore, StoredState
from llama_py.memory.text import Tokenizer, align, safe_cut, tokenize_after

__all__ = ["CacheLimits", "SequenceCache"]

#: A sequence whose own tail is shorter than this is not worth a place in the store.
_WORTH_PARKING = 32
#: A conversation is saved again when it grew by this many tokens, which a crash may then cost.
_WORTH_SAVING = 48
#: Role boundaries closer than this to the next cut are not worth a checkpoint of their own.
_CUT_DISTANCE = 24
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


class SequenceCache:
    """See the module.

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
        self._first_tokens = tokenizer.tokenize(b"", add_special=True)
        self._free = list(range(memory.n_seq_max - 1, -1, -1))
        self.parked = 0
        self.dropped = 0

    # -- prompts ----------------------------------------------------------------------------------

    @property
    def limit(self) -> int:
        """Tokens that one sequence can hold."""
        longest = self.memory.n_ctx_seq
        return min(longest, self.traits.max_position or longest)

    def resolve_tokens(self, tokens: Sequence[int]) -> ResolvedPrompt:
        """A prompt given as tokens."""
        pieces = b"".join([self.tokenizer.piece(token) for token in tokens])
        offsets = align(self.tokenizer, tokens, pieces)
        return self._checked(ResolvedPrompt([*tokens], pieces, offsets))

    def resolve_text(
        self, text: bytes, boundaries: Sequence[int] = (), *, add_special: bool = True
    ) -> ResolvedPrompt:
        """A prompt given as text: cached tokens as far as their text agrees, then the tokenizer's.

        Args:
            boundaries: byte offsets at which messages begin.

        Raises:
            ContextOverflowError: it does not fit, with a token left to generate.
            ParameterError: it is empty.
        """
        path = self._cached_text(text, add_special)
        kept = safe_cut(self.tokenizer, path.tokens, path.offsets, text) if path else 0
        place = int(path.offsets[kept]) if path else 0
        rest = tokenize_after(self.tokenizer, text, place, add_special=add_special)
        offsets = align(self.tokenizer, rest, text, place)
        tokens = rest
        if path is not None and kept:
            tokens = path.tokens[:kept].tolist() + rest
            if offsets is not None:
                offsets = np.concatenate([path.offsets[:kept], offsets])
        starts: tuple[int, ...] = ()
        if offsets is not None and len(boundaries):
            starts = tuple(np.searchsorted(offsets[:-1], boundaries).tolist())
        return self._checked(ResolvedPrompt(tokens, text, offsets, starts, kept))

    @property
    def stores(self) -> list[StateStore]:
        """The tiers below the context, fastest first."""
        return [store for store in (self.parking, self.saved) if store is not None]

    def _cached_text(self, text: bytes, add_special: bool) -> TextPath | None:
        if not (self.limits.reuse and self.limits.text):
            return None
        found = [self.index.match_text(text)]
        found += [store.find_text(text, self.fingerprint()) for store in self.stores]
        paths = [path for path in found if path is not None and self._same_start(path, add_special)]
        return max(paths, key=lambda path: path.matched, default=None)

    def _same_start(self, path: TextPath, add_special: bool) -> bool:
        """A cached text that begins with an added BOS serves only prompts that get one."""
        if not len(path.tokens):
            return False
        has_bos = bool(path.offsets[1] == 0)
        return has_bos == (add_special and self._adds_bos())

    def _adds_bos(self) -> bool:
        return bool(self._first_tokens)

    def _checked(self, prompt: ResolvedPrompt) -> ResolvedPrompt:
        count = len(prompt.tokens)
        if count == 0:
            raise ParameterError("the prompt is empty: there is nothing to evaluate")
        if count > self.limit:
            raise ContextOverflowError(count, self.limit, self.limit)
        return prompt

    # -- leases -----------------------------------------------------------------------------------

    def acquire(
        self, prompt: ResolvedPrompt, session: str | None = None, *, reuse: bool = True
    ) -> Lease | None:
        """Begin a prompt: returns a lease of a sequence that holds its longest available prefix.

        Returns None if all sequences are busy.
        """
        plan, info = self._plan(prompt, reuse)
        lease = self._begin(plan, prompt, info)
        if lease is None:
            return None
        sequence = lease.sequence
        sequence.busy = True
        sequence.session = info.session = session
        sequence.touch()
        info.sequence = sequence.number
        info.reused = len(sequence.tokens)
        info.evaluated = len(prompt.tokens) - info.reused
        if info.reused:
            info.path = "text" if prompt.by_text else "tokens"
        if info.reused == len(prompt.tokens) - 1:
            info.reason = ""
        lease.cuts = self._cuts(prompt, info.reused)
        return lease

    def shared_with(self, prompt: ResolvedPrompt, other: ResolvedPrompt) -> int:
        """How many leading tokens two prompts have in common."""
        return common_prefix(prompt.tokens, other.tokens)

    def best_keep(self, prompt: ResolvedPrompt) -> int:
        """How many tokens ``acquire`` would not have to evaluate."""
        return self._plan(prompt, True)[0].keep

    def advance(self, lease: Lease, count: int) -> None:
        """``count`` further prompt tokens were decoded."""
        tokens = lease.sequence.tokens
        tokens.extend(lease.prompt.tokens[len(tokens) : len(tokens) + count])
        if lease.cuts and lease.cuts[0] <= len(tokens):
            position = lease.cuts.pop(0)
            if position == len(tokens):
                self._take_checkpoint(lease.sequence)

    def release(self, lease: Lease) -> None:
        """The request is done with its sequence, which stays in memory for others to reuse."""
        sequence = lease.sequence
        sequence.busy = False
        sequence.touch()
        if not sequence.tokens:
            self.drop(sequence)
            return
        self.commit(sequence, lease.prompt)
        self.save(sequence)

    def take(self) -> LiveSequence | None:
        """An empty sequence for a caller who evaluates by hand; None if all are busy."""
        sequence = self._obtain()
        if sequence is not None:
            sequence.busy = True
        return sequence

    def give_back(self, sequence: LiveSequence) -> None:
        """The caller of ``take`` is done: what it evaluated may be reused."""
        sequence.busy = False
        sequence.touch()
        if sequence.tokens:
            self.commit(sequence)
        else:
            self.drop(sequence)

    def repair(self, lease: Lease) -> None:
        """A decode failed: find out what is left in memory, and keep only what is certain."""
        self.trim(lease.sequence)

    def trim(self, sequence: LiveSequence) -> None:
        """Remove from the memory what was decoded beyond ``sequence.tokens``."""
        present = self.memory.pos_max(sequence.number) + 1
        before = len(sequence.tokens)
        if present == before:
            return
        whole = not self.traits.recurrent and present > before
        if not (whole and self.memory.seq_rm(sequence.number, before, -1)):
            self._empty(sequence)

    def commit(self, sequence: LiveSequence, prompt: ResolvedPrompt | None = None) -> None:
        """Make what ``sequence`` holds findable."""
        if sequence.indexed == len(sequence.tokens):
            return
        self._complete_text(sequence, prompt)
        self.index.remove(sequence)
        tokens = np.array(sequence.tokens, np.int32)
        known = sequence.text is not None and len(sequence.offsets) == len(tokens) + 1
        if known:
            self.index.insert(sequence, tokens, sequence.offsets, sequence.text)
        else:
            self.index.insert(sequence, tokens, None, None)
        sequence.indexed = len(tokens)

    def _complete_text(self, sequence: LiveSequence, prompt: ResolvedPrompt | None) -> None:
        """Extend text and offsets to all tokens: the prompt's own text, then the tokens' pieces."""
        count = len(sequence.tokens)
        if prompt is not None and prompt.offsets is not None and prompt.text is not None:
            known = min(count, len(prompt.tokens))
            if len(sequence.offsets) - 1 < known:
                sequence.offsets = prompt.offsets[: known + 1]
                sequence.text = prompt.text[: int(sequence.offsets[-1])]
        elif prompt is not None:
            sequence.text = None
        if sequence.text is None:
            return
        known = len(sequence.offsets) - 1
        pieces = [self.tokenizer.piece(token) for token in sequence.tokens[known:]]
        if pieces:
            ends = np.cumsum([len(piece) for piece in pieces]) + sequence.offsets[-1]
            sequence.offsets = np.concatenate([sequence.offsets, ends])
            sequence.text += b"".join(pieces)

    # -- planning ---------------------------------------------------------------------------------

    def _plan(self, prompt: ResolvedPrompt, reuse: bool) -> tuple[ReusePlan, CacheInfo]:
        if not (reuse and self.limits.reuse):
            return ReusePlan(Action.EVALUATE, reason="reuse is off"), CacheInfo(reason="reuse is off")
        tokens = np.array(prompt.tokens, np.int32)
        matches = self.index.match_tokens(tokens)
        held = [self._view(holder, matched) for holder, matched in matches
                if isinstance(holder, LiveSequence)]
        held += self._stored_views(tokens)
        checkpoints = self.checkpoints.along(matches)
        plan = plan_reuse(self.traits, len(tokens), held, sorted(checkpoints))
        info = CacheInfo(action=plan.action.value, reason=plan.reason or self._why(prompt, held))
        return plan, info

    def _view(self, sequence: LiveSequence, matched: int) -> Held:
        return Held(
            sequence.number,
            len(sequence.tokens),
            matched,
            max(0, self.memory.pos_min(sequence.number)),
            busy=sequence.busy,
        )

    def _stored_views(self, tokens: NDArray[np.int32]) -> list[Held]:
        return [
            Held((store, found.key), found.length, found.matched, found.pos_min, stored=True,
                 checkpoints=found.checkpoints)
            for store in self.stores
            for found in store.find(tokens, self.fingerprint())
        ]

    def _why(self, prompt: ResolvedPrompt, held: Sequence[Held]) -> str:
        """Where the prompt parts from what is cached."""
        matched = max((view.matched for view in held), default=0)
        if matched == 0 and self._foreign(prompt):
            return "what is stored was made under other settings (fingerprint)"
        if matched == 0 or matched >= len(prompt.tokens) - 1:
            return ""
        message = prompt.message_at(matched)
        where = f"message {message}" if message is not None and message >= 0 else f"token {matched}"
        if any(view.length == view.matched == matched for view in held):
            return ""
        return f"the prompt differs from what is cached in {where}"

    def _foreign(self, prompt: ResolvedPrompt) -> bool:
        tokens, fingerprint = np.array(prompt.tokens, np.int32), self.fingerprint()
        return any(store.match_foreign(tokens, fingerprint) for store in self.stores)

    def _cuts(self, prompt: ResolvedPrompt, kept: int) -> list[int]:
        """Where to stop for a checkpoint: the first and the last role boundary, and the end."""
        if not self.traits.needs_checkpoints or not self.limits.reuse:
            return []
        last = len(prompt.tokens) - 1
        cuts = [last]
        chosen = prompt.boundaries[:1] + prompt.boundaries[-2:]
        for boundary in sorted(set(chosen), reverse=True):
            if kept < boundary <= cuts[0] - _CUT_DISTANCE:
                cuts.insert(0, boundary)
        return [cut for cut in cuts if cut > kept]

    def add_cut(self, lease: Lease, position: int) -> None:
        """Ask for one more checkpoint, at a position that was not evaluated yet."""
        if self.traits.needs_checkpoints and position > lease.position:
            lease.cuts = sorted({*lease.cuts, position})

    # -- acting -----------------------------------------------------------------------------------

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

    def _fork(
        self, source: LiveSequence, target: LiveSequence, keep: int,
        record: CheckpointRecord | None, info: CacheInfo,
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
        if record is not None and not self._load_checkpoint(target, record, info):
            return None
        # The range was copied exactly, except where a checkpoint or a whole copy brought more.
        target.tokens = source.tokens[:keep]
        target.forget_text_after(keep)
        if not self._tail_removed(target, keep):
            self._empty(target)
            self.drop(target)
            return None
        self.commit(target)
        return target

    def _inherit(self, target: LiveSequence, source: LiveSequence, count: int) -> None:
        target.tokens = source.tokens[:count]
        target.text, target.offsets = source.text, source.offsets
        target.forget_text_after(count)

    def _cut(
        self, sequence: LiveSequence, keep: int, record: CheckpointRecord | None, info: CacheInfo
    ) -> bool:
        """Shorten a sequence in place; False if it had to be dropped."""
        if keep == len(sequence.tokens):
            return True
        if record is not None and not self._load_checkpoint(sequence, record, info):
            return False
        if record is None and not self._resumable(sequence, keep):
            self.drop(sequence)
            return False
        if not self._tail_removed(sequence, keep):
            self.drop(sequence)
            return False
        del sequence.tokens[keep:]
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
        self._begin_with(target, prompt, plan.keep)
        if not self._tail_removed(target, plan.keep):
            self.drop(target)
            return None
        self.commit(target, prompt)
        return target

    def _begin_with(self, target: LiveSequence, prompt: ResolvedPrompt, count: int) -> None:
        target.tokens = prompt.tokens[:count]
        target.text = b"" if prompt.offsets is not None else None

    def _checkpoint_at(self, prompt: ResolvedPrompt, position: int) -> CheckpointRecord | None:
        matches = self.index.match_tokens(np.array(prompt.tokens[:position], np.int32))
        return self.checkpoints.along(matches).get(position)

    def _take_checkpoint(self, sequence: LiveSequence) -> None:
        """Keep a partial state of where ``sequence`` is now, unless there is one already."""
        if not self.traits.needs_checkpoints or not self.limits.reuse or not sequence.tokens:
            return
        tokens = np.array(sequence.tokens, np.int32)
        if len(tokens) in self.checkpoints.along(self.index.match_tokens(tokens)):
            return
        self.checkpoints.add(tokens, self.memory.state_get(sequence.number, partial=True))

    # -- room -------------------------------------------------------------------------------------

    def _obtain(self, keep: LiveSequence | None = None) -> LiveSequence | None:
        """An empty sequence; ``keep`` is not evicted for it (then None, or ``keep`` itself)."""
        if not self._free:
            victim = self._victim()
            if victim is None or victim is keep:
                return victim
            self.evict(victim)
        sequence = LiveSequence(self._free.pop())
        self.live[sequence.number] = sequence
        return sequence

    def _victim(self, exclude: LiveSequence | None = None) -> LiveSequence | None:
        """The idle sequence that was not used for longest; pinned ones last."""
        idle = [seq for seq in self.live.values() if not seq.busy and seq is not exclude]
        return min(idle, key=lambda seq: (seq.pinned, seq.last_used), default=None)

    def make_room(self) -> bool:
        """Park the least recently used idle sequence; False if there is none."""
        victim = self._victim()
        if victim is None:
            return False
        self.evict(victim)
        return True

    def evict(self, sequence: LiveSequence) -> None:
        """Park a sequence in the store, and free its cells."""
        self._park(sequence)
        self.drop(sequence)

    def drop(self, sequence: LiveSequence) -> None:
        """Forget a sequence and free its cells."""
        if self.live.pop(sequence.number, None) is None:
            return
        self._empty(sequence)
        sequence.busy = False
        self._free.append(sequence.number)

    def _empty(self, sequence: LiveSequence) -> None:
        self.memory.seq_rm(sequence.number, -1, -1)  # removing a whole sequence never fails
        self.index.remove(sequence)
        sequence.tokens = []
        sequence.text, sequence.offsets = b"", np.zeros(1, np.int64)
        sequence.indexed = 0

    # -- store ------------------------------------------------------------------------------------

    def _park(self, sequence: LiveSequence) -> None:
        if self.parking is None or self._own_tail(sequence) < _WORTH_PARKING:
            self.dropped += 1
            return
        key = self.parking.put(self.export(sequence), replaces=sequence.parked_key)
        sequence.parked_key = key
        self.parked += 1

    def save(self, sequence: LiveSequence, *, least: int = _WORTH_SAVING) -> Key | None:
        """Write a sequence to the saving store, if it grew by ``least`` tokens since last time."""
        if self.saved is None or len(sequence.tokens) - sequence.saved_length < least:
            return None
        key = self.saved.put(self.export(sequence), replaces=sequence.saved_key)
        sequence.saved_key, sequence.saved_length = key, len(sequence.tokens)
        return key

    def _own_tail(self, sequence: LiveSequence) -> int:
        """Tokens of ``sequence`` that no other one in memory holds as well."""
        matches = self.index.match_tokens(np.array(sequence.tokens, np.int32))
        others = [matched for holder, matched in matches
                  if isinstance(holder, LiveSequence) and holder is not sequence]
        return len(sequence.tokens) - max(others, default=0)

    def export(self, sequence: LiveSequence) -> StoredState:
        """Everything that is needed to bring ``sequence`` back, elsewhere or later."""
        self.commit(sequence)
        tokens = np.array(sequence.tokens, np.int32)
        along = self.checkpoints.along(self.index.match_tokens(tokens))
        positions = sorted(along)[-_STORED_CHECKPOINTS:]
        known = sequence.text is not None and len(sequence.offsets) == len(tokens) + 1
        return StoredState(
            tokens=tokens,
            offsets=sequence.offsets if known else None,
            text=sequence.text if known else None,
            state=self.memory.state_get(sequence.number),
            checkpoints=tuple(Checkpoint(place, along[place].state) for place in positions),
            # A saved state leaves out cells that the window has passed, also those still in memory.
            pos_min=max(0, self.memory.pos_min(sequence.number), self._window_start(len(tokens))),
            fingerprint=self.fingerprint(),
            session=sequence.session,
        )

    def _window_start(self, length: int) -> int:
        return length - self.traits.window if self.traits.window else 0

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
        known = stored.text is not None and stored.offsets is not None
        sequence.text = stored.text if known else None
        if stored.offsets is not None:
            sequence.offsets = stored.offsets
        sequence.session = stored.session
        sequence.touch()
        self.commit(sequence)
        self._adopt_checkpoints(stored)
        return sequence

    def _load_state(self, sequence: LiveSequence, stored: StoredState) -> None:
        """Load, parking idle sequences until there is room for the cells."""
        while True:
            try:
                self.memory.state_set(sequence.number, stored.state)
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

    def _load(self, plan: ReusePlan, info: CacheInfo) -> LiveSequence | None:
        store, key = plan.source  # type: ignore[misc]
        stored: StoredState | None = store.get(key)
        if stored is None:
            return None
        try:
            sequence = self.bring_in(stored)
        except StateError as error:
            info.reason = str(error)
            return None
        if sequence is None:
            return None
        info.restored_bytes += stored.state.nbytes
        self._remember_origin(sequence, store, key)
        record = None
        if plan.checkpoint:
            along = self.checkpoints.along(self.index.match_tokens(stored.tokens[: plan.keep]))
            record = along.get(plan.keep)
            if record is None:
                self.drop(sequence)
                return None
        return sequence if self._cut(sequence, plan.keep, record, info) else None

    def _remember_origin(self, sequence: LiveSequence, store: StateStore, key: Key) -> None:
        """A longer state of the same sequence will replace this entry, until it is cut."""
        if store is self.saved:
            sequence.saved_key, sequence.saved_length = key, len(sequence.tokens)
        else:
            sequence.parked_key = key

    def cells_used(self) -> int:
        """Cells in use: tokens of all sequences, those that share a prefix counted once."""
        total, seen = 0, []
        for sequence in self.live.values():
            shared = max((common_prefix(sequence.tokens, other) for other in seen), default=0)
            total += len(sequence.tokens) - shared
            seen.append(sequence.tokens)
        return total

    # -- everything -------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget every sequence and every checkpoint, and clear the context's memory."""
        self.memory.clear()
        self.checkpoints.clear()
        self.index.clear()
        self.live.clear()
        if self.parking is not None:
            self.parking.clear()
        self._free = list(range(self.memory.n_seq_max - 1, -1, -1))
        self.parked = self.dropped = 0


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of leading tokens that two prompts share."""
    shorter = min(len(a), len(b))
    first = np.array(a[:shorter], np.int32)
    differs = np.flatnonzero(first != np.array(b[:shorter], np.int32))
    return int(differs[0]) if len(differs) else shorter
