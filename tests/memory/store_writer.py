"""States whose every byte follows from a number, and a process that writes them until it is killed.

python -m tests.memory.store_writer DIRECTORY SEED [OPERATIONS]
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import numpy as np

from llama_py.states.disk import LlamaDiskCache
from llama_py.states.state import Checkpoint, Segment, StoredState
from llama_py.states.store import BaseLlamaCache

CAPACITY = 3_000_000
FINGERPRINTS = ("model one", "model two")
#: The first token of every state.
COMMON = 7


def state_of(seed: int, session: str | None = None) -> StoredState:
    """A state of 0 to 600 kB with up to 3 checkpoints."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(2, 60))
    tokens = draw.integers(0, 32_000, count).astype(np.int32)
    tokens[:2] = COMMON, seed
    widths = draw.integers(0, 9, count)
    offsets = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
    positions = sorted(draw.integers(1, count + 1, int(draw.integers(0, 4))).tolist())
    return StoredState(
        tokens=tokens,
        offsets=offsets,
        text=draw.bytes(int(offsets[-1])),
        state=np.frombuffer(draw.bytes(int(draw.integers(0, 600_000))), np.uint8),
        checkpoints=tuple(
            Checkpoint(place, np.frombuffer(draw.bytes(1000 + place), np.uint8))
            for place in positions
        ),
        pos_min=int(draw.integers(0, count)),
        fingerprint=FINGERPRINTS[seed % 2],
        session=session,
    )


def chain_of(seed: int, session: str | None, count: int) -> StoredState:
    """The same with its first ``count`` tokens in as many segments of up to 60 kB."""
    state, draw = state_of(seed, session), np.random.default_rng(seed)
    sizes = draw.integers(1, 60_000, len(state.tokens)).tolist()
    segments = tuple(
        Segment("", place, place + 1, size, np.full(size, (seed + place) % 251, np.uint8))
        for place, size in enumerate(sizes[:count])
    )
    return replace(state, state=state.state[: 30_000 + count], segments=segments)


def grow(store: BaseLlamaCache, seed: int, sessions: list[str | None]) -> list[str | None]:
    """Save a conversation once per session, with one segment more each time; returns the keys."""
    kept: list[Segment] = []
    keys: list[str | None] = []
    for session in sessions:
        state = chain_of(seed, session, min(len(kept) + 1, len(state_of(seed).tokens)))
        for segment in state.segments[len(kept) :]:
            assert segment.state is not None
            kept.append(replace(segment, key=store.keep(segment.state), state=None))
        keys.append(store.put_soon(replace(state, segments=tuple(kept))))
    return keys


def same(a: StoredState, b: StoredState) -> bool:
    """Whether two states are equal in everything."""
    plain = (a.text, a.pos_min, a.fingerprint, a.session, len(a.checkpoints))
    if plain != (b.text, b.pos_min, b.fingerprint, b.session, len(b.checkpoints)):
        return False
    if a.offsets is None or b.offsets is None:
        offsets_agree = a.offsets is b.offsets
    else:
        offsets_agree = np.array_equal(a.offsets, b.offsets)
    spans = [[(each.start, each.end) for each in state.segments] for state in (a, b)]
    cells = [(x.state, y.state) for x, y in zip(a.segments, b.segments, strict=False)]
    return (
        offsets_agree
        and spans[0] == spans[1]
        and all(x is not None and y is not None and np.array_equal(x, y) for x, y in cells)
        and np.array_equal(a.tokens, b.tokens)
        and np.array_equal(a.state, b.state)
        and all(
            x.position == y.position and np.array_equal(x.state, y.state)
            for x, y in zip(a.checkpoints, b.checkpoints, strict=True)
        )
    )


def is_right(state: StoredState) -> bool:
    """Whether a restored state is exactly what its number says."""
    seed, count = int(state.tokens[1]), len(state.segments)
    right = chain_of(seed, state.session, count) if count else state_of(seed, state.session)
    return same(state, right)


def step(store: LlamaDiskCache, draw: random.Random, mine: list[str]) -> None:
    """One random operation; whatever is restored must be right."""
    seed = draw.randrange(1, 10_000)
    wanted = state_of(seed)
    found = store.find(wanted.tokens, wanted.fingerprint)
    restored = store.get(draw.choice(found).key) if found else None
    if restored is not None and not is_right(restored):
        raise RuntimeError(f"restored garbage: {restored}")
    kind = draw.random()
    if kind < 0.2:
        grow(store, seed, draw.choices([None, "alice", "bob"], k=3))
        return
    pending = store.prepare(wanted, replaces=draw.choice(mine) if mine and kind < 0.3 else None)
    if pending is not None and kind < 0.9:
        mine[:] = [*mine[-5:], pending.confirm() or ""]
    elif pending is not None:
        pending.abort()
    if mine and kind > 0.8:
        store.discard(draw.choice(mine))


def main(directory: str, seed: str, operations: str = "1000000000") -> None:
    """Say "ready", then write."""
    draw = random.Random(int(seed))
    mine: list[str] = []
    with LlamaDiskCache(directory, CAPACITY) as store:
        print("ready", flush=True)
        for _ in range(int(operations)):
            step(store, draw, mine)


if __name__ == "__main__":
    main(*sys.argv[1:])
