"""Several models behind one server: names, lists, loading, and sixteen clients at once."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

import llama_py
from llama_py import DraftModel
from llama_py.server.config.settings import ModelSettings, Settings
from tests.embeddings.models import encoder
from tests.models import tiny_model
from tests.patience import PATIENCE
from tests.server.serving import Server, serving

SMALL: dict[str, Any] = {"n_ctx": 8192, "n_seq_max": 8}
QUESTION = {"demo": "What is 2 + 3?", "tiny": "The quick brown fox"}


def two_models(**settings: Any) -> Settings:
    models = (
        ModelSettings(
            id="demo", path=llama_py.demo_model_path(), aliases=("claude-*",), options=SMALL
        ),
        ModelSettings(id="tiny", path=str(tiny_model("full")), aliases=("small",), options=SMALL),
    )
    return Settings(models=models, **settings)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(two_models()) as server:
        yield server


def ask(client: Any, name: str) -> str:
    reply = client.chat.completions.create(
        model=name,
        messages=[{"role": "user", "content": QUESTION[name]}],
        temperature=0,
        max_tokens=12,
    )
    assert reply.model == name
    return str(reply.choices[0].message.content)


def test_sixteen_clients_that_alternate_at_random(server: Server) -> None:
    with server.openai() as client:
        expected = {name: ask(client, name) for name in QUESTION}
    assert expected["demo"] == "2 + 3 = 5."
    assert expected["tiny"] != expected["demo"]
    before = server.service.models.counters.loads

    def talk(seed: int) -> list[float]:
        chance, waited = random.Random(seed), []
        with server.openai() as client:
            for _ in range(4):
                name, begun = chance.choice(["demo", "tiny"]), time.monotonic()
                assert ask(client, name) == expected[name]
                waited.append(time.monotonic() - begun)
        return waited

    with ThreadPoolExecutor(16) as threads:
        waits = [wait for waited in threads.map(talk, range(16)) for wait in waited]
    assert len(waits) == 64
    counters = server.service.models.counters
    assert 1 <= counters.loads - before <= 64
    assert counters.unloads == counters.loads - 1
    assert server.service.models.waiting == 0


# -- lists -----------------------------------------------------------------------------------------


def test_the_list_for_openai(server: Server) -> None:
    with server.openai() as client:
        ask(client, "demo")
        models = list(client.models.list())
        assert [model.id for model in models] == ["demo", "tiny"]
        assert client.models.retrieve("tiny").id == "tiny"
        assert client.models.retrieve("claude-haiku-4-5").id == "demo"
        with pytest.raises(openai.NotFoundError, match="this server has demo, tiny"):
            client.models.retrieve("gpt-4o")
    with server.http() as http:
        body = http.get("/v1/models").json()
        demo, tiny = body["data"]
        assert body["object"] == "list"
        assert [each["name"] for each in body["models"]] == ["demo", "tiny"]
        assert body["models"][0]["capabilities"] == ["completion"]
        codex = http.get("/v1/models", params={"client_version": "0.163.0"}).json()
        assert codex["models"] == [], "it looks for a list of its own form"
        props = http.get("/props").json()
        assert (props["role"], props["max_instances"]) == ("router", 1)
        assert "role" not in http.get("/props", params={"model": "tiny"}).json()
        assert demo["aliases"] == ["claude-*"]
        assert demo["meta"]["n_ctx_train"] == 2048
        assert demo["meta"]["n_vocab"] == 1536
        assert demo["meta"]["n_params"] > 2_000_000
        text = {"input_modalities": ["text"], "output_modalities": ["text"]}
        assert demo["architecture"] == tiny["architecture"] == text
        assert (demo["status"], tiny["status"]) == ({"value": "loaded"}, {"value": "unloaded"})
        assert http.get("/models").json() == body
        assert [each["id"] for each in http.get("/v1/models?limit=1").json()["data"]] == ["demo"]


def test_a_slash_behind_the_list_is_no_name(server: Server) -> None:
    with server.http() as client:
        assert client.get("/v1/models/").json() == client.get("/v1/models").json()


def test_the_list_for_anthropic(server: Server) -> None:
    with server.anthropic() as client:
        assert [model.id for model in client.models.list(limit=1)] == ["demo", "tiny"]
        page = client.models.list(limit=1)
        assert (page.has_more, page.first_id, page.last_id) == (True, "demo", "demo")
        last = client.models.list(limit=1000, after_id="demo")
        assert ([model.id for model in last.data], last.has_more) == (["tiny"], False)
        before = client.models.list(before_id="tiny")
        assert [model.id for model in before.data] == ["demo"]
        one = client.models.retrieve("small")
        assert (one.id, one.type, one.display_name, one.lifecycle) == (
            "tiny", "model", "tiny", "active",
        )  # fmt: skip
        assert abs(one.created_at.timestamp() - time.time()) < 3600
        with pytest.raises(anthropic.NotFoundError):
            client.models.retrieve("gpt-4o")


@pytest.mark.parametrize("limit", ["0", "-1", "many", "1001", "9" * 4000])
def test_limits_that_are_none(server: Server, limit: str) -> None:
    with server.http() as http:
        reply = http.get("/v1/models", params={"limit": limit})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "limit"


# -- loading and unloading -------------------------------------------------------------------------


def status(http: httpx.Client) -> dict[str, str]:
    models = http.get("/v1/models").json()["data"]
    return {model["id"]: model["status"]["value"] for model in models}


def test_loading_and_unloading_by_hand(server: Server) -> None:
    with server.http() as http:
        for _ in range(2):  # the second time nothing is to be done
            reply = http.post("/models/load", json={"model": "tiny"}).json()
            assert reply["success"] is True
            assert reply["model"]["meta"]["n_ctx"] == SMALL["n_ctx"]
            assert status(http) == {"demo": "unloaded", "tiny": "loaded"}
        for _ in range(2):
            reply = http.post("/models/unload", json={"model": "small"}).json()
            assert reply["model"]["status"] == {"value": "unloaded"}
            assert status(http) == {"demo": "unloaded", "tiny": "unloaded"}


@pytest.mark.parametrize("path", ["/models/load", "/models/unload"])
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "missing_required_parameter"),
        ({"model": 3}, "invalid_type"),
        ({"model": "gpt-4o"}, "model_not_found"),
    ],
)
def test_what_cannot_be_loaded(server: Server, path: str, body: dict[str, Any], code: str) -> None:
    with server.http() as http:
        assert http.post(path, json=body).json()["error"]["code"] == code


def test_a_name_that_is_not_known(server: Server) -> None:
    with server.openai() as client, pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "x"}])
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"


# -- waiting ---------------------------------------------------------------------------------------


def until(condition: Any) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_client_that_leaves_while_it_waits_for_a_model(server: Server) -> None:
    pool = server.service.models
    host, port = server.url.removeprefix("http://").split(":")
    with server.openai() as client:
        stream = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "Count to 10."}],
            max_tokens=1000,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(stream))
        loads = pool.counters.loads
        body = b'{"model": "tiny", "prompt": "x"}'
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n"
        with socket.create_connection((host, int(port))) as impatient:
            impatient.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
            until(lambda: pool.waiting == 1)
        until(lambda: pool.waiting == 0)
        stream.close()
        assert ask(client, "demo") == "2 + 3 = 5."
    assert pool.counters.loads == loads  # nobody wanted the other one any more


def test_waiting_too_long_and_models_that_are_broken(tmp_path: Any) -> None:
    broken = ModelSettings(id="broken", path=str(tmp_path / "missing.gguf"))
    models = (*two_models().models, broken)
    with serving(Settings(models=models, queue_timeout=0.2)) as server, server.openai() as client:
        with pytest.raises(openai.InternalServerError, match="its file is missing") as caught:
            client.completions.create(model="broken", prompt="x")
        assert caught.value.status_code == 503
        assert caught.value.response.headers["Retry-After"] == "1"
        assert str(tmp_path) not in caught.value.message
        with server.http() as http:
            failed = http.get("/v1/models/broken").json()["status"]
            assert failed == {"value": "unloaded", "failed": True, "reason": "its file is missing"}
        stream = client.completions.create(
            model="tiny", prompt="x", max_tokens=8000, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        with pytest.raises(openai.InternalServerError, match=r"within 0\.2 seconds") as caught:
            client.completions.create(model="demo", prompt="x")
        assert caught.value.status_code == 503
        assert caught.value.response.headers["Retry-After"] == "5"
        stream.close()


def test_clients_do_not_learn_where_files_lie(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    tiny, encoding, demo = str(tiny_model("full")), str(encoder()), llama_py.demo_model_path()
    paths: dict[str, tuple[str, dict[str, Any], str]] = {
        "empty": (f"{tmp_path}//empty.gguf", {}, "empty: the file is empty"),
        "drafted": (
            tiny,
            {"speculative": f"draft={tmp_path}/a.gguf"},
            "the file a.gguf is missing",
        ),
        "odd": (tiny, {"speculative": f"draft={encoding}"}, f"{Path(encoding).name} (bert) has"),
        "alien": (tiny, {"speculative": DraftModel(demo)}, "than alien ("),
        "shaped": (tiny, {"lora_path": demo}, f"LoRA adapter {Path(demo).name}"),
    }
    models = tuple(ModelSettings(id=name, path=path, options=options)
                   for name, (path, options, _) in paths.items())  # fmt: skip
    with serving(Settings(models=models)) as server, server.http() as http:
        for name, (_, _, said) in paths.items():
            body = {"model": name, "prompt": "x"}
            message = http.post("/v1/completions", json=body).json()["error"]["message"]
            reason = http.get(f"/v1/models/{name}").json()["status"]["reason"]
            assert said in message
            assert reason in message
            assert "/" not in message


def test_what_came_and_went_is_counted() -> None:
    with serving(two_models()) as server, server.openai() as client, server.http() as http:
        for name in ("demo", "tiny", "demo"):
            ask(client, name)
        page = http.get("/metrics").text
    for line in (
        "llama_py_model_loads_total 3.0",
        "llama_py_model_evictions_total 2.0",
        "llama_py_models_loaded 1.0",
        "llama_py_model_requests_waiting 0.0",
    ):
        assert line in page.splitlines()
    counted = dict(line.rsplit(" ", 1) for line in page.splitlines() if line[0] != "#")
    for name, replies in (("demo", 2), ("tiny", 1)):  # also by engines that are gone
        label = f'{{model_name="{name}"}}'
        assert float(counted[f"llama_py_e2e_request_latency_seconds_count{label}"]) == replies
        assert float(counted[f"llamacpp:prompt_tokens_total{label}"]) > 0
        assert float(counted[f"llamacpp:requests_processing{label}"]) == 0
    assert float(counted['llama_py_kv_cache_usage_perc{model_name="tiny"}']) == 0
    assert float(counted['llama_py_kv_cache_usage_perc{model_name="demo"}']) > 0
