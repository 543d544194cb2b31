"""Drafts on real models: what is copied is guessed, and is copied all the same."""

from __future__ import annotations

from typing import Any

import pytest

from llama_py import DraftModel, Llama, PromptLookup
from tests.real.conftest import MakeReal, real_path

CODE = """def total(values):
    result = 0
    for value in values:
        result = result + value
    return result


def mean(values):
    return total(values) / len(values)
"""
COPY = [{"role": "user", "content": f"Repeat this code exactly, and nothing else.\n\n{CODE}"}]


def copied(llm: Llama) -> tuple[str, int, int]:
    """The text; tokens that were drafted, and that were right."""
    before = llm.metrics
    reply: Any = llm.create_chat_completion(COPY, temperature=0, max_tokens=90)
    after = llm.metrics
    text = str(reply["choices"][0]["message"]["content"])
    drafted, accepted = after["drafted"] - before["drafted"], after["accepted"] - before["accepted"]
    print(f"{drafted} drafted, {accepted} accepted: {text!r}")
    return text, drafted, accepted


def test_a_copy_is_looked_up(make_real: MakeReal) -> None:
    text, drafted, accepted = copied(make_real("qwen05", speculative=PromptLookup()))
    assert "return total(values) / len(values)" in text
    assert accepted > 20
    assert accepted > drafted / 3


@pytest.mark.long
def test_a_small_model_drafts_for_a_larger_one(make_real: MakeReal) -> None:
    small = DraftModel(str(real_path("qwen05")))
    plain, _, _ = copied(make_real("qwen15"))
    text, drafted, accepted = copied(make_real("qwen15", speculative=small))
    assert "return total(values) / len(values)" in plain
    assert "return total(values) / len(values)" in text
    assert accepted > drafted / 2 > 0
