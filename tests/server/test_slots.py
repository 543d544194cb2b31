"""``/slots/{id}?action=``: conversations in files, and what their names may not lead to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from llama_py.server.access.keys import SCOPES, ApiKey
from tests.models import tiny_model
from tests.server.leaving import Visitor, until
from tests.server.serving import Server, demo_settings, serving, tiny_settings
from tests.slowness import slow_steps

STORY = "The quick brown fox jumps over the lazy dog, and then it goes home again. " * 6

#: What clients may not call a file.
NAMES: list[Any] = [
    "../a",
    "..",
    ".",
    "....",
    "a/b",
    "/etc/passwd",
    "a\\b",
    "..\\a",
    "C:a",
    "a\0",
    "\0",
    "a\n",
    "",
    " ",
    "a b",
    "x" * 129,
    "é",
    "a\u2044b",
    "a\u202ebin",
    "%2e%2e%2fa",
    "~a",
    5,
    None,
    ["a"],
    {"a": 1},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home") / "slots"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serving(demo_settings({"slot_dir": folder, "slot_bytes": 4 << 20})) as server:
        yield server


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http() as http:
        yield http


def complete(http: httpx.Client, prompt: str, **more: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": 8, "temperature": 0, "ignore_eos": True, **more}
    answer = http.post("/completion", json=body)
    assert answer.status_code == 200, answer.text
    reply: dict[str, Any] = answer.json()
    return reply


def act(http: httpx.Client, slot: str, action: str, name: Any = None, status: int = 200) -> Any:
    body = None if name is None else {"filename": name}
    answer = http.post(f"/slots/{slot}", params={"action": action}, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def files(folder: Path) -> dict[str, bytes]:
    """Everything beside and below the directory."""
    return {
        str(path.relative_to(folder.parent)): path.read_bytes()
        for path in folder.parent.rglob("*")
        if path.is_file()
    }


# ---- there and back --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slot", "more"),
    [("3", {"id_slot": 3}), ("anna", {"session_id": "anna"}), ("sequence", {})],
)
def test_saved_erased_and_restored(http: httpx.Client, slot: str, more: dict[str, Any]) -> None:
    first = complete(http, f"{slot}: {STORY}", **more)
    prompt = f"{slot}: {STORY}{first['content']} And then?"
    if slot == "sequence":
        slot = str(first["id_slot"])
    saved = act(http, slot, "save", "story.bin")
    assert saved["n_saved"] == first["tokens_cached"]
    assert saved["n_written"] > saved["n_saved"]
    assert saved["timings"]["save_ms"] > 0
    assert act(http, slot, "erase")["n_erased"] == saved["n_saved"]
    assert complete(http, prompt, session_id="other")["timings"]["cache_n"] == 0
    act(http, "other", "erase")
    restored = act(http, slot, "restore", "story.bin")
    assert restored["n_restored"] == saved["n_saved"]
    assert restored["n_read"] == saved["n_written"]
    assert saved["filename"] == restored["filename"] == "story.bin"
    assert {str(each["id_slot"]) for each in (saved, restored)} == {slot}
    again = complete(http, prompt, **more)
    assert again["timings"]["prompt_n"] < 16
    assert again["timings"]["cache_n"] > saved["n_saved"] - 8


@pytest.mark.parametrize(("slot", "session"), [("berta", "berta"), ("99", "slot-99")])
def test_a_session_is_known_when_it_was_restored(
    http: httpx.Client, slot: str, session: str
) -> None:
    complete(http, f"{slot}: {STORY}", session_id="first")
    saved = act(http, "first", "save", "story.bin")
    assert http.get(f"/v1/sessions/{session}").status_code == 404
    act(http, slot, "restore", "story.bin")
    known = http.get(f"/v1/sessions/{session}").json()
    assert (known["tokens"], known["tokens_in_memory"]) == (saved["n_saved"],) * 2
    assert known["turns"] == 0
    assert http.delete(f"/v1/sessions/{session}").status_code == 200
    act(http, slot, "save", "story.bin", status=404)  # it could not be forgotten before


def test_a_file_is_replaced(http: httpx.Client, folder: Path) -> None:
    complete(http, STORY, session_id="anna")
    long = act(http, "anna", "save", "again.bin")
    complete(http, "A short one.", session_id="bob")
    short = act(http, "bob", "save", "again.bin")
    assert short["n_written"] == (folder / "again.bin").stat().st_size < long["n_written"]
    assert act(http, "carl", "restore", "again.bin")["n_restored"] == short["n_saved"]
    slots = http.get("/slots").json()
    assert "carl" in [slot.get("session") for slot in slots]


# ---- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_that_are_refused(http: httpx.Client, folder: Path, name: Any) -> None:
    complete(http, STORY, session_id="anna")
    before = files(folder)
    for action in ("save", "restore"):
        answer = http.post(f"/slots/anna?action={action}", json={"filename": name})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == "filename"
    assert files(folder) == before


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="links are made by administrators only")
@pytest.mark.parametrize("dangling", [False, True])
def test_links_are_not_followed(http: httpx.Client, folder: Path, dangling: bool) -> None:
    complete(http, STORY, session_id="anna")
    act(http, "anna", "save", "good.bin")
    target = folder.parent / "outside.bin"
    if not dangling:
        target.write_bytes((folder / "good.bin").read_bytes())
    link = folder / "link.bin"
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    before = files(folder)
    for action in ("save", "restore"):
        error = act(http, "anna", action, "link.bin", 400)["error"]
        assert "not a regular file" in error["message"]
    assert files(folder) == before
    assert link.is_symlink()
    link.unlink()
    target.unlink(missing_ok=True)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_what_is_no_file(http: httpx.Client, folder: Path) -> None:
    complete(http, STORY, session_id="anna")
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    for name in ("pipe", "folder"):
        for action in ("save", "restore"):
            error = act(http, "anna", action, name, 400)["error"]
            assert "not a regular file" in error["message"]
    (folder / "pipe").unlink()
    (folder / "folder").rmdir()


def test_requests_that_make_no_sense(http: httpx.Client) -> None:
    assert act(http, "anna", "delete", "a", 400)["error"]["param"] == "action"
    assert act(http, "nobody", "save", "a", 404)["error"]["code"] == "not_found"
    assert act(http, "99", "save", "a", 404)["error"]["code"] == "not_found"
    assert act(http, "99", "erase", None, 404)["error"]["code"] == "not_found"
    assert act(http, "anna", "restore", "no-such-file", 404)["error"]["code"] == "not_found"
    answer = http.post("/slots/anna", json={"filename": "a"})
    assert answer.status_code == 400


# ---- what is in a file -----------------------------------------------------------------------


def test_damaged_files(http: httpx.Client, folder: Path) -> None:
    complete(http, STORY, session_id="anna")
    act(http, "anna", "save", "whole.bin")
    whole = (folder / "whole.bin").read_bytes()
    middle = len(whole) // 2
    damages = {
        "empty": b"",
        "short": whole[:-1],
        "cut": whole[:middle],
        "long": whole + b"x",
        "changed": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        "head": whole[:100] + bytes([whole[100] ^ 1]) + whole[101:],
        "other": b"GGUF" * 1000,
    }
    act(http, "anna", "erase")
    for name, data in damages.items():
        (folder / name).write_bytes(data)
        error = act(http, "anna", "restore", name, 400)["error"]
        assert str(folder) not in error["message"]
    assert "anna" not in [slot.get("session") for slot in http.get("/slots").json()]
    assert act(http, "anna", "restore", "whole.bin")["n_restored"] > 0


def test_a_file_of_another_model(http: httpx.Client, folder: Path, tmp_path: Path) -> None:
    complete(http, STORY, session_id="anna")
    act(http, "anna", "save", "demo.bin")
    settings = tiny_settings(tiny_model("full"), {"slot_dir": folder})
    with serving(settings) as other, other.http() as theirs:
        error = act(theirs, "anna", "restore", "demo.bin", 400)["error"]
        assert "another model" in error["message"]
        assert complete(theirs, STORY)["timings"]["cache_n"] == 0


def test_there_is_a_limit(http: httpx.Client, folder: Path) -> None:
    complete(http, STORY, session_id="anna")
    written = act(http, "anna", "save", "a.bin")["n_written"]
    kept = folder / "filler"
    kept.write_bytes(bytes((4 << 20) - sum(map(len, files(folder).values())) - written // 2))
    error = act(http, "anna", "save", "b.bin", 400)["error"]
    assert error["code"] == "slot_quota_exceeded"
    assert not (folder / "b.bin").exists()
    kept.unlink()
    act(http, "anna", "save", "b.bin")


def test_one_that_is_in_use(
    http: httpx.Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_steps(monkeypatch)
    body = {"prompt": STORY, "n_predict": 1500, "ignore_eos": True, "session_id": "anna"}
    visitor = Visitor(server, "/completion", {**body, "stream": True})
    until(lambda: visitor.record.generated, "it generates")
    for action, name in (("save", "busy.bin"), ("erase", None)):
        error = act(http, "anna", action, name, 503)["error"]
        assert error["code"] == "session_busy"
    visitor.leave()
    visitor.wait_for_the_end()
    assert act(http, "anna", "save", "busy.bin")["n_saved"] > 0


# ---- keys ------------------------------------------------------------------------------------


def test_each_key_has_its_own(tmp_path: Path) -> None:
    keys = tuple(ApiKey(name, f"secret-{name}", SCOPES) for name in ("one", "two"))
    settings = demo_settings({"slot_dir": tmp_path, "api_keys": keys})
    with serving(settings) as server:
        one, two = (server.http(headers={"Authorization": f"Bearer {key.key}"}) for key in keys)
        with one, two:
            assert httpx.get(f"{server.url}/slots").status_code == 401
            complete(one, STORY, session_id="anna")
            assert complete(two, STORY)["timings"]["cache_n"] == 0
            act(one, "anna", "save", "story.bin")
            act(two, "anna", "save", "story.bin", 404)
            act(two, "anna", "restore", "story.bin", 404)
            (mine,) = [s["id"] for s in one.get("/slots").json() if s.get("session") == "anna"]
            assert all(slot.get("session") is None for slot in two.get("/slots").json())
            act(two, str(mine), "save", "story.bin", 404)
            act(two, str(mine), "erase", None, 404)
            act(one, "anna", "erase")
            assert act(one, "anna", "restore", "story.bin")["n_restored"] > 0


def test_a_file_of_another_key_is_no_use(tmp_path: Path) -> None:
    keys = tuple(ApiKey(name, f"secret-{name}", SCOPES) for name in ("one", "two"))
    settings = demo_settings({"slot_dir": tmp_path, "api_keys": keys})
    with serving(settings) as server:
        one, two = (server.http(headers={"Authorization": f"Bearer {key.key}"}) for key in keys)
        with one, two:
            for client, name in ((one, "a.bin"), (two, "b.bin")):
                complete(client, STORY, session_id="anna")
                act(client, "anna", "save", name)
            (mine,), (theirs,) = (list(tmp_path.rglob(name)) for name in ("a.bin", "b.bin"))
            theirs.write_bytes(mine.read_bytes())
            error = act(two, "anna", "restore", "b.bin", 400)["error"]
            assert "another key" in error["message"]
