"""A directory that somebody else may write to: nothing in it is run, no other file touched."""

from __future__ import annotations

import contextlib
import pickle
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_py.server.kept.session_registry import SessionRegistry
from llama_py.states.disk import LlamaDiskCache
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
    (path,) = folder.rglob("index.db")
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        yield connection


def plant(folder: Path, table: str, *values: Any) -> None:
    """Put a row into a table, and say that its first value is news."""
    with database_of(folder) as database:
        places = ", ".join("?" * len(values))
        database.execute(f"INSERT OR REPLACE INTO {table} VALUES ({places})", values)
        database.execute("INSERT INTO change (key) VALUES (?)", (values[0],))


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


#: What may be in a column, whatever the table says of its type.
VALUES: dict[str, Any] = {
    "a pickle": trap("value"),
    "nothing": None,
    "no bytes": b"",
    "no text": "",
    "nested": "[" * 100_000,
    "a list": "[1, [[]]]",
    "a number": 5,
    "a negative number": -(2**63),
    "a large number": 2**63 - 1,
    "an infinite number": float("inf"),
    "a key": "host-1-00ff",
    "text that is none": "\ud800".encode(errors="surrogatepass"),
}
TABLES = {"entry": 5, "segment": 2, "part": 3, "change": 2, "name": 5}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("table", TABLES)
def test_nothing_in_a_row_is_run(tmp_path: Path, table: str, name: str) -> None:
    RAN.clear()
    with LlamaDiskCache(tmp_path) as store:
        kept = saved(store, small([1, 2, 3]))
    sound: dict[str, tuple[Any, ...]] = {
        "entry": ("host-1-00ff", "f", 8, 8, b""),
        "segment": ("host-1-00ff", 8),
        "part": (kept, 0, "host-1-00ff"),
        "change": (10_000, kept),
        "name": ("", "session", "anna", 1, "{}"),
    }
    for column in range(TABLES[table]):
        row = list(sound[table])
        row[column] = VALUES[name]
        with LlamaDiskCache(tmp_path) as store:  # open while it is planted
            assert len(store) <= 1
            with contextlib.suppress(sqlite3.IntegrityError):  # this column has a type
                plant(tmp_path, table, *row)
            store.find(TOKENS, "f")
            SessionRegistry(next(tmp_path.rglob("index.db")), 3).owned_by("")
        with LlamaDiskCache(tmp_path) as store:
            use_everything(store, kept)
            store.clear()
            kept = saved(store, small([1, 2, 3]))
    assert RAN == []


SCHEMAS = {
    "a trigger": "CREATE TRIGGER t AFTER DELETE ON entry BEGIN DELETE FROM segment; END",
    "a trigger that fails": "CREATE TRIGGER t BEFORE INSERT ON entry BEGIN SELECT no_such(); END",
    "a function": "CREATE TRIGGER t BEFORE INSERT ON entry BEGIN SELECT load_extension('x'); END",
    "a view": "ALTER TABLE entry RENAME TO e; CREATE VIEW entry AS SELECT * FROM e",
    "other columns": "DROP TABLE entry; CREATE TABLE entry (key)",
    "other types": "DROP TABLE change; CREATE TABLE change (number, key);"
    " INSERT INTO change VALUES ('x', 'y')",
    "a table of diskcache": "CREATE TABLE Settings (key, value);"
    " INSERT INTO Settings VALUES ('disk', 'x')",
    "no table": "DROP TABLE segment",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_nothing_in_the_schema_is_run(tmp_path: Path, name: str) -> None:
    """It costs the entries at most; where nothing can be written, requests go on without."""
    with LlamaDiskCache(tmp_path) as store:
        kept = saved(store, small([1, 2, 3]))
    with database_of(tmp_path) as database:
        database.executescript(SCHEMAS[name])
    with LlamaDiskCache(tmp_path) as store:
        store.find(TOKENS, "f")
        store.get(kept)
        key = store.put(small([1, 2]))
        assert key is None or store.get(key) is not None
        store.clear()


@pytest.mark.parametrize("place", ["entry", "segment", "change"])
def test_a_key_that_is_a_path_is_no_key(tmp_path: Path, place: str) -> None:
    for suffix in ("state", "segment"):
        (tmp_path / f"victim.{suffix}").write_text("precious")
    with LlamaDiskCache(tmp_path) as store:
        kept = saved(store, small([1, 2, 3]))
        assert len(store) == 1
        if place == "segment":
            plant(tmp_path, "entry", "host-1-00ff", "f", 8, 8, b"")
            plant(tmp_path, "segment", "../victim", 72)
            plant(tmp_path, "part", "host-1-00ff", 0, "../victim")
        elif place == "entry":
            plant(tmp_path, "entry", "../victim", "f", 8, 8, b"")
        else:
            plant(tmp_path, "change", 10_000, "../victim")
        assert [match.key for match in store.find(TOKENS, "f")] == [kept]
    with LlamaDiskCache(tmp_path) as store:
        assert len(store) == 1
        use_everything(store, kept)
    for suffix in ("state", "segment"):
        assert (tmp_path / f"victim.{suffix}").read_text() == "precious"
