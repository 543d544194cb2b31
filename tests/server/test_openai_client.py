"""The official client of OpenAI's talks to the server."""

from __future__ import annotations

from typing import Any

from tests.server.serving import Server

QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]


def test_a_chat(client: Any) -> None:
    reply = client.chat.completions.create(model="any", messages=QUESTION, temperature=0)
    assert reply.model == "demo"
    assert reply.choices[0].message.role == "assistant"
    assert "5" in reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_a_stream_says_the_same(client: Any) -> None:
    whole = client.chat.completions.create(model="any", messages=QUESTION, temperature=0)
    chunks = [
        *client.chat.completions.create(
            model="any",
            messages=QUESTION,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    ]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_completion(client: Any) -> None:
    whole = client.completions.create(model="any", prompt="Once", max_tokens=8, temperature=0)
    chunks = client.completions.create(
        model="any", prompt="Once", max_tokens=8, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert whole.choices[0].finish_reason == "length"


def test_what_does_not_exist_is_told_in_the_dialect_of_the_path(server: Server) -> None:
    with server.http() as http:
        missing = http.get("/v1/nothing")
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "not_found"
        method = http.get("/v1/chat/completions")
        assert (method.status_code, method.headers["allow"]) == (405, "POST")
        assert method.json()["error"]["code"] == "method_not_allowed"
        other = http.get("/v1/messages/nothing")
        assert other.json()["error"]["type"] == "not_found_error"
