"""``CacheIndex``: finds what is in the context's memory, by tokens or by text.

Two kinds of things are in it: live sequences, each where its tokens end, and checkpoints. A
sequence is found as far as it was committed (``commit``), which happens when a request ends and
while its prompt is evaluated.

The engine's thread alone changes it, and only ``match_text`` is called by other threads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_py import forks
from llama_py.memory.prompt_tokens import Source
from llama_py.memory.sequences import LiveSequence, Namespace, ResolvedPrompt, as_tokens
from llama_py.memory.text_keys import TextKeys
from llama_py.states.prefix import PrefixIndex, TextPath

__all__ = ["CacheIndex", "CheckpointRecord", "Checkpoints", "Matches"]


class CheckpointRecord:
    """One checkpoint; a holder in the prefix index. Compared by identity.

    Attributes:
        position: tokens before it.
        state: uint8 ``(nbytes,)``, the partial state.
        previous: the checkpoint before it on its path when it was taken.
        pinned: it is never thinned out.
        dropped: it is not kept any more.
    """

    __slots__ = ("__weakref__", "dropped", "pinned", "position", "previous", "state")

    def __init__(
        self, position: int, state: NDArray[np.uint8], previous: CheckpointRecord | None = None
    ) -> None:
        self.position = position
        self.state = state
        self.previous = previous
        self.pinned = False
        self.dropped = False

    def gap(self) -> int:
        """Tokens between the checkpoint before this one that is still there, and this one."""
        while self.previous is not None and self.previous.dropped:
            self.previous = self.previous.previous
        return self.position - (self.previous.position if self.previous is not None else 0)


class Checkpoints:
    """All checkpoints, least recently used first, within a budget of bytes and of entries.

    A checkpoint at position ``p`` holds the window or recurrent part of a sequence after ``p``
    tokens. It belongs to those tokens and not to the sequence it was taken from, so every branch of
    a conversation, and every other conversation with the same beginning, may use it.

    When the budget is spent they are thinned out: of the less recently used half, the checkpoint
    that is closest after another one is removed, so that a long conversation keeps a few evenly
    spread places to go back to, instead of only the latest.

    Attributes:
        used_bytes: bytes they take.
    """

    def __init__(self, index: PrefixIndex[Any], capacity_bytes: int, capacity: int) -> None:
        self._index = index
        self.capacity_bytes = capacity_bytes
        self.capacity = capacity
        self.used_bytes = 0
        self._records: OrderedDict[CheckpointRecord, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def add(
        self,
        tokens: NDArray[np.int32],
        state: NDArray[np.uint8],
        namespace: Namespace = (),
        *,
        pinned: bool = False,
    ) -> CheckpointRecord | None:
        """Keep a checkpoint taken after ``tokens``; None if it alone is over the budget."""
        if state.nbytes > self.capacity_bytes or self.capacity < 1:
            return None
        before = self.along(self._index.match_tokens(tokens[:-1], namespace=namespace))
        previous = before[max(before)] if before else None
        record = CheckpointRecord(len(tokens), state, previous)
        record.pinned = pinned
        self._records[record] = None
        self.used_bytes += state.nbytes
        self._index.insert(record, tokens, namespace=namespace)
        while self.used_bytes > self.capacity_bytes or len(self._records) > self.capacity:
            older = [each for each in self._records if each is not record and not each.pinned]
            if not older:
                break
            self._drop(min(older[: len(older) // 2 + 1], key=CheckpointRecord.gap))
        return record

    def along(self, matches: Iterable[tuple[object, int]]) -> dict[int, CheckpointRecord]:
        """Of the index's matches, the checkpoints that a prompt passes through, by position."""
        return {
            holder.position: holder
            for holder, matched in matches
            if isinstance(holder, CheckpointRecord)
            and matched == holder.position
            and not holder.dropped
        }

    def touch(self, record: CheckpointRecord) -> None:
        """Mark as just used, if it is one of these."""
        if record in self._records:
            self._records.move_to_end(record)

    def discard(self, record: CheckpointRecord) -> None:
        """Forget one, if it is one of these."""
        if record in self._records:
            self._drop(record)

    def clear(self) -> None:
        """Forget all; the index has forgotten them."""
        for record in self._records:
            record.dropped = True
        self._records.clear()
        self.used_bytes = 0

    def _drop(self, record: CheckpointRecord) -> None:
        record.dropped = True
        del self._records[record]
        self.used_bytes -= record.state.nbytes
        self._index.remove(record)


#: What shares leading tokens with a prompt, and how many, deepest first.
Matches = list[tuple[LiveSequence | CheckpointRecord, int]]


