"""Stored replies over HTTP: whose they are, and how many there may be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from llama_py.server.access.keys import ApiKey
from tests.server.serving import Server, demo_settings, serving

KEYS = (ApiKey("alice", "key-of-alice"), ApiKey("bob", "key-of-bob"))


@pytest.fixture(scope="module", params=[False, True], ids=["apart", "sharing prefixes"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    settings = {
        "api_keys": KEYS,
        "share_prefixes": request.param,
        "max_stored_responses": 4,
    }
    with serving(demo_settings(settings, n_ctx=1024)) as server:
        yield server


@pytest.fixture
def alice(server: Server) -> Iterator[Any]:
    with server.openai().with_options(api_key="key-of-alice") as client:
        yield client


@pytest.fixture
def bob(server: Server) -> Iterator[Any]:
    with server.openai().with_options(api_key="key-of-bob") as client:
        yield client


def ask(client: Any, text: str, **options: Any) -> Any:
    return client.responses.create(model="any", input=text, temperature=0, **options)


def test_a_reply_belongs_to_the_key_that_asked(alice: Any, bob: Any) -> None:
    mine = ask(alice, "My name is Alice.")
    with pytest.raises(openai.BadRequestError) as caught:
        ask(bob, "What is my name?", previous_response_id=mine.id)
    assert caught.value.code == "previous_response_not_found"
    item: Any = [{"type": "item_reference", "id": mine.output[0].id}]
    with pytest.raises(openai.BadRequestError) as caught:
        ask(bob, item)
    assert caught.value.code == "item_not_found"
    responses = bob.responses
    for method in (responses.retrieve, responses.delete, responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            method(mine.id)
    assert alice.responses.retrieve(mine.id).id == mine.id
    other = ask(alice, "What is my name?", previous_response_id=mine.id)
    assert other.output_text == "Your name is Alice."


def test_there_is_a_limit(alice: Any, bob: Any, server: Server) -> None:
    kept = ask(bob, "hello", max_output_tokens=1)
    ids = [ask(alice, "hello", max_output_tokens=1).id for _ in range(6)]
    assert len(server.service.responses) == 4
    assert alice.responses.retrieve(ids[-1]).id == ids[-1]
    assert bob.responses.retrieve(kept.id).id == kept.id
    with pytest.raises(openai.NotFoundError):
        alice.responses.retrieve(ids[0])


def test_without_a_key_there_is_nothing(server: Server) -> None:
    with server.http() as http:
        assert http.post("/v1/responses", json={"input": "hi"}).status_code == 401
        assert http.get("/v1/responses/resp_0").status_code == 401
