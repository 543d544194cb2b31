"""Segments in both stores: written once, shared, counted once, and freed with their last entry."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llama_py.errors import ClosedError, ParameterError
from llama_py.states.disk import LlamaDiskCache
from llama_py.states.payload import Payload
from llama_py.states.ram import LlamaRAMCache
from llama_py.states.state import Segment, StoredState
from llama_py.states.store import BaseLlamaCache
from tests.memory.store_writer import chain_of, grow, is_right, same
from tests.memory.stores import files, saved, small, there
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
MakeStore = Callable[..., BaseLlamaCache]
SEED = 7


@pytest.fixture(params=["ram", "disk"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeStore]:
    made: list[BaseLlamaCache] = []

    def make(capacity: int = 1 << 20, folder: str = "store") -> BaseLlamaCache:
        on_disk = request.param == "disk"
        store = LlamaDiskCache(tmp_path / folder, capacity) if on_disk else LlamaRAMCache(capacity)
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


def segment_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.segment"))


def held(store: BaseLlamaCache, state: StoredState) -> StoredState:
    """The same with its segments in the store."""
    segments = (
        replace(each, key=store.keep(there(each.state)), state=None) for each in state.segments
    )
    return replace(state, segments=tuple(segments))


# --- what goes in comes out -----------------------------------------------------------------------


def test_a_chain_comes_back(make_store: MakeStore) -> None:
    store = make_store()
    for session in (None, "alice"):
        key = saved(store, held(store, chain_of(SEED, session, 3)))
        assert is_right(there(store.get(there(key))))
        assert there(store.info(key)).length == len(chain_of(SEED, None, 3).tokens)


def test_it_can_be_found_before_it_is_written(make_store: MakeStore) -> None:
    store = make_store()
    state = chain_of(SEED, "alice", 2)
    key = there(store.put_soon(held(store, state)))
    assert is_right(there(store.get(there(key))))
    assert store.find(state.tokens, state.fingerprint)[0].key == key
    assert store.find_session("alice", state.fingerprint) == [key]
    assert len(store) == 1
    assert store.wait()
    assert is_right(there(store.get(there(key))))
    assert len(store) == 1


def test_gaps_are_refused() -> None:
    for spans in ([(1, 2)], [(0, 1), (2, 3)], [(0, 9)]):
        parts = tuple(Segment("", start, end, 1, np.zeros(1, np.uint8)) for start, end in spans)
        with pytest.raises(ParameterError, match="segments"):
            small([1, 2, 3], segments=parts)


def test_a_state_of_another_store_is_taken_over(make_store: MakeStore) -> None:
    one, two = make_store(folder="one"), make_store(folder="two")
    state = there(one.get(saved(one, held(one, chain_of(SEED, None, 3)))))
    key = saved(two, state)
    one.close()
    assert is_right(there(two.get(key)))


def test_segments_of_two_stores_are_not_mistaken_for_each_other(make_store: MakeStore) -> None:
    one, two = make_store(folder="one"), make_store(folder="two")
    state = there(one.get(saved(one, held(one, chain_of(SEED, None, 3)))))
    other = saved(two, held(two, chain_of(9, None, 3)))
    key = saved(two, state)
    assert is_right(there(two.get(key)))
    assert is_right(there(two.get(other)))
    unfilled = (replace(each, state=None) for each in state.segments)
    assert not two.holds([each.key for each in state.segments])
    assert two.put(replace(state, session="alice", segments=tuple(unfilled))) is None


def test_a_segment_that_nobody_has_means_no_entry(make_store: MakeStore) -> None:
    store = make_store()
    unknown = Segment("host-1-00ff", 0, 1, 9)
    assert store.put(small([1, 2], segments=(unknown,))) is None
    assert store.put_soon(small([1, 2], segments=(unknown,))) is None
    assert len(store) == 0


# --- sharing --------------------------------------------------------------------------------------


def test_shared_segments_count_once_and_go_with_the_last_entry(make_store: MakeStore) -> None:
    store = make_store()
    own = held(store, chain_of(SEED, None, 3))
    shared = sum(segment.nbytes for segment in own.segments)
    one = saved(store, own)
    alone = store.used_bytes
    two = saved(store, replace(own, session="alice"))
    assert store.used_bytes < alone + shared
    store.discard(one)
    assert is_right(there(store.get(two)))
    assert abs(store.used_bytes - alone) < 100  # the name of a session
    store.discard(two)
    assert store.used_bytes == 0
    assert not store.holds([own.segments[0].key])


def test_growing_writes_only_what_is_new(tmp_path: Path) -> None:
    with LlamaDiskCache(tmp_path) as store:
        before: dict[str, int] = {}
        kept: tuple[Segment, ...] = ()
        key: str | None = None
        for count in (1, 2, 3):
            state = chain_of(SEED, None, count)
            new = held(store, replace(state, segments=()))
            news = state.segments[len(kept) :]
            kept += tuple(
                replace(each, key=store.keep(there(each.state)), state=None) for each in news
            )
            key = there(store.put_soon(replace(new, segments=kept), replaces=key))
            assert store.wait()
            found = {path.name: path.stat().st_mtime_ns for path in segment_files(tmp_path)}
            assert len(found) == count
            assert before.items() <= found.items()
            before = found
        assert len(files(store)) == 1
        assert is_right(there(store.get(there(key))))


def test_replacing_frees_what_the_new_one_does_not_have(tmp_path: Path) -> None:
    with LlamaDiskCache(tmp_path) as store:
        state = held(store, chain_of(SEED, None, 3))
        old = saved(store, state)
        assert len(segment_files(tmp_path)) == 3
        new = saved(
            store, replace(chain_of(SEED, "bob", 1), segments=state.segments[:1]), replaces=old
        )
        assert [path.stem for path in segment_files(tmp_path)] == [state.segments[0].key]
        assert is_right(there(store.get(new)))


def test_capacity_evicts_whole_chains(make_store: MakeStore) -> None:
    store = make_store()
    first, second = (saved(store, held(store, chain_of(seed, None, 3))) for seed in (7, 9))
    there(store.get(first))
    store.capacity_bytes = store.used_bytes + 20_000
    saved(store, small([1], 30_000))
    assert store.get(second) is None
    assert store.used_bytes <= store.capacity_bytes
    assert is_right(there(store.get(first)))


def test_an_entry_keeps_what_it_shares_with_the_one_that_has_to_go(make_store: MakeStore) -> None:
    store = make_store(1 << 20)
    own = held(store, chain_of(SEED, None, 3))
    old = saved(store, own)
    store.capacity_bytes = store.used_bytes + 1000  # there is no room for a second one
    new = saved(store, replace(own, session="alice"))
    assert store.get(old) is None
    assert is_right(there(store.get(new)))


def test_what_is_shared_takes_no_room_twice(make_store: MakeStore) -> None:
    store = make_store(1 << 20)
    own = held(store, chain_of(SEED, None, 3))
    old = saved(store, own)
    shared = sum(segment.nbytes for segment in own.segments)
    store.capacity_bytes = 2 * store.used_bytes - shared + 1000
    new = saved(store, replace(own, session="alice"))
    assert is_right(there(store.get(old)))
    assert is_right(there(store.get(new)))


def test_released_segments_are_gone(make_store: MakeStore, tmp_path: Path) -> None:
    store = make_store()
    own = held(store, chain_of(SEED, None, 3))
    store.wait()
    store.release([segment.key for segment in own.segments])
    store.wait()
    assert not store.holds([own.segments[0].key])
    assert segment_files(tmp_path) == []
    assert store.put(own) is None


def test_releasing_what_an_entry_has_changes_nothing(make_store: MakeStore) -> None:
    store = make_store()
    own = held(store, chain_of(SEED, None, 3))
    key = saved(store, own)
    store.release([segment.key for segment in own.segments])
    store.wait()
    assert is_right(there(store.get(there(key))))


def test_clearing_forgets_what_is_being_written(make_store: MakeStore, tmp_path: Path) -> None:
    store = make_store()
    for seed in range(1, 20):
        grow(store, seed, [None, "alice"])
    store.clear()
    assert len(store) == 0
    assert store.wait()
    assert (len(store), store.used_bytes) == (0, 0)
    store.close()
    assert segment_files(tmp_path) == []
    assert [*tmp_path.rglob("*.state")] == []


# --- other processes, and damage ------------------------------------------------------------------


def test_another_store_frees_a_segment_that_this_one_wanted(tmp_path: Path) -> None:
    with LlamaDiskCache(tmp_path) as one, LlamaDiskCache(tmp_path) as two:
        own = held(one, chain_of(SEED, None, 2))
        key = saved(one, own)
        assert two.get(key) is not None
        two.discard(key)
        assert segment_files(tmp_path) == []
        later = one.put_soon(replace(own, session="alice"))
        one.wait()
        assert later is None or one.get(later) is None
        assert not one.holds([own.segments[0].key])
        assert len(one) == len(two) == 0
        assert files(one) == []


def test_a_branch_of_another_process_keeps_the_segments(tmp_path: Path) -> None:
    with LlamaDiskCache(tmp_path) as one, LlamaDiskCache(tmp_path) as two:
        own = held(one, chain_of(SEED, None, 2))
        key = saved(one, own)
        branch = saved(two, replace(there(two.get(key)), session="bob"))
        one.discard(key)
        assert is_right(there(two.get(branch)))
        assert len(segment_files(tmp_path)) == 2


@pytest.mark.parametrize("damage", ["flip", "truncate", "missing", "swap"])
def test_damaged_segments_are_as_good_as_absent(tmp_path: Path, damage: str) -> None:
    with LlamaDiskCache(tmp_path) as store:
        own = held(store, chain_of(SEED, None, 2))
        one, two = saved(store, own), saved(store, replace(own, session="alice"))
        other = saved(store, small([5, 6]))
        path, second = segment_files(tmp_path)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        if damage == "flip":
            path.write_bytes(data)
        elif damage == "truncate":
            path.write_bytes(data[:-1])
        elif damage == "missing":
            path.unlink()
        else:
            shutil.copy(second, path)
        assert store.get(one) is None
        assert store.get(two) is None
        assert store.get(other) is not None
        assert store.stats().damaged == 2
        assert segment_files(tmp_path) == []


def test_segments_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    with LlamaDiskCache(tmp_path) as store:
        key = saved(store, held(store, chain_of(SEED, None, 2)))
        kept = segment_files(tmp_path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    host = key.split("-")[0]
    (kept[0].parent / f"{host}-{gone.pid}-00.segment").write_bytes(b"half of it")
    with LlamaDiskCache(tmp_path) as store:
        assert len(store) == 1
        assert segment_files(tmp_path) == kept


# --- the thread that writes -----------------------------------------------------------------------


def test_closing_writes_what_was_handed_over(tmp_path: Path) -> None:
    with LlamaDiskCache(tmp_path) as store:
        keys = [there(key) for seed in (4, 5, 6) for key in grow(store, seed, [None, "alice"])]
    with LlamaDiskCache(tmp_path) as store:
        assert all(is_right(there(store.get(there(key)))) for key in keys)


def test_the_end_of_the_process_waits_for_it(tmp_path: Path) -> None:
    code = f"""
