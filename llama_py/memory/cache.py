"""``SequenceCache``: gives every prompt a sequence that already holds as much of it as possible.

It finds the tokens of a prompt (cached ones as far as their text agrees, then the tokenizer's),
*decides* through ``plan_reuse`` and *acts* through the ``SequenceMemory`` protocol. It never
decodes, and all of it runs under the engine's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import ContextOverflowError, ParameterError
from llama_py.memory.changes import changing
from llama_py.memory.plan import Action, Held, ReusePlan, plan_reuse
from llama_py.memory.pool import CacheLimits, common_prefix
from llama_py.memory.prefix import TextPath
from llama_py.memory.sequences import CacheInfo, Lease, LiveSequence, ResolvedPrompt
from llama_py.memory.spelling import MARK
from llama_py.memory.starting import PromptStarter
from llama_py.memory.text import read_prompt

__all__ = ["CacheLimits", "SequenceCache", "common_prefix"]

#: Role boundaries closer than this behind another cut are not worth a checkpoint of their own.
_CUT_DISTANCE = 24


class SequenceCache(PromptStarter):
    """See the module, and ``SequencePool`` for the arguments."""

    def resolve_tokens(self, tokens: Sequence[int]) -> ResolvedPrompt:
        """A prompt given as tokens: it is found by its tokens, and says nothing about texts."""
        return self._checked(ResolvedPrompt([*tokens]))

    def resolve_text(
        self,
        text: bytes,
        boundaries: Sequence[int] = (),
        *,
        plain: Sequence[tuple[int, int]] = (),
        add_special: bool = True,
    ) -> ResolvedPrompt:
        """A prompt given as text: the tokens of cached replies in it, and the tokenizer's.

        Args:
            boundaries: byte offsets at which messages begin.
            plain: ascending disjoint byte ranges in which nothing is read as a special token.

        Raises:
            ContextOverflowError: it does not fit, with a token left to generate.
            ParameterError: it is empty.
        """
        if MARK in text:  # no UTF-8: its key would say nothing
            return self._checked(
                ResolvedPrompt(
                    self.tokenizer.tokenize(text, add_special=add_special, parse_special=True)
                )
            )
        prompt = self.spelling.mark(text, plain)
        path = self._cached_text(prompt.key, add_special)
        reading = read_prompt(self.spelling, prompt, path, add_special=add_special)
        if reading.kept and len(reading.tokens) > self.limit:
            # Whether a prompt fits must not depend on how a model once spelled a reply.
            reading = read_prompt(self.spelling, prompt, None, add_special=add_special)
        starts: tuple[int, ...] = ()
        if reading.offsets is not None and len(boundaries):
            places = prompt.in_key(boundaries)
            starts = tuple(np.searchsorted(reading.offsets[:-1], places).tolist())
        return self._checked(
            ResolvedPrompt(
                reading.tokens,
                prompt.key,
                reading.offsets,
                starts,
                reading.kept,
                reading.sources,
            )
        )

    def _cached_text(self, key: bytes, add_special: bool) -> TextPath | None:
        if not (self.limits.reuse and self.limits.text):
            return None
        found = [self.index.match_text(key)]
        found += [store.find_text(key, self.fingerprint()) for store in self.stores]
        paths = [path for path in found if path is not None and self._same_start(path, add_special)]
        return max(paths, key=lambda path: int(path.offsets[-1]), default=None)

    def _same_start(self, path: TextPath, add_special: bool) -> bool:
        """A cached text that begins with an added BOS serves only prompts that get one."""
        if not len(path.tokens):
            return False
        first = self.spelling.added[0][:1]
        has_bos = [*path.tokens[:1]] == first and bool(path.offsets[1] == 0)
        return has_bos == (add_special and bool(first))

    def _checked(self, prompt: ResolvedPrompt) -> ResolvedPrompt:
        count = len(prompt.tokens)
        if count == 0:
            raise ParameterError("the prompt is empty: there is nothing to evaluate")
        if count > self.limit:
            raise ContextOverflowError(count, self.limit, self.limit)
        return prompt

    @changing
    def acquire(
        self,
        prompt: ResolvedPrompt,
        session: str | None = None,
        *,
        reuse: bool = True,
        most: int | None = None,
    ) -> Lease | None:
        """Begin a prompt: returns a lease of a sequence that holds its longest available prefix.

        Returns None if all sequences are busy.

        Args:
            most: tokens that may be reused; all but the last one by default.
        """
        plan, info = self._plan(prompt, reuse, most)
        lease = self._begin(plan, prompt, info)
        if lease is None:
            return None
        sequence = lease.sequence
        sequence.busy = True
        sequence.pending, sequence.transient = None, False
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

    @changing
    def advance(self, lease: Lease, count: int) -> None:
        """``count`` further prompt tokens were decoded."""
        tokens = lease.sequence.tokens
        tokens.extend(lease.prompt.tokens[len(tokens) : len(tokens) + count])
        if lease.cuts and lease.cuts[0] <= len(tokens):
            position = lease.cuts.pop(0)
            if position == len(tokens):
                self._take_checkpoint(lease.sequence)

    @changing
    def release(
        self,
        lease: Lease,
        pending: int | None = None,
        ends: Collection[int] = (),
        *,
        transient: bool = False,
    ) -> None:
        """The request is done with its sequence, which stays in memory for others to reuse.

        Args:
            pending: the token that follows, if one was sampled and not decoded.
            ends: after how many tokens of the sequence, ``pending`` included, its reply may end in
                a prompt that contains it.
            transient: nobody will ask for it again. A fork is dropped at once; a sequence that had
                to be continued is kept for its beginning, as long as there is room.
        """
        sequence = lease.sequence
        if transient and lease.info.action == Action.FORK.value:
            self.drop(sequence)
            return
        sequence.busy, sequence.transient = False, transient
        sequence.pending, sequence.pending_ends = pending, False
        sequence.touch()
        if not sequence.tokens:
            self.drop(sequence)
            return
        self.commit(sequence, lease.prompt, ends)
        self.save(sequence)

    def repair(self, lease: Lease) -> None:
        """A decode failed: find out what is left in memory, and keep only what is certain."""
        self.trim(lease.sequence)
        lease.cuts = [cut for cut in lease.cuts if cut > lease.position]

    def _plan(
        self, prompt: ResolvedPrompt, reuse: bool, most: int | None = None
    ) -> tuple[ReusePlan, CacheInfo]:
        if not (reuse and self.limits.reuse):
            return ReusePlan(Action.EVALUATE, reason="reuse is off"), CacheInfo(
                reason="reuse is off"
            )
        tokens = np.array(prompt.tokens, np.int32)
        matches = self.index.match_tokens(tokens)
        held = [
            self._view(holder, matched)
            for holder, matched in matches
            if isinstance(holder, LiveSequence)
        ]
        held += self._stored_views(tokens)
        checkpoints = self.checkpoints.along(matches)
        count = len(tokens) if most is None else most + 1
        plan = plan_reuse(self.traits, count, held, sorted(checkpoints))
        info = CacheInfo(action=plan.action.value, reason=self._why(prompt, held, plan))
        return plan, info

    def _view(self, sequence: LiveSequence, matched: int) -> Held:
        return Held(
            sequence.number,
            len(sequence.tokens),
            min(matched, sequence.indexed),  # the index knows a token that is not in memory
            max(0, self.memory.pos_min(sequence.number)),
            busy=sequence.busy,
        )

    def _stored_views(self, tokens: NDArray[np.int32]) -> list[Held]:
        return [
            Held(
                (store, found.key),
                found.length,
                found.matched,
                found.pos_min,
                stored=True,
                checkpoints=found.checkpoints,
            )
            for store in self.stores
            for found in store.find(tokens, self.fingerprint())
        ]

    def _why(self, prompt: ResolvedPrompt, held: Sequence[Held], plan: ReusePlan) -> str:
        """Why not more could be kept: where the prompt parts from the cache, or what is missing."""
        matched = max((view.matched for view in held), default=0)
        if matched == 0 and self._foreign(prompt):
            return "what is stored was made under other settings (fingerprint)"
        if plan.reason or matched >= len(prompt.tokens) - 1:
            return plan.reason
        if any(view.length == view.matched == matched for view in held):
            return ""
        message = prompt.message_at(matched)
        where = f"message {message}" if message is not None else f"token {matched}"
        return f"the prompt differs from what is cached in {where}"

    def _foreign(self, prompt: ResolvedPrompt) -> bool:
        tokens, fingerprint = np.array(prompt.tokens, np.int32), self.fingerprint()
        return any(store.match_foreign(tokens, fingerprint) for store in self.stores)

    def _cuts(self, prompt: ResolvedPrompt, kept: int) -> list[int]:
        """Where to stop for a checkpoint: at role boundaries that others may share, and the end.

        The first boundary ends what conversations have in common, and the last message but the
        reply's opening is where the next edit or another question parts from this prompt. They are
        left out where a checkpoint shortly *before* serves as well: what comes behind a boundary
        may be as short as it likes.
        """
        if not self.traits.needs_checkpoints or not self.limits.reuse:
            return []
        last = len(prompt.tokens) - 1
        cuts: list[int] = []
        before = kept
        for boundary in sorted({*prompt.boundaries[:1], *prompt.boundaries[-2:-1]}):
            if before + _CUT_DISTANCE <= boundary < last:
                cuts.append(boundary)
                before = boundary
        opening = prompt.boundaries[-1] if prompt.boundaries else last
        if before + _CUT_DISTANCE <= opening <= last - _CUT_DISTANCE:
            cuts.append(opening)
        return [*cuts, last] if last > kept else cuts

    def add_cut(self, lease: Lease, position: int) -> None:
        """Ask for one more checkpoint, at a position that was not evaluated yet."""
        if self.traits.needs_checkpoints and position > lease.position:
            lease.cuts = sorted({*lease.cuts, position})
