"""To the bit: logits do not depend on how tokens are batched, beside what, or by how many threads.

That holds for quantized weights and flash attention on the CPU, where kernels of this library
compute both; it is what makes a greedy reply the same whatever was reused, drafted or running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llama_py import AsyncLlama, Llama, PromptLookup, demo_model_path
from llama_py.core.backend import system_info

#: AMX lays weights out anew, and multiplies one row and several in two ways.
pytestmark = pytest.mark.skipif(
    "AVX2 = 1" not in system_info() or "AMX_INT8 = 1" in system_info(),
    reason="other CPUs round by the number of tokens",
)
LENGTH = 700  # more than a part of the cells, which threads share


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(demo_model_path(), n_ctx=4096, n_threads=1, n_threads_batch=1) as llm:
        yield llm


def tokens_of(llm: Llama) -> list[int]:
    text = " ".join(f"{number} days after, the keeper wrote:" for number in range(120))
    return llm.tokenize(text)[:LENGTH]


def evaluated(llm: Llama, pieces: list[int]) -> npt.NDArray[np.float32]:
    """The logits behind the tokens, evaluated in pieces of these lengths, and then what is left."""
    llm.reset()
    tokens = tokens_of(llm)
    for length in pieces:
        llm.eval(tokens[:length])
        tokens = tokens[length:]
    if tokens:
        llm.eval(tokens)
    logits: npt.NDArray[np.float32] = llm.last_logits.copy()
    return logits


@settings(deadline=None, max_examples=10)
@example([1] * 40)
@example([640, 1, 1, 2, 3, 15, 16, 17])
@given(st.lists(st.integers(1, 40), max_size=15))
def test_however_a_text_is_cut(llm: Llama, pieces: list[int]) -> None:
    np.testing.assert_array_equal(evaluated(llm, pieces), evaluated(llm, []))


def test_with_any_number_of_threads(llm: Llama) -> None:
    pieces = [300, 1, 2, 220, 1, 3, 20, 1, 1]
    with Llama(demo_model_path(), n_ctx=1024, n_threads=2, n_threads_batch=2) as other:
        np.testing.assert_array_equal(evaluated(other, pieces), evaluated(llm, pieces))


def asked(llm: Llama, prompt: list[int], **options: Any) -> str:
    reply: Any = llm.create_completion(
        prompt, max_tokens=40, temperature=0, logprobs=3, ignore_eos=True, **options
    )
    return str(reply["choices"][0]["logprobs"])


def test_whether_it_is_drafted(llm: Llama) -> None:
    prompt = tokens_of(llm)[:300]
    plain = asked(llm, prompt, speculative=False)
    before = llm.metrics["accepted"]
    assert asked(llm, prompt, speculative=PromptLookup()) == plain
    assert llm.metrics["accepted"] > before, "nothing was drafted"


def test_whatever_was_reused(llm: Llama) -> None:
    prompt = tokens_of(llm)
    fresh = {count: asked(llm, prompt[:count], reuse=False) for count in (90, 250, 600)}
    for count in (600, 90, 250, 600):
        assert asked(llm, prompt[:count]) == fresh[count]


def test_beside_other_replies(llm: Llama) -> None:
    tokens = tokens_of(llm)
    prompts = [tokens[start : start + 20 + 90 * start // 50] for start in (0, 50, 150, 250)]
    alone = [asked(llm, prompt) for prompt in prompts]

    async def together() -> list[str]:
        async with AsyncLlama(demo_model_path(), n_ctx=4096, n_seq_max=4, n_threads=1) as other:
            replies: Any = await asyncio.gather(
                *(
                    other.create_completion(
                        prompt, max_tokens=40, temperature=0, logprobs=3, ignore_eos=True
                    )
                    for prompt in prompts
                )
            )
            return [str(reply["choices"][0]["logprobs"]) for reply in replies]

    assert asyncio.run(together()) == alone
