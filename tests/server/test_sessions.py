"""``/v1/sessions``: conversations by name, whose they are, and that they outlive the server."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from llama_py.server.access.keys import ApiKey
from tests.models import tiny_model
from tests.patience import PATIENCE
from tests.server.leaving import Visitor, until
from tests.server.serving import Server, demo_settings, serving, tiny_settings

ROOT = Path(__file__).parents[2]
STORY = "The quick brown fox jumps over the lazy dog, and then it goes home again. " * 6
#: Letters are text in every vocabulary: a reply of them is found by its text.
LETTERS = "root ::= [a-z ]+"
#: What may be evaluated again after a restart, beside what is new.
AGAIN = 64

Messages = list[dict[str, str]]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(demo_settings()) as server:
        yield server


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http() as http:
        for session in http.get("/v1/sessions").json()["data"]:
            assert http.delete(f"/v1/sessions/{session['id']}").status_code == 200
        yield http


def chat(
    http: httpx.Client, messages: Messages, text: str, *, headers: Any = None, **more: Any
) -> tuple[Messages, int]:
    """The conversation with a reply, and how many tokens of its prompt were evaluated."""
    asked = [*messages, {"role": "user", "content": text}]
    body = {"messages": asked, "temperature": 0, "max_tokens": 12, "grammar": LETTERS, **more}
    answer = http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    reply = answer.json()
    usage, message = reply["usage"], reply["choices"][0]["message"]
    evaluated = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    said = {"role": "assistant", "content": message["content"] or ""}
    return [*asked, said], evaluated


def names(http: httpx.Client) -> list[str]:
    answer = http.get("/v1/sessions").json()
    assert answer["object"] == "list"
    return [session["id"] for session in answer["data"]]


def session(http: httpx.Client, name: str, status: int = 200) -> dict[str, Any]:
    answer = http.get(f"/v1/sessions/{name}")
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


# ---- which one -------------------------------------------------------------------------------


def test_a_session_has_turns(http: httpx.Client) -> None:
    messages, _ = chat(http, [], STORY, user="anna")
    first = session(http, "anna")
    assert (first["turns"], first["model"], first["busy"]) == (1, "demo", False)
    assert first["tokens_in_memory"] > 50
    _, evaluated = chat(http, messages, "And then?", user="anna")
    assert evaluated < 30
    second = session(http, "anna")
    assert second["turns"] == 2
    assert second["tokens"] > first["tokens"]
    assert abs(second["last_used"] - time.time()) < 60


def test_names_in_every_dialect(http: httpx.Client) -> None:
    chat(http, [], "Hello", headers={"X-Claude-Code-Session-Id": "c-1"})
    chat(http, [], "Hello", headers={"session-id": "codex"}, user="bob")
    chat(http, [], "Hello", prompt_cache_key="key")
    chat(http, [], "Hello", metadata={"user_id": json.dumps({"session_id": "deep"})})
    messages = {"messages": _user("Hi"), "max_tokens": 3, "model": "x", "user": "nobody"}
    http.post("/v1/messages?beta=true", json=messages, headers={"X-Session-Id": "said"})
    http.post("/v1/responses", json={"input": "Hi", "prompt_cache_key": "asked"})
    http.post("/completion?user=query", json={"prompt": "x", "n_predict": 1, "id_slot": 5})
    http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1, "session_id": "text"})
    assert set(names(http)) == {"c-1", "codex", "key", "deep", "said", "asked", "slot-5", "text"}


def test_what_names_no_session(http: httpx.Client) -> None:
    chat(http, [], "Hello")
    http.post("/v1/chat/completions?session_id=q&user=q", json={"messages": _user("user")})
    chat(http, [], "Hello", user="")
    http.post("/tokenize", json={"content": "x", "user": "anna"})
    http.post("/v1/completions", json={"prompt": ["x", "y"], "max_tokens": 1, "user": "anna"})
    assert names(http) == []


def _user(text: str) -> Messages:
    return [{"role": "user", "content": text}]


def test_of_several_replies_the_first_one_is_the_session(http: httpx.Client) -> None:
    http.post("/v1/chat/completions", json={"messages": _user("Hi"), "n": 3, "user": "anna"})
    assert session(http, "anna")["turns"] == 1


def test_odd_names(http: httpx.Client) -> None:
    for name in ("a/b", "a b", "é", "a%2fb", "?x", "a..", "fork"):
        chat(http, [], "Hello", session_id=name)
        quoted = httpx.QueryParams({"": name})
        path = "/v1/sessions/" + str(quoted)[1:].replace("+", "%20")
        assert http.get(path).json()["id"] == name
        assert http.delete(path).json() == {
            "id": name,
            "object": "session.deleted",
            "deleted": True,
        }
    assert names(http) == []


# ---- what can be done with it ----------------------------------------------------------------


def test_both_of_a_fork_go_on_from_the_common_beginning(http: httpx.Client) -> None:
    messages, _ = chat(http, [], STORY, session_id="anna")
    answer = http.post("/v1/sessions/anna/fork", json={"id": "branch"})
    fork = answer.json()
    assert (fork["id"], fork["parent"], fork["turns"]) == ("branch", "anna", 1)
    _, evaluated = chat(http, messages, "One.", session_id="anna")
    assert evaluated < 30
    _, evaluated = chat(http, messages, "Two, and more.", session_id="branch")
    assert evaluated < 30
    assert session(http, "anna")["turns"] == session(http, "branch")["turns"] == 2


def test_forks_that_cannot_be(http: httpx.Client) -> None:
    chat(http, [], "Hello", session_id="anna")
    chat(http, [], "Hello", session_id="bob")
    for name, body, status in [
        ("nobody", {"id": "x"}, 404),
        ("anna", {"id": "bob"}, 400),
        ("anna", {"id": "anna"}, 400),
        ("anna", {"id": 5}, 400),
        ("anna", {"id": ""}, 400),
        ("anna", {"id": "x" * 200}, 400),
        ("anna", [], 400),
    ]:
        answer = http.post(f"/v1/sessions/{name}/fork", json=body)
        assert answer.status_code == status, answer.text
        assert answer.json()["error"].keys() >= {"message", "type", "param", "code"}
    made = http.post("/v1/sessions/anna/fork", json={}).json()["id"]
    assert made.startswith("sess_")
    assert set(names(http)) == {"anna", "bob", made}


def test_a_deleted_session_is_forgotten(http: httpx.Client) -> None:
    messages, _ = chat(http, [], f"Anna: {STORY}", session_id="anna")
    assert http.delete("/v1/sessions/anna").status_code == 200
    session(http, "anna", 404)
    assert http.delete("/v1/sessions/anna").status_code == 404
    _, evaluated = chat(http, messages, "And then?", session_id="bob")
    assert evaluated > 80


def test_a_name_that_was_forgotten_can_be_deleted(http: httpx.Client, server: Server) -> None:
    messages, _ = chat(http, [], f"Anna: {STORY}", session_id="anna")
    server.service.sessions._registry.remove("", "anna")
    assert names(http) == []
    assert http.delete("/v1/sessions/anna").status_code == 200
    assert http.delete("/v1/sessions/anna").status_code == 404
    _, evaluated = chat(http, messages, "And then?", session_id="bob")
    assert evaluated > 80


def test_a_fork_keeps_what_it_begins_with(http: httpx.Client) -> None:
    messages, _ = chat(http, [], f"Anna: {STORY}", session_id="anna")
    http.post("/v1/sessions/anna/fork", json={"id": "branch"})
    assert http.delete("/v1/sessions/anna").status_code == 200
    _, evaluated = chat(http, messages, "And then?", session_id="branch")
    assert evaluated < 30


@pytest.mark.parametrize("kind", ["full", "iswa", "hybrid"])
def test_a_fork_that_is_deleted_gives_back_what_it_began_with(kind: str) -> None:
    """Though it has spoken first, and went on in the same sequence; its own words are gone."""
    with serving(tiny_settings(tiny_model(kind))) as server, server.http() as http:
        messages, _ = chat(http, [], f"Anna: {STORY}", session_id="anna")
        http.post("/v1/sessions/anna/fork", json={"id": "branch"})
        branched, _ = chat(http, messages, f"A secret: {STORY}", session_id="branch")
        assert http.delete("/v1/sessions/branch").status_code == 200
        assert session(http, "anna")["tokens_in_memory"] > 80
        _, evaluated = chat(http, branched, "And then?", session_id="carl", max_tokens=1)
        assert evaluated > 80
        _, evaluated = chat(http, messages, "And then?", session_id="anna")
        assert evaluated < 30


def test_of_two_forks_of_a_fork_each_gets_its_own_back(http: httpx.Client) -> None:
    messages, _ = chat(http, [], f"Anna: {STORY}", session_id="anna")
    second, _ = chat(http, messages, f"Bob: {STORY}", session_id="bob")
    chat(http, second, f"Carl: {STORY}", session_id="carl")
    held = session(http, "carl")["tokens_in_memory"]
    assert http.delete("/v1/sessions/carl").status_code == 200
    left = session(http, "bob")["tokens_in_memory"]
    assert 160 < left < held - 80
    assert http.delete("/v1/sessions/anna").status_code == 200
    assert session(http, "bob")["tokens_in_memory"] == left
    assert http.delete("/v1/sessions/bob").status_code == 200
    _, evaluated = chat(http, messages, "And then?", session_id="dora")
    assert evaluated > 80


def test_one_that_is_in_use(http: httpx.Client, server: Server) -> None:
    chat(http, [], "Hello", session_id="anna")
    body = {"prompt": "Once", "n_predict": 1900, "ignore_eos": True, "session_id": "anna"}
    visitor = Visitor(server, "/completion", {**body, "stream": True})
    until(lambda: visitor.record.generated, "it generates")
    assert session(http, "anna")["busy"]
    answer = http.delete("/v1/sessions/anna")
    visitor.leave()
    visitor.wait_for_the_end()
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert answer.json()["error"]["code"] == "session_busy"
    until(lambda: http.delete("/v1/sessions/anna").status_code == 200, "it can be deleted")


@pytest.mark.parametrize("stream", [True, False])
def test_one_whose_only_request_was_cancelled(
    http: httpx.Client, server: Server, stream: bool
) -> None:
    """What it has left in memory is there under its name, and can be forgotten."""
    prompt = {"prompt": f"{stream} Eve: {STORY}", "n_predict": 1900, "ignore_eos": True}
    visitor = Visitor(server, "/completion", {**prompt, "session_id": "eve", "stream": stream})
    until(lambda: visitor.record.generated, "it generates")
    visitor.leave()
    visitor.wait_for_the_end()
    until(lambda: not server.service.exchanges, "the server is done with it")
    left = session(http, "eve")
    assert (left["turns"], left["tokens_in_memory"] > 80) == (0, True)
    assert http.delete("/v1/sessions/eve").status_code == 200
    session(http, "eve", 404)
    again = http.post("/completion", json={**prompt, "n_predict": 1}).json()
    assert again["timings"]["prompt_n"] > 80


def test_without_a_directory_nothing_is_saved(http: httpx.Client) -> None:
    chat(http, [], "Hello", session_id="anna")
    answer = http.post("/v1/sessions/anna/save")
    assert answer.status_code == 501
    assert "--session-dir" in answer.json()["error"]["message"]


def test_paths_and_methods(http: httpx.Client) -> None:
    assert http.post("/v1/sessions", json={}).status_code == 405
    assert http.put("/v1/sessions/anna", json={}).status_code == 405
    assert session(http, "nobody", 404)["error"]["code"] == "not_found"


# ---- whose it is -----------------------------------------------------------------------------


def test_two_keys_never_see_each_other() -> None:
    keys = tuple(ApiKey(name, f"secret-{name}") for name in ("one", "two"))
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(demo_settings({"api_keys": keys})))
        one, two = (
            stack.enter_context(server.http(headers={"Authorization": f"Bearer {key.key}"}))
            for key in keys
        )
        messages, _ = chat(one, [], STORY, session_id="anna")
        assert names(two) == []
        session(two, "anna", 404)
        for path in ("/v1/sessions/anna/fork", "/v1/sessions/anna/save"):
            assert two.post(path, json={}).status_code in (404, 501)
        assert two.delete("/v1/sessions/anna").status_code == 404
        _, evaluated = chat(two, messages, "And then?", session_id="anna")
        assert evaluated > 80
        assert session(one, "anna")["turns"] == session(two, "anna")["turns"] == 1
        assert two.delete("/v1/sessions/anna").status_code == 200
        assert names(one) == ["anna"]
        _, evaluated = chat(one, messages, "And then?", session_id="anna")
        assert evaluated < 30


# ---- after a restart -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "iswa", "hybrid"])
def test_after_a_restart(kind: str, tmp_path: Path) -> None:
    keys = (ApiKey("one", "secret-one"), ApiKey("two", "secret-two"))
    settings = tiny_settings(tiny_model(kind), {"session_dir": tmp_path / "kept", "api_keys": keys})
    said: dict[str, Messages] = {}
    with serving(settings) as server:
        for key in keys:
            with server.http(headers={"x-api-key": key.key}) as http:
                messages, _ = chat(http, [], f"{key.name} {STORY}", session_id="anna")
                said[key.name], _ = chat(http, messages, "And then?", session_id="anna")
    with serving(settings) as server:
        for key in keys:
            with server.http(headers={"x-api-key": key.key}) as http:
                assert names(http) == ["anna"]
                known = session(http, "anna")
                assert (known["turns"], known["tokens_in_memory"]) == (2, 0)
                new = len(http.post("/tokenize", json={"content": "So?"}).json()["tokens"])
                _, evaluated = chat(http, said[key.name], "So?", session_id="anna")
                assert evaluated <= AGAIN + new
                assert session(http, "anna")["turns"] == 3
        with server.http(headers={"x-api-key": "secret-two"}) as http:
            _, cold = chat(http, said["one"], "So?", session_id="mine")
            assert cold > AGAIN + 20
            assert http.delete("/v1/sessions/anna").status_code == 200
    with serving(settings) as server, server.http(headers={"x-api-key": "secret-two"}) as http:
        assert names(http) == ["mine"]
        _, cold = chat(http, said["two"], "So?", session_id="mine")
        assert cold > AGAIN + 20


def test_what_other_settings_have_written_is_forgotten_too(tmp_path: Path) -> None:
    kept = {"session_dir": tmp_path}
    settings, others = (tiny_settings(tiny_model("full"), kept, n_ctx=n) for n in (1024, 512))
    with serving(settings) as server, server.http() as http:
        messages, _ = chat(http, [], STORY, session_id="anna")
    with serving(others) as server, server.http() as http:
        assert http.delete("/v1/sessions/anna").status_code == 200
    with serving(settings) as server, server.http() as http:
        _, evaluated = chat(http, messages, "So?", session_id="bob")
        assert evaluated > AGAIN + 20


def test_a_fork_keeps_what_only_the_disk_has(tmp_path: Path) -> None:
    settings = tiny_settings(tiny_model("full"), {"session_dir": tmp_path})
    with serving(settings) as server, server.http() as http:
        messages, _ = chat(http, [], STORY, session_id="anna")
        http.post("/v1/sessions/anna/fork", json={"id": "branch"})
    with serving(settings) as server, server.http() as http:
        assert http.delete("/v1/sessions/anna").status_code == 200
        assert session(http, "branch")["saved"]
        _, evaluated = chat(http, messages, "So?", session_id="branch")
        assert evaluated < AGAIN


@pytest.mark.parametrize("kind", ["full", "hybrid"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_fork_takes_nothing_from_the_disk_with_it(
    kind: str, restarted: bool, tmp_path: Path
) -> None:
    """What it has written takes no place of what the original has, and goes without that."""
    settings = tiny_settings(tiny_model(kind), {"session_dir": tmp_path})
    with contextlib.ExitStack() as stack:
        http = stack.enter_context(stack.enter_context(serving(settings)).http())
        messages, _ = chat(http, [], STORY, session_id="anna")
        if restarted:
            stack.close()
            http = stack.enter_context(stack.enter_context(serving(settings)).http())
        http.post("/v1/sessions/anna/fork", json={"id": "branch"})
        chat(http, messages, STORY, session_id="branch")
        until(lambda: session(http, "branch")["saved"], "the branch was written")
        assert session(http, "anna")["saved"]
        assert http.delete("/v1/sessions/branch").status_code == 200
        assert session(http, "anna")["saved"]
    with serving(settings) as server, server.http() as http:
        _, evaluated = chat(http, messages, "So?", session_id="anna")
        assert evaluated < AGAIN


def test_saved_now(tmp_path: Path) -> None:
    settings = demo_settings({"session_dir": tmp_path})
    with serving(settings) as server, server.http() as http:
        chat(http, [], "Short.", session_id="anna")
        assert not session(http, "anna")["saved"]
        assert http.post("/v1/sessions/anna/save").json()["saved"]
        assert http.post("/v1/sessions/nobody/save").status_code == 404
    with serving(settings) as server, server.http() as http:
        assert session(http, "anna")["saved"]


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    kept = {"session_dir": tmp_path, "session_bytes": 1 << 20}
    settings = tiny_settings(tiny_model("full"), kept, n_ctx=4096)
    with serving(settings) as server, server.http() as http:
        messages, _ = chat(http, [], "Short.", session_id="anna")
        assert http.post("/v1/sessions/anna/save").json()["saved"]
        chat(http, messages, STORY * 8, session_id="anna")
        answer = http.post("/v1/sessions/anna/save")
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "session_not_saved"
        assert session(http, "anna")["tokens_in_memory"] > 200


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def answers(http: httpx.Client) -> bool:
    try:
        return http.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def test_after_a_server_was_killed(tmp_path: Path) -> None:
    port, model = free_port(), tiny_model("hybrid")
    command = [sys.executable, "-m", "llama_py", "serve", str(model), "--port", str(port)]
    command += ["--session-dir", str(tmp_path), "--n-ctx", "1024", "--threads", "1"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as http:
                until(lambda: answers(http), "the server answers")
                messages, _ = chat(http, [], STORY, session_id="anna")
                messages, _ = chat(http, messages, "And then?", session_id="anna")
                http.post("/v1/sessions/anna/save")
        finally:
            process.kill()
    settings = tiny_settings(model, {"session_dir": tmp_path})
    with serving(settings) as server, server.http() as http:
        assert names(http) == ["anna"]
        _, evaluated = chat(http, messages, "So?", session_id="anna")
        assert evaluated <= AGAIN + 5


def test_a_damaged_list_costs_only_the_list(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = demo_settings({"session_dir": tmp_path})
    with serving(settings) as server, server.http() as http:
        messages, _ = chat(http, [], STORY, session_id="anna")
    (path,) = tmp_path.rglob("index.db")
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE name SET data = 'something'")
    with serving(settings) as server, server.http() as http:
        assert names(http) == []
        _, evaluated = chat(http, messages, "So?", session_id="anna")
        assert evaluated < AGAIN
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM name")
    with serving(settings) as server, server.http() as http:
        assert http.delete("/v1/sessions/nobody").status_code == 404
        assert http.delete("/v1/sessions/anna").status_code == 200
        assert http.delete("/v1/sessions/anna").status_code == 404
        _, evaluated = chat(http, messages, "So?", session_id="bob")
        assert evaluated > AGAIN + 20
    assert "index.db is not used" in caplog.text
    mode = path.stat().st_mode
    assert os.name == "nt" or mode & 0o077 == 0
