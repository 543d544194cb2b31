"""Chats with real models: they answer, a stream adds up, and a second turn knows the first."""

from __future__ import annotations

import pytest

from llama_py import Llama


@pytest.mark.parametrize("model", ["smollm2", "qwen05"])
def test_it_answers(model: str, request: pytest.FixtureRequest) -> None:
    llm: Llama = request.getfixturevalue(model)
    messages = [{"role": "user", "content": "What is the capital of France? One word."}]
    whole = llm.create_chat_completion(messages, temperature=0, max_tokens=24)
    assert "Paris" in str(whole["choices"][0]["message"]["content"])
