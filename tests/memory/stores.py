"""Small states, and how tests look at the stores that hold them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from llama_py.states.disk import LlamaDiskCache
from llama_py.states.state import StoredState
from llama_py.states.store import StateStore

__all__ = ["all_of", "files", "saved", "small", "there"]

T = TypeVar("T")


def small(tokens: list[int], nbytes: int = 100, **changes: object) -> StoredState:
    """A state of ``nbytes`` whose tokens read "t<id> "."""
    pieces = [b"t%d " % token for token in tokens]
    offsets = np.cumsum([0, *map(len, pieces)]).astype(np.int64)
    state = StoredState(
        tokens=np.array(tokens, np.int32),
        offsets=offsets,
        text=b"".join(pieces),
        state=np.full(nbytes, len(tokens), np.uint8),
        checkpoints=(),
        pos_min=0,
        fingerprint="f",
        session=None,
    )
    return replace(state, **changes)  # type: ignore[arg-type]


def there(value: T | None) -> T:
    assert value is not None
    return value


def saved(store: StateStore, state: StoredState, replaces: str | None = None) -> str:
    return there(store.put(state, replaces=replaces))


def files(store: LlamaDiskCache) -> list[Path]:
    return sorted(Path(store.cache_dir).glob("*/*.state"))


def all_of(store: LlamaDiskCache) -> list[str]:
    assert store.used_bytes >= 0  # brings the rows up to date
    return list(store._ledger.keys())
