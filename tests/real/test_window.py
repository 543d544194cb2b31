"""Gemma 3 270M, a base model with a window of 512: what is far back is found, reused or not."""

from __future__ import annotations

import pytest

from llama_py import Llama
from tests.real.conftest import MakeReal

NEEDLE = "The secret word of the old harbour master is marmalade."
QUESTION = "\n\nThe secret word of the old harbour master is"


def haystack(paragraphs: int, place: int) -> list[str]:
    text = [
        f"Day {day}. The {('north', 'east', 'south', 'west')[day % 4]} wind blew, "
        f"{3 + day % 7} ships came in, and the fishermen sold {20 + day * 7 % 50} baskets."
        for day in range(1, paragraphs + 1)
    ]
    text.insert(place, NEEDLE)
    return text


def said(llm: Llama, text: str) -> str:
    reply = llm.create_completion(text, temperature=0, max_tokens=4)
    return str(reply["choices"][0]["text"])


def check(llm: Llama, paragraphs: int) -> None:
    """Cold, again, with another paragraph at the end, and cut short in the middle."""
    text = haystack(paragraphs, paragraphs // 4)
    texts = [text, text, [*text, "Day 999. It rained."], text[: paragraphs // 2]]
    for number, each in enumerate(texts):
        found = said(llm, "\n".join(each) + QUESTION)
        info = llm.cache_info
        print(number, repr(found), {key: info[key] for key in ("reused", "evaluated", "reason")})
        assert "marmalade" in found
        if number == 1:
            assert info["evaluated"] == 1
        if number == 2:
            assert info["reused"] > 0.9 * (info["reused"] + info["evaluated"])


def test_a_needle_is_found(gemma3: Llama) -> None:
    check(gemma3, 40)


@pytest.mark.long
def test_a_needle_is_found_in_a_long_text(make_real: MakeReal) -> None:
    check(make_real("gemma3", n_ctx=8192), 180)
