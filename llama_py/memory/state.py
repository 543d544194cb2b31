"""What a store of sequence states keeps and answers: plain data, and the protocol of a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import ParameterError
from llama_py.memory.prefix import TextPath

__all__ = [
    "Checkpoint",
    "EntryInfo",
    "Key",
    "PendingPut",
    "Segment",
    "StateStore",
    "StoreStats",
    "StoredMatch",
    "StoredState",
]

#: Names an entry of a store. Never used again for another one.
Key = str


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The part of a sequence's state that cannot be cut, as it was after ``position`` tokens.

    Attributes:
        position: tokens evaluated when it was taken.
        state: uint8 ``(nbytes,)``, the partial state.
    """

    position: int
    state: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """The cells ``[start, end)`` of a sequence, which a store keeps apart from the rest.

    A conversation that grows is written as a chain of segments: what is there already is never
    written again, and two branches share the segments of their common beginning.

    Attributes:
        key: its name in the store that has it.
        start, end: positions of the cells.
        nbytes: bytes of its state.
        state: uint8 ``(nbytes,)``, the state of a sequence that holds these cells only; None where
            only the store has it.
    """

    key: Key
    start: int
    end: int
    nbytes: int
    state: NDArray[np.uint8] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StoredState:
    """A sequence, as it can be brought back into a context with the same fingerprint.

    Attributes:
        tokens: int32 ``(n,)``, what was evaluated.
        offsets: int64 ``(n + 1,)``, where each token starts in ``text``; None if unknown.
        text: the key (``text_keys.py``) of the tokens, from ``offsets[0]`` to ``offsets[-1]``; None
            if unknown.
        state: uint8 ``(nbytes,)``, the state of the cells that are in no segment, which is the
            whole sequence if there are none; read-only in what a store returns.
        checkpoints: partial states of positions along ``tokens``.
        pos_min: the smallest position that was in memory (window caches drop the first ones).
        fingerprint: model file, context parameters, KV types, adapters, library version.
        session: the conversation that it belongs to, or None.
        sources: uint8 ``(n,)``, where each token comes from (``text.Source``); None with ``text``.
        segments: the first cells, without gaps from position 0 on; ``state`` has those behind them.

    Raises:
        ParameterError: shapes that contradict each other.
    """

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64] | None
    text: bytes | None
    state: NDArray[np.uint8]
    checkpoints: tuple[Checkpoint, ...]
    pos_min: int
    fingerprint: str
    session: str | None
    sources: NDArray[np.uint8] | None = None
    segments: tuple[Segment, ...] = ()

    def __post_init__(self) -> None:
        if (self.offsets is None) != (self.text is None):
            raise ParameterError("a stored state has both text and offsets, or neither")
        if self.text is not None and self.sources is None:
            object.__setattr__(self, "sources", np.zeros(len(self.tokens), np.uint8))
        if self.sources is not None and self.sources.shape != self.tokens.shape:
            raise ParameterError(
                f"{len(self.tokens)} tokens need as many sources, not {self.sources.size}"
            )
        if self.offsets is not None and self.offsets.shape != (len(self.tokens) + 1,):
            raise ParameterError(
                f"{len(self.tokens)} tokens need {len(self.tokens) + 1} offsets, "
                f"not {self.offsets.size}"
            )
        starts = [0, *(segment.end for segment in self.segments)]
        if starts != [*(each.start for each in self.segments), min(starts[-1], len(self.tokens))]:
            raise ParameterError("the segments of a stored state must follow each other")

    @property
    def nbytes(self) -> int:
        """Bytes of everything in it."""
        described = self.tokens.nbytes + (self.offsets.nbytes if self.offsets is not None else 0)
        described += self.sources.nbytes if self.sources is not None else 0
        states = self.state.nbytes + sum(c.state.nbytes for c in self.checkpoints)
        states += sum(segment.nbytes for segment in self.segments)
        return described + len(self.text or b"") + states


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """What is known of an entry without reading its state.

    Attributes:
        length: tokens.
        checkpoints: positions of its checkpoints.
        nbytes: bytes that it takes in its store.
    """

    key: Key
    fingerprint: str
    session: str | None
    length: int
    pos_min: int
    checkpoints: tuple[int, ...]
    nbytes: int


