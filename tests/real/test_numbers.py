"""Numbers that a real model writes under a schema end, with either engine, and in tool calls."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from llama_py import Llama
from llama_py.chat import constraints

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "number"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
TOOL: Any = {"type": "function", "function": {"name": "keep", "parameters": SCHEMA}}
QUESTION: Any = [{"role": "user", "content": "Write two numbers of very many digits: 2222222222"}]


def check(text: str) -> None:
    assert set(json.loads(text)) == {"a", "b"}
    for number in re.findall(r"-?[\d.]+", text):
        whole, _, fraction = number.lstrip("-").partition(".")
        assert len(whole) <= 19
        assert len(whole.lstrip("0") + fraction.lstrip("0")) <= (17 if fraction else 19)


@pytest.mark.parametrize("engine", ["llguidance", "gbnf"])
def test_numbers_of_a_model_that_likes_digits_end(
    smollm2: Llama, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "llguidance":
        pytest.importorskip("llguidance")
    monkeypatch.setattr(constraints, "available", lambda: engine == "llguidance")
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 120, "reuse": False}
    liked = dict.fromkeys(
        {token for each in "0123456789." for token in smollm2.tokenize(each.encode(), False)}, 6.0
    )
    for bias in ({}, liked):
        reply = smollm2.create_chat_completion(
            QUESTION, response_format=FORM, logit_bias=bias, **options
        )["choices"][0]
        assert reply["finish_reason"] == "stop", reply
        check(str(reply["message"]["content"]))
    called = smollm2.create_chat_completion(
        QUESTION, tools=[TOOL], tool_choice="required", logit_bias=liked, **options
    )["choices"][0]
    check(called["message"]["tool_calls"][0]["function"]["arguments"])
