"""Real models call tools: of their own accord, when they have to, and in a form that is ours."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from llama_py import Llama
from tests.chat import families
from tests.real.conftest import MakeReal
from tests.real.test_chats import TIME, WEATHER

PARIS = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]
WALL = [{"role": "user", "content": "Order purple paint, seven coats, and note that it is urgent."}]
PAINT: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "order_paint",
        "description": "Order paint for a wall.",
        "parameters": {
            "type": "object",
            "properties": {
                "colour": {"type": "string", "enum": ["red", "green"]},
                "coats": {"type": "integer", "minimum": 1, "maximum": 3},
                "note": {"type": "string", "maxLength": 20},
            },
            "required": ["colour", "coats", "note"],
            "additionalProperties": False,
        },
    },
}
SCHEMAS = {
    each["function"]["name"]: each["function"]["parameters"] for each in (WEATHER, TIME, PAINT)
}
#: Templates with a tag for each argument, and other notations.
OTHERS = (
    "ByteDance-Seed-OSS",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "deepseek-ai-DeepSeek-V3.2",
    "mistralai-Ministral-3-14B-Reasoning-2512",
    "Qwen3-Coder",
    "GLM-4.7-Flash",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meetkai-functionary-medium-v3.2",
    "Kimi-K3",
    "MiniMax-M3",
)


def called(llm: Llama, stream: bool = False, **asked: Any) -> list[tuple[str, Any]]:
    """The calls of a reply that is nothing else, with arguments that fit."""
    asked = {"temperature": 0, "max_tokens": 120, "parallel_tool_calls": False, **asked}
    calls: list[list[str]] = []
    text, reason = "", ""
    if stream:
        chunks: Any = llm.create_chat_completion(**asked, stream=True)
        for choice in (chunk["choices"][0] for chunk in chunks if chunk["choices"]):
            text += choice["delta"].get("content") or ""
            reason = choice["finish_reason"] or reason
            for call in choice["delta"].get("tool_calls") or ():
                if call["index"] == len(calls):
                    calls.append([call["function"]["name"], ""])
                calls[-1][1] += call["function"].get("arguments") or ""
    else:
        made: Any = llm.create_chat_completion(**asked)["choices"][0]
        text, reason = made["message"]["content"] or "", made["finish_reason"]
        for call in made["message"].get("tool_calls") or ():
            calls.append([call["function"]["name"], call["function"]["arguments"]])
    print(calls, repr(text), reason)
    assert (text, reason) == ("", "tool_calls")
    found = [(name, json.loads(arguments)) for name, arguments in calls]
    for name, arguments in found:
        jsonschema.validate(arguments, SCHEMAS[name])
    return found


def test_a_call_of_its_own_accord(qwen05: Llama) -> None:
    """Qwen2.5-Coder writes plain JSON in place of the marks of its template."""
    for stream in (False, True):
        (call,) = called(qwen05, stream, messages=PARIS, tools=[WEATHER])
        assert call == ("get_weather", {"city": "Paris", "unit": "celsius"})


def test_what_the_schema_forbids_is_not_written(qwen05: Llama) -> None:
    for stream in (False, True):
        (call,) = called(qwen05, stream, messages=WALL, tools=[PAINT], tool_choice="required")
        assert call[0] == "order_paint"


@pytest.mark.parametrize("choice", ["required", "get_time"])
def test_a_model_whose_template_knows_no_tools(smollm2: Llama, choice: str) -> None:
    named = {"type": "function", "function": {"name": choice}}
    wanted = choice if choice == "required" else named
    (call,) = called(
        smollm2, choice != "required", messages=PARIS, tools=[WEATHER, TIME], tool_choice=wanted
    )
    assert choice in ("required", call[0])
    assert call[1]["city"] == "Paris"


def test_a_base_model(gemma3: Llama) -> None:
    (call,) = called(gemma3, messages=PARIS, tools=[WEATHER], tool_choice="required")
    assert call[0] == "get_weather"


@pytest.mark.long
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("family", OTHERS)
def test_every_notation(make_real: MakeReal, family: str, stream: bool) -> None:
    llm = make_real("qwen05", chat_template=families.source(family))
    asked: dict[str, Any] = {"enable_thinking": False, "reasoning_budget": 0, "max_tokens": 200}
    called(llm, stream, messages=WALL, tools=[PAINT], tool_choice="required", **asked)
