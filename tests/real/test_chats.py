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
