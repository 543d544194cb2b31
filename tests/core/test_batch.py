"""What C reads from a batch is what was written, however it was written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_py.core.batch import Batch
from llama_py.core.sampling.select import largest, largest_sorted
from llama_py.errors import ParameterError


def rows(batch: Batch) -> list[tuple[int, int, int, bool]]:
    """Token, position, sequence and output flag of each token, read through the C struct."""
    c: Any = batch.struct
    assert all(c.n_seq_id[i] == 1 for i in range(c.n_tokens))
    return [
        (c.token[i], c.pos[i], c.seq_id[i][0], bool(c.logits[i])) for i in range(int(c.n_tokens))
    ]


Columns = tuple[list[int], "int | list[int]", "int | list[int]", "bool | list[bool]"]


@st.composite
def columns(draw: st.DrawFn) -> Columns:
    count = draw(st.integers(0, 12))
    number = st.integers(0, 2**31 - 20)

    def some(values: st.SearchStrategy[Any]) -> Any:
        return draw(st.one_of(values, st.lists(values, min_size=count, max_size=count)))

    tokens = draw(st.lists(number, min_size=count, max_size=count))
    return tokens, some(number), some(st.integers(0, 255)), some(st.booleans())


def naive(added: Columns) -> list[tuple[int, int, int, bool]]:
    """One token at a time."""
    tokens, positions, sequences, outputs = added
    return [
        (
            token,
            positions + i if isinstance(positions, int) else positions[i],
            sequences if isinstance(sequences, int) else sequences[i],
            outputs if isinstance(outputs, bool) else outputs[i],
        )
        for i, token in enumerate(tokens)
    ]


@given(st.lists(columns(), min_size=1, max_size=4))
def test_set_and_add_write_what_a_loop_would(parts: list[Columns]) -> None:
    batch = Batch(64)
    batch.set([9] * 50, 3, 1, True)  # what was there before is gone
    expected: list[tuple[int, int, int, bool]] = []
    for index, (tokens, positions, sequence, outputs) in enumerate(parts):
        outputs_given: Any = outputs
        if index == 0:
            batch.set(tokens, positions, sequence, outputs_given)
        else:
            assert batch.add(tokens, positions, sequence, outputs_given) == len(expected)
        expected += naive((tokens, positions, sequence, outputs))
    assert rows(batch) == expected
    assert len(batch) == len(expected)


def test_numpy_arrays_and_scalars_are_taken_too() -> None:
    batch = Batch(8)
    tokens = np.array([7, 8, 9], np.int32)
    batch.set(tokens, np.int64(5), np.int32(2), np.array([0, 0, 1], np.int8))
    assert rows(batch) == [(7, 5, 2, False), (8, 6, 2, False), (9, 7, 2, True)]


def test_one_token_at_a_time() -> None:
    batch = Batch(2)
    assert [batch.add_one(5, 10, 0), batch.add_one(6, 4, 3)] == [0, 1]
    assert rows(batch) == [(5, 10, 0, True), (6, 4, 3, True)]
    with pytest.raises(ParameterError, match="room for only 2"):
        batch.add_one(7, 0, 0)
    batch.clear()
    assert len(batch) == 0
    assert rows(batch) == []


def test_more_than_the_capacity_is_refused_and_changes_nothing() -> None:
    batch = Batch(4)
    batch.set([1, 2, 3], 0, 0, False)
    before = rows(batch)
    with pytest.raises(ParameterError, match="room for 4 tokens, and 5"):
        batch.add([4, 5], 3, 0, True)
    assert rows(batch) == before
    batch.add([4], 3, 0, True)
    assert len(batch) == 4


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_batch_has_room_for_something(capacity: int) -> None:
    with pytest.raises(ParameterError, match=f"not {capacity}"):
        Batch(capacity)


# -- the k largest ------------------------------------------------------------------------------


def naive_largest(row: np.ndarray, k: int) -> list[int]:
    """A stable sort: the largest first, equal ones by index."""
    return sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]


@given(
    st.integers(1, 3000),
    st.integers(1, 3100),
    st.sampled_from([2, 10, 1000, None]),
    st.integers(0, 2**32 - 1),
)
def test_top_k_equals_a_stable_sort(size: int, k: int, values: int | None, seed: int) -> None:
    random = np.random.default_rng(seed)
    row = random.standard_normal(size).astype(np.float32)
    if values is not None:  # many ties
        row = random.integers(0, values, size).astype(np.float32)
    row[random.random(size) < 0.2] = -np.inf
    expected = naive_largest(row, k)
    assert sorted(largest(row, k).tolist()) == sorted(expected)
    assert largest_sorted(row, k).tolist() == expected


@pytest.mark.parametrize("size", [32001, 151936])
def test_top_k_of_a_whole_vocabulary(size: int) -> None:
    row = np.random.default_rng(1).standard_normal(size).astype(np.float32)
    row[-3:] = [50, 51, 52]  # beyond the last full line of the table that is looked at
    for k in (1, 5, 40):
        assert largest_sorted(row, k).tolist() == naive_largest(row, k)
    assert largest_sorted(row, 3).tolist() == [size - 1, size - 2, size - 3]


def test_all_equal_logits_give_the_lowest_ids() -> None:
    assert sorted(largest(np.zeros(5000, np.float32), 7).tolist()) == list(range(7))
    assert len(largest(np.zeros(5, np.float32), 50)) == 5
