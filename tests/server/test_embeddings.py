"""Embeddings over HTTP: the official client, other forms, and everything that can be wrong."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openai
import pytest

from llama_py import Embedder
from llama_py.api.embedding.calls import EmbeddingCalls
from tests.embeddings.models import WORDS, encoder
from tests.patience import PATIENCE
from tests.server.serving import Server, serving, tiny_settings

TEXTS = ["the cat sleeps", "a dog", "the old king runs to the river"]
MODEL: dict[str, Any] = {"architecture": "bert", "head": 1, "n_positions": 128}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(tiny_settings(encoder(**MODEL), n_ctx=0)) as server:
        yield server


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """What the texts are, computed in this process."""
    with Embedder(encoder(**MODEL)) as embedder:
        return embedder.embed(TEXTS)


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    with server.openai() as client:
        yield client


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.array(found, np.float32), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("encoding", ["float", "base64", openai.NOT_GIVEN])
def test_the_official_client_gets_vectors(client: Any, vectors: np.ndarray, encoding: Any) -> None:
    reply = client.embeddings.create(model="tiny", input=TEXTS, encoding_format=encoding)
    assert [each.index for each in reply.data] == [0, 1, 2]
    found = [each.embedding for each in reply.data]
    if encoding == "base64":
        found = [np.frombuffer(base64.b64decode(each), "<f4") for each in found]
    close(found, vectors)
    assert reply.object == "list"
    assert reply.model == "tiny"
    assert reply.usage.prompt_tokens == reply.usage.total_tokens == 5 + 4 + 9


def test_one_text_and_token_ids(client: Any, vectors: np.ndarray) -> None:
    close(client.embeddings.create(model="x", input=TEXTS[1]).data[0].embedding, vectors[1])
    with Embedder(encoder(**MODEL)) as embedder:
        tokens = [embedder.vocab.tokenize(text) for text in TEXTS]
    close(client.embeddings.create(model="x", input=tokens[2]).data[0].embedding, vectors[2])
    both = client.embeddings.create(model="x", input=tokens)
    close([each.embedding for each in both.data], vectors)


def test_inputs_in_the_forms_of_llama_server(server: Server, vectors: np.ndarray) -> None:
    def embedded(given: Any) -> list[Any]:
        reply = http.post("/v1/embeddings", json={"input": given})
        assert reply.status_code == 200, reply.text
        return [each["embedding"] for each in reply.json()["data"]]

    with Embedder(encoder(**MODEL)) as embedder:
        tokens = embedder.vocab.tokenize(TEXTS[0])
    parts = [{"type": "text", "text": "the cat "}, {"type": "text", "text": "sleeps"}]
    with server.http() as http:
        close(embedded({"prompt_string": TEXTS[0]}), vectors[:1])
        close(embedded({"content": parts}), vectors[:1])
        close(embedded([tokens[0], "the cat", *tokens[3:]]), vectors[:1])
        several = embedded([TEXTS[1], {"prompt_string": TEXTS[2]}, {"content": parts}])
        close(several, vectors[[1, 2, 0]])
        close(embedded([tokens, [*tokens[:2], "cat", *tokens[3:]]]), vectors[[0, 0]])


def test_without_pooling_each_token_has_a_vector() -> None:
    settings = tiny_settings(encoder(**MODEL), n_ctx=0, pooling_type=0)
    with serving(settings) as server, server.http() as http:
        told = http.post("/embeddings", json={"input": TEXTS}).json()
        unit = http.post("/embeddings", json={"content": "a", "normalize": True}).json()
        refused = http.post("/v1/embeddings", json={"input": "a"})
    assert [each["index"] for each in told] == [0, 1, 2]
    assert [len(each["embedding"]) for each in told] == [5, 4, 9]
    lengths = np.linalg.norm(told[0]["embedding"], axis=1)
    assert (abs(lengths - 1) > 1e-3).all(), "they are the model's own"
    close(np.linalg.norm(unit[0]["embedding"], axis=1), np.ones(3))
    assert refused.status_code == 400
    assert "/embeddings" in refused.json()["error"]["message"]


def test_dimensions_are_the_first_ones_at_length_one(client: Any, vectors: np.ndarray) -> None:
    reply = client.embeddings.create(model="x", input=TEXTS, dimensions=16)
    first = vectors[:, :16]
    close([each.embedding for each in reply.data], first / np.linalg.norm(first, axis=1)[:, None])


def test_as_many_inputs_as_openai_takes(client: Any) -> None:
    inputs = [f"{WORDS[index % len(WORDS)]} {index}" for index in range(2048)]
    reply = client.embeddings.create(model="x", input=inputs)
    assert [each.index for each in reply.data] == [*range(2048)]
    close(client.embeddings.create(model="x", input=inputs[777]).data[0].embedding,
          reply.data[777].embedding)  # fmt: skip
    with pytest.raises(openai.BadRequestError, match=r"2049 entries.* takes 2048 at once"):
        client.embeddings.create(model="x", input=[*inputs, "one more"])


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
BAD: list[tuple[dict[str, Any], str | None, str]] = [
    ({}, "input", "missing"),
    ({"input": None}, "input", "missing"),
    ({"input": 5}, "input", "must be a text"),
    ({"input": {"a": 1}}, "input.prompt_string", "missing"),
    (
        {"input": ["a", {"prompt_string": "b", "multimodal_data": ["aGk="]}]},
        "input[1]",
        "has 1 entries, and prompt_string has",
    ),
    ({"input": {"content": "a"}}, "input.content", "must be a list"),
    ({"input": {"content": []}}, "input", "is an empty text"),
    ({"input": ["a", {"content": [{"type": "x"}]}]}, "input[1].content[0].type", "expected text"),
    ({"input": {"content": [{"type": "image_url"}]}}, "input[0]", "must be an address"),
    ({"input": {"content": [PICTURE]}}, "input[0]", "embeds texts only"),
    ({"input": ""}, "input", "is an empty text"),
    ({"input": []}, "input", "is an empty list"),
    ({"input": ["a", ""]}, "input[1]", "is an empty text"),
    ({"input": ["a", 99999]}, "input[1]", "is out of range"),
    ({"input": ["a", None]}, "input[1]", "must be a text"),
    ({"input": ["a", []]}, "input[1]", "has no tokens"),
    ({"input": ["a", [True]]}, "input[1]", "must be a text or a list of token ids"),
    ({"input": [[1.5]]}, "input[0]", "must be a text or a list of token ids"),
    ({"input": [[99999]]}, "input[0]", "outside of the vocabulary"),
    ({"input": [-1, 3]}, "input[0]", "outside of the vocabulary"),
    ({"input": "\ud800"}, "input", "surrogate"),
    ({"input": ["a", "a " * 127]}, "input[1]", "129 tokens > 128 maximum"),
    ({"input": "a", "dimensions": 0}, "dimensions", "is 0"),
    ({"input": "a", "dimensions": 65}, "dimensions", "more than the 64"),
    ({"input": "a", "dimensions": "8"}, "dimensions", "must be an integer"),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format", "expected 'float' or 'base64'"),
    ({"input": "a", "encoding_format": 3}, "encoding_format", "must be"),
    ({"input": "a", "encoding_format": "q" * 9999}, "encoding_format", "qqq…; expected 'float'"),
    ({"input": "a", "normalize": "yes"}, "normalize", "must be true or false"),
    ({"input": "a", "embd_normalize": 7}, "embd_normalize", "expected -1"),
    ({"input": "a", "model": 7}, "model", "must be a string"),
]


@pytest.mark.parametrize(("body", "param", "words"), BAD, ids=lambda each: str(each)[:40])
def test_what_is_wrong_is_named(
    server: Server, body: dict[str, Any], param: str | None, words: str
) -> None:
    with server.http() as http:
        answer = http.post(
            "/v1/embeddings", content=json.dumps(body), headers={"content-type": "application/json"}
        )
        assert answer.status_code == (413 if "maximum" in words else 400), answer.text
        error = answer.json()["error"]
        assert words in error["message"]
        assert error["param"] == param
        assert http.post("/v1/embeddings", json={"input": "a"}).status_code == 200


def test_too_long_a_text_can_be_truncated(server: Server) -> None:
    with server.http() as http:
        body = {"input": "a " * 500, "truncate": True}
        answer = http.post("/v1/embeddings", json=body).json()
        assert answer["usage"]["prompt_tokens"] == 128
        error = http.post("/v1/embeddings", json={"input": "a " * 500}).json()["error"]
        assert error["code"] == "context_length_exceeded"


def test_nothing_is_computed_for_a_client_that_left(server: Server) -> None:
    body = json.dumps({"input": ["the old king runs to the river " * 12] * 2000}).encode()
    worker = server.service.models.models[0].llama.runtime.loaded.embedding_queue._worker
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: {host}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        while not worker._jobs:
            time.sleep(0.001)
        job = worker._jobs[0]
    end = time.monotonic() + PATIENCE
    while not job.future.done() and time.monotonic() < end:
        time.sleep(0.01)
    assert job.future.cancelled()
    assert job.done < 2000
    with server.http() as http:
        assert http.post("/v1/embeddings", json={"input": "a"}).status_code == 200


def test_the_form_of_llama_server(server: Server, vectors: np.ndarray) -> None:
    with server.http() as http:
        answer = http.post("/embeddings", json={"content": TEXTS}).json()
        assert [each["index"] for each in answer] == [0, 1, 2]
        close([each["embedding"][0] for each in answer], vectors)
        raw = http.post("/embeddings", json={"content": TEXTS[0], "embd_normalize": -1}).json()
        found = np.array(raw[0]["embedding"][0])
        close(found / np.linalg.norm(found), vectors[0])
        assert abs(np.linalg.norm(found) - 1) > 0.1


def test_documents_are_ranked_in_the_form_of_jina_and_of_tei(server: Server) -> None:
    with Embedder(encoder(**MODEL)) as embedder:
        raw = embedder.rerank("the king", TEXTS)
        scaled = embedder.rerank("the king", TEXTS, normalize=True)
    body: dict[str, Any] = {"query": "the king", "documents": TEXTS, "top_n": 2}
    with server.http() as http:
        jina = http.post("/v1/rerank", json={**body, "return_documents": True}).json()
        assert [each["index"] for each in jina["results"]] == [each.index for each in raw[:2]]
        close([each["relevance_score"] for each in jina["results"]], [e.score for e in raw[:2]])
        assert jina["results"][0]["document"] == {"text": raw[0].document}
        assert jina["usage"]["total_tokens"] > 0
        objects = {**body, "documents": [{"text": text} for text in TEXTS]}
        again = http.post("/rerank", json=objects).json()
        assert [each["index"] for each in again["results"]] == [each.index for each in raw[:2]]
        assert "document" not in again["results"][0]
        tei = http.post("/rerank", json={"query": "the king", "texts": TEXTS}).json()
        assert [each["index"] for each in tei] == [each.index for each in scaled]
        close([each["score"] for each in tei], [each.score for each in scaled])
        plain = {"query": "the king", "texts": TEXTS, "raw_scores": True, "return_text": True}
        tei = http.post("/rerank", json=plain).json()
        close([each["score"] for each in tei], [each.score for each in raw])
        assert tei[0]["text"] == raw[0].document


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "query"),
        ({"query": "a"}, "documents"),
        ({"query": 3, "documents": ["a"]}, "query"),
        ({"query": "a", "documents": "b"}, "documents"),
        ({"query": "a", "documents": []}, "documents"),
        ({"query": "a", "documents": ["a", 3]}, "documents[1]"),
        ({"query": "a", "documents": [{"image": "b"}]}, "documents[0].text"),
        ({"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        ({"query": "a", "documents": ["a", "a " * 200]}, "documents[1]"),
        ({"query": "a", "texts": ["a", "a " * 200]}, "texts[1]"),
    ],
)
def test_what_cannot_be_ranked_is_named(server: Server, body: dict[str, Any], param: str) -> None:
    with server.http() as http:
        answer = http.post("/v1/rerank", json=body)
        assert answer.status_code in (400, 413), answer.text
        assert answer.json()["error"]["param"] == param


def test_an_encoder_does_not_chat(server: Server, client: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: client.completions.create(model="x", prompt="the"),
        lambda: client.chat.completions.create(
            model="x", messages=[{"role": "user", "content": "the"}]
        ),
    ]
    for call in calls:
        with pytest.raises(openai.BadRequestError, match=r"this model is an encoder .*generate"):
            call()
    with server.http() as http:
        for path in ("/v1/models", "/props", "/slots", "/metrics", "/v1/sessions", "/health"):
            answer = http.get(path)
            assert answer.status_code < 500 or answer.status_code == 501, (path, answer.text)
        assert http.post("/tokenize", json={"content": "the cat"}).json()["tokens"]


def test_tokens_of_long_texts_keep_no_replies_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who builds an index sends megabytes in several requests at a time."""
    going, begun = threading.Event(), threading.Semaphore(0)
    vectors = EmbeddingCalls.vectors

    def slowly(calls: EmbeddingCalls, *arguments: Any, **options: Any) -> Any:
        begun.release()
        assert going.wait(PATIENCE)
        return vectors(calls, *arguments, **options)

    monkeypatch.setattr(EmbeddingCalls, "vectors", slowly)
    with serving() as server, server.http() as http, ThreadPoolExecutor(6) as threads:
        calls = [
            threads.submit(http.post, "/v1/embeddings", json={"input": "Hello!"}) for _ in range(6)
        ]
        assert begun.acquire(timeout=PATIENCE)
        try:
            answer = http.post("/v1/completions", json={"prompt": "Once", "max_tokens": 2})
            assert answer.status_code == 200
            assert http.get("/v1/sessions").status_code == 200
            assert not any(each.done() for each in calls)
        finally:
            going.set()
        assert {each.result().status_code for each in calls} == {200}


def test_a_model_that_chats_embeds_as_well() -> None:
    with serving() as server, server.openai() as client:
        reply = client.embeddings.create(model="x", input=["Hello!", "Good day!"])
        lengths = np.linalg.norm([each.embedding for each in reply.data], axis=1)
        close(lengths, [1, 1])
        with server.http() as http:
            answer = http.post("/v1/rerank", json={"query": "a", "documents": ["b"]})
        assert answer.status_code == 400
        assert "this model has no classification head" in answer.text
        assert ".gguf" not in answer.text  # the path is for who runs the server
