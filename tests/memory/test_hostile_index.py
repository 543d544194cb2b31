"""A directory that somebody else may write to: nothing in it is run, no other file touched."""

from __future__ import annotations

import contextlib
import json
import pickle
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_py.storage.store import LlamaDiskCache
from tests.memory.store_writer import grow
from tests.memory.stores import saved, small, there

RAN: list[str] = []
TOKENS = np.array([1, 2, 3], np.int32)


def _run(where: str) -> str:
    RAN.append(where)
    return f"entry:{where}"


class Trap:
    """Runs when it is unpickled."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __reduce__(self) -> tuple[object, ...]:
        return _run, (self.where,)


def trap(where: str) -> bytes:
    return pickle.dumps(Trap(where))


@contextlib.contextmanager
def database_of(folder: Path) -> Iterator[sqlite3.Connection]:
    (path,) = folder.rglob("cache.db")
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        yield connection


def plant(
    folder: Path,
    key: Any,
    value: Any,
    *,
    raw: int = 1,
    mode: int = 1,
    filename: str | None = None,
    tag: Any = None,
    expires: Any = None,
) -> None:
    with database_of(folder) as database:
        database.execute("DELETE FROM Cache WHERE key = ? AND raw = ?", (key, raw))
        database.execute(
            "INSERT INTO Cache (key, raw, store_time, expire_time, access_time, access_count, tag,"
            " size, mode, filename, value) VALUES (?, ?, 0, ?, 0, 0, ?, 0, ?, ?, ?)",
            (key, raw, expires, tag, mode, filename, value),
        )


def set_up(folder: Path, name: str, value: Any) -> None:
    with database_of(folder) as database:
        database.execute("INSERT OR REPLACE INTO Settings VALUES (?, ?)", (name, value))


def use_everything(store: LlamaDiskCache, key: str) -> None:
    """Every public operation."""
    store.find(TOKENS, "f")
    store.find_text(b"t1 t2 ", "f")
    store.find_session("alice", "f")
    store.match_foreign(TOKENS, "g")
    store.get(key)
    store.info(key)
    store.touch(key)
    assert store.used_bytes == store.cache_size == store.stats().used_bytes
    assert len(store) <= 2
    assert not store.closed
    with there(store.prepare(small([7]))) as pending:
        pending.confirm()
    there(store.prepare(small([8]))).abort()
    store.holds(["x"])
    store.release([store.keep(np.zeros(9, np.uint8))])
    grow(store, 5, [None, "alice"])
    assert store.wait()
    store.discard(saved(store, small([9])))
    kept = saved(store, small([5, 6]), replaces=key)
    assert store.get(kept) is not None
    store.clear()
    assert len(store) == 0
    assert store.get(saved(store, small([5, 6]))) is not None


KEYS: dict[str, tuple[Any, int]] = {
    "a pickled key": (trap("key"), 0),
    "a pickled key that calls itself raw": (trap("raw key"), 1),
    "text that calls itself pickled": ("entry:x", 0),
    "a number": (7, 1),
    "our name": ("entry:host-1-00ff", 1),
    "the version": ("version", 1),
    "the journal": ("log:1", 1),
}


@pytest.mark.parametrize("mode", [0, 1, 2, 3, 4, 99])
@pytest.mark.parametrize("name", KEYS)
def test_nothing_in_a_row_is_run(tmp_path: Path, name: str, mode: int) -> None:
    RAN.clear()
    with LlamaDiskCache(tmp_path) as store:
        kept = saved(store, small([1, 2, 3]))
    (tmp_path / "llama_py-1" / "trap.val").write_bytes(trap("file"))
    key, raw = KEYS[name]
    for value in (trap("value"), None, b"", "[" * 100_000, "[1, [[]]]", 5):
        for filename in ("trap.val", None):
            with LlamaDiskCache(tmp_path) as store:  # open while it is planted
                assert len(store) <= 1
                plant(tmp_path, key, value, raw=raw, mode=mode, filename=filename, tag=trap("tag"))
                store.find(TOKENS, "f")
            with LlamaDiskCache(tmp_path) as store:
                use_everything(store, kept)
    assert RAN == []


SETTINGS = {
    "disk_pickle_protocol": trap("setting"),
    "disk_min_file_size": 0,
    "disk_fetch": "x",
    "disk": "tests.memory.test_hostile_index.Trap",
    "_disk": "x",
    "get": trap("get"),
    "eviction_policy": "no such policy",
    "tag_index": trap("tag index"),
    "sqlite_cache_size": trap("pragma"),
    "sqlite_load_extension": "/tmp/x.so",
    "size_limit": -1,
    "cull_limit": 1_000_000,
    "count": trap("count"),
    "size": "many",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_nothing_in_the_settings_is_run(tmp_path: Path, name: str) -> None:
    RAN.clear()
    with LlamaDiskCache(tmp_path) as store:
        kept = saved(store, small([1, 2, 3]))
    set_up(tmp_path, name, SETTINGS[name])
    with LlamaDiskCache(tmp_path) as store:
        use_everything(store, kept)
    assert RAN == []


FILENAMES: list[Callable[[Path], str]] = [
    lambda victim: str(victim),
    lambda victim: f"../{victim.name}",
]


@pytest.mark.parametrize("named", FILENAMES)
def test_no_file_that_a_row_names_is_removed(tmp_path: Path, named: Callable[[Path], str]) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    with LlamaDiskCache(tmp_path) as store:
        key = saved(store, small([1, 2, 3]))
    with database_of(tmp_path) as database:
        database.execute("UPDATE Cache SET filename = ?", (named(victim),))
    with LlamaDiskCache(tmp_path) as store:
        assert store.get(key) is not None
        use_everything(store, key)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("place", ["entry", "segment", "journal"])
def test_a_key_that_is_a_path_is_no_key(tmp_path: Path, place: str) -> None:
    for suffix in ("state", "segment"):
        (tmp_path / f"victim.{suffix}").write_text("precious")
    with LlamaDiskCache(tmp_path) as store:
        kept = saved(store, small([1, 2, 3]))
        assert len(store) == 1
        row = json.dumps(["f", 8, 8, [1, 2], [["../victim", 72]] if place == "segment" else []])
        name = "host-1-00ff" if place == "segment" else "../victim"
        if place == "journal":
            plant(tmp_path, "log:2", json.dumps([2, {name: json.loads(row)}]))
            plant(tmp_path, "version", "2")
        else:
            plant(tmp_path, f"entry:{name}", row)
        assert [match.key for match in store.find(TOKENS, "f")] == [kept]
    with LlamaDiskCache(tmp_path) as store:
        assert len(store) == 1
        use_everything(store, kept)
    for suffix in ("state", "segment"):
        assert (tmp_path / f"victim.{suffix}").read_text() == "precious"
