"""A conversation that has filled its context goes on at the price of its new tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import pytest

from llama_py import ContextOverflowError, Llama, TrimMessages
from tests.models import tiny_model

TURNS = 50
REPLY = 8
POLICY = TrimMessages(reserve=16)
OPTIONS: dict[str, Any] = {
    "n_ctx": 512,
    "n_seq_max": 2,
    "n_ubatch": 64,
    "n_threads": 1,
    "flash_attn": False,
    "type_k": 0,
    "type_v": 0,
}
REPLIES: dict[str, Any] = {"temperature": 0.0, "max_tokens": REPLY, "ignore_eos": True}
SYSTEM = "You are a helpful assistant. "
KINDS = ("full", "iswa", "recurrent", "hybrid")

Messages = list[dict[str, Any]]


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Llama, Llama]]:
    """A model, and one that never reuses anything."""
    path = str(tiny_model(request.param))
    with Llama(path, **OPTIONS) as llm, Llama(path, **OPTIONS) as fresh:
        yield llm, fresh


def question(number: int) -> str:
    return f"Number {number}: " + "the quick brown fox " * (1 + number % 3)


def in_a_session(llm: Llama) -> Iterator[tuple[str, bool]]:
    chat = llm.chat_session(SYSTEM, overflow=POLICY, **REPLIES)
    for number in range(TURNS):
        chat.send(question(number))
        yield question(number), bool(chat.dropped)


def with_the_whole_history(llm: Llama) -> Iterator[tuple[str, bool]]:
    messages: Messages = [{"role": "system", "content": SYSTEM}]
    for number in range(TURNS):
        messages.append({"role": "user", "content": question(number)})
        reply = llm.create_chat_completion(messages, overflow=POLICY, **REPLIES)
        messages.append(dict(reply["choices"][0]["message"]))
        yield question(number), llm.last_overflow is not None


@pytest.mark.parametrize("talk", [in_a_session, with_the_whole_history])
def test_the_fiftieth_turn_costs_only_its_new_tokens(
    pair: tuple[Llama, Llama], talk: Callable[[Llama], Iterator[tuple[str, bool]]]
) -> None:
    llm, fresh = pair
    llm.reset()

    def plain(text: str) -> int:
        return len(llm.tokenize(text, add_bos=False))

    markup = plain("user\nassistant\n") + 6
    evaluated, new = [], []
    full, before = False, 0
    for number, (text, dropped) in enumerate(talk(llm)):
        full |= dropped
        if full:
            evaluated.append(llm.metrics["evaluated"] - before)
            new.append(plain(text) + REPLY + markup)
        before = llm.metrics["evaluated"]
        if full and number % 20 == 0:
            check_reply(llm, fresh)
    assert len(new) > TURNS * 0.7
    assert median(evaluated) <= median(new) + 64
    assert sum(evaluated) <= 2.5 * sum(new)


def check_reply(llm: Llama, fresh: Llama) -> None:
    """The last reply is what a model says that has evaluated nothing but the same tokens."""
    request = llm.runtime.last.record
    fresh.reset()
    list(fresh.create_completion(request.tokens, stream=True, **REPLIES))
    assert fresh.runtime.last.record.generated == request.generated


def test_a_long_history_is_shortened_quickly(pair: tuple[Llama, Llama]) -> None:
    """A thousand turns that have to go are not rendered one by one."""
    llm, _ = pair
    rendered = 0
    render = llm.render_chat

    def counting(request: Any) -> Any:
        nonlocal rendered
        rendered += len(request.messages)
        return render(request)

    messages: Messages = [{"role": "system", "content": SYSTEM}]
    for number in range(1000):
        messages += [
            {"role": "user", "content": question(number)},
            {"role": "assistant", "content": "I can count."},
        ]
    messages.append({"role": "user", "content": "Hello!"})
    llm.render_chat = counting  # type: ignore[method-assign, assignment]
    try:
        started = time.process_time()
        llm.create_chat_completion(messages, overflow=POLICY, **REPLIES)
        seconds = time.process_time() - started
    finally:
        del llm.render_chat
    assert rendered <= 200
    assert seconds < 5
    report = llm.last_overflow
    assert report is not None
    assert len(report.dropped) > 1900
    assert report.prompt_tokens + report.spare == 512 - POLICY.reserve


def test_calls_of_tools_go_with_their_results(pair: tuple[Llama, Llama]) -> None:
    llm, _ = pair
    messages: Messages = [{"role": "system", "content": SYSTEM}]
    for number in range(25):
        call = {"id": f"call-{number}", "type": "function",
                "function": {"name": "look", "arguments": "{}"}}  # fmt: skip
        messages += [
            {"role": "user", "content": question(number)},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call-{number}", "content": "seen"},
        ]
        reply = llm.create_chat_completion(messages, overflow=POLICY, **REPLIES)
        kept = messages
        if llm.last_overflow is not None:
            dropped = {id(message) for message in llm.last_overflow.dropped}
            kept = [message for message in messages if id(message) not in dropped]
        asked = [call["id"] for message in kept for call in message.get("tool_calls", ())]
        answered = [message["tool_call_id"] for message in kept if message["role"] == "tool"]
        assert kept[0] is messages[0]
        assert kept[1]["role"] == "user"
        assert asked == answered
        messages.append(dict(reply["choices"][0]["message"]))
    assert llm.last_overflow is not None


def test_a_question_that_is_too_long_is_an_error_and_the_next_one_works(
    pair: tuple[Llama, Llama],
) -> None:
    llm, _ = pair
    chat = llm.chat_session(SYSTEM, overflow=POLICY, **REPLIES)
    chat.send(question(1))
    with pytest.raises(ContextOverflowError):
        chat.send("fox " * 600)
    assert len(chat.messages) == 3
    assert chat.send(question(2))


@pytest.mark.parametrize("policy", [5, "drop", TrimMessages])
def test_what_is_no_policy_is_refused_with_the_remedy(
    pair: tuple[Llama, Llama], policy: Any
) -> None:
    llm, _ = pair
    messages = [{"role": "user", "content": "Hello!"}]
    with pytest.raises(TypeError, match=r"TrimMessages\(\), or None"):
        llm.create_chat_completion(messages, overflow=policy)
    with pytest.raises(TypeError, match="messages"):
        llm.create_chat_completion(["Hello!"], overflow=POLICY)  # type: ignore[list-item]
