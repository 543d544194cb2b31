"""A cache on a memory and a vocabulary of plain Python: quick, and everything in it can be seen."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import StateError
from llama_py.memory.cache import CacheLimits, SequenceCache
from llama_py.memory.kinds import MemoryKind, MemoryTraits
from llama_py.memory.sequences import Lease, LiveSequence, Namespace, ResolvedPrompt
from llama_py.states.store import StateStore

FULL = MemoryTraits(MemoryKind.FULL, 0, False)
RECURRENT = MemoryTraits(MemoryKind.RECURRENT, 0, True)


def window(width: int) -> MemoryTraits:
    return MemoryTraits(MemoryKind.ISWA, width, False, forgets=True)


class ByteTokenizer:
    """A token for each byte, and tokens for pairs of letters that only a model would use."""

    def tokenize(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        return [*(text.encode() if isinstance(text, str) else text)]

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else bytes(divmod(token - 256, 256))

    def is_special(self, token: int) -> bool:
        return False

    def strips_right(self, token: int) -> bool:
        return False

    def special_texts(self) -> Mapping[bytes, bool]:
        return {}

    def longest_piece(self) -> int:
        return 2


def pair(letters: bytes) -> int:
    """The token of two letters."""
    return 256 + letters[0] * 256 + letters[1]


class FakeMemory:
    """Keeps what was decoded: a cell is the namespace and the token.

    Attributes:
        cells: the cells of each sequence, in order.
        pos_mins: smallest positions, where they are not 0.
        copied: how many bytes of states were copied out.
    """

    def __init__(self, traits: MemoryTraits, n_seq_max: int = 3, n_ctx: int = 512) -> None:
        self.traits = traits
        self.n_ctx = self.n_ctx_seq = n_ctx
        self.n_seq_max = n_seq_max
        self.spare: int | None = None
        self.cells: dict[int, list[Any]] = {}
        self.pos_mins: dict[int, int] = {}
        self.copied = 0

    def clear(self) -> None:
        self.cells.clear()
        self.pos_mins.clear()

    def decode(self, seq: int, namespace: Namespace, tokens: Sequence[int]) -> None:
        self.cells.setdefault(seq, []).extend((namespace, token) for token in tokens)

    def seq_rm(self, seq: int, p0: int, p1: int = -1) -> bool:
        held = self.cells.get(seq, [])
        if p0 > 0 and p0 < len(held) and self.traits.recurrent:
            return False
        del held[max(0, p0) :]
        if not held:
            self.pos_mins.pop(seq, None)
        return True

    def seq_cp(self, source: int, target: int, p0: int = -1, p1: int = -1) -> None:
        held = self.cells.get(source, [])
        self.cells[target] = [*held] if p1 < 0 or self.traits.recurrent else held[:p1]

    def pos_min(self, seq: int) -> int:
        return self.pos_mins.get(seq, 0) if self.cells.get(seq) else -1

    def pos_max(self, seq: int) -> int:
        return len(self.cells.get(seq, [])) - 1

    def state_size(self, seq: int, *, partial: bool = False) -> int:
        return len(self._state(seq))

    def state_get(self, seq: int, *, partial: bool = False) -> NDArray[np.uint8]:
        state = self._state(seq)
        self.copied += len(state)
        return np.frombuffer(state, np.uint8)

    def state_set(
        self,
        seq: int,
        state: NDArray[np.uint8] | bytes | memoryview,
        *,
        partial: bool = False,
        keeps: bool = False,
    ) -> None:
        used = sum(map(len, self.cells.values()))
        cells = pickle.loads(bytes(state))
        if used + len(cells) > self.n_ctx:
            raise StateError("there is no room for this state")
        self.cells[seq] = cells

    def _state(self, seq: int) -> bytes:
        return pickle.dumps(self.cells.get(seq, []))


class FakeRig:
    """A cache on a ``FakeMemory``, and what an engine does with it."""

    def __init__(
        self,
        traits: MemoryTraits = FULL,
        *,
        offload_store: StateStore | None = None,
        n_seq_max: int = 3,
        n_ctx: int = 512,
        limits: CacheLimits | None = None,
    ) -> None:
        self.memory = FakeMemory(traits, n_seq_max, n_ctx)
        self.cache = SequenceCache(
            self.memory, traits, ByteTokenizer(), repr, limits=limits, offload_store=offload_store
        )

    def prompt(self, text: bytes, namespace: Namespace = ()) -> ResolvedPrompt:
        return self.cache.resolve_text(text, namespace=namespace)

    def begin(self, prompt: ResolvedPrompt, size: int = 16, **options: Any) -> Lease:
        """Evaluate a prompt, which stays busy."""
        lease = self.cache.acquire(prompt, **options)
        assert lease is not None
        while lease.remaining:
            stops = [cut - lease.held for cut in lease.cuts[:1] if cut > lease.held]
            count = min(size, lease.remaining, *stops)
            more = prompt.tokens[lease.held : lease.held + count].tolist()
            self.memory.decode(lease.sequence.number, prompt.namespace, more)
            self.cache.advance(lease, count)
        return lease

    def reply(self, lease: Lease, tokens: Sequence[int]) -> None:
        """Let the reply be ``tokens``; the last one is sampled and not decoded."""
        sequence, start = lease.sequence, len(lease.prompt.tokens)
        for token in tokens[:-1]:
            self.memory.decode(sequence.number, sequence.namespace, [token])
            sequence.tokens.append(token)
        self.cache.release(lease, tokens[-1:], {start + len(tokens)})
        self.cache.saving.flush()  # which an engine does bit by bit, between its steps

    def ask(self, text: bytes, reply: Sequence[int] = (), namespace: Namespace = ()) -> Lease:
        lease = self.begin(self.prompt(text, namespace))
        self.reply(lease, reply)
        return lease

    def sequences(self) -> Iterator[LiveSequence]:
        yield from self.cache.live

    def check(self) -> None:
        """What the cache believes is in memory is in memory, computed in its namespace."""
        for number in range(self.memory.n_seq_max):
            sequence = self.cache.live.by_number.get(number)
            held = self.memory.cells.get(number, [])
            tokens = sequence.tokens if sequence is not None else []
            space = sequence.namespace if sequence is not None else ()
            assert held == [(space, token) for token in tokens]