from llama_py.states.disk import LlamaDiskCache
from tests.memory.store_writer import grow
store = LlamaDiskCache({str(tmp_path)!r})
for seed in range(1, 30):
    grow(store, seed, [None, "alice"])
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    with LlamaDiskCache(tmp_path) as store:
        assert len(store) == 58


def test_without_threads_it_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with LlamaDiskCache(tmp_path) as store:
        key = there(store.put_soon(held(store, chain_of(SEED, None, 2))))
        assert store._ledger.keys() == {key}
        assert is_right(there(store.get(there(key))))


def test_the_thread_ends_when_there_is_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_py.states.writer._IDLE", 0.01)
    with LlamaDiskCache(tmp_path) as store:
        for seed in (1, 2):
            grow(store, seed, [None])
            end = time.monotonic() + PATIENCE
            while store._writer._thread is not None:
                assert time.monotonic() < end
                time.sleep(0.01)
        assert len(store) == 2


def test_what_cannot_be_written_is_told_once_and_is_not_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LlamaDiskCache(tmp_path / "store") as store:
        shutil.rmtree(tmp_path / "store")
        with caplog.at_level(logging.WARNING, "llama_py"):
            state = small([1, 2], 1000)
            key = store.put_soon(state)
            assert store.wait()
        assert key is None or store.get(key) is None
        assert store.find(state.tokens, "f") == []
        told = [record for record in caplog.records if "not stored" in record.message]
        assert len(told) == 1


