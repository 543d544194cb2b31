"""The bundled model does what its skills promise: it calls tools, and keeps to a JSON schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from llama_py import Llama, demo_model_path

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(demo_model_path(), n_ctx=1024) as loaded:
        yield loaded


def answer(llm: Llama, messages: list[Any], *, stream: bool, **options: Any) -> dict[str, Any]:
    """The message and the finish reason of a reply; a stream is folded by hand."""
    response: Any = llm.create_chat_completion(messages, temperature=0, stream=stream, **options)
    if not stream:
        choice = response["choices"][0]
        return {**choice["message"], "finish_reason": choice["finish_reason"]}
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for chunk in response:
        choice = chunk["choices"][0]
        message["content"] += choice["delta"].get("content") or ""
        for call in choice["delta"].get("tool_calls") or ():
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                calls.append({"type": "function", "function": {"name": "", "arguments": ""}})
            target = calls[call["index"]]
            target["id"] = call.get("id") or target["id"]
            for name, text in call["function"].items():
                target["function"][name] += text or ""
        message["finish_reason"] = choice["finish_reason"]
    return message


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("choice", ["auto", "required", NAMED], ids=["auto", "required", "named"])
@pytest.mark.parametrize("city", ["Paris", "Berlin"])
def test_a_tool_is_called_and_its_result_used(
    llm: Llama, city: str, choice: Any, stream: bool
) -> None:
    messages: list[Any] = [{"role": "user", "content": f"What is the weather in {city}?"}]
    reply = answer(llm, messages, stream=stream, tools=TOOLS, tool_choice=choice)
    assert reply.pop("finish_reason") == "tool_calls"
    (call,) = reply["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": city}
    result = json.dumps({"temperature": 17, "condition": "rainy"})
    messages += [reply, {"role": "tool", "tool_call_id": call["id"], "content": result}]
    last = answer(llm, messages, stream=stream, tools=TOOLS)
    assert last["finish_reason"] == "stop"
    assert "17" in last["content"]
    assert "rainy" in last["content"]
    assert city in last["content"]
    # What the first call had in memory was not evaluated again.
    assert llm.cache_info["reused"] > 60


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_no_call_where_none_is_allowed(llm: Llama, stream: bool) -> None:
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    reply = answer(llm, messages, stream=stream, tools=TOOLS, tool_choice="none", max_tokens=60)
    assert "tool_calls" not in reply
    assert "get_weather" not in reply["content"]


def test_a_hundred_replies_at_temperature_1_fit_their_schema(llm: Llama) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    question = [{"role": "user", "content": "Tell me about a person, in JSON."}]
    texts = set()
    for seed in range(100):
        response: Any = llm.create_chat_completion(
            question, response_format=wanted, temperature=1, seed=seed, max_tokens=200
        )
        (choice,) = response["choices"]
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)
        texts.add(choice["message"]["content"])
    assert len(texts) > 1  # they were sampled
