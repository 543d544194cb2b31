"""``truncation: "auto"``: old turns are left out where the conversation does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.responses_streams import check, events_of, text_of
from tests.server.serving import demo_settings, serving


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with serving(demo_settings(n_ctx=512)) as server, server.http() as http:
        yield http


def turns(count: int) -> list[dict[str, Any]]:
    said = []
    for number in range(count):
        said.append({"role": "user", "content": f"My number is {number % 10}."})
        said.append({"role": "assistant", "content": f"I will remember {number % 10}."})
    return [{"role": "developer", "content": "You are a helpful assistant."}, *said]


def ask(http: httpx.Client, items: list[dict[str, Any]], **options: Any) -> httpx.Response:
    body = {"input": items, "temperature": 0, "max_output_tokens": 30, **options}
    return http.post("/v1/responses", json=body)


def question(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("streamed", [False, True])
def test_old_turns_are_left_out_if_that_is_asked_for(http: httpx.Client, streamed: bool) -> None:
    items = [*turns(60), question("My name is Alice.\n\nWhat is my name?")]
    plain = ask(http, items, stream=streamed)
    reply = ask(http, items, stream=streamed, truncation="auto")
    if streamed:
        assert check(events_of(plain.content))["status"] == "failed"
        response = check(events_of(reply.content))
    else:
        assert plain.status_code == 413
        response = reply.json()
    assert response["status"] == "completed"
    assert "Alice" in text_of(response)
    assert response["truncation"] == "auto"
    assert response["usage"]["input_tokens"] < 512


def test_what_fits_is_left_alone(http: httpx.Client) -> None:
    items = [*turns(3), question("What is my number?")]
    plain, cut = (ask(http, items, truncation=kind).json() for kind in ("disabled", "auto"))
    assert cut["usage"]["input_tokens"] == plain["usage"]["input_tokens"]


def test_the_turns_after_that_find_what_is_left(http: httpx.Client) -> None:
    items, shares = turns(60), []
    for number in range(4):
        items.append(question(f"What is {number} + 1?"))
        response = ask(http, items, truncation="auto").json()
        usage = response["usage"]
        shares.append(usage["input_tokens_details"]["cached_tokens"] / usage["input_tokens"])
        items += response["output"]
    assert max(shares[1:]) > 0.8


def test_one_turn_that_is_too_long_is_an_error_all_the_same(http: httpx.Client) -> None:
    reply = ask(http, [*turns(3), question("word " * 600)], truncation="auto")
    assert reply.status_code == 413
    assert reply.json()["error"]["code"] == "context_length_exceeded"
