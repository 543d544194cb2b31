"""A schema adds no white space to the replies of real models, and leaves those alone that fit."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from llama_py import Llama

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 40}},
    "required": ["answer"],
    "additionalProperties": False,
}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
QUESTIONS = ["Say hello", 'Capital of France? Answer in JSON like {"answer": "..."}.']


def fits(text: str) -> bool:
    try:
        jsonschema.validate(json.loads(text), SCHEMA)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


@pytest.mark.parametrize("model", ["smollm2", "qwen05"])
def test_white_space_is_the_models_own(model: str, request: pytest.FixtureRequest) -> None:
    llm: Llama = request.getfixturevalue(model)
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        options: dict[str, Any] = {"temperature": 0, "max_tokens": 30, "reuse": False}
        free, held = (
            str(reply["choices"][0]["message"]["content"])
            for reply in (
                llm.create_chat_completion(messages, **options),
                llm.create_chat_completion(messages, response_format=FORM, **options),
            )
        )
        assert held == free if fits(free) else held.startswith("{"), (free, held)
