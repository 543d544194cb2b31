"""What holds for requests that do not say: sampling, the length of replies, reasoning, the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from llama_py.errors import ParameterError
from llama_py.server.config.settings import Settings
from tests.dialects.test_encode_chat import THINKING
from tests.server.serving import demo_settings, serving

GIVEN: dict[str, Any] = {
    "temperature": 0.0, "top_k": 7, "top_p": 0.5, "min_p": 0.25, "repeat_penalty": 1.5,
    "presence_penalty": 0.5, "frequency_penalty": 0.25, "seed": 11, "max_tokens": 3,
}  # fmt: skip
QUESTION = [{"role": "user", "content": "Count to 9."}]


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    settings = demo_settings({**GIVEN, "ui": False, "reasoning": "off"}, chat_template=THINKING)
    with serving(settings) as server, server.http() as http:
        yield http


def post(http: httpx.Client, path: str, **body: Any) -> Any:
    reply = http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_they_are_those_of_a_request_that_does_not_say(http: httpx.Client) -> None:
    told = post(http, "/completion", prompt="one")["generation_settings"]
    assert {name: told[name] for name in GIVEN} == GIVEN
    own = http.get("/props").json()["default_generation_settings"]["params"]
    assert {name: own[name] for name in GIVEN} == GIVEN
    told = post(http, "/completion", prompt="one", top_k=5, n_predict=2, seed=3)
    assert told["generation_settings"]["top_k"] == 5
    assert told["generation_settings"]["seed"] == 3
    assert told["tokens_predicted"] <= 2


def test_every_route_has_them(http: httpx.Client) -> None:
    many = {"ignore_eos": True}
    chat = post(http, "/v1/chat/completions", messages=QUESTION, **many)
    assert chat["usage"]["completion_tokens"] == 3
    text = post(http, "/v1/completions", prompt="one", **many)
    assert text["usage"]["completion_tokens"] == 3
    response = post(http, "/v1/responses", input="Count to 9.")
    assert (response["temperature"], response["top_p"]) == (0.0, 0.5)
    assert (response["presence_penalty"], response["frequency_penalty"]) == (0.5, 0.25)
    assert response["usage"]["output_tokens"] <= 3
    longer = post(http, "/v1/chat/completions", messages=QUESTION, max_tokens=5, **many)
    assert longer["usage"]["completion_tokens"] == 5


def test_reasoning_is_off_unless_a_request_asks_for_it(http: httpx.Client) -> None:
    def prompt(**body: Any) -> str:
        text: str = post(http, "/apply-template", messages=QUESTION, **body)["prompt"]
        return text

    off, on = prompt(), prompt(enable_thinking=True)
    assert off != on
    assert off == prompt(enable_thinking=False)
    assert on == prompt(chat_template_kwargs={"enable_thinking": True})


def test_there_is_no_page(http: httpx.Client) -> None:
    assert http.get("/").status_code == 404
    assert http.get("/page/main.css").status_code == 404
    assert http.get("/v1/models").status_code == 200


@pytest.mark.parametrize(("name", "value"), [("top_p", 2), ("max_tokens", 0), ("reasoning", "no")])
def test_what_is_wrong_is_said_at_the_start(name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=name):
        Settings(**{name: value})
