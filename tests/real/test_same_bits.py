"""To the bit, on real weights: Q4_K, Q6_K, Q5_0, Q4_1 and Q8_0, heads of 64 and 128."""

from __future__ import annotations

import numpy as np
import pytest

from llama_py.core.backend import system_info
from tests.real.conftest import MakeReal


@pytest.mark.skipif(
    "AVX2 = 1" not in system_info() or "AMX_INT8 = 1" in system_info(),
    reason="other CPUs round by the number of tokens",
)
@pytest.mark.parametrize(
    "name", ["smollm2", "qwen05", pytest.param("qwen15", marks=pytest.mark.long)]
)
def test_logits_do_not_depend_on_how_tokens_are_batched(make_real: MakeReal, name: str) -> None:
    """As a prompt, as a draft, and one by one, as a reply is."""
    llm = make_real(name, n_ctx=1024)
    tokens = llm.tokenize("def add(first, second):\n    return first + second\n\n" * 40)[:560]
    seen = []
    for pieces in ([len(tokens)], [500, *[1] * 60], [520, 3, 5, 16, 16], [100, 412, 48]):
        llm.reset()
        begin = 0
        for length in pieces:
            llm.eval(tokens[begin : begin + length])
            begin += length
        seen.append(llm.last_logits.copy())
    for other in seen[1:]:
        np.testing.assert_array_equal(other, seen[0])
