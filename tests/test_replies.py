"""What a reply says about itself: what was reused for it, and what was left out."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from llama_py import AsyncLlama, ChatReply, CompletionReply, Llama, TrimMessages
from tests.models import tiny_model

OPTIONS: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "flash_attn": False}
ASK: dict[str, Any] = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
CHAT = [{"role": "user", "content": "the quick brown fox"}]
LONG = [
    {"role": ("user", "assistant")[place % 2], "content": f"number {place} " * 12}
    for place in range(41)
]


@pytest.fixture(scope="module")
def shared() -> Iterator[Llama]:
    with Llama(str(tiny_model("full")), **OPTIONS) as llm:
        yield llm


@pytest.fixture
def llm(shared: Llama) -> Llama:
    shared.reset()
    return shared


def test_a_whole_reply_says_what_was_reused(llm: Llama) -> None:
    first = llm.create_chat_completion(CHAT, **ASK)
    again = llm.create_chat_completion(CHAT, **ASK)
    assert first.cache["reused"] == 0
    assert again.cache["reused"] == again["usage"]["prompt_tokens"] - 1
    assert again["usage"]["prompt_tokens_details"] == {"cached_tokens": again.cache["reused"]}
    assert first.dropped is None
    assert type(first) is ChatReply
    assert type(llm.create_completion("x", **ASK)) is CompletionReply


def test_a_reply_is_a_dictionary(llm: Llama) -> None:
    reply = llm.create_completion("the quick", **ASK)
    plain = {**reply}
    assert type(plain) is dict
    assert reply == plain
    assert json.loads(json.dumps(reply)) == plain
    for other in (pickle.loads(pickle.dumps(reply)), copy.deepcopy(reply)):
        assert other == reply
        assert other.cache == reply.cache


def test_a_stream_says_what_was_reused(llm: Llama) -> None:
    llm.create_completion("the quick brown fox", **ASK)
    stream = llm.create_completion("the quick brown fox", stream=True, **ASK)
    before = dict(stream.cache)  # it may have begun by then
    chunks = [*stream]
    assert before in ({}, dict(stream.cache))
    assert stream.cache["reused"] == chunks[-1]["timings"]["cache_n"] > 0


def test_a_reply_says_what_was_left_out(llm: Llama) -> None:
    policy = TrimMessages(reserve=16)
    reply = llm.create_chat_completion(LONG, overflow=policy, **ASK)
    assert reply.dropped is not None
    places = reply.dropped.places
    assert [*places] == [*range(len(places))]
    assert [*reply.dropped.dropped] == [LONG[place] for place in places]
    stream = llm.create_chat_completion(LONG, overflow=policy, stream=True, **ASK)
    assert stream.dropped == reply.dropped  # before the first chunk
    stream.close()
    assert llm.create_chat_completion(CHAT, **ASK).dropped is None


def test_async_replies_say_it_too(llm: Llama) -> None:
    async def main() -> None:
        async with AsyncLlama(llama=llm) as model:
            first = await model.create_chat_completion(LONG, overflow=TrimMessages(), **ASK)
            assert first.cache["reused"] == 0
            assert first.dropped is not None
            stream = await model.create_chat_completion(
                LONG, overflow=TrimMessages(), stream=True, **ASK
            )
            assert stream.dropped == first.dropped
            assert [chunk async for chunk in stream]
            assert stream.cache["reused"] == first["usage"]["prompt_tokens"] - 1
            assert llm.cache.info == stream.cache

    asyncio.run(main())


def test_a_sessions_reply_says_it(llm: Llama) -> None:
    session = llm.chat_session("Be brief.", overflow=TrimMessages(reserve=16), **ASK)
    for number in range(20):
        reply = session.send(f"number {number} " * 10, stream=True)
        reply.read()
        assert reply.cache["reused"] > 0 or not number
        if reply.dropped is not None:
            break
        assert session.dropped == []
    else:
        raise AssertionError("it never became too long")
    assert [*reply.dropped.dropped] == session.dropped != []


def test_one_and_the_same_message_twice_is_left_out_once(llm: Llama) -> None:
    """What a session keeps is told by place: equal messages are not one another."""
    session = llm.chat_session(overflow=TrimMessages(reserve=16), **ASK)
    turn = {"role": "user", "content": "number " * 30}
    session._messages = [turn, {"role": "assistant", "content": "x"}] * 8
    session.send("and now?")
    assert session.messages.count(turn) == 8 - session.dropped.count(turn) > 0


def test_every_thread_may_ask_what_happened_last(llm: Llama) -> None:
    reply = llm.create_completion("the quick brown fox", **ASK)
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(llm.cache.info))
    thread.start()
    thread.join()
    assert seen == [reply.cache] != [{}]
    assert llm.cache_info == reply.cache


def test_info_is_of_the_stream_that_was_read_last(llm: Llama) -> None:
    options: dict[str, Any] = {**ASK, "max_tokens": 30, "stream": True}
    with (
        llm.create_completion([5, 6, 7], session_id="one", **options) as one,
        llm.create_completion([9, 8, 7, 6], session_id="other", **options) as other,
    ):
        for stream, name in ((one, "one"), (other, "other"), (one, "one")):
            next(stream)
            assert llm.cache.info["session"] == name


class Polite(Llama):
    """A user's subclass that changes what is asked."""

    def create_chat_completion(self, messages: Any, **options: Any) -> Any:
        polite = [{"role": "system", "content": "Be polite."}, *messages]
        return super().create_chat_completion(polite, **options)


def test_what_a_subclass_overrides_is_asked_by_asyncio_too() -> None:
    async def main(llm: Polite) -> None:
        expected = llm.create_chat_completion(CHAT, **ASK)
        async with AsyncLlama(llama=llm) as model:
            reply = await model.create_chat_completion(CHAT, **ASK)
            assert reply["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]
            stream = await model.create_chat_completion(CHAT, stream=True, **ASK)
            text = "".join(
                [chunk["choices"][0]["delta"].get("content") or "" async for chunk in stream]
            )
            assert text == expected["choices"][0]["message"]["content"]
            assert (await model.create_completion("x", **ASK))["choices"]

    with Polite(str(tiny_model("full")), **OPTIONS) as llm:
        asyncio.run(main(llm))


def test_a_long_async_reply_does_not_hold_up_the_event_loop(
    llm: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts are put together elsewhere."""
    from llama_py.dialects.openai.encode import CompletionEncoder

    threads: set[int] = set()
    feed = CompletionEncoder.feed

    def watched(encoder: Any, choice: int, event: Any) -> Any:
        threads.add(threading.get_ident())
        return feed(encoder, choice, event)

    monkeypatch.setattr(CompletionEncoder, "feed", watched)

    async def main() -> None:
        async with AsyncLlama(llama=llm) as model:
            reply = await model.create_completion([5, 6, 7], **{**ASK, "max_tokens": 300})
            assert reply["usage"]["completion_tokens"] == 300
            assert threads
            assert threading.get_ident() not in threads

    asyncio.run(main())
