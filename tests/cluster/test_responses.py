"""Replies that all replicas know."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from llama_py.cluster.responses import SharedResponses
from llama_py.dialects.responses.items import InputHistory
from llama_py.states.names import Names


def reply(number: int) -> dict[str, Any]:
    return {"id": f"resp_{number}", "output": [{"id": f"msg_{number}", "type": "message"}]}


def stores(path: Path) -> list[SharedResponses]:
    return [SharedResponses(path, 64, 1 << 20, 60.0) for _ in range(2)]


def test_items_of_another_replica_are_found_by_their_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = stores(tmp_path / "names.sqlite")
    for number in range(8):
        item = {"id": f"msg_{number}", "type": "message"}
        here.put("alice", reply(number), InputHistory((item,), 10))
    here.close()
    asked: list[Any] = []
    find = Names.find

    def noted(self: Names, owner: str, name: str | None = None) -> list[dict[str, Any]]:
        asked.append(name)
        return find(self, owner, name)

    monkeypatch.setattr(Names, "find", noted)
    found = there.find_item("alice", "msg_5")
    assert found is not None
    assert found["id"] == "msg_5"
    assert there.find_item("bob", "msg_5") is None
    assert there.find_item("alice", "msg_99") is None
    assert None not in asked  # nobody reads all that there are
    start = time.monotonic()
    for number in range(1000):
        assert there.find_item("alice", f"unknown_{number}") is None
    assert time.monotonic() - start < 5.0
    there.close()
