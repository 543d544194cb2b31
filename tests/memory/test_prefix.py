"""The prefix tree against a dict of holders that is searched by brute force."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from llama_py.errors import ParameterError
from llama_py.states.prefix import Node, PrefixIndex, TextPath, common_bytes, common_tokens

#: Token id -> text: texts that begin alike, two tokens with the same text, and none at all.
VOCABULARY = [b"", b"a", b"b", b"ab", b"a", b"ba", b"aab", b"\xc3", b"\xa4", b"\xc3\xa4"]

Path = tuple[int, ...]
paths = st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=12).map(tuple)
names = st.integers(0, 7)
texts = st.lists(st.sampled_from(VOCABULARY), max_size=14).map(b"".join)


def described(tokens: Path, base: int = 0) -> tuple[Path, list[int], bytes]:
    """Arguments of ``insert``: the tokens, their offsets from ``base``, and the text."""
    offsets = [base]
    for token in tokens:
        offsets.append(offsets[-1] + len(VOCABULARY[token]))
    return tokens, offsets, b"".join(VOCABULARY[token] for token in tokens)


def shared_by(a: Path, b: Path) -> int:
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def beginnings(path: Path) -> set[Path]:
    return {path[:n] for n in range(1, len(path) + 1)}


class Naive:
    """What the tree should say: holders, and the beginnings whose text was told."""

    def __init__(self) -> None:
        self.held: dict[int, Path] = {}
        self.told: set[Path] = set()

    def put(self, holder: int, path: Path, told: set[Path]) -> None:
        self.told |= told
        self.held[holder] = path
        self.forget_unused()

    def forget_unused(self) -> None:
        used: set[Path] = set()
        for path in self.held.values():
            used |= beginnings(path)
        self.told &= used

    def match_tokens(self, tokens: Path) -> dict[int, int]:
        shared = {holder: shared_by(path, tokens) for holder, path in self.held.items()}
        return {holder: n for holder, n in shared.items() if n}

    def ranked(self, path: Path, text: bytes) -> tuple[tuple[int, int, int], Path]:
        known = next((n for n in range(len(path)) if path[: n + 1] not in self.told), len(path))
        tokens, offsets, own = described(path[:known])
        agreed = next((i for i in range(len(own)) if own[i : i + 1] != text[i : i + 1]), len(own))
        covered = max(at for at in offsets if at <= agreed)
        count = offsets.index(covered)
        return (covered, agreed, -count), tokens[:count]

    def match_text(self, text: bytes) -> list[tuple[tuple[int, int, int], Path]]:
        """All the best paths."""
        found = [self.ranked(path, text) for path in self.held.values()]
        best = max((rank for rank, _ in found), default=(0, 0, 0))
        return [item for item in found if item[0] == best] if best[0] else []


def check_structure(index: PrefixIndex[int]) -> int:
    """Every edge is needed, counted and listed under its text; returns the number of nodes."""
    stack: list[Node[int]] = [*index._roots.values()]
    nodes = 0
    while stack:
        node = stack.pop()
        nodes += 1
        check_children(node)
        if node.parent is not None:
            check_needed(node)
        stack.extend(node.children.values())
    return nodes


def check_children(node: Node[int]) -> None:
    with_text = {c for c in node.children.values() if c.span.text is not None}
    listed = node.fan.by_text if node.fan else {}
    assert {c for same in listed.values() for c in same} == with_text
    assert sorted(listed) == (node.fan.keys if node.fan else [])
    assert all(key == c.span.key for key, same in listed.items() for c in same)
    for token, child in node.children.items():
        assert child.parent is node
        assert child.span.tokens[0] == token
        assert child.depth == node.depth + len(child.span)


def check_needed(node: Node[int]) -> None:
    assert len(node.span) > 0
    lone = [c for c in node.children.values() if len(node.children) == 1]
    same = any((c.span.text is None) == (node.span.text is None) for c in lone)
    assert node.holders or (node.children and not same)


def check_text_match(found: TextPath | None, best: list[tuple[tuple[int, int, int], Path]]) -> None:
    if found is None:
        assert not best
        return
    rank = (int(found.offsets[-1]), found.matched, -len(found.tokens))
    assert (rank, tuple(found.tokens.tolist())) in best
    assert found.offsets.tolist() == described(tuple(found.tokens.tolist()))[1]
    assert found.tokens.dtype == np.dtype(np.int32)
    assert found.offsets.dtype == np.dtype(np.int64)


class TreeMachine(RuleBasedStateMachine):
    """Random changes, each followed by a comparison of everything that can be asked."""

    def __init__(self) -> None:
        super().__init__()
        self.index: PrefixIndex[int] = PrefixIndex()
        self.naive = Naive()

    @rule(holder=names, path=paths, told=st.booleans(), base=st.integers(0, 9))
    def insert(self, holder: int, path: Path, told: bool, base: int) -> None:
        _, offsets, text = described(path, base)
        self.index.insert(holder, path, offsets if told else None, text if told else None)
        self.naive.put(holder, path, beginnings(path) if told else set())

    @precondition(lambda self: self.naive.held)
    @rule(data=st.data(), tail=paths, told=st.booleans())
    def extend(self, data: st.DataObject, tail: Path, told: bool) -> None:
        holder = data.draw(st.sampled_from(sorted(self.naive.held)))
        old = self.naive.held[holder]
        _, offsets, text = described(tail, 3)
        self.index.extend(holder, tail, offsets if told else None, text if told else None)
        new = beginnings(old + tail) - beginnings(old) if told else set()
        self.naive.put(holder, old + tail, new)

    @precondition(lambda self: self.naive.held)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(sorted(self.naive.held)))
        old = self.naive.held[holder]
        length = data.draw(st.integers(0, len(old)))
        self.index.truncate(holder, length)
        self.naive.put(holder, old[:length], set())

    @precondition(lambda self: self.naive.held)
    @rule(data=st.data(), new=names)
    def rename(self, data: st.DataObject, new: int) -> None:
        old = data.draw(st.sampled_from(sorted(self.naive.held)))
        self.index.rename(old, new)
        path = self.naive.held.pop(old)
        self.naive.put(new, path, set())

    @rule(holder=names)
    def remove(self, holder: int) -> None:
        self.index.remove(holder)
        self.naive.held.pop(holder, None)
        self.naive.forget_unused()

    @rule()
    def clear(self) -> None:
        self.index.clear()
        self.naive = Naive()

    @rule(tokens=paths)
    def match_tokens(self, tokens: Path) -> None:
        self.check_tokens(tokens)

    @rule(text=texts)
    def match_text(self, text: bytes) -> None:
        check_text_match(self.index.match_text(text), self.naive.match_text(text))

    def check_tokens(self, tokens: Path) -> None:
        found = self.index.match_tokens(tokens)
        assert dict(found) == self.naive.match_tokens(tokens)
        assert len(dict(found)) == len(found)
        depths = [shared for _, shared in found]
        assert depths == sorted(depths, reverse=True)
        assert self.index.match_depth(tokens) == max(depths, default=0)

    @invariant()
    def agrees(self) -> None:
        check_structure(self.index)
        assert set(self.index) == set(self.naive.held)
        assert len(self.index) == len(self.naive.held)
        for holder, path in self.naive.held.items():
            assert self.index.length_of(holder) == len(path)
            assert tuple(self.index.tokens_of(holder).tolist()) == path
            self.check_tokens(path)
            text = described(path)[2]
            check_text_match(self.index.match_text(text), self.naive.match_text(text))

    def teardown(self) -> None:
        for holder in self.index:
            self.index.remove(holder)
        assert check_structure(self.index) == 0


TreeMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)
TestTree = TreeMachine.TestCase


# --- single facts ---------------------------------------------------------------------------------


@given(st.binary(max_size=40), st.binary(max_size=40), st.integers(0, 40))
def test_common_bytes(a: bytes, b: bytes, start: int) -> None:
    rest = b[start:]
    expected = next((i for i in range(len(a)) if a[i : i + 1] != rest[i : i + 1]), len(a))
    assert common_bytes(a, b, start) == expected


@given(paths, paths)
def test_common_tokens(a: Path, b: Path) -> None:
    assert common_tokens(np.array(a, np.int32), np.array(b, np.int32)) == shared_by(a, b)


def test_text_decides_and_not_the_tokens_it_would_give_again() -> None:
    """A reply was sampled as "h", "i"; its text would tokenize to one token."""
    index: PrefixIndex[str] = PrefixIndex()
    index.insert("chat", [7, 1, 2, 8], [0, 3, 4, 5, 8], b"<u>hi<e>")
    found = index.match_text(b"<u>hi<e><u>more")
    assert found is not None
    assert found.tokens.tolist() == [7, 1, 2, 8]
    assert found.offsets.tolist() == [0, 3, 4, 5, 8]
    assert found.matched == 8


def test_match_ends_inside_a_token() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    index.insert("chat", [1, 2], [0, 4, 9], b"one two ."[:9])
    found = index.match_text(b"one tw!")
    assert found is not None
    assert (found.tokens.tolist(), found.matched) == ([1], 6)


def test_match_is_of_bytes_and_may_end_inside_a_character() -> None:
    text = "aä".encode()
    index: PrefixIndex[str] = PrefixIndex()
    index.insert("chat", [1, 2, 3], [0, 1, 2, 3], text)
    found = index.match_text("aö".encode())
    assert found is not None
    assert (found.tokens.tolist(), found.matched) == ([1, 2], 2)


def test_same_tokens_with_another_text_keep_the_first() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    index.insert("first", [1, 2], [0, 1, 2], b"ab")
    index.insert("second", [1, 2, 3], [0, 2, 3, 4], b" abc")
    assert index.match_tokens([1, 2, 3]) == [("second", 3), ("first", 2)]
    found = index.match_text(b"abc")
    assert found is not None
    assert found.tokens.tolist() == [1, 2, 3]
    assert index.match_text(b" abc") is None


def test_text_learned_later() -> None:
    """A checkpoint was filed by its tokens before the sequence told their text."""
    index: PrefixIndex[str] = PrefixIndex()
    index.insert("checkpoint", [1, 2])
    assert index.match_text(b"abc") is None
    index.insert("chat", [1, 2, 3], [0, 1, 2, 3], b"abc")
    found = index.match_text(b"abc")
    assert found is not None
    assert found.tokens.tolist() == [1, 2, 3]


def test_side_limits_those_that_leave_at_one_place_only() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    for number in range(50):
        index.insert(f"chat {number}", [1, 2, 100 + number])
    index.insert("checkpoint", [1])
    found = index.match_tokens([1, 2, 3], side=4)
    assert [shared for _, shared in found] == [2, 2, 2, 2, 1]
    assert found[-1] == ("checkpoint", 1)


@pytest.mark.parametrize(
    ("offsets", "text"),
    [([0, 1], b"a"), ([0, 1, 3], b"ab"), ([0, 2, 1], b"a"), ([1, 2, 3], b"abc")],
)
def test_offsets_that_do_not_fit_are_refused(offsets: list[int], text: bytes) -> None:
    index: PrefixIndex[str] = PrefixIndex()
    with pytest.raises(ParameterError):
        index.insert("chat", [1, 2], offsets, text)
    assert len(index) == 0


def test_truncate_refuses_to_grow() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    index.insert("chat", [1, 2])
    with pytest.raises(ParameterError, match="2 tokens to 3"):
        index.truncate("chat", 3)


def test_callers_arrays_are_copied() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    tokens = np.array([1, 2, 3], np.int32)
    index.insert("chat", tokens)
    tokens[:] = 9
    assert index.tokens_of("chat").tolist() == [1, 2, 3]


# --- cost -----------------------------------------------------------------------------------------


def fastest(call: Callable[[], Any], times: int = 5) -> float:
    """Milliseconds of the fastest of a few calls."""
    spent = []
    for _ in range(times):
        start = time.thread_time()
        call()
        spent.append(time.thread_time() - start)
    return 1e3 * min(spent)


def conversation(n: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], bytes]:
    """Tokens of ``n`` random tokens with texts of 1 to 7 bytes that depend on the token."""
    tokens = np.random.default_rng(seed).integers(0, 50_000, n).astype(np.int32)
    pieces = [(b"%x" % (token * 2654435761 % 2**28))[: 1 + token % 7] for token in tokens.tolist()]
    offsets = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])])
    return tokens, offsets, b"".join(pieces)


def measure(holders: int, length: int, common: int) -> dict[str, float]:
    """Milliseconds of lookups among ``holders`` of which ``common`` first tokens are alike."""
    index: PrefixIndex[int] = PrefixIndex()
    start = conversation(common, 10**6)
    for number in range(holders):
        own = conversation(length - common, number)
        index.insert(number, start[0], start[1], start[2])
        index.extend(number, *own)
    last = conversation(length - common, holders // 2)
    tokens, text = np.concatenate([start[0], last[0]]), start[2] + last[2]
    return {
        "tokens": fastest(lambda: index.match_tokens(tokens, side=8)),
        "text": fastest(lambda: index.match_text(text)),
        "tokens, new tail": fastest(lambda: index.match_tokens(tokens[: common + 1], side=8)),
        "text, new tail": fastest(lambda: index.match_text(start[2] + b"zzz")),
    }


def test_lookup_does_not_depend_on_the_number_of_holders() -> None:
    """A hundred times the holders, at most a few times the cost (the machine is shared)."""
    few, many = measure(10, 200, 150), measure(1000, 200, 150)
    for what in few:
        assert many[what] < 20 * few[what] + 0.2, (what, few, many)


def insert_anew(index: PrefixIndex[str], conversation: tuple[Any, Any, bytes]) -> None:
    index.clear()
    index.insert("chat", *conversation)


def main() -> None:
    """Print the figures: ``python -m tests.memory.test_prefix``."""
    for common in (0, 400):
        print(f"10,000 holders of 2,000 tokens, {common} common:", measure(10_000, 2_000, common))
    long = conversation(32_768, 1)
    index: PrefixIndex[str] = PrefixIndex()
    print("insert 32K tokens:", fastest(lambda: insert_anew(index, long)))
    print("match_text, 32K tokens:", fastest(lambda: index.match_text(long[2] + b" and more")))
    print("match_tokens, 32K tokens:", fastest(lambda: index.match_tokens(long[0])))
    reply = conversation(300, 2)
    print("extend by 300:", fastest(lambda: index.extend("chat", *reply)))


if __name__ == "__main__":
    main()


def test_an_index_that_is_dropped_lets_go_of_its_holders_at_once() -> None:
    """A holder may be a sequence with gigabytes of checkpoints."""

    class Holder:
        pass

    gc.disable()
    try:
        index: PrefixIndex[Holder] = PrefixIndex()
        holders = [Holder() for _ in range(3)]
        for tokens, holder in zip(([1, 2, 3, 4], [1, 2, 5], [1, 2, 3]), holders, strict=True):
            index.insert(holder, tokens)
        gone = [weakref.ref(holder) for holder in holders]
        del holder, holders, index
        assert [each() for each in gone] == [None, None, None]
    finally:
        gc.enable()
