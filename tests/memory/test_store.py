"""Both stores against a dict: what is saved, found, evicted and replaced."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from llama_py.errors import ClosedError, ParameterError
from llama_py.states.disk import LlamaDiskCache
from llama_py.states.ram import LlamaRAMCache
from llama_py.states.state import Checkpoint, StoredState
from llama_py.states.store import BaseLlamaCache, StateStore
from tests.memory.store_writer import CAPACITY, is_right, same, state_of
from tests.memory.stores import files, saved, small, there

MakeStore = Callable[[int], BaseLlamaCache]


@pytest.fixture(params=["ram", "disk"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeStore]:
    """Makes stores of a capacity; those on disk share one directory."""
    made: list[BaseLlamaCache] = []

    def make(capacity: int = 1 << 20) -> BaseLlamaCache:
        on_disk = request.param == "disk"
        made.append(
            LlamaDiskCache(str(tmp_path / "store"), capacity)
            if on_disk
            else LlamaRAMCache(capacity)
        )
        return made[-1]

    yield make
    for store in made:
        store.close()


# --- what goes in comes out -----------------------------------------------------------------------

bytes_arrays = st.binary(max_size=9000).map(lambda data: np.frombuffer(data, np.uint8))


@st.composite
def states(draw: st.DrawFn) -> StoredState:
    tokens = draw(st.lists(st.integers(0, 2**31 - 1), max_size=20))
    widths = draw(
        st.none() | st.lists(st.integers(0, 9), min_size=len(tokens), max_size=len(tokens))
    )
    offsets = None if widths is None else np.cumsum([0, *widths]).astype(np.int64)
    size = 0 if offsets is None else int(offsets[-1])
    return StoredState(
        tokens=np.array(tokens, np.int32),
        offsets=offsets,
        text=None if offsets is None else draw(st.binary(min_size=size, max_size=size)),
        state=draw(bytes_arrays),
        checkpoints=tuple(draw(st.lists(st.builds(Checkpoint, st.integers(0, 99), bytes_arrays)))),
        pos_min=draw(st.integers(0, 2**31 - 1)),
        fingerprint=draw(st.text(max_size=20)),
        session=draw(st.none() | st.text(max_size=20)),
    )


@pytest.mark.parametrize("name", ["ram", "disk"])
@given(state=states())
@settings(deadline=None, max_examples=200)
def test_what_goes_in_comes_out(
    name: str, state: StoredState, shared: dict[str, StateStore]
) -> None:
    store = shared[name]
    key = saved(store, state)
    found = there(store.get(key))
    assert same(found, state)
    assert not found.state.flags.writeable
    info = there(store.info(key))
    assert (info.length, info.session) == (len(state.tokens), state.session)
    assert info.checkpoints == tuple(c.position for c in state.checkpoints)


def test_large_state_of_odd_size(make_store: MakeStore) -> None:
    store = make_store(64 << 20)
    state = small([1, 2], 5_000_003)
    state.state[:] = np.arange(5_000_003)
    found = there(store.get(saved(store, state)))
    assert same(found, state)


def test_ram_store_keeps_the_array_and_not_a_copy() -> None:
    state = small([1, 2])
    with LlamaRAMCache() as store:
        found = there(store.get(saved(store, state)))
        assert np.shares_memory(found.state, state.state)


def test_ram_store_does_not_keep_a_larger_buffer_alive() -> None:
    buffer = np.zeros(1 << 20, np.uint8)
    with LlamaRAMCache() as store:
        found = there(store.get(saved(store, small([1], state=buffer[:100]))))
        assert not np.shares_memory(found.state, buffer)


# --- finding --------------------------------------------------------------------------------------


def test_finds_the_longest_beginning_first(make_store: MakeStore) -> None:
    store = make_store(1 << 20)
    long = saved(store, small([1, 2, 3, 4]))
    side = saved(store, small([1, 2, 9]))
    saved(store, small([5]))
    found = store.find(np.array([1, 2, 3, 5], np.int32), "f")
    assert [(match.key, match.matched, match.length) for match in found] == [
        (long, 3, 4),
        (side, 2, 3),
    ]


def test_finds_text_whatever_its_tokens(make_store: MakeStore) -> None:
    store = make_store(1 << 20)
    saved(store, small([1, 2, 3]))
    path = there(store.find_text(b"t1 t2 t", "f"))
    assert path.tokens.tolist() == [1, 2]
    assert path.matched == 7


def test_other_fingerprints_are_invisible_and_counted(make_store: MakeStore) -> None:
    store = make_store(1 << 20)
    saved(store, small([1, 2, 3], fingerprint="other"))
    tokens = np.array([1, 2, 4], np.int32)
    assert store.find(tokens, "f") == []
    assert store.find_text(b"t1 t2 ", "f") is None
    assert store.match_foreign(tokens, "f") == {"other": 2}
    assert store.match_foreign(tokens, "other") == {}


def test_finds_a_session(make_store: MakeStore) -> None:
    store = make_store(1 << 20)
    short = saved(store, small([1], session="alice"))
    long = saved(store, small([1, 2], session="alice"))
    saved(store, small([1, 2, 3], session="bob"))
    assert store.find_session("alice", "f") == [long, short]
    assert store.find_session("alice", "other") == []


def test_the_same_tokens_are_kept_once_per_session(make_store: MakeStore) -> None:
    store = make_store(1 << 20)
    old = saved(store, small([1, 2]))
    other = saved(store, small([1, 2], session="alice"))
    new = saved(store, small([1, 2], 50))
    assert store.get(old) is None
    assert store.get(other) is not None
    assert store.get(new) is not None


# --- capacity -------------------------------------------------------------------------------------


def test_least_recently_used_goes_first(make_store: MakeStore) -> None:
    store = make_store(40_000)
    first, second, third = (saved(store, small([n], 10_000)) for n in (1, 2, 3))
    assert store.get(first) is not None
    store.touch(second)
    fourth = saved(store, small([4], 10_000))
    assert store.get(third) is None
    assert all(store.get(key) for key in (first, second, fourth))
    assert store.stats().evicted == 1


def test_too_large_is_not_stored_and_costs_nobody_an_entry(make_store: MakeStore) -> None:
    store = make_store(20_000)
    key = saved(store, small([1], 10_000))
    assert store.put(small([2], 30_000)) is None
    assert store.prepare(small([2], 30_000)) is None
    assert store.get(key) is not None
    assert store.stats().refused == 2


def test_no_capacity_stores_nothing(make_store: MakeStore) -> None:
    assert make_store(0).put(small([1])) is None


def test_negative_capacity_is_refused() -> None:
    with pytest.raises(ParameterError, match="-1"):
        LlamaRAMCache(-1)


def test_contradictory_state_is_refused() -> None:
    with pytest.raises(ParameterError, match="2 tokens need 3 offsets"):
        small([1, 2], offsets=np.zeros(2, np.int64))


# --- prepare, confirm, abort ----------------------------------------------------------------------


def test_aborting_keeps_the_old_entry_and_its_place(make_store: MakeStore) -> None:
    store = make_store(25_000)
    other, old = saved(store, small([1], 10_000)), saved(store, small([2], 10_000))
    used = store.used_bytes
    pending = there(store.prepare(small([2, 3], 10_000), replaces=old))
    assert store.find(np.array([2, 3], np.int32), "f")[0].key == old
    pending.abort()
    assert pending.confirm() is None
    assert (store.used_bytes, len(store)) == (used, 2)
    assert store.get(old) is not None
    assert store.get(other) is not None


def test_confirming_swaps(make_store: MakeStore) -> None:
    store = make_store(25_000)
    other, old = saved(store, small([1], 10_000)), saved(store, small([2], 10_000))
    with there(store.prepare(small([2, 3], 10_000), replaces=old)) as pending:
        new = pending.confirm()
        assert pending.confirm() == new
    assert new is not None
    assert store.get(old) is None
    assert store.get(new) is not None
    assert store.get(other) is not None
    assert store.stats().evicted == 0


def test_leaving_without_confirming_aborts(disk: LlamaDiskCache) -> None:
    with there(disk.prepare(small([1]))):
        assert len(files(disk)) == 1
    assert files(disk) == []


def test_replacing_what_is_gone_is_no_error(make_store: MakeStore) -> None:
    store = make_store(1 << 20)
    old = saved(store, small([1]))
    store.discard(old)
    store.discard(old)
    assert store.get(saved(store, small([2]), replaces=old)) is not None


# --- closing --------------------------------------------------------------------------------------


def test_closed_store_says_so(make_store: MakeStore) -> None:
    store = make_store(1 << 20)
    pending = store.prepare(small([1]))
    store.close()
    store.close()
    assert pending is not None
    assert pending.confirm() is None
    for call in (
        lambda: store.put(small([1])),
        lambda: store.get("x"),
        lambda: store.find(np.zeros(1, np.int32), "f"),
        lambda: store.find_text(b"", "f"),
    ):
        with pytest.raises(ClosedError, match="was closed"):
            call()


def test_clear(make_store: MakeStore) -> None:
    store = make_store(1 << 20)
    key = saved(store, small([1]))
    store.clear()
    assert (len(store), store.used_bytes, store.cache_size) == (0, 0, 0)
    assert store.get(key) is None
    assert store.find(np.array([1], np.int32), "f") == []


def test_threads_share_a_store(make_store: MakeStore) -> None:
    store = make_store(CAPACITY)
    wrong: list[object] = []

    def work(start: int) -> None:
        try:
            for seed in range(start, start + 25):
                state = state_of(seed)
                store.put(state)
                for match in store.find(state.tokens, state.fingerprint):
                    found = store.get(match.key)
                    if found is not None and not is_right(found):
                        wrong.append(found)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(start,)) for start in (1, 11, 1001, 2001)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert store.used_bytes <= CAPACITY


# --- random operations against a dict -------------------------------------------------------------

token_lists = st.lists(st.integers(1, 3), min_size=1, max_size=6)


class StoreMachine(RuleBasedStateMachine):
    """A store of 12 kB, and a dict in the order of use that is searched by brute force."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, StoredState] = {}  # least recently used first
        self.sizes: dict[str, int] = {}
        self.store: BaseLlamaCache

    def open_store(self) -> BaseLlamaCache:
        return LlamaRAMCache(12_000)

    @initialize()
    def begin(self) -> None:
        self.store = self.open_store()

    def used(self, key: str) -> None:
        self.held[key] = self.held.pop(key)

    def forget(self, key: str) -> None:
        self.held.pop(key, None)

    @rule(
        tokens=token_lists,
        nbytes=st.integers(0, 6000),
        fingerprint=st.sampled_from("fg"),
        session=st.sampled_from([None, "alice"]),
        number=st.integers(-3, 9),
        confirm=st.booleans(),
    )
    def put(
        self,
        tokens: list[int],
        nbytes: int,
        fingerprint: str,
        session: str | None,
        number: int,
        confirm: bool,
    ) -> None:
        state = small(tokens, nbytes, fingerprint=fingerprint, session=session)
        old = [*self.held][number] if 0 <= number < len(self.held) else None
        pending = there(self.store.prepare(state, replaces=old))
        if not confirm:
            pending.abort()
            return
        self.expect_put(there(pending.confirm()), state, old)

    def expect_put(self, key: str, state: StoredState, replaces: str | None) -> None:
        twins = [k for k, held in self.held.items() if self.is_twin(held, state)]
        for old in [*twins, replaces or ""]:
            self.forget(old)
        info = there(self.store.info(key))
        self.sizes[key] = info.nbytes
        while sum(self.sizes[k] for k in self.held) + info.nbytes > 12_000:
            self.forget(next(iter(self.held)))
        self.held[key] = state

    def is_twin(self, a: StoredState, b: StoredState) -> bool:
        alike = (a.fingerprint, a.session) == (b.fingerprint, b.session)
        return alike and a.tokens.tolist() == b.tokens.tolist()

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 99), how=st.sampled_from(["get", "touch", "discard"]))
    def use(self, number: int, how: str) -> None:
        key = [*self.held][number % len(self.held)]
        if how == "get":
            assert same(there(self.store.get(key)), self.held[key])
            self.used(key)
        elif how == "touch":
            self.store.touch(key)
            self.used(key)
        else:
            self.store.discard(key)
            self.forget(key)

    @rule(tokens=token_lists, fingerprint=st.sampled_from("fgh"))
    def find(self, tokens: list[int], fingerprint: str) -> None:
        shared = {
            key: next(
                (i for i, (a, b) in enumerate(zip(held.tokens, tokens, strict=False)) if a != b),
                min(len(held.tokens), len(tokens)),
            )
            for key, held in self.held.items()
            if held.fingerprint == fingerprint
        }
        found = self.store.find(np.array(tokens, np.int32), fingerprint)
        assert {m.key: m.matched for m in found} == {k: n for k, n in shared.items() if n}
        path = self.store.find_text(small(tokens).text or b"", fingerprint)
        longest = max(shared.values(), default=0)
        assert (path.tokens.tolist() if path else []) == tokens[:longest]

    @rule()
    def clear(self) -> None:
        self.store.clear()
        self.held.clear()

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "store"):
            assert len(self.store) == len(self.held)
            assert self.store.used_bytes == sum(self.sizes[key] for key in self.held)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


class DiskMachine(StoreMachine):
    """The same on disk, opened again now and then, beside a second process's view of it."""

    def open_store(self) -> BaseLlamaCache:
        self.folder = tempfile.mkdtemp(prefix="store-")
        self.other = LlamaDiskCache(self.folder, 12_000)
        return LlamaDiskCache(self.folder, 12_000)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = LlamaDiskCache(self.folder, 12_000)

    @rule()
    def swap(self) -> None:
        assert isinstance(self.store, LlamaDiskCache)
        self.store, self.other = self.other, self.store

    @invariant()
    def no_file_is_left(self) -> None:
        if isinstance(getattr(self, "store", None), LlamaDiskCache):
            names = {path.stem for path in Path(self.folder).glob("*/*.state")}
            assert names == set(self.held)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            self.other.close()
            shutil.rmtree(self.folder)


StoreMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRAM = StoreMachine.TestCase
DiskMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestDisk = DiskMachine.TestCase
