"""The disk store against kills, damage and other processes."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_py.states.disk import LlamaDiskCache
from llama_py.states.payload import digest
from llama_py.states.state import Checkpoint
from llama_py.states.store import StateStore
from tests.memory.store_writer import CAPACITY, COMMON, FINGERPRINTS, is_right, same, state_of
from tests.memory.stores import all_of, files, saved, small, there

ROOT = Path(__file__).parents[2]


# --- another process, and the same one later ------------------------------------------------------


def test_entries_survive_a_restart(tmp_path: Path) -> None:
    with LlamaDiskCache(str(tmp_path)) as store:
        key = saved(store, small([1, 2, 3], session="alice"))
    with LlamaDiskCache(str(tmp_path)) as store:
        path = there(store.find_text(b"t1 t2 t3 and more", "f"))
        assert path.tokens.tolist() == [1, 2, 3]
        assert store.find_session("alice", "f") == [key]
        assert same(there(store.get(key)), small([1, 2, 3], session="alice"))


def test_it_can_be_closed_by_any_thread_when_its_directory_is_gone(tmp_path: Path) -> None:
    store = LlamaDiskCache(str(tmp_path / "store"))
    saved(store, small([1, 2, 3]))
    shutil.rmtree(tmp_path / "store")
    with ThreadPoolExecutor() as threads:
        threads.submit(store.close).result()
    assert store.closed
    store.close()


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
        there_are = {path.stem for path in files(store)}
        assert there_are >= set(keys)
        # What a killed process had begun to remove is left while its writer lives: this process.
        assert all(f"-{os.getpid()}-" in name for name in there_are - set(keys))
        referred = store._ledger.segments()
        assert {path.stem for path in folder.glob("*/*.segment")} == referred
        for fingerprint in FINGERPRINTS:
            store.find(np.array([COMMON], np.int32), fingerprint)
        key = saved(store, state_of(1))
        assert is_right(there(store.get(key)))
    return len(keys)


@pytest.mark.slow
@pytest.mark.parametrize("turns", [4, pytest.param(13, marks=pytest.mark.long)])
def test_killed_at_any_moment_it_opens_and_restores_no_garbage(tmp_path: Path, turns: int) -> None:
    """Processes that write into one directory, four at a time, each killed by SIGKILL."""
    draw = random.Random(0)
    entries = []
    for turn in range(turns):
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


def test_a_killed_one_leaves_what_it_had_written(tmp_path: Path) -> None:
    """The same once, quickly."""
    process = writer(tmp_path, 5)
    wait_until_ready(process)
    time.sleep(0.5)
    process.kill()
    process.communicate()
    assert check_everything(tmp_path) > 0


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
    path = Path(store.cache_dir) / "llama_py-2" / f"{key}.state"
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
    for path in folder.glob("index.db-*"):
        path.unlink()
    (folder / "index.db").write_bytes(b"not a database, but as long as one needs to be" * 100)
    with LlamaDiskCache(str(tmp_path)) as store:
        assert len(store) == 0
        assert store.get(saved(store, small([2]))) is not None


@pytest.mark.parametrize("seed", range(25))
def test_random_damage_to_the_database_fails_no_request(tmp_path: Path, seed: int) -> None:
    with LlamaDiskCache(str(tmp_path), CAPACITY) as store:
        for number in range(1, 6):
            saved(store, state_of(number))
        database = files(store)[0].parent / "index.db"
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
from llama_py.states.disk import LlamaDiskCache
from tests.memory.stores import files, small
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
