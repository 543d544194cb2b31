"""A server whose model has a process of its own, which dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from llama_py.server.config.settings import Settings
from tests.isolation.killing import OPTIONS, gone, kill, status_of, until
from tests.models import tiny_model
from tests.server.serving import Server, demo_settings, serving, tiny_settings

STORY: dict[str, Any] = {"temperature": 0, "max_tokens": 1500, "ignore_eos": True}
HELLO = {"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0}


def settings(**more: Any) -> Settings:
    return demo_settings({"metrics": True, **more}, isolate=True, n_ctx=2048, n_threads=1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("sessions")
    with serving(settings(session_dir=directory)) as server:
        yield server


def llama_of(server: Server) -> Any:
    return server.service.models.models[0].llama


def busy(server: Server, count: int) -> bool:
    return bool(llama_of(server).runtime.port.report().running == count)


def ask(http: httpx.Client, path: str, body: dict[str, Any], into: list[httpx.Response]) -> None:
    into.append(http.post(path, json=body))


@pytest.fixture
def endless() -> Iterator[Server]:
    """A server whose model says no end by itself: its weights are random."""
    with serving(tiny_settings(tiny_model("full"), isolate=True, n_ctx=8192)) as server:
        yield server


def test_each_dialect_says_what_happened_in_its_own_form(endless: Server) -> None:
    server = endless
    story = [{"role": "user", "content": "Tell me a story."}]
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "chat": ("/v1/chat/completions", {"messages": story, **STORY}),
        "chat stream": ("/v1/chat/completions", {"messages": story, "stream": True, **STORY}),
        "messages": (
            "/v1/messages",
            {"model": "tiny", "messages": story, "stream": True, "max_tokens": 1500},
        ),
        "responses": (
            "/v1/responses",
            {"input": "Tell me a story.", "stream": True, "max_output_tokens": 1500},
        ),
        "native": ("/completion", {"prompt": "Once", "stream": True, "n_predict": 1500, **STORY}),
    }
    found: dict[str, list[httpx.Response]] = {name: [] for name in bodies}
    with server.http() as http:
        threads = [
            threading.Thread(target=ask, args=[http, path, body, found[name]])
            for name, (path, body) in bodies.items()
        ]
        for each in threads:
            each.start()
        until(lambda: busy(server, len(bodies)), "all of them run")
        kill(llama_of(server))
        for each in threads:
            each.join()
        whole = found["chat"][0]
        assert whole.status_code == 503
        assert int(whole.headers["retry-after"]) >= 1
        error = whole.json()["error"]
        assert (error["code"], error["type"]) == ("engine_dead", "unavailable_error")
        assert "SIGKILL" in error["message"]
        for name in ("chat stream", "messages", "responses", "native"):
            reply = found[name][0]
            assert reply.status_code == 200
            assert "(SIGKILL)" in reply.text[-2000:], name
        assert "event: error" in found["messages"][0].text
        assert '"code":"engine_dead"' in found["chat stream"][0].text
        assert "event: response.failed" in found["responses"][0].text
        assert http.post("/v1/chat/completions", json=HELLO).status_code == 200


def test_what_the_server_tells_of_it(server: Server) -> None:
    with server.http() as http:
        before = http.get("/props").json()["process"]
        assert before["ready"] is True
        counted = _counter(http, "llama_py_model_process_restarts_total")
        written = _counter(http, "llamacpp:tokens_predicted_total")
        http.post("/v1/chat/completions", json=HELLO)
        assert _counter(http, "llamacpp:tokens_predicted_total") > written
        written = _counter(http, "llamacpp:tokens_predicted_total")
        kill(llama_of(server))
        until(lambda: not status_of(llama_of(server)).ready, "it is known")
        assert http.get("/livez").status_code == 200
        health, ready = http.get("/health").json(), http.get("/readyz")
        assert health["status"] == "ok"
        if not status_of(llama_of(server)).ready:
            assert health["restarting"] == ["demo"]
            assert (ready.status_code, ready.headers["retry-after"]) == (503, "1")
            assert http.get("/props").json()["process"]["last_death"] == "SIGKILL"
        assert http.post("/v1/chat/completions", json=HELLO).status_code == 200
        assert http.get("/readyz").status_code == 200
        after = http.get("/props").json()["process"]
        assert after["restarts"] == before["restarts"] + 1
        assert after["last_death"] == "SIGKILL"
        assert _counter(http, "llama_py_model_process_restarts_total") == counted + 1
        # What the one that died had counted is still there.
        assert _counter(http, "llamacpp:tokens_predicted_total") > written


def _counter(http: httpx.Client, name: str) -> float:
    page = http.get("/metrics").text
    lines = [line for line in page.splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_a_session_goes_on_where_it_was(server: Server) -> None:
    with server.http() as http:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Of the sea. " * 60}]
        body = {"temperature": 0, "max_tokens": 8, "session_id": "mine"}
        first = http.post("/v1/chat/completions", json={"messages": messages, **body}).json()
        used = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
        until(lambda: _saved(http) >= used - 2, "it is on the disk")
        kill(llama_of(server))
        messages += [first["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        again = http.post("/v1/chat/completions", json={"messages": messages, **body}).json()
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= used - 2
        assert http.get("/v1/sessions/mine").json()["turns"] == 2
        assert http.delete("/v1/sessions/mine").status_code == 200


def _await_saved(http: httpx.Client, tokens: int, name: str) -> None:
    until(lambda: _saved(http, name) >= tokens, "it is on the disk")


def _saved(http: httpx.Client, name: str = "mine") -> int:
    count: int = http.get(f"/v1/sessions/{name}").json()["tokens_saved"]
    return count


def test_one_that_keeps_dying_is_refused_with_the_time_to_come_again(server: Server) -> None:
    llama = llama_of(server)
    with server.http() as http:
        for _ in range(3):
            until(lambda: status_of(llama).ready, "it is there")
            _await_death(llama, kill(llama))
        refused = http.post("/v1/chat/completions", json=HELLO)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "engine_dead"
        assert int(refused.headers["retry-after"]) >= 1
        until(lambda: status_of(llama).ready, "it is there again")
        assert http.post("/v1/chat/completions", json=HELLO).status_code == 200


def _await_death(llama: Any, pid: int) -> None:
    until(lambda: f"(pid {pid})" in str(status_of(llama).last_death), "it is known")


def test_embeddings_and_counting(server: Server) -> None:
    with server.http() as http:
        vectors = http.post("/v1/embeddings", json={"input": ["Hello", "there"]})
        assert len(vectors.json()["data"]) == 2
        counted = http.post("/v1/messages/count_tokens", json={"model": "demo", **HELLO})
        assert counted.json()["input_tokens"] > 3
        slots = http.get("/slots").json()
        assert len(slots) == 8


def test_its_process_ends_with_the_server() -> None:
    with serving(settings()) as server:
        with server.http() as http:
            assert http.post("/v1/chat/completions", json=HELLO).status_code == 200
        pid = status_of(llama_of(server)).pid
    assert gone(pid)


@pytest.mark.long
def test_fifty_deaths_under_sixteen_streams(tmp_path: Path) -> None:
    """Each stream ends with an error or goes on, and the next request is answered within the time
    that loading takes; its session reuses what the store has."""
    deaths, streams = 50, 16
    ended, whole = [], []
    stop = threading.Event()

    def read(server: Server, number: int) -> None:
        body = {"messages": [{"role": "user", "content": f"Story {number}"}], **STORY}
        with server.http() as http:
            while not stop.is_set():
                reply = http.post("/v1/chat/completions", json={**body, "stream": True})
                if '"code":"engine_dead"' in reply.text:
                    ended.append(number)
                else:
                    assert '"finish_reason":"length"' in reply.text, reply.text[-500:]
                    whole.append(number)

    options: dict[str, Any] = {**OPTIONS, "n_ctx": 32768, "n_seq_max": streams + 2}
    given = demo_settings({"session_dir": tmp_path}, isolate=True, **options)
    waits, stored = [], 0
    with serving(given) as server, server.http() as http:
        llama = llama_of(server)
        threads = [threading.Thread(target=read, args=[server, n]) for n in range(streams)]
        for each in threads:
            each.start()
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Of the sea. " * 60}]
        for death in range(deaths):
            name = f"mine-{death // 10}"
            body = {"temperature": 0, "max_tokens": 8, "session_id": name}
            until(lambda: llama.runtime.port.report().running >= streams, "all of them run")
            kill(llama)
            start = time.monotonic()
            reply = http.post("/v1/chat/completions", json={"messages": messages, **body})
            waits.append(time.monotonic() - start)
            assert reply.status_code == 200, reply.text
            found = reply.json()
            used = found["usage"]["prompt_tokens"] + found["usage"]["completion_tokens"]
            # Some tokens at the end of what is stored may be others in the next prompt.
            assert found["usage"]["prompt_tokens_details"]["cached_tokens"] >= stored - 8
            _await_saved(http, used - 64, name)
            stored = _saved(http, name)
            if death % 10 == 9:
                messages = messages[:1]
                stored = 0
            else:
                said = {"role": "assistant", "content": found["choices"][0]["message"]["content"]}
                messages = [*messages, said, {"role": "user", "content": f"And {death}?"}]
        stop.set()
        status = status_of(llama)
        kill(llama)
        for each in threads:
            each.join()
    waits.sort()
    print(
        f"{deaths} deaths: {len(ended)} streams ended with an error and {len(whole)} in order; "
        f"the next request took {waits[len(waits) // 2]:.1f} s (median), {waits[-1]:.1f} s (most)"
    )
    assert status.restarts == deaths
    assert len(ended) >= deaths * streams * 0.9