def test_a_slow_disk_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody who saves or finds waits for the file."""
    go_on = threading.Event()
    write = Payload.write

    def slow(self: Payload, path: Path) -> None:
        go_on.wait(PATIENCE)
        write(self, path)

    monkeypatch.setattr(Payload, "write", slow)
    with LlamaDiskCache(tmp_path) as store:
        state = small([1, 2], 1000)
        key = there(store.put_soon(state))
        assert store.find(state.tokens, "f")[0].key == key
        assert same(there(store.get(key)), state)
        assert not store.wait(0, 0.01)
        assert store.wait(1 << 20, 0.01)
        go_on.set()
        assert store.wait()
        assert len(files(store)) == 1


def test_a_closed_store_takes_nothing(make_store: MakeStore) -> None:
    store = make_store()
    store.close()
    for call in (
        lambda: store.keep(np.zeros(1, np.uint8)),
        lambda: store.put_soon(small([1])),
        lambda: store.accepts(1),
    ):
        with pytest.raises(ClosedError):
            call()
    assert store.wait()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_write_what_is_the_parents(tmp_path: Path) -> None:
    go_on = threading.Event()
    with LlamaDiskCache(tmp_path) as store:

        def wait() -> None:
            go_on.wait(PATIENCE)

        store._writer.submit(wait)
        key = there(store.put_soon(held(store, chain_of(SEED, None, 2))))
        child = os.fork()
        if not child:
            mine = store.put_soon(small([1, 2]))
            right = store.wait(0, PATIENCE) and store.get(key) is None
            right = right and store.get(mine or "") is not None and len(store) == 1
            os._exit(0 if right else 1)
        _, status = os.waitpid(child, 0)
        go_on.set()
        assert status == 0
        assert store.wait()
        assert len(store) == 2
        assert is_right(there(store.get(there(key))))


# --- asking is cheap ------------------------------------------------------------------------------


def test_explaining_a_miss_opens_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LlamaDiskCache(tmp_path) as store:
        for number in range(20):
            saved(store, small([1, 2, 3, number], fingerprint="other"))
    opened: list[Path] = []
    monkeypatch.setattr("llama_py.states.disk.read_head", lambda path, *_: opened.append(path))
    with LlamaDiskCache(tmp_path) as store:
        assert store.find(np.array([1, 2], np.int32), "f") == []
        assert store.match_foreign(np.array([1, 2, 9], np.int32), "f") == {"other": 2}
        assert store.match_foreign(np.array([9], np.int32), "f") == {}
    assert opened == []


def test_what_is_too_large_is_refused_before_it_is_copied(make_store: MakeStore) -> None:
    store = make_store(1000)
    assert store.accepts(1000)
    assert not store.accepts(1001)
    assert store.stats().refused == 1
