"""Tokens and positions: the same for text, and apart behind a picture whose cells share one."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from llama_py.memory.positions import TEXT, Positions, border, media_length, media_tokens
from tests.memory.fake_memory import FULL, FakeRig, window


def prompt(parts: list[tuple[int, int] | None]) -> NDArray[np.int32]:
    """Words (None), and pictures with so many cells and positions."""
    ids: list[NDArray[np.int32]] = []
    for number, part in enumerate(parts):
        if part is None:
            ids.append(np.array([7], np.int32))
        else:
            ids.append(media_tokens(bytes([number]), *part, flat=True))
    return np.concatenate(ids) if ids else np.zeros(0, np.int32)


SIZES = st.tuples(st.integers(2, 9), st.integers(1, 9)).map(lambda s: (max(s), min(s)))
PARTS = st.lists(st.none() | SIZES, max_size=8)


@given(st.integers(0, 10_000))
def test_text_has_one_position_per_token(count: int) -> None:
    assert TEXT.after(count) == count
    assert TEXT.last(count) == count - 1


@given(PARTS)
def test_what_follows_a_picture_is_behind_all_of_its_positions(
    parts: list[tuple[int, int] | None],
) -> None:
    tokens = prompt(parts)
    positions = Positions.of(tokens)
    count = place = 0
    for part in parts:
        assert positions.after(count) == place
        cells, steps = part or (1, 1)
        assert positions.last(count + cells) == place  # of a picture, all have the first one's
        for inside in range(count + 1, count + cells):
            with pytest.raises(ValueError, match="within a picture"):
                positions.after(inside)
        count, place = count + cells, place + steps
    assert positions.after(count) == place
    assert positions.as_tokens == all(part is None for part in parts)


@given(PARTS, st.integers(0, 80))
def test_a_prompt_is_cut_in_no_picture(parts: list[tuple[int, int] | None], count: int) -> None:
    tokens = prompt(parts)
    borders = [0, *accumulate((part or (1, 1))[0] for part in parts)]
    count = min(count, len(tokens))
    assert border(tokens, count) == max(each for each in borders if each <= count)


@given(st.binary(max_size=4), st.binary(max_size=4), st.integers(4, 40))
def test_pictures_have_the_same_ids_only_if_they_are_the_same(
    one: bytes, other: bytes, cells: int
) -> None:
    first, second = media_tokens(one, cells), media_tokens(other, cells)
    assert (first < -1).all()
    assert np.array_equal(first, second) == (one == other)
    assert media_length(np.concatenate([first, second]), 0) == cells


def test_a_sequence_with_a_picture_is_trimmed_by_positions() -> None:
    rig = FakeRig()
    lease = rig.begin(rig.prompt(b"abcdef"))
    lease.sequence.positions = Positions([(2, 2, 4)])  # two cells, four positions
    rig.memory.decode(lease.sequence.number, (), [0, 0])
    rig.cache.live.trim(lease.sequence)
    assert len(lease.sequence.tokens) == 6  # nothing is too much
    rig.memory.decode(lease.sequence.number, (), [0])
    rig.cache.repair(lease)
    assert len(lease.sequence.tokens) == 6
    assert rig.memory.pos_max(lease.sequence.number) + 1 == lease.position == 8
    assert lease.held == 6


def test_a_window_is_counted_in_positions() -> None:
    traits = window(8)
    wide = Positions([(2, 1, 30)])
    assert traits.can_resume(12, 40, 21)
    assert not traits.can_resume(14, 40, 21)
    assert traits.can_resume(42, 40, 21, wide)
    assert not traits.can_resume(43, 40, 21, wide)


@pytest.mark.parametrize(("pos_min", "whole"), [(0, True), (33, True), (34, False)])
def test_trim_empties_a_sequence_whose_window_has_a_hole(pos_min: int, whole: bool) -> None:
    """What overwrote cells is gone, but the cells do not come back."""
    rig = FakeRig(window(8))
    lease = rig.begin(rig.prompt(b"x" * 40))
    rig.memory.decode(lease.sequence.number, (), [1] * 5)
    rig.memory.pos_mins[lease.sequence.number] = pos_min
    rig.cache.live.trim(lease.sequence)
    assert len(lease.sequence.tokens) == (40 if whole else 0)
    assert rig.memory.pos_max(lease.sequence.number) == len(lease.sequence.tokens) - 1


def test_trim_takes_back_what_was_decoded_beyond_the_bookkeeping() -> None:
    rig = FakeRig(FULL)
    lease = rig.begin(rig.prompt(b"abc"))
    rig.memory.decode(lease.sequence.number, (), [1, 2])
    rig.cache.live.trim(lease.sequence)
    rig.check()
    assert lease.sequence.tokens == [*b"abc"]
