"""A sliding window of 512 in a context of 2,048: what branches from each other has little room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llama_py import Llama
from tests.real.conftest import MakeReal


def call(llm: Llama, tokens: Sequence[int]) -> dict[str, Any]:
    llm.create_completion([*tokens], max_tokens=2, temperature=0.0)
    return dict(llm.cache_info)


def test_prompts_that_branch_are_reused_and_not_evaluated_again(make_real: MakeReal) -> None:
    llm = make_real("gemma3", n_ctx=2048)
    draw = np.random.default_rng(1)

    def tokens(count: int) -> list[int]:
        found: list[int] = draw.integers(1000, 20000, count).tolist()
        return found

    opening = [llm.token_bos(), *tokens(699)]
    call(llm, opening)
    for _ in range(4):
        info = call(llm, opening[:450] + tokens(20))
        assert (info["reused"], info["evaluated"]) == (450, 20), info
    short = opening[:100] + tokens(100)
    for reused in (100, 199, 199):
        assert call(llm, short)["reused"] == reused
    info = call(llm, opening)
    assert info["reused"] == 699, info
    assert info["reason"] == ""
