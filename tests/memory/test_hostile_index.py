"""A directory that somebody else may write to: nothing in it is run."""

from __future__ import annotations

import contextlib
import pickle
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from llama_py.storage.store import LlamaDiskCache
from tests.memory.stores import saved, small

RAN: list[str] = []


def _run(where: str) -> str:
    RAN.append(where)
    return f"entry:{where}"


class Trap:
    """Runs when it is unpickled."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __reduce__(self) -> tuple[object, ...]:
        return _run, (self.where,)


@pytest.mark.parametrize("column", ["key", "value"])
def test_a_pickle_in_the_index_is_not_read(tmp_path: Path, column: str) -> None:
    RAN.clear()
    with LlamaDiskCache(str(tmp_path)) as store:
        key = saved(store, small([1, 2]))
    (database,) = tmp_path.rglob("cache.db")
    trap = pickle.dumps(Trap(column))
    planted = (trap, 0, "[]", 1) if column == "key" else ("entry:trap", 1, trap, 4)
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(
            "INSERT INTO Cache (key, raw, store_time, expire_time, access_time, access_count, tag,"
            " size, mode, filename, value) VALUES (?, ?, 0, NULL, 0, 0, NULL, 0, ?, NULL, ?)",
            (planted[0], planted[1], planted[3], planted[2]),
        )
    with LlamaDiskCache(str(tmp_path)) as store:
        found = store.find(np.array([1, 2, 3], np.int32), "f")
        assert [match.key for match in found] == [key]
        saved(store, small([5, 6]))
        assert len(store) == 2
    assert RAN == []
