"""The list of sessions: how many there are, and the database that it is kept in."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from llama_py.server.kept.session_registry import SessionRegistry


def test_the_one_longest_unused_goes() -> None:
    registry = SessionRegistry(None, 3)
    for name in ("a", "b", "c", "a", "d"):
        registry.note("", name, "m", 10)
    assert [each.id for each in registry.owned_by("")] == ["d", "a", "c"]
    assert registry.get("", "b") is None


def test_nobody_drives_out_the_sessions_of_others() -> None:
    registry = SessionRegistry(None, 4)
    registry.note("bob", "b", "m", 10)
    for number in range(10):
        registry.touch("alice", f"a{number}", "m")
    assert [each.id for each in registry.owned_by("bob")] == ["b"]
    assert [each.id for each in registry.owned_by("alice")] == ["a9", "a8", "a7"]


def test_names_of_two_owners() -> None:
    registry = SessionRegistry(None, 10)
    for owner in ("one", "two"):
        registry.note(owner, "anna", "m", 10)
    registry.note("one", "anna", "m", 20)
    one, two = registry.get("one", "anna"), registry.get("two", "anna")
    assert one is not None
    assert two is not None
    assert (one.turns, one.tokens, two.turns, two.tokens) == (2, 20, 1, 10)
    assert registry.remove("one", "anna")
    assert not registry.remove("one", "anna")
    assert registry.get("two", "anna") is not None


def test_forks_that_have_not_spoken() -> None:
    registry = SessionRegistry(None, 10)
    assert registry.fork("", "anna", "x") is None
    registry.note("", "anna", "m", 10)
    registry.fork("", "anna", "one")
    registry.fork("", "anna", "two")
    registry.note("", "one", "m", 20)
    assert [each.id for each in registry.silent_forks("", "anna")] == ["two"]
    one = registry.get("", "one")
    assert one is not None
    assert (one.turns, one.inherited, one.parent) == (2, 1, "anna")


def test_it_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    registry = SessionRegistry(path, 10)
    for name in ("a", "b", "c"):
        registry.note("one", name, "m", 10)
    registry.fork("one", "a", "d")
    registry.close()
    registry.close()
    again = SessionRegistry(path, 10)
    assert again.owned_by("one") == registry.owned_by("one")
    again.note("one", "b", "m", 10)
    again.close()
    few = SessionRegistry(path, 2)
    few.note("one", "b", "m", 10)
    assert [each.id for each in few.owned_by("one")] == ["b", "d"]
    few.close()
    registry.close()
    assert [each.name for each in tmp_path.iterdir()] == ["index.db"]


def test_several_servers_share_the_database(tmp_path: Path) -> None:
    """Each sees at once what the others have written, and what they have forgotten."""
    path = tmp_path / "index.db"
    before = SessionRegistry(path, 10)
    for name in ("old", "gone", "both"):
        before.note("", name, "m", 10)
    before.close()
    one, two = SessionRegistry(path, 10), SessionRegistry(path, 10)
    one.note("", "a", "m", 10)
    one.remove("", "gone")
    two.note("", "b", "m", 10)
    assert two.get("", "a") is not None
    one.note("", "both", "m", 20)
    one.remove("", "both")
    two.note("", "both", "m", 30)
    one.close()
    two.close()
    again = SessionRegistry(path, 10)
    assert [each.id for each in again.owned_by("")] == ["both", "b", "a", "old"]
    assert [each.tokens for each in again.owned_by("")] == [30, 10, 10, 10]
    assert two.get("", "a") is not None
    assert two.get("", "gone") is None
    again.close()


def test_two_servers_count_the_replies_of_one_session(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    one, two = SessionRegistry(path, 10), SessionRegistry(path, 10)
    for _ in range(50):
        one.note("", "anna", "m", 10)
        two.note("", "anna", "m", 10)
    one.close()
    two.close()
    known = SessionRegistry(path, 10).get("", "anna")
    assert known is not None
    assert known.turns == 100


@pytest.mark.parametrize("content", [b"", b"[]", b"no database" * 1000, b"SQLite format 3\0" * 99])
def test_a_damaged_database_costs_only_the_list(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "index.db"
    path.write_bytes(content)
    registry = SessionRegistry(path, 10)
    assert registry.owned_by("") == []
    registry.note("", "a", "m", 10)
    registry.close()
    assert [each.id for each in SessionRegistry(path, 10).owned_by("")] == ["a"]


@pytest.mark.parametrize("data", ["", "[]", "{", '{"id": "a"}', "5", None, b"\xff", "[" * 100_000])
def test_a_damaged_row_costs_only_itself(tmp_path: Path, data: object) -> None:
    path = tmp_path / "index.db"
    registry = SessionRegistry(path, 10)
    for name in ("a", "b"):
        registry.note("", name, "m", 10)
    registry.close()
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE name SET data = ? WHERE name = 'a'", (data,))
    again = SessionRegistry(path, 10)
    assert [each.id for each in again.owned_by("")] == ["b"]
    assert again.get("", "a") is None
    again.note("", "a", "m", 10)
    assert [each.id for each in again.owned_by("")] == ["a", "b"]


def test_a_disk_that_fails_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "gone" / "index.db"
    registry = SessionRegistry(path, 10)
    registry.note("", "a", "m", 10)
    assert registry.owned_by("") == []
    registry.close()
    assert "could not be written" in caplog.text
    path.parent.mkdir()
    assert [each.id for each in registry.owned_by("")] == ["a"]


def test_of_two_forks_with_one_name_one_is_made() -> None:
    registry = SessionRegistry(None, 10)
    registry.note("", "anna", "m", 10)
    registry.note("", "ben", "m", 20)
    assert registry.fork("", "anna", "new") is not None
    with pytest.raises(FileExistsError):
        registry.fork("", "ben", "new")
    made = registry.get("", "new")
    assert made is not None
    assert made.parent == "anna"


def _fork_all(path: Path, names: int) -> int:
    """Fork one session under so many names; how many of them were free."""
    registry, made = SessionRegistry(path, 1000), 0
    for number in range(names):
        try:
            assert registry.fork("", "anna", f"new{number}") is not None
            made += 1
        except FileExistsError:
            pass
    registry.close()
    return made


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_of_forks_at_the_same_moment_each_name_is_made_once(tmp_path: Path, kind: str) -> None:
    path, names = tmp_path / "index.db", 200
    registry = SessionRegistry(path, 1000)
    registry.note("", "anna", "m", 10)
    registry.close()
    pools: dict[str, Callable[[int], Executor]] = {
        "threads": ThreadPoolExecutor,
        "processes": partial(ProcessPoolExecutor, mp_context=get_context("spawn")),
    }
    with pools[kind](2) as pool:
        made = [pool.submit(_fork_all, path, names) for _ in range(2)]
        assert sum(each.result() for each in made) == names
    assert len(SessionRegistry(path, 1000).owned_by("")) == 1 + names


@pytest.mark.parametrize("on_disk", [False, True])
def test_of_two_threads_that_fork_one_gets_the_name(tmp_path: Path, on_disk: bool) -> None:
    registry = SessionRegistry(tmp_path / "index.db" if on_disk else None, 10)
    registry.note("", "anna", "m", 10)
    together = threading.Barrier(2)

    def fork() -> bool:
        together.wait()
        try:
            return registry.fork("", "anna", "new") is not None
        except FileExistsError:
            return False

    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            made = [pool.submit(fork) for _ in range(2)]
            assert sorted(each.result() for each in made) == [False, True]
            assert registry.remove("", "new")
