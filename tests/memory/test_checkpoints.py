"""Checkpoints stay within their budget, and what is left of them is where it helps."""

from __future__ import annotations

import numpy as np

from llama_py.memory.index import Checkpoints
from llama_py.states.prefix import PrefixIndex

TOKENS = np.arange(1000, dtype=np.int32)


def make(capacity_bytes: int = 1 << 20, capacity: int = 100) -> Checkpoints:
    return Checkpoints(PrefixIndex(), capacity_bytes, capacity)


def state(nbytes: int = 8) -> np.ndarray:
    return np.zeros(nbytes, np.uint8)


def positions(checkpoints: Checkpoints) -> list[int]:
    return sorted(checkpoints.along(checkpoints._index.match_tokens(TOKENS)))


def test_a_prompt_finds_those_it_passes_through() -> None:
    checkpoints = make()
    for length in (10, 20, 30):
        checkpoints.add(TOKENS[:length], state())
    checkpoints.add(TOKENS[:40][::-1].copy(), state())
    assert positions(checkpoints) == [10, 20, 30]
    found = checkpoints.along(checkpoints._index.match_tokens(TOKENS[:25]))
    assert sorted(found) == [10, 20]


def test_the_budget_of_bytes_is_kept() -> None:
    checkpoints = make(capacity_bytes=100)
    for length in range(10, 200, 10):
        checkpoints.add(TOKENS[:length], state(30))
        assert checkpoints.used_bytes <= 100
    assert len(checkpoints) == 3
    assert checkpoints.add(TOKENS[:500], state(101)) is None
    assert len(checkpoints) == 3


def test_a_long_conversation_keeps_places_all_along() -> None:
    checkpoints = make(capacity=8)
    for length in range(10, 1000, 10):
        checkpoints.add(TOKENS[:length], state())
    kept = positions(checkpoints)
    assert len(kept) == 8
    assert kept[0] <= 500
    assert kept[-1] == 990


def test_what_was_used_stays_longer() -> None:
    checkpoints = make(capacity=4)
    first = checkpoints.add(TOKENS[:10], state())
    for length in range(20, 100, 10):
        assert first is not None
        checkpoints.touch(first)
        checkpoints.add(TOKENS[:length], state())
    assert 10 in positions(checkpoints)


def test_clear_forgets_all() -> None:
    checkpoints = make()
    checkpoints.add(TOKENS[:10], state())
    checkpoints.clear()
    assert (len(checkpoints), checkpoints.used_bytes, positions(checkpoints)) == (0, 0, [])
