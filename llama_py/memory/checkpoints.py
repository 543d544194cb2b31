"""``Checkpoints``: partial states in memory, within a budget of bytes and of entries.

A checkpoint at position ``p`` holds the window or recurrent part of a sequence after ``p`` tokens.
It belongs to those tokens and not to the sequence it was taken from, so every branch of a
conversation, and every other conversation with the same beginning, may use it.

When the budget is spent they are thinned out: of the less recently used half, the checkpoint that
    is
closest after another one is removed, so that a long conversation keeps a few evenly spread places
to go back to, instead of only the latest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_py.memory.prefix import PrefixIndex
from llama_py.memory.sequences import Namespace

__all__ = ["CheckpointRecord", "Checkpoints"]


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
    """All checkpoints, least recently used first.

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
        self._thin(record)
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

    def _thin(self, newest: CheckpointRecord) -> None:
        while self.used_bytes > self.capacity_bytes or len(self._records) > self.capacity:
            older = [each for each in self._records if each is not newest and not each.pinned]
            if not older:
                return
            self._drop(min(older[: len(older) // 2 + 1], key=CheckpointRecord.gap))
