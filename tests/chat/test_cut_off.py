"""Replies that break off within a tool call."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from llama_py import ChatSession, Llama, demo_model_path
from tests.chat import families
from tests.chat.families import TOOLS, USER
from tests.steering import Steer, split_tokens, vocabulary_model

CALL = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(demo_model_path(), n_ctx=2048, n_threads=1) as llm:
        yield llm


def steered(llm: Llama, text: str) -> dict[str, Any]:
    tokens = [*split_tokens(llm.vocab, text, random.Random(0)), llm.token_eos()]
    return {"temperature": 0, "logits_processor": [Steer(tokens)]}


def ended(llm: Llama, stop: str, stream: bool, text: str = CALL, **options: Any) -> str:
    """Why a reply ended."""
    asked = {"max_tokens": 200, "stop": [stop], "stream": stream, **steered(llm, text), **options}
    answer: Any = llm.create_chat_completion(USER, **asked)
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in (answer if stream else [answer])]
    return str(reasons[-1])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("stop", ["name", "get_", '": "Par', "Paris", ": 3", "3"])
def test_a_stop_string_within_a_call(llm: Llama, stop: str, choice: str, stream: bool) -> None:
    assert ended(llm, stop, stream, tools=TOOLS, tool_choice=choice) == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_within_the_second_call(llm: Llama, stream: bool) -> None:
    second = '\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    options = {"tools": TOOLS, "parallel_tool_calls": True}
    assert ended(llm, '"b', stream, CALL + second, **options) == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_function_that_is_cut_off(llm: Llama, stream: bool) -> None:
    functions = [tool["function"] for tool in TOOLS]
    assert ended(llm, "Paris", stream, functions=functions) == "stop"
    assert ended(llm, "Rome", stream, functions=functions) == "function_call"


@pytest.mark.parametrize("stop", ["\n</tool_call>", "</tool", "Rome"])
def test_a_whole_call_is_one(llm: Llama, stop: str) -> None:
    assert ended(llm, stop, False, tools=TOOLS) == "tool_calls"


def test_arguments_in_tags() -> None:
    path, family = str(vocabulary_model("qwen2")), "Qwen3-Coder"
    text = families.sample(family, "call").text.rstrip()
    with Llama(path, chat_template=families.source(family), n_ctx=2048, n_threads=1) as llm:
        assert ended(llm, "Par", False, text, tools=TOOLS) == "stop"
        assert ended(llm, "Rome", False, text, tools=TOOLS) == "tool_calls"


# ---- a session goes on -----------------------------------------------------------------------


@pytest.mark.parametrize("text", [CALL, f"Let me look.\n{CALL}"])
@pytest.mark.parametrize("how", [{"max_tokens": 24}, {"stop": ["Paris"]}])
def test_a_session_goes_on_after_half_a_call(llm: Llama, how: dict[str, Any], text: str) -> None:
    cut = {**how, "max_tokens": 28} if "Let" in text and "max_tokens" in how else how
    with ChatSession(llm, tools=TOOLS) as chat:
        chat.send("Weather?", **steered(llm, text), **cut)
        assert chat.last_response is not None
        (choice,) = chat.last_response["choices"]
        assert choice["message"]["tool_calls"], "for those who want to see it"
        assert choice["finish_reason"] == ("stop" if "stop" in how else "length")
        assert chat.tool_calls == []
        assert chat.send("Never mind.", **steered(llm, "Fine."), max_tokens=20) == "Fine."
        roles = [message["role"] for message in chat.messages]
        assert roles == ["user", "assistant", "user", "assistant"]
        assert chat.messages[1]["content"].strip() == text.removesuffix(CALL).strip()


def test_whole_calls_before_half_a_call_are_open(llm: Llama) -> None:
    second = '\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    with ChatSession(llm, tools=TOOLS) as chat:
        chat.send("?", **steered(llm, CALL + second), stop=['"b'], parallel_tool_calls=True)
        (call,) = chat.tool_calls
        assert call["function"]["name"] == "get_weather"
        assert (
            chat.send_tool_result(call["id"], "sunny", **steered(llm, "Ah."), max_tokens=9) == "Ah."
        )
