"""The list of sessions: how many there are, and the file that it is kept in."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

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
    path = tmp_path / "sessions.json"
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
    assert [each.id for each in few.owned_by("one")] == ["b", "d"]
    few.close()
    assert [each.name for each in tmp_path.iterdir()] == ["sessions.json"]


def test_several_servers_share_the_file(tmp_path: Path) -> None:
    """Each keeps what the others have written, and forgets what they have forgotten."""
    path = tmp_path / "sessions.json"
    before = SessionRegistry(path, 10)
    for name in ("old", "gone", "both"):
        before.note("", name, "m", 10)
    before.close()
    one, two = SessionRegistry(path, 10), SessionRegistry(path, 10)
    one.note("", "a", "m", 10)
    one.remove("", "gone")
    two.note("", "b", "m", 10)
    one.note("", "both", "m", 20)
    two.note("", "both", "m", 30)
    one.remove("", "both")
    one.close()
    two.close()
    again = SessionRegistry(path, 10)
    assert [each.id for each in again.owned_by("")] == ["both", "b", "a", "old"]
    assert [each.tokens for each in again.owned_by("")] == [30, 10, 10, 10]
    assert two.get("", "a") is not None
    assert two.get("", "gone") is None
    again.close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"format": "llama_py.sessions", "version": 2, "sessions": []}',
        '{"format": "llama_py.sessions", "version": 1, "sessions": [{"id": "a"}]}',
        '{"format": "llama_py.sessions", "version": 1, "sessions": 5}',
        "[" * 100_000,
    ],
)
def test_a_damaged_file_costs_only_the_list(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sessions.json"
    path.write_text(text)
    registry = SessionRegistry(path, 10)
    assert registry.owned_by("") == []
    registry.note("", "a", "m", 10)
    registry.close()
    assert json.loads(path.read_text())["sessions"][0]["id"] == "a"


def test_a_disk_that_fails_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "gone" / "sessions.json"
    registry = SessionRegistry(path, 10)
    registry.note("", "a", "m", 10)
    registry.close()
    assert "could not be written" in caplog.text


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


def test_servers_lock_each_other_out_on_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no ``fcntl`` there: a file is locked, and always given back."""
    held: list[bool] = []

    def locking(descriptor: int, mode: int, count: int) -> None:
        assert count == 1
        held.append(mode == 1)

    windows = SimpleNamespace(locking=locking, LK_LOCK=1, LK_UNLCK=0)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", windows)
    registry = SessionRegistry(tmp_path / "sessions.json", 10)
    registry.note("", "anna", "m", 10)
    registry.close()
    assert held
    assert held == [True, False] * (len(held) // 2)
    assert SessionRegistry(tmp_path / "sessions.json", 10).get("", "anna") is not None
