"""``reuse=False`` and ``cache_prompt: false``: nothing in memory is taken, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from llama_py import AsyncLlama, ChatSession, Llama, demo_model_path
from tests.models import tiny_model
from tests.server.serving import Server, demo_settings, serving

QUESTION = [{"role": "user", "content": "Count to 9."}]
OTHER = [{"role": "user", "content": "My name is Alice. " * 10}]
OFF: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "reuse": False}


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(demo_model_path(), n_ctx=2048, n_threads=1) as llm:
        yield llm


def cached(reply: Any) -> int:
    number: int = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    return number


def test_two_equal_calls_give_one_text_and_others_are_reused(llm: Llama) -> None:
    other = llm.create_chat_completion(OTHER, max_tokens=4)
    first, second = (llm.create_chat_completion(QUESTION, **OFF) for _ in range(2))
    assert first["choices"] == second["choices"]
    assert cached(first) == cached(second) == 0
    assert second.cache["reason"] == "reuse is off"
    again = llm.create_chat_completion(OTHER, max_tokens=4)
    assert cached(again) == other["usage"]["prompt_tokens"] - 1, "others are left alone"
    assert cached(llm.create_chat_completion(QUESTION, max_tokens=4)) > 4, "and it is kept itself"


@pytest.mark.parametrize("threads", [1, 2])
def test_equal_calls_are_equal_wherever_there_is_room(threads: int) -> None:
    """To the bit, in a memory that others fill, and that they leave in pieces."""
    random = Random(3)
    seen = set()
    with Llama(demo_model_path(), n_ctx=700, n_threads=threads, n_threads_batch=threads) as llm:
        for _ in range(24):
            for _ in range(random.randint(0, 2)):
                text = f"{random.random()} My name is Alice. " * random.randint(1, 12)
                other = [{"role": "user", "content": text}]
                llm.create_chat_completion(other, max_tokens=random.randint(1, 40))
            reply = llm.create_chat_completion(QUESTION, logprobs=True, top_logprobs=2, **OFF)
            seen.add(str(reply["choices"][0]["logprobs"]))
    assert len(seen) == 1


def test_what_is_pinned_stays_and_others_are_brought_back() -> None:
    """Room is made for a reply that may be long, and not at any price."""
    with Llama(demo_model_path(), n_ctx=1024, n_threads=1) as llm:
        warmed = [{"role": "system", "content": "You are brief. " * 20}]
        llm.prewarm(warmed)
        other = llm.create_chat_completion(OTHER, max_tokens=4)
        llm.create_chat_completion(QUESTION, temperature=0, reuse=False)
        asked = llm.create_chat_completion([*warmed, *QUESTION], max_tokens=2)
        assert asked.cache["action"] in ("continue", "fork"), "it never left the memory"
        assert cached(asked) > 40
        again = llm.create_chat_completion(OTHER, max_tokens=4)
        assert cached(again) == other["usage"]["prompt_tokens"] - 1


def test_nobody_leaves_for_room_that_is_not_to_be_had() -> None:
    """Beside a reply that is busy with most of it; and where sequences take no cells."""
    with Llama(demo_model_path(), n_ctx=1024, n_threads=1) as llm:
        llm.create_chat_completion(OTHER, max_tokens=4)
        long = llm.tokenize(b"one two three " * 200)[:600]
        running = llm.create_completion(long, max_tokens=200, stream=True, ignore_eos=True)
        next(running)
        llm.create_chat_completion(QUESTION, temperature=0, max_tokens=500, reuse=False)
        again = llm.create_chat_completion(OTHER, max_tokens=4)
        assert again.cache["action"] in ("continue", "fork"), "it never left the memory"
        running.close()
    with Llama(str(tiny_model("recurrent")), n_ctx=512, n_threads=1) as llm:
        llm.create_completion(list(range(30, 330)), max_tokens=2)
        llm.create_completion(list(range(40, 340)), max_tokens=2, reuse=False)
        third = llm.create_completion(list(range(30, 330)), max_tokens=2)
        assert third.cache["action"] != "load"
        assert cached(third) > 250


def test_its_prompt_has_the_tokens_of_its_text(llm: Llama) -> None:
    """Also where a reply in memory has others for the same text."""
    written = llm.vocab.tokenize("x", add_special=False) * 2
    llm.create_completion(written, max_tokens=3, temperature=0)
    text = llm.detokenize(written).decode()
    reply = llm.create_completion(text, **OFF)
    assert reply["usage"]["prompt_tokens"] == len(llm.vocab.tokenize(text))


def test_completions_and_turns(llm: Llama) -> None:
    for _ in range(2):
        assert cached(llm.create_completion("Count to 9.", **OFF)) == 0
    session = ChatSession(llm, temperature=0, max_tokens=8)
    session.send("Count to 3.")
    session.send("Count to 4.", reuse=False)
    assert session.last_response is not None
    assert cached(session.last_response) == 0
    session.send("Count to 5.")
    assert cached(session.last_response) > 10


def test_in_an_event_loop(llm: Llama) -> None:
    async def ask() -> Any:
        return await AsyncLlama(llama=llm).create_chat_completion(QUESTION, **OFF)

    llm.create_chat_completion(QUESTION, max_tokens=2)
    assert cached(asyncio.run(ask())) == 0


# ---- over HTTP -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(demo_settings(n_ctx=4096)) as server:
        yield server


LONG = "Count to 9. " * 4
CALLS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 2},
     ("usage", "prompt_tokens_details", "cached_tokens")),
    ("/v1/completions", {"prompt": LONG, "max_tokens": 2},
     ("usage", "prompt_tokens_details", "cached_tokens")),
    ("/v1/messages", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 2},
     ("usage", "cache_read_input_tokens")),
    ("/v1/responses", {"input": LONG, "max_output_tokens": 2},
     ("usage", "input_tokens_details", "cached_tokens")),
    ("/completion", {"prompt": LONG, "n_predict": 2}, ("timings", "cache_n")),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "place"), CALLS, ids=lambda each: str(each)[:20])
def test_every_route(
    server: Server, path: str, body: dict[str, Any], place: tuple[str, ...]
) -> None:
    def asked(**more: Any) -> Any:
        reply = http.post(path, json={**body, "temperature": 0, **more})
        assert reply.status_code == 200, reply.text
        value = reply.json()
        for name in place:
            value = value[name]
        return value

    with server.http() as http:
        asked()
        assert asked() > 5
        assert asked(cache_prompt=False) == 0
        assert asked() > 5, "what was there is there"
        wrong = http.post(path, json={**body, "cache_prompt": "no"})
    assert wrong.status_code == 400
    assert "cache_prompt" in wrong.json()["error"]["message"]
