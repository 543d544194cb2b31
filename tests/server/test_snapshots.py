"""``/v1/sessions/{id}/snapshots``: made, replaced in two steps, refused with a reason, restored."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from llama_py.server.access.keys import ApiKey
from llama_py.server.config.settings import ModelSettings, Settings
from tests.memory.oracle import Oracle
from tests.models import tiny_model
from tests.server.leaving import Visitor, until
from tests.server.serving import Server, demo_settings, serving, tiny_settings

KINDS = ("full", "iswa", "hybrid")
#: As the oracle evaluates.
EXACT: dict[str, Any] = {"type_k": 0, "type_v": 0, "flash_attn": False, "n_seq_max": 3}
#: A window's cache has room for a batch beside the window.
EXACT |= {"n_batch": 64, "n_ubatch": 64}
STORY = "The quick brown fox jumps over the lazy dog, and then it goes home again. " * 10
N_REPLY = 6
#: Of log-probabilities; a lost cell changes them by more than a tenth.
CLOSE = 1e-3


def ask(http: httpx.Client, prompt: Any, session: str = "anna", **more: Any) -> dict[str, Any]:
    """A reply of ``N_REPLY`` tokens."""
    body = {"prompt": prompt, "n_predict": N_REPLY, "temperature": 0, "ignore_eos": True}
    body |= {"session_id": session, "return_tokens": True, "n_probs": 1, **more}
    answer = http.post("/completion", json=body)
    assert answer.status_code == 200, answer.text
    reply: dict[str, Any] = answer.json()
    return reply


def tokens_of(http: httpx.Client, text: str) -> list[int]:
    found: list[int] = http.post("/tokenize", json={"content": text}).json()["tokens"]
    return found


def make(
    http: httpx.Client, name: str, session: str = "anna", status: int = 200, **more: Any
) -> dict[str, Any]:
    answer = http.post(f"/v1/sessions/{session}/snapshots", json={"name": name, **more})
    assert answer.status_code == status, answer.text
    made: dict[str, Any] = answer.json()
    return made


def act(
    http: httpx.Client, name: str, action: str, session: str = "anna", status: int = 200
) -> dict[str, Any]:
    answer = http.post(f"/v1/sessions/{session}/snapshots/{name}/{action}")
    assert answer.status_code == status, answer.text
    done: dict[str, Any] = answer.json()
    return done


def listed(http: httpx.Client, session: str = "anna") -> dict[str, Any]:
    found: dict[str, Any] = http.get(f"/v1/sessions/{session}/snapshots").json()
    return found


def names(http: httpx.Client, session: str = "anna") -> list[str]:
    return [each["name"] for each in listed(http, session)["data"]]


def forget_everything(http: httpx.Client) -> None:
    """What is in memory, and offloaded: snapshots belong to the server, and stay."""
    assert http.post("/models/unload", json={"model": "tiny"}).status_code == 200
    assert http.post("/models/load", json={"model": "tiny"}).status_code == 200


def check_reply(kind: str, prompt: list[int], reply: dict[str, Any]) -> None:
    """The reply, and the probabilities of its first token, are those of a fresh context."""
    oracle = Oracle(tiny_model(kind))
    try:
        expected, _ = oracle.greedy(prompt, N_REPLY)
        row = oracle.logits(prompt).astype(np.float64)
    finally:
        oracle.close()
    assert reply["tokens"] == expected
    first = reply["completion_probabilities"][0]
    most = row.max()
    whole = most + np.log(np.exp(row - most).sum())
    assert first["logprob"] == pytest.approx(row[first["id"]] - whole, abs=CLOSE)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(demo_settings()) as server:
        yield server


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http() as http:
        for session in http.get("/v1/sessions").json()["data"]:
            until(
                lambda name=session["id"]: (  # type: ignore[misc]
                    http.delete(f"/v1/sessions/{name}").status_code == 200
                ),
                "it can be deleted",
            )
        yield http


# ---- there and back --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_brings_the_conversation_back(kind: str) -> None:
    with serving(tiny_settings(tiny_model(kind), **EXACT)) as server, server.http() as http:
        prompt = tokens_of(http, STORY)
        first = ask(http, prompt)
        made = make(http, "start")
        assert made["tokens"] == len(prompt) + N_REPLY - 1
        assert (made["status"], made["model"]) == ("confirmed", "tiny")
        forget_everything(http)
        assert act(http, "start", "restore")["key"] == made["key"]
        longer = [*prompt, *first["tokens"], *tokens_of(http, " And what then?")]
        again = ask(http, longer)
        assert again["timings"]["cache_n"] == made["tokens"]
        check_reply(kind, longer, again)


@pytest.mark.parametrize("kind", ["full", "hybrid"])
def test_a_session_with_whose_sequence_its_fork_went_on(kind: str) -> None:
    with serving(tiny_settings(tiny_model(kind), **EXACT)) as server, server.http() as http:
        prompt = tokens_of(http, STORY)
        first = ask(http, prompt)
        http.post("/v1/sessions/anna/fork", json={"id": "branch"})
        longer = [*prompt, *first["tokens"], *tokens_of(http, " And what then?")]
        ask(http, longer, session_id="branch")
        made = make(http, "shared")
        assert made["tokens"] == len(prompt) + N_REPLY - 1
        make(http, "longer", status=400, length=made["tokens"] + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_one_or_the_reason_why_not(kind: str) -> None:
    with serving(tiny_settings(tiny_model(kind), **EXACT)) as server, server.http() as http:
        prompt = tokens_of(http, STORY)
        ask(http, prompt)
        length = 40
        if kind != "full":
            refused = make(http, "part", status=400, length=length)["error"]
            assert refused["code"] == "snapshot_refused"
            why = {"iswa": "window cells are gone", "hybrid": "recurrent state cannot be cut"}[kind]
            assert why in refused["message"]
            possible = re.findall(r"\d+", refused["message"].partition("possible are")[2])
            length = int(possible[0])
            assert names(http) == []
        assert 1 < length < len(prompt)
        assert make(http, "part", length=length)["tokens"] == length
        assert ask(http, [*prompt, 5])["timings"]["cache_n"] >= len(prompt) - 1  # still there
        forget_everything(http)
        act(http, "part", "restore")
        other = [*prompt[:length], *tokens_of(http, "Something else entirely.")]
        reply = ask(http, other, "bob")
        assert reply["timings"]["cache_n"] == length
        check_reply(kind, other, reply)


def test_a_part_of_a_session_that_had_to_make_room() -> None:
    settings = tiny_settings(tiny_model("full"), **{**EXACT, "n_seq_max": 2})
    with serving(settings) as server, server.http() as http:
        prompt = tokens_of(http, STORY)
        ask(http, prompt)
        for number, session in enumerate(("bob", "carl", "dora")):
            ask(http, [number + 7, *prompt], session)
        assert make(http, "part", length=30)["tokens"] == 30


def test_lengths_that_cannot_be(http: httpx.Client) -> None:
    ask(http, "A short one.")
    whole = make(http, "all")["tokens"]
    for length in (0, -1, whole + 1, 1.5, True, "9"):
        error = make(http, "part", status=400, length=length)["error"]
        assert error["param"] == "length", error
    assert names(http) == ["all"]


# ---- replacing one ---------------------------------------------------------------------------


def test_an_abort_keeps_the_old_one_and_its_slot() -> None:
    with (
        serving(demo_settings({"prefix_cache_slots": 1})) as server,
        server.http() as http,
    ):
        ask(http, STORY)
        old = make(http, "a")
        ask(http, f"{STORY} More of it.")
        new = make(http, "a", prepare=True)
        assert (new["status"], new["key"] == old["key"]) == ("prepared", False)
        assert [each["status"] for each in listed(http)["data"]] == ["confirmed", "prepared"]
        assert act(http, "a", "restore")["key"] == old["key"]
        act(http, "a", "abort")
        assert act(http, "a", "restore")["key"] == old["key"]
        make(http, "b", prepare=True)  # another name, for which there is no slot
        act(http, "b", "abort")
        assert (names(http), listed(http)["slots_used"]) == (["a"], 1)
        for action in ("confirm", "abort"):
            act(http, "a", action, status=404)
        make(http, "a", prepare=True)
        assert act(http, "a", "confirm")["key"] == new["key"]
        assert act(http, "a", "restore")["key"] == new["key"]
        make(http, "b")
        assert names(http) == ["b"]
        act(http, "a", "restore", status=404)


def test_what_is_prepared_waits_until_it_is_confirmed() -> None:
    """Snapshots that are made at once are no reason for it to go."""
    with serving(demo_settings({"prefix_cache_slots": 2})) as server, server.http() as http:
        ask(http, STORY)
        prepared = {name: make(http, name, prepare=True)["key"] for name in ("a", "b")}
        ask(http, f"{STORY} More of it.")
        newer = {make(http, name)["key"] for name in ("a", "c", "d")}
        assert not newer & {*prepared.values()}
        assert names(http) == ["c", "d", "a", "b"]
        for name, key in prepared.items():
            assert act(http, name, "confirm")["key"] == key
            assert act(http, name, "restore")["key"] == key
        assert names(http) == ["a", "b"]


def test_one_that_cannot_be_made_replaces_nothing(http: httpx.Client, server: Server) -> None:
    ask(http, STORY)
    old = make(http, "a")
    body = {"prompt": "Once", "n_predict": 1900, "ignore_eos": True, "session_id": "anna"}
    visitor = Visitor(server, "/completion", {**body, "stream": True})
    until(lambda: visitor.record.generated, "it generates")
    answer = http.post("/v1/sessions/anna/snapshots", json={"name": "a"})
    visitor.leave()
    visitor.wait_for_the_end()
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "session_busy"
    assert act(http, "a", "restore")["key"] == old["key"]


# ---- how many, and how much ------------------------------------------------------------------


def test_nine_slots_are_clamped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    settings = demo_settings({"prefix_cache_slots": 9})
    with serving(settings) as server, server.http() as http:
        assert "prefix_cache_slots=9 is clamped to 8" in caplog.text
        ask(http, "Hello there.")
        for number in range(8):
            make(http, f"n{number}")
        act(http, "n0", "restore")  # which is used now, so n1 is the oldest
        make(http, "n8")
        report = listed(http)
        assert (report["slots"], report["slots_used"]) == (8, 8)
        assert names(http) == [*(f"n{number}" for number in range(2, 8)), "n0", "n8"]
        assert report["bytes_used"] == sum(each["bytes"] for each in report["data"])


def test_no_slots_are_no_snapshots() -> None:
    settings = demo_settings({"prefix_cache_slots": 0})
    with serving(settings) as server, server.http() as http:
        ask(http, "Hello there.")
        error = make(http, "a", status=501)["error"]
        assert "--prefix-cache-slots" in error["message"]
        assert listed(http)["slots"] == 0


def test_bytes_are_limited() -> None:
    settings = tiny_settings(tiny_model("full"), {"snapshot_bytes": 1 << 20}, **EXACT)
    with serving(settings) as server, server.http() as http:
        prompt = [token % 90 + 3 for token in range(900)]
        ask(http, prompt)
        error = make(http, "a", status=400)["error"]
        assert error["code"] == "snapshot_too_large"
        assert "--snapshot-bytes" in error["message"]
        first = make(http, "a", length=300.0)  # JSON has one kind of number
        assert first["bytes"] < 1 << 20
        assert make(http, "b", length=301)["bytes"] + first["bytes"] > 1 << 20
        assert names(http) == ["b"]


# ---- what a key covers -----------------------------------------------------------------------


def test_keys_depend_on_tokens_and_settings() -> None:
    path = str(tiny_model("full"))
    common = {"verbose": False, "n_threads": 1, "n_ctx": 512, "flash_attn": False}
    changes: list[dict[str, Any]] = [{}, {"type_k": 0}, {"n_ctx": 768}, {"rope_freq_base": 9000.0}]
    models = tuple(
        ModelSettings(f"m{number}", path, options={**common, **change})
        for number, change in enumerate(changes)
    )
    settings = Settings(models=models, max_loaded=len(models), prefix_cache_slots=8)
    with serving(settings) as server, server.http() as http:
        keys = []
        for number in range(len(models)):
            ask(http, STORY, f"s{number}", model=f"m{number}")
            keys.append(make(http, "a", f"s{number}", length=20)["key"])
        assert len({*keys}) == len(models)
        assert make(http, "again", "s0", length=20)["key"] == keys[0]
        assert make(http, "other", "s0", length=21)["key"] != keys[0]
        for number in range(1, len(models)):
            answer = http.post(f"/v1/sessions/s0/snapshots/a/restore?model=m{number}")
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert error["code"] == "snapshot_refused"
            assert "other settings" in error["message"]
        act(http, "a", "restore", "s0")


# ---- whose they are --------------------------------------------------------------------------


def test_two_keys_have_slots_of_their_own() -> None:
    keys = tuple(ApiKey(name, f"secret-{name}") for name in ("one", "two"))
    settings = demo_settings({"api_keys": keys, "prefix_cache_slots": 1})
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(settings))
        one, two = (
            stack.enter_context(server.http(headers={"Authorization": f"Bearer {key.key}"}))
            for key in keys
        )
        ask(one, STORY)
        make(one, "mine")
        act(two, "mine", "restore", status=404)
        make(two, "mine", status=404)
        ask(two, STORY)
        assert names(two) == []
        make(two, "yours")
        assert (names(one), names(two)) == (["mine"], ["yours"])
        act(one, "mine", "restore")
        assert ask(two, f"{STORY}.", "new")["timings"]["cache_n"] > 0


def test_they_go_with_their_session(http: httpx.Client) -> None:
    ask(http, STORY)
    make(http, "a")
    make(http, "b", prepare=True)
    assert http.delete("/v1/sessions/anna").status_code == 200
    assert http.get("/v1/sessions/anna/snapshots").status_code == 404
    ask(http, "Hello")
    report = listed(http)
    assert (report["data"], report["slots_used"], report["bytes_used"]) == ([], 0, 0)


def test_one_is_dropped(http: httpx.Client) -> None:
    ask(http, STORY)
    make(http, "a")
    answer = http.delete("/v1/sessions/anna/snapshots/a")
    assert answer.json() == {"name": "a", "object": "session.snapshot.deleted", "deleted": True}
    assert http.delete("/v1/sessions/anna/snapshots/a").status_code == 404
    act(http, "a", "restore", status=404)


@pytest.mark.parametrize(
    "name", [None, 5, "", "..", "a/b", "a b", "é", "x" * 129, ["a"], {"a": 1}, "a\n"]
)
def test_names_that_are_refused(http: httpx.Client, name: Any) -> None:
    ask(http, "Hello")
    assert make(http, name, status=400)["error"]["param"] == "name"
    assert names(http) == []


def test_sessions_and_bodies_that_are_refused(http: httpx.Client) -> None:
    make(http, "a", "nobody", status=404)
    act(http, "a", "restore", "nobody", status=404)
    ask(http, "Hello")
    assert make(http, "a", status=400, prepare="yes")["error"]["param"] == "prepare"
    make(http, "a", status=400, model=5)
    assert http.post("/v1/sessions/anna/snapshots", json=[]).status_code == 400
    assert http.put("/v1/sessions/anna/snapshots", json={}).status_code == 405
    http.post("/models/unload", json={"model": "demo"})
    error = make(http, "a", status=404)["error"]  # it is loaded again, and empty
    assert "nothing in memory" in error["message"]
