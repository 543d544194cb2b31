"""``NamedStates``: slots and bytes of each owner, and the two steps of replacing one."""

from __future__ import annotations

import numpy as np
import pytest

from llama_py.errors import StateError
from llama_py.states.named import NamedState, NamedStates
from llama_py.states.state import StoredState


def made(name: str, size: int = 1000, group: str = "talk") -> NamedState:
    tokens, state = np.arange(5, dtype=np.int32), np.zeros(size, np.uint8)
    return NamedState(name, StoredState(tokens, None, None, state, (), 0, "", None), group=group)


def names(kept: NamedStates, owner: str) -> list[tuple[str, bool]]:
    return [(each.name, each.prepared) for each in kept.of(owner)]


def test_owners_neither_see_nor_count_each_other() -> None:
    kept = NamedStates(2, 3 * made("x").nbytes)
    for number in range(4):
        kept.keep("one", made(f"a{number}"))
        kept.prepare("one", made(f"b{number}"))
    kept.keep("two", made("a3"))
    assert names(kept, "two") == [("a3", False)]
    assert kept.get("two", "talk", "a2") is None
    assert kept.confirm("two", "talk", "b3") is None
    assert not kept.abort("two", "talk", "b3")
    assert not kept.drop("two", "talk", "a2")
    assert kept.drop("two", "talk")
    assert names(kept, "one") == [("a2", False), ("a3", False), ("b2", True), ("b3", True)]


def test_one_is_replaced_when_it_is_confirmed() -> None:
    kept = NamedStates(1)
    old = kept.keep("", made("a"))
    assert kept.prepare("", made("a", 50)).prepared
    found = kept.get("", "talk", "a")
    assert found is not None
    assert found.state is old.state
    assert found.last_used > old.last_used
    assert kept.abort("", "talk", "a")
    kept.prepare("", made("b"))
    confirmed = kept.confirm("", "talk", "b")
    assert confirmed is not None
    assert not confirmed.prepared
    assert names(kept, "") == [("b", False)]


def test_one_that_does_not_fit_replaces_nothing() -> None:
    kept = NamedStates(8, made("x").nbytes)
    kept.keep("", made("a"))
    for keep in (kept.keep, kept.prepare):
        with pytest.raises(StateError, match=r"of 5 tokens takes 1021 bytes, and 1020 of 1020"):
            keep("", made("a", 1001))
    kept.prepare("", made("b"))
    with pytest.raises(StateError, match="and 0 of 1020 are left"):
        kept.prepare("", made("c"))
    assert names(kept, "") == [("a", False), ("b", True)]


def test_those_not_used_for_longest_make_room_by_bytes() -> None:
    kept = NamedStates(8, 3 * made("x").nbytes)
    for name in "abc":
        kept.keep("", made(name))
    kept.get("", "talk", "a")
    kept.keep("", made("d", 1500))
    assert names(kept, "") == [("a", False), ("d", False)]


def test_a_group_goes_as_a_whole() -> None:
    kept = NamedStates(8)
    for group in ("talk", "walk"):
        kept.keep("", made("a", group=group))
        kept.prepare("", made("b", group=group))
    assert kept.drop("", "talk")
    assert not kept.drop("", "talk")
    assert [each.group for each in kept.of("")] == ["walk", "walk"]
