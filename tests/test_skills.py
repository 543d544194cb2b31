"""The bundled model's skills under a schema, and under tools that have to be called.

What a constraint may never do is make the model worse: a reply that fits is left alone, token for
token, and one that does not fit is replaced. ``examples/train_demo_model`` makes the dialogues.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from llama_py import Llama, demo_model_path

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "train_demo_model"
#: Neither the seed of the training nor that of its evaluation.
SEED = 60309
KINDS = {str: "string", bool: "boolean", int: "integer"}


@pytest.fixture(scope="module")
def dialogues() -> Iterator[Any]:
    pytest.importorskip("jinja2")
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("dialogues")
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(demo_model_path(), n_ctx=2048, n_threads=1) as llm:
        yield llm


def schema_of(value: dict[str, Any]) -> dict[str, Any]:
    properties = {name: {"type": KINDS[type(inner)]} for name, inner in value.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": list(value),
        "additionalProperties": False,
    }


def messages_of(dialogue: Any) -> list[dict[str, Any]]:
    """All but the last one, with the arguments of calls as JSON text."""
    copied: list[dict[str, Any]] = json.loads(json.dumps(dialogue.messages[:-1]))
    for message in copied:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return copied


def reply(llm: Llama, dialogue: Any, stream: bool = False, **options: Any) -> dict[str, Any]:
    """The message of a greedy reply, with its tokens."""
    answer: Any = llm.create_chat_completion(
        messages_of(dialogue), temperature=0, max_tokens=120, stream=stream, **options
    )
    message: dict[str, Any] = {"content": "", "tool_calls": []}
    if stream:
        for chunk in answer:
            delta = chunk["choices"][0]["delta"]
            message["content"] += delta.get("content") or ""
            for part in delta.get("tool_calls") or ():
                if part["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append({"name": "", "arguments": ""})
                call = message["tool_calls"][part["index"]]
                for key, text in part["function"].items():
                    call[key] += text or ""
    else:
        given = answer["choices"][0]["message"]
        message["content"] = given["content"] or ""
        for call in given.get("tool_calls") or ():
            message["tool_calls"].append(dict(call["function"]))
    return {**message, "tokens": list(llm.runtime.last.record.generated)}


def fits(text: str, schema: dict[str, Any]) -> bool:
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def check_json(llm: Llama, dialogues: Any, count: int, stream: bool) -> tuple[int, int]:
    """Exact replies without and with a schema."""
    free_exact = exact = 0
    for dialogue in dialogues.held_out(SEED, "json", count):
        right = dialogue.messages[-1]["content"]
        schema = schema_of(json.loads(right))
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        free = reply(llm, dialogue, stream)
        held = reply(llm, dialogue, stream, response_format=form)
        if fits(free["content"], schema):
            assert held == free
        assert fits(held["content"], schema)
        free_exact += free["content"] == right
        exact += held["content"] == right
    return free_exact, exact


def check_calls(llm: Llama, dialogues: Any, count: int, stream: bool) -> tuple[int, int]:
    """Exact calls with tools that may be called, and with tools that have to be."""
    free_exact = exact = 0
    for dialogue in dialogues.held_out(SEED, "tool_call", count):
        call = dialogue.messages[-1]["tool_calls"][0]["function"]
        free = reply(llm, dialogue, stream, tools=dialogue.tools)
        named = {"type": "function", "function": {"name": call["name"]}}
        held = reply(llm, dialogue, stream, tools=dialogue.tools, tool_choice="required")
        one = reply(llm, dialogue, stream, tools=dialogue.tools, tool_choice=named)
        if free["tool_calls"]:
            assert held == free
            if free["tool_calls"][0]["name"] == call["name"]:
                assert one == free
        free_exact += is_call(free, call)
        exact += is_call(held, call)
    return free_exact, exact


def is_call(message: dict[str, Any], call: dict[str, Any]) -> bool:
    calls = [(c["name"], json.loads(c["arguments"])) for c in message["tool_calls"]]
    return calls == [(call["name"], call["arguments"])]


@pytest.mark.parametrize("backend", ["llguidance", "gbnf"])
@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.long)])
def test_a_schema_does_not_make_json_worse(
    llm: Llama, dialogues: Any, backend: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_py.chat.constraints.available", lambda: backend == "llguidance")
    for stream in (False, True):
        free, held = check_json(llm, dialogues, count, stream)
        print(f"JSON by {backend}: {free} free, {held} held, of {count}")
        assert held >= max(free, 0.95 * count)


@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.long)])
def test_required_tools_do_not_make_calls_worse(llm: Llama, dialogues: Any, count: int) -> None:
    for stream in (False, True):
        free, held = check_calls(llm, dialogues, count, stream)
        print(f"calls: {free} free, {held} required, of {count}")
        assert held >= max(free, 0.95 * count)