class StoredMatch(NamedTuple):
    """An entry that begins like a prompt: the first ``matched`` of its ``length`` tokens do."""

    key: Key
    matched: int
    length: int
    pos_min: int
    checkpoints: tuple[int, ...]
    session: str | None


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Entries and bytes now; saved, restored, evicted, refused (too large) and damaged so far."""

    entries: int
    used_bytes: int
    capacity_bytes: int
    saved: int = 0
    restored: int = 0
    evicted: int = 0
    refused: int = 0
    damaged: int = 0


class PendingPut:
    """An entry that is written and not yet there: ``confirm`` shows it, ``abort`` forgets it.

    Until it is confirmed nothing is evicted or replaced, so an aborted request costs nobody an
    entry. As a context manager it aborts what was not confirmed.
    """

    __slots__ = ("_abort", "_confirm", "_done", "_key")

    def __init__(self, confirm: Callable[[], Key | None], abort: Callable[[], None]) -> None:
        self._confirm = confirm
        self._abort = abort
        self._done = False
        self._key: Key | None = None

    def confirm(self) -> Key | None:
        """Make it visible, in place of what it replaces; its key, or None if it was lost.

        It may be lost when it was aborted before, or when another process emptied the store.
        """
        if not self._done:
            self._done = True
            self._key = self._confirm()
        return self._key

    def abort(self) -> None:
        """Forget it. What it would have replaced stays. Nothing happens after ``confirm``."""
        if not self._done:
            self._done = True
            self._abort()

    def __enter__(self) -> PendingPut:
        return self

    def __exit__(self, *error: object) -> None:
        self.abort()


class StateStore(Protocol):
    """A tier of memory below the context. Safe to call from any thread.

    A store never fails a request: what cannot be saved is not there (None, and a line in the log),
    and what cannot be read back whole is dropped and absent. One that is closed raises
    ``ClosedError``, and is not asked any more.
    """

    capacity_bytes: int

    @property
    def closed(self) -> bool:
        """True after ``close()``."""

    @property
    def used_bytes(self) -> int:
        """Bytes of all entries."""

    def put(self, state: StoredState, *, replaces: Key | None = None) -> Key | None:
        """Save, evicting the least recently used; None if it is larger than the capacity.

        The arrays of ``state`` must not change afterwards. An entry with the same tokens,
        fingerprint and session is replaced as well.
        """

    def prepare(self, state: StoredState, *, replaces: Key | None = None) -> PendingPut | None:
        """Write without showing or evicting anything; None where ``put`` would say None."""

    def put_soon(self, state: StoredState, *, replaces: Key | None = None) -> Key | None:
        """Like ``put``, but what takes time is done beside the caller.

        The entry can be found at once. It is gone again if it cannot be written after all.
        """

    def accepts(self, nbytes: int) -> bool:
        """Whether a state of so many bytes can be saved at all: ask before copying one."""

    def keep(self, state: NDArray[np.uint8]) -> Key:
        """Take over the bytes of a segment, for an entry that is to come; returns its key.

        It is written beside the caller, and the array must not change.
        """

    def holds(self, segments: Sequence[Key]) -> bool:
        """Whether the store (still) has all of these segments."""

    def release(self, segments: Sequence[Key]) -> None:
        """Forget those of these segments that belong to no entry: none will come."""

    def wait(self, backlog: int, timeout: float) -> bool:
        """Wait until at most ``backlog`` bytes are still to be written; False if time is over."""

    def get(self, key: Key) -> StoredState | None:
        """The entry, marked as just used; None if it is not there (any more)."""

    def info(self, key: Key) -> EntryInfo | None:
        """What is known of an entry without reading its state."""

    def discard(self, key: Key) -> None:
        """Forget an entry, if it is there."""

    def touch(self, key: Key) -> None:
        """Mark an entry as just used."""

    def find(self, tokens: NDArray[np.int32], fingerprint: str) -> list[StoredMatch]:
        """Entries of this fingerprint that share leading tokens, deepest first.

        Of those that leave ``tokens`` at the same place, a few are listed.
        """

    def find_text(self, text: bytes, fingerprint: str) -> TextPath | None:
        """The longest path of tokens of this fingerprint whose key the key ``text`` begins with."""

    def find_session(self, session: str, fingerprint: str | None) -> list[Key]:
        """Entries of one conversation, longest first; None: of every fingerprint."""

    def match_foreign(self, tokens: NDArray[np.int32], fingerprint: str) -> int:
        """Leading tokens that entries of *other* fingerprints share: why nothing was found."""

    def clear(self) -> None:
        """Forget every entry."""

    def close(self) -> None:
        """Release what the store holds open. Entries on disk stay."""

    def stats(self) -> StoreStats:
        """Counts and bytes."""

    def __len__(self) -> int: ...
