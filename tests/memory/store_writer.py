"""States whose every byte follows from a number, and a process that writes them until it is killed.

python -m tests.memory.store_writer DIRECTORY SEED [OPERATIONS]
"""

from __future__ import annotations

import random
import sys

import numpy as np

from llama_py.storage.store import Checkpoint, LlamaDiskCache, StoredState

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


def same(a: StoredState, b: StoredState) -> bool:
    """Whether two states are equal in everything."""
    plain = (a.text, a.pos_min, a.fingerprint, a.session, len(a.checkpoints))
    if plain != (b.text, b.pos_min, b.fingerprint, b.session, len(b.checkpoints)):
        return False
    if a.offsets is None or b.offsets is None:
        offsets_agree = a.offsets is b.offsets
    else:
        offsets_agree = np.array_equal(a.offsets, b.offsets)
    return (
        offsets_agree
        and np.array_equal(a.tokens, b.tokens)
        and np.array_equal(a.state, b.state)
        and all(
            x.position == y.position and np.array_equal(x.state, y.state)
            for x, y in zip(a.checkpoints, b.checkpoints, strict=True)
        )
    )


def is_right(state: StoredState) -> bool:
    """Whether a restored state is exactly what its number says."""
    return same(state, state_of(int(state.tokens[1]), state.session))


def step(store: LlamaDiskCache, draw: random.Random, mine: list[str]) -> None:
    """One random operation; whatever is restored must be right."""
    seed = draw.randrange(1, 10_000)
    wanted = state_of(seed)
    found = store.find(wanted.tokens, wanted.fingerprint)
    restored = store.get(draw.choice(found).key) if found else None
    if restored is not None and not is_right(restored):
        raise RuntimeError(f"restored garbage: {restored}")
    kind = draw.random()
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
