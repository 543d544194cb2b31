"""``TokenHistory``: what logits processors see of a prompt and its reply."""

from __future__ import annotations

import numpy as np
import pytest

from llama_py.core.sampling.history import TokenHistory


@pytest.mark.parametrize("begun", [0, 1, 63, 64, 1000])
def test_it_holds_what_was_added(begun: int) -> None:
    history = TokenHistory(range(begun))
    for token in range(begun, begun + 3000):
        history.append(token)
        assert len(history) == token + 1
    assert history.array.dtype == np.intc
    np.testing.assert_array_equal(history.array, np.arange(begun + 3000))


def test_an_array_that_was_kept_stays_as_it_was() -> None:
    history = TokenHistory([5])
    kept = []
    for token in range(300):
        kept.append(history.array)
        history.append(token)
    for count, array in enumerate(kept):
        np.testing.assert_array_equal(array, [5, *range(count)])


def test_looking_copies_nothing_and_cannot_change_it() -> None:
    history = TokenHistory(range(30_000))
    before = history.array
    history.append(7)
    assert np.shares_memory(before, history.array)
    with pytest.raises(ValueError, match="read-only"):
        before[0] = 1
