"""Reuse on real, quantized weights: as near to a fresh context as batches are to each other.

On some CPUs, and behind a window, quantized products round otherwise when a prompt is cut
otherwise, with no reuse at all. So the difference that reuse makes is compared with the one that
cuts make, of the same prompt. Where cuts make none, reuse makes none (``test_same_bits``).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from llama_py import Llama

ROOT = Path(__file__).parents[2]
ENDINGS = [
    " The most important sentence of this text is",
    "\n\nIn short, whoever uses this software may",
    " 1, 2, 3, 4,",
]
_OTHERS = ("smollm2", "qwen05")
#: Of reuse, in units of the largest difference that cuts make.
FACTOR = 4.0
Row = NDArray[np.float64]


def log_probabilities(logits: NDArray[np.float32]) -> Row:
    row = logits.astype(np.float64)
    row = row - row.max()
    return np.asarray(row - np.log(np.exp(row).sum()))


def divergence(one: Row, other: Row) -> float:
    """Kullback and Leibler's, of the distributions."""
    return float((np.exp(one) * (one - other)).sum())


def cut(llm: Llama, tokens: list[int], *cuts: int) -> Row:
    """What comes next after tokens that are evaluated in pieces, in an empty memory."""
    llm.reset()
    for start, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        llm.eval(tokens[start:end])
    return log_probabilities(llm.last_logits)


def after(llm: Llama, tokens: list[int]) -> Row:
    """The same, with whatever can be reused."""
    llm.create_completion(tokens, max_tokens=1, temperature=0)
    return log_probabilities(llm.last_logits)


@pytest.mark.parametrize(
    "model", ["gemma3", *(pytest.param(each, marks=pytest.mark.long) for each in _OTHERS)]
)
def test_reuse_differs_no_more_than_cuts_do(model: str, request: pytest.FixtureRequest) -> None:
    llm: Llama = request.getfixturevalue(model)
    common = llm.tokenize((ROOT / "LICENSE").read_bytes(), add_bos=True)[:150]
    prompts = [[*common, *llm.tokenize(each.encode(), add_bos=False)] for each in ENDINGS[:2]]
    compare(llm, prompts, len(common))


@pytest.mark.long
@pytest.mark.parametrize("model", ["smollm2", "qwen05", "gemma3"])
def test_reuse_differs_no_more_than_cuts_do_in_long_prompts(
    model: str, request: pytest.FixtureRequest
) -> None:
    llm: Llama = request.getfixturevalue(model)
    text = (ROOT / "CONTRIBUTING.md").read_bytes() + (ROOT / "docs" / "glossary.md").read_bytes()
    common = llm.tokenize(text, add_bos=True)[:3000]
    prompts = [[*common, *llm.tokenize(each.encode(), add_bos=False)] for each in ENDINGS]
    compare(llm, prompts, len(common))


def compare(llm: Llama, prompts: list[list[int]], common: int) -> None:
    fresh = [cut(llm, tokens) for tokens in prompts]
    noise = 0.0
    for tokens, row in zip(prompts, fresh, strict=True):
        for cuts in ([len(tokens) - 1], [common], [len(tokens) // 3, len(tokens) // 2]):
            noise = max(noise, divergence(row, cut(llm, tokens, *cuts)))
    llm.reset()
    after(llm, prompts[-1])
    found = []
    for tokens, row in zip(prompts, fresh, strict=True):
        found.append(divergence(row, after(llm, tokens)))
        assert llm.cache_info["reused"] >= common - 1, llm.cache_info
        found.append(divergence(row, after(llm, tokens)))
        assert llm.cache_info["reused"] == len(tokens) - 1, llm.cache_info
    print(f"{len(prompts[0])} tokens: cuts {noise:.2e}, reuse", *(f"{each:.2e}" for each in found))
    assert max(found) <= FACTOR * noise
