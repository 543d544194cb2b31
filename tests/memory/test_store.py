"""Both stores against a dict, and the disk store against kills, damage and other processes."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

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
from llama_py.memory.payload import digest
from llama_py.memory.store import (
    BaseLlamaCache,
    Checkpoint,
    LlamaDiskCache,
    LlamaRAMCache,
    StateStore,
    StoredState,
)
from tests.memory.store_writer import CAPACITY, COMMON, FINGERPRINTS, is_right, same, state_of

ROOT = Path(__file__).parents[2]
T = TypeVar("T")
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


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LlamaDiskCache]:
    with LlamaDiskCache(str(tmp_path / "store"), 1 << 20) as store:
        yield store


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
    return list(store._ledger.rows)


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


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, StateStore]]:
    """One store of each kind for many examples."""
    folder = str(tmp_path_factory.mktemp("shared"))
    with LlamaDiskCache(folder) as disk, LlamaRAMCache() as ram:
        yield {"ram": ram, "disk": disk}


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
    assert store.match_foreign(tokens, "f") == 2
    assert store.match_foreign(tokens, "other") == 0


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
        old = sorted(self.held)[number] if 0 <= number < len(self.held) else None
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
        key = sorted(self.held)[number % len(self.held)]
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


# --- another process, and the same one later ------------------------------------------------------


def test_entries_survive_a_restart(tmp_path: Path) -> None:
    with LlamaDiskCache(str(tmp_path)) as store:
        key = saved(store, small([1, 2, 3], session="alice"))
    with LlamaDiskCache(str(tmp_path)) as store:
        path = there(store.find_text(b"t1 t2 t3 and more", "f"))
        assert path.tokens.tolist() == [1, 2, 3]
        assert store.find_session("alice", "f") == [key]
        assert same(there(store.get(key)), small([1, 2, 3], session="alice"))


def test_another_store_of_the_directory_sees_changes(tmp_path: Path) -> None:
    with LlamaDiskCache(str(tmp_path)) as one, LlamaDiskCache(str(tmp_path)) as two:
        assert two.find(np.array([1], np.int32), "f") == []
        key = saved(one, small([1, 2]))
        assert [match.key for match in two.find(np.array([1], np.int32), "f")] == [key]
        two.discard(key)
        assert one.find(np.array([1], np.int32), "f") == []
        assert one.get(key) is None
        assert one.stats().damaged == 0


def test_more_changes_than_the_journal_holds(tmp_path: Path) -> None:
    with LlamaDiskCache(str(tmp_path)) as one, LlamaDiskCache(str(tmp_path)) as two:
        first = saved(one, small([1]))
        assert len(two.find(np.array([1], np.int32), "f")) == 1
        one.discard(first)
        keys = [saved(one, small([2, n], 0)) for n in range(520)]
        assert len(two) == 520
        assert two.find(np.array([1], np.int32), "f") == []
        assert two.find(np.array([2, 77], np.int32), "f")[0].key == keys[77]
        assert two.used_bytes == one.used_bytes == sum(f.stat().st_size for f in files(one))


def test_ages_are_shared(tmp_path: Path) -> None:
    with LlamaDiskCache(str(tmp_path), 35_000) as one, LlamaDiskCache(str(tmp_path), 35_000) as two:
        first, second, third = (saved(one, small([n], 10_000)) for n in (1, 2, 3))
        assert two.get(first) is not None
        saved(two, small([4], 10_000))
        assert one.get(second) is None
        assert one.get(first) is not None
        assert one.get(third) is not None


def writer(folder: Path, seed: int, *operations: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.memory.store_writer", str(folder), str(seed)]
    return subprocess.Popen(
        [*command, *operations], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def check_everything(folder: Path) -> int:
    """Open the store, restore every entry, compare every byte; returns how many there are."""
    with LlamaDiskCache(str(folder), CAPACITY) as store:
        keys = all_of(store)
        found = [store.get(key) for key in keys]
        assert all(state is not None and is_right(state) for state in found)
        assert store.stats().damaged == 0
        assert store.used_bytes <= CAPACITY
        assert {path.stem for path in files(store)} == set(keys)
        for fingerprint in FINGERPRINTS:
            store.find(np.array([COMMON], np.int32), fingerprint)
        key = saved(store, state_of(1))
        assert is_right(there(store.get(key)))
    return len(keys)


@pytest.mark.slow
def test_killed_at_any_moment_it_opens_and_restores_no_garbage(tmp_path: Path) -> None:
    """52 processes that write into one directory, four at a time, each killed by SIGKILL."""
    draw = random.Random(0)
    entries = []
    for turn in range(13):
        writers = [writer(tmp_path, 10 * turn + number) for number in range(4)]
        for process in writers:
            wait_until_ready(process)
        for process in writers:
            time.sleep(draw.uniform(0, 0.1))
            assert process.poll() is None, process.communicate()[1]
            process.kill()
        for process in writers:
            process.communicate()
        entries.append(check_everything(tmp_path))
    assert max(entries) > 3


@pytest.mark.slow
def test_processes_share_a_directory(tmp_path: Path) -> None:
    writers = [writer(tmp_path, seed, "80") for seed in range(3)]
    for process in writers:
        _, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")
    assert check_everything(tmp_path) > 0


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    with LlamaDiskCache(str(tmp_path)) as store:
        kept = saved(store, small([1]))
        folder = files(store)[0].parent
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    host = kept.split("-")[0]
    orphan = folder / f"{host}-{gone.pid}-00.state"
    orphan.write_bytes(b"half a state")
    being_written = folder / f"{kept[:-1]}x.state"
    being_written.write_bytes(b"half a state")
    with LlamaDiskCache(str(tmp_path)) as store:
        assert len(store) == 1
        assert set(files(store)) == {folder / f"{kept}.state", being_written}


# --- damage ---------------------------------------------------------------------------------------


def damaged_is_absent(store: LlamaDiskCache, key: str) -> None:
    assert store.get(key) is None
    assert store.stats().damaged == 1
    assert len(store) == 0
    assert store.find(np.array([1], np.int32), "f") == []
    assert files(store) == []


@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
@settings(deadline=None, max_examples=200)
def test_a_flipped_bit_is_noticed(place: int, bit: int, shared: dict[str, StateStore]) -> None:
    store = shared["disk"]
    assert isinstance(store, LlamaDiskCache)
    state = small([1, 2, 3], 9001, checkpoints=(Checkpoint(1, np.ones(9, np.uint8)),))
    key = saved(store, state)
    path = Path(store.cache_dir) / "llama_py-1" / f"{key}.state"
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1 << bit
    path.write_bytes(data)
    found = store.get(key)  # not dropped where the bit is in the padding between two parts
    assert found is None or same(found, state)


@pytest.mark.parametrize("place", range(64))
def test_a_changed_byte_where_the_head_begins(disk: LlamaDiskCache, place: int) -> None:
    key = saved(disk, small([1], 10_000))
    data = bytearray(files(disk)[0].read_bytes())
    data[place] ^= 0xFF
    files(disk)[0].write_bytes(data)
    damaged_is_absent(disk, key)


@pytest.mark.parametrize("size", [0, 10, 300, 4096, -1])
def test_a_truncated_file_is_dropped(disk: LlamaDiskCache, size: int) -> None:
    key = saved(disk, small([1], 10_000))
    path = files(disk)[0]
    path.write_bytes(path.read_bytes()[:size])
    damaged_is_absent(disk, key)


def test_a_page_that_never_reached_the_disk(disk: LlamaDiskCache) -> None:
    key = saved(disk, small([1], 20_000))
    path = files(disk)[0]
    data = path.read_bytes()
    path.write_bytes(data[:4096] + bytes(4096) + data[8192:])
    damaged_is_absent(disk, key)


def test_a_missing_file_is_dropped(disk: LlamaDiskCache) -> None:
    key = saved(disk, small([1]))
    files(disk)[0].unlink()
    damaged_is_absent(disk, key)


def test_another_entrys_file_is_not_taken(disk: LlamaDiskCache) -> None:
    one, two = saved(disk, small([1, 2])), saved(disk, small([1, 3]))
    folder = files(disk)[0].parent
    shutil.copy(folder / f"{two}.state", folder / f"{one}.state")
    assert disk.get(one) is None
    assert disk.get(two) is not None


def test_damage_is_noticed_when_the_index_is_built(tmp_path: Path) -> None:
    with LlamaDiskCache(str(tmp_path)) as store:
        saved(store, small([1, 2]))
        kept = saved(store, small([1, 3]))
        next(path for path in files(store) if path.stem != kept).write_bytes(b"")
    with LlamaDiskCache(str(tmp_path)) as store:
        assert [match.key for match in store.find(np.array([1], np.int32), "f")] == [kept]
        assert len(store) == 1


def test_a_damaged_database_means_an_empty_store(tmp_path: Path) -> None:
    with LlamaDiskCache(str(tmp_path)) as store:
        saved(store, small([1]))
        folder = files(store)[0].parent
    for path in folder.glob("cache.db-*"):
        path.unlink()
    (folder / "cache.db").write_bytes(b"not a database, but as long as one needs to be" * 100)
    with LlamaDiskCache(str(tmp_path)) as store:
        assert len(store) == 0
        assert store.get(saved(store, small([2]))) is not None


@pytest.mark.parametrize("seed", range(25))
def test_random_damage_to_the_database_fails_no_request(tmp_path: Path, seed: int) -> None:
    with LlamaDiskCache(str(tmp_path), CAPACITY) as store:
        for number in range(1, 6):
            saved(store, state_of(number))
        database = files(store)[0].parent / "cache.db"
    draw = random.Random(seed)
    data = bytearray(database.read_bytes())
    for _ in range(draw.choice([1, 3, 30, 300])):
        data[draw.randrange(len(data))] = draw.randrange(256)
    database.write_bytes(data)
    with LlamaDiskCache(str(tmp_path), CAPACITY) as store:
        restored = [store.get(key) for key in all_of(store)]
        assert all(state is None or is_right(state) for state in restored)
        key = store.put(state_of(99))
        assert key is None or is_right(there(store.get(key)))


def test_a_directory_that_vanished_fails_no_request(tmp_path: Path) -> None:
    with LlamaDiskCache(str(tmp_path / "store")) as store:
        key = saved(store, small([1]))
        shutil.rmtree(tmp_path / "store")
        assert store.put(small([2])) is None
        assert store.get(key) is None


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are POSIX")
def test_a_full_disk_fails_no_request(tmp_path: Path) -> None:
    """The limit on a file's size stands for the disk's: a write ends early, with an OSError."""
    code = f"""
import resource
from tests.memory.test_store import *
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
with LlamaDiskCache({str(tmp_path)!r}) as store:
    assert store.put(small([1], 3_000_000)) is None
    assert files(store) == []
    assert store.get(store.put(small([1], 300_000))) is not None
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@given(st.binary(max_size=20_000), st.integers(0, 10**6), st.integers(1, 255))
@settings(deadline=None)
def test_digest_notices_one_changed_byte(data: bytes, place: int, change: int) -> None:
    whole = np.frombuffer(data + b"x", np.uint8)
    other = whole.copy()
    other[place % len(other)] ^= change
    assert digest(whole) == digest(whole.copy())
    assert digest(whole) != digest(other)
    assert digest(whole) != digest(whole[:-1])