class CacheIndex:
    """The live sequences and checkpoints of a context, by their tokens and text.

    Attributes:
        checkpoints: partial states, within their budget.
    """

    def __init__(self, text_keys: TextKeys, checkpoint_bytes: int, checkpoint_count: int) -> None:
        self._prefixes: PrefixIndex[LiveSequence | CheckpointRecord] = PrefixIndex()
        self._text_keys = text_keys
        self.checkpoints = Checkpoints(self._prefixes, checkpoint_bytes, checkpoint_count)
        forks.hold(self._prefixes)

    # -- asking ---------------------------------------------------------------------------------

    def match_text(self, key: bytes, namespace: Namespace) -> TextPath | None:
        """The longest path of cached tokens whose text ``key`` begins with. From any thread."""
        return self._prefixes.match_text(key, namespace=namespace)

    def match(self, tokens: NDArray[np.int32], namespace: Namespace) -> Matches:
        """Sequences and checkpoints that begin like ``tokens``."""
        return self._prefixes.match_tokens(tokens, namespace=namespace)

    def holders(
        self, tokens: NDArray[np.int32], namespace: Namespace
    ) -> list[tuple[LiveSequence, int]]:
        """Sequences that begin like ``tokens``, and how many of these they have in memory."""
        return held_by(self.match(tokens, namespace))

    def checkpoints_along(
        self, tokens: NDArray[np.int32], namespace: Namespace
    ) -> dict[int, CheckpointRecord]:
        """Checkpoints that ``tokens`` pass through, by their number of tokens."""
        return self.checkpoints.along(self.match(tokens, namespace))

    def own_tail(self, sequence: LiveSequence) -> int:
        """Tokens of ``sequence`` that no other one in memory holds as well."""
        found = self.holders(as_tokens(sequence.tokens), sequence.namespace)
        others = [matched for holder, matched in found if holder is not sequence]
        return len(sequence.tokens) - max(others, default=0)

    # -- changing -------------------------------------------------------------------------------

    def remove(self, sequence: LiveSequence) -> None:
        """Remove a sequence from the index."""
        self._prefixes.remove(sequence)
        sequence.indexed = 0

    def clear(self) -> None:
        """Forget every sequence and checkpoint, also if an interrupt has left half a change."""
        self._prefixes.clear()
        self.checkpoints.clear()

    def commit(
        self,
        sequence: LiveSequence,
        prompt: ResolvedPrompt | None = None,
        ends: Collection[int] = (),
    ) -> None:
        """Make the tokens of ``sequence`` findable, by tokens and by text.

        Args:
            prompt: what it was evaluated for; tokens behind that were sampled. Without a prompt
                nobody knows a text for tokens that have none yet, and they get none.
            ends: after how many tokens (the pending one included) a reply may end.
        """
        known = sequence.indexed == len(sequence.tokens) and sequence in self._prefixes
        if known and not ends and (not sequence.pending or prompt is None):
            return
        if ends:
            sequence.pending_ends = frozenset(ends)
        if prompt is not None:
            self._complete_text(sequence, prompt)
        places = [end - 1 for end in ends if 0 < end <= sequence.spelled]
        if places:  # where the model sampled it, a reply ends there
            sources = sequence.sources.copy()
            last = np.where(sources[places] & Source.SAMPLED, Source.LAST, 0)
            sources[places] |= last.astype(np.uint8)
            sequence.spell(sequence.text, sequence.offsets, sources)
        tokens, spelled = as_tokens(sequence.tokens), sequence.spelled
        self._prefixes.remove(sequence)
        self._prefixes.insert(
            sequence,
            tokens[:spelled],
            sequence.offsets,
            sequence.text,
            sequence.sources,
            namespace=sequence.namespace,
        )
        if spelled < len(tokens):
            self._prefixes.extend(sequence, tokens[spelled:])
        else:
            self._add_pending(sequence)
        sequence.indexed = len(tokens)

    def _add_pending(self, sequence: LiveSequence) -> None:
        """Add the tokens that were sampled last, which are not in memory."""
        pieces: list[bytes] = []
        for key in map(self._text_keys.of, sequence.pending):
            if key.ambiguous:
                break
            pieces.append(key.text)
        if not pieces:
            return
        first = len(sequence.tokens) + 1
        sources = [
            Source.SAMPLED | (Source.LAST if first + index in sequence.pending_ends else 0)
            for index in range(len(pieces))
        ]
        self._prefixes.extend(
            sequence,
            sequence.pending[: len(pieces)],
            [0, *accumulate(map(len, pieces))],
            b"".join(pieces),
            np.array(sources, np.uint8),
        )

    def _complete_text(self, sequence: LiveSequence, prompt: ResolvedPrompt) -> None:
        """Extend the text to all tokens: the prompt's own text, then that of sampled tokens."""
        if prompt.offsets is None or prompt.text is None or prompt.sources is None:
            return
        count = min(len(sequence.tokens), len(prompt.tokens))
        if sequence.spelled < count:
            offsets = prompt.offsets[: count + 1]
            sequence.spell(prompt.text[: int(offsets[-1])], offsets, prompt.sources[:count])
        if sequence.spelled < len(prompt.tokens):
            return
        pieces = []
        for key in map(self._text_keys.of, sequence.tokens[sequence.spelled :]):
            if key.ambiguous:
                break
            pieces.append(key.text)
        if pieces:
            ends = np.cumsum([len(piece) for piece in pieces]) + sequence.offsets[-1]
            sampled = np.full(len(pieces), Source.SAMPLED, np.uint8)
            sequence.spell(
                sequence.text + b"".join(pieces),
                np.concatenate([sequence.offsets, ends]),
                np.concatenate([sequence.sources, sampled]),
            )


def held_by(matches: Matches) -> list[tuple[LiveSequence, int]]:
    """Of the matches, the sequences; the index may know a token that is not in memory."""
    return [
        (holder, min(matched, holder.indexed))
        for holder, matched in matches
        if isinstance(holder, LiveSequence)
    ]
