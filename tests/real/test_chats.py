"""Real models answer: chats, JSON, calls of tools, and text that is filled in."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import jsonschema
import pytest

from llama_py import Llama

CAPITAL = [{"role": "user", "content": "What is the capital of France? One word."}]
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer"},
        "languages": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3},
    },
    "required": ["name", "age", "languages"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 30},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
TIME: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Get the time of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 30}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("model", ["smollm2", "qwen05"])
def test_it_answers(model: str, request: pytest.FixtureRequest) -> None:
    llm: Llama = request.getfixturevalue(model)
    whole = llm.create_chat_completion(CAPITAL, temperature=0, max_tokens=24)
    text = str(whole["choices"][0]["message"]["content"])
    print(repr(text))
    assert "Paris" in text
    chunks = llm.create_chat_completion(CAPITAL, temperature=0, max_tokens=24, stream=True)
    pieces = [str(chunk["choices"][0]["delta"].get("content") or "") for chunk in chunks]
    assert "Paris" in "".join(pieces)


def test_a_second_turn_knows_the_first(qwen05: Llama) -> None:
    chat = qwen05.chat_session("Be brief.", temperature=0, max_tokens=32)
    chat.send("My name is Alice.")
    reply = chat.send("What is my name?")
    print(repr(str(reply)))
    assert "Alice" in str(reply)
    assert qwen05.cache_info["reused"] > 20


@pytest.mark.parametrize("model", [pytest.param("smollm2", marks=pytest.mark.long), "qwen05"])
def test_json_fits_the_schema_and_makes_sense(model: str, request: pytest.FixtureRequest) -> None:
    llm: Llama = request.getfixturevalue(model)
    question = "Alice is 30 years old and speaks French and English. Give me that as JSON."
    reply = llm.create_chat_completion(
        [{"role": "user", "content": question}],
        response_format={"type": "json_object", "schema": PERSON},
        temperature=0,
        max_tokens=200,
    )
    text = str(reply["choices"][0]["message"]["content"])
    print(repr(text))
    value = json.loads(text)
    jsonschema.validate(value, PERSON)
    assert (value["name"], value["age"]) == ("Alice", 30)


@pytest.mark.parametrize(
    ("choice", "stream"),
    [
        ("required", True),
        pytest.param(
            {"type": "function", "function": {"name": "get_weather"}}, False, marks=pytest.mark.long
        ),
    ],
    ids=["required-streamed", "named-plain"],
)
def test_a_tool_that_is_asked_for_is_called(qwen05: Llama, choice: Any, stream: bool) -> None:
    asked: Any = {
        "messages": [{"role": "user", "content": "What is the weather in Paris, in celsius?"}],
        "tools": [WEATHER, TIME],
        "tool_choice": choice,
        "temperature": 0,
        "max_tokens": 120,
    }
    if stream:
        name, arguments = "", ""
        chunks: Any = qwen05.create_chat_completion(**asked, stream=True)
        for chunk in chunks:
            for call in chunk["choices"][0]["delta"].get("tool_calls") or ():
                name += call["function"].get("name") or ""
                arguments += call["function"].get("arguments") or ""
    else:
        reply: Any = qwen05.create_chat_completion(**asked)
        (call,) = reply["choices"][0]["message"]["tool_calls"]
        name, arguments = call["function"]["name"], call["function"]["arguments"]
    print(name, arguments)
    assert name == "get_weather"
    value = json.loads(arguments)
    jsonschema.validate(value, WEATHER["function"]["parameters"])
    assert value["city"] == "Paris"


def test_where_no_tool_is_needed_none_is_called(qwen05: Llama) -> None:
    reply: Any = qwen05.create_chat_completion(
        [{"role": "user", "content": "Say hello to Bob."}],
        tools=[WEATHER],
        tool_choice="none",
        temperature=0,
        max_tokens=24,
    )
    message = reply["choices"][0]["message"]
    print(message)
    assert not message.get("tool_calls")
    assert "Bob" in message["content"]


def test_a_gap_is_filled(qwen05: Llama) -> None:
    """The text between a prefix and a suffix is that of the function, and no more."""
    reply: Any = qwen05.create_completion(
        "def add(a, b):\n    return ",
        suffix="\n\nprint(add(2, 3))\n",
        temperature=0,
        max_tokens=16,
        stop=["\n"],
    )
    text = reply["choices"][0]["text"]
    print(repr(text))
    assert text.strip() == "a + b"


def test_equal_calls_without_reuse_are_equal(smollm2: Llama) -> None:
    """With it, half of such pairs differ on quantized weights: the second goes on elsewhere."""
    other = [{"role": "user", "content": "My name is Alice. " * 10}]
    known = smollm2.create_chat_completion(other, temperature=0, max_tokens=4)
    questions = ("Write a haiku about the sea.", "Name three rivers in Europe and their lengths.")
    for question in questions:
        messages = [{"role": "user", "content": question}]
        replies = [
            smollm2.create_chat_completion(messages, temperature=0, max_tokens=30, reuse=False)
            for _ in range(3)
        ]
        assert len({str(reply["choices"][0]["message"]["content"]) for reply in replies}) == 1
    again = smollm2.create_chat_completion(other, temperature=0, max_tokens=4)
    assert again.cache["reused"] == known["usage"]["prompt_tokens"] - 1


_HELD = """
import sys
from pathlib import Path
from llama_py import Llama
from llama_py.core.host.machine import own_memory

before = own_memory()
with Llama(sys.argv[1], n_ctx=256, repack=sys.argv[2] == "yes"):
    print(Path(sys.argv[1]).stat().st_size, *(b - a for a, b in zip(before, own_memory())))
"""


def held(model: str, repack: str) -> tuple[float, float]:
    """Memory of its own and pages of files that a process has with a model, by its size."""
    done = subprocess.run(
        [sys.executable, "-c", _HELD, model, repack],
        capture_output=True,
        text=True,
        check=True,
    )
    size, own, mapped = map(int, done.stdout.split())
    return own / size, mapped / size


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="as Linux tells it")
def test_weights_that_were_copied_are_not_held_twice(qwen05: Llama) -> None:
    """Arranged for the CPU, and mapped: what was copied out of the file is given back."""
    own, mapped = held(qwen05.model_path, "yes")
    assert own + mapped < 1.4
    own, mapped = held(qwen05.model_path, "no")
    assert own < 0.3, "processes share the rest"
    assert mapped > 0.9, "and nothing of it is given back"
