"""Requests for a model that takes long to be loaded: nobody waits in silence."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest

from llama_py.api.llama import Llama
from llama_py.errors import ModelLoadError
from llama_py.server.config.settings import ModelSettings, Settings
from tests.models import tiny_model
from tests.patience import PATIENCE
from tests.server.leaving import until
from tests.server.serving import Server, serving

PING = 0.1
CHAT: dict[str, Any] = {
    "model": "cold",
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 3,
}
PATHS = {
    "/v1/chat/completions": CHAT,
    "/v1/messages": CHAT,
    "/v1/responses": {"model": "cold", "input": "Hello", "max_output_tokens": 3},
    "/completion": {"model": "cold", "prompt": "Hello", "n_predict": 3},
}


class Door:
    """Keeps models from being loaded until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.error: Exception | None = None


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    door = Door()

    def wait(*arguments: Any, **options: Any) -> Any:
        assert door.open.wait(PATIENCE)
        if door.error is not None:
            raise door.error
        return Llama(*arguments, **options)

    monkeypatch.setattr("llama_py.server.pool.loader.Llama", wait)
    yield door
    door.open.set()


@pytest.fixture
def server(door: Door) -> Iterator[Server]:
    options = {"n_ctx": 512, "n_threads": 1, "verbose": False}
    path = str(tiny_model("full"))
    models = tuple(ModelSettings(name, path, options=options) for name in ("cold", "other"))
    with serving(Settings(models=models, ping_interval=PING)) as server:
        yield server


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http() as http:
        yield http


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_begins_before_its_model_is_there(
    http: httpx.Client, door: Door, path: str
) -> None:
    with http.stream("POST", path, json={**PATHS[path], "stream": True}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        chunks = answer.iter_text()
        begin = next(chunks) + next(chunks)
        sign = 'event: ping\ndata: {"type":"ping"}\n\n' if path == "/v1/messages" else ": the model"
        assert begin.startswith(sign)
        assert begin.count(sign) == 2
        assert http.get("/health").json() == {"status": "ok", "loading": True}
        door.open.set()
        rest = "".join(chunks)
    ends = {"/v1/messages": "message_stop", "/v1/responses": "response.incomplete"}
    assert ends.get(path, '"stop":true' if path == "/completion" else "[DONE]") in rest
    assert http.get("/health").json() == {"status": "ok"}


def test_ollamas_lines_have_no_comments(server: Server, door: Door) -> None:
    """The headers are sign enough; what goes wrong is the last line."""
    asked: dict[str, Any] = {"messages": CHAT["messages"], "options": {"num_predict": 3}}
    with ollama.Client(host=server.url, timeout=PATIENCE) as client:
        threading.Timer(3 * PING, door.open.set).start()
        *_, last = client.chat("cold", stream=True, **asked)
        assert (last.done_reason, last.eval_count) == ("length", 3)
        assert int(last.load_duration or 0) > 2e9 * PING
        door.open.clear()
        door.error = ModelLoadError("broken")
        threading.Timer(3 * PING, door.open.set).start()
        with pytest.raises(ollama.ResponseError, match="the model other cannot be loaded"):
            [*client.chat("other", stream=True, **asked)]


def test_waiting_for_a_model_is_no_fault_of_the_client(door: Door) -> None:
    """It had nothing to read, for longer than it may take to read something."""
    options = {"n_ctx": 512, "n_threads": 1, "verbose": False}
    path = str(tiny_model("full"))
    models = tuple(ModelSettings(name, path, options=options) for name in ("cold", "other"))
    settings = Settings(models=models, ping_interval=0.6, write_timeout=0.3)
    threading.Timer(1.5, door.open.set).start()
    body = {**CHAT, "stream": True}
    with (
        serving(settings) as server,
        server.http() as http,
        http.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        text = "".join(answer.iter_text())
    assert text.startswith(": the model")
    assert "[DONE]" in text


def test_clients_do_not_mind(server: Server, door: Door) -> None:
    threading.Timer(4 * PING, door.open.set).start()
    with server.anthropic() as client, client.messages.stream(**CHAT) as stream:
        assert stream.get_final_message().usage.output_tokens == 3
    door.open.clear()
    with server.http() as http:
        assert http.post("/models/unload", json={"model": "cold"}).status_code == 200
    threading.Timer(4 * PING, door.open.set).start()
    with server.openai() as client, client.responses.stream(model="cold", input="Hello") as stream:
        *_, last = stream
    assert last.type in ("response.completed", "response.incomplete")


@pytest.mark.parametrize("path", PATHS)
def test_what_goes_wrong_then_is_an_error_in_the_stream(
    http: httpx.Client, server: Server, door: Door, path: str
) -> None:
    wrong = {**PATHS[path], "stream": True, "temperature": "warm"}
    with http.stream("POST", path, json=wrong) as answer:
        chunks = answer.iter_text()
        next(chunks)
        door.open.set()
        rest = "".join(chunks)
    assert "temperature" in rest
    assert "invalid" in rest
    # A model that is there lets it be known before the headers.
    assert http.post(path, json=wrong).status_code == 400


def test_clients_raise_what_went_wrong(server: Server, door: Door) -> None:
    door.error = ModelLoadError("it is broken")
    threading.Timer(4 * PING, door.open.set).start()
    with server.openai() as client, pytest.raises(openai.APIError, match="broken"):
        list(client.responses.create(model="cold", input="Hello", stream=True))
    until(lambda: not server.service.models.waiting, "nobody waits")
    door.open.clear()
    threading.Timer(4 * PING, door.open.set).start()
    with server.anthropic() as client, pytest.raises(anthropic.APIError, match="broken"):
        list(client.messages.create(**{**CHAT, "model": "other"}, stream=True))


def test_without_a_stream_a_reply_just_waits(http: httpx.Client, door: Door) -> None:
    threading.Timer(4 * PING, door.open.set).start()
    begun = time.monotonic()
    answer = http.post("/v1/chat/completions", json=CHAT)
    assert answer.json()["usage"]["completion_tokens"] == 3
    assert time.monotonic() - begun >= 4 * PING


def test_who_leaves_meanwhile_is_not_waited_for(
    http: httpx.Client, server: Server, door: Door
) -> None:
    with http.stream("POST", "/v1/messages", json={**CHAT, "stream": True}) as answer:
        chunks = answer.iter_text()  # dropping it closes the connection
        next(chunks)
        assert server.service.models.waiting == 1
    until(lambda: not server.service.models.waiting, "nobody waits")
    door.open.set()
