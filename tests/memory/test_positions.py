"""Items and positions: the same for text, and apart behind something that is wider than a token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_py.memory.positions import TEXT, Positions
from tests.memory.fake_memory import FULL, FakeRig, window


@given(st.integers(0, 10_000))
def test_text_has_one_position_per_token(count: int) -> None:
    assert TEXT.after(count) == TEXT.items(count) == count


@given(st.dictionaries(st.integers(0, 30), st.integers(1, 9), max_size=6))
def test_what_follows_a_wide_item_is_behind_all_of_it(widths: dict[int, int]) -> None:
    positions = Positions(sorted(widths.items()))
    starts = [0]
    for item in range(40):
        starts.append(starts[-1] + widths.get(item, 1))
    for items, start in enumerate(starts[:-1]):
        assert positions.after(items) == start
    for position in range(starts[-1]):
        whole = max(items for items, start in enumerate(starts) if start <= position)
        assert positions.items(position) == whole


def test_a_sequence_with_a_wide_item_is_trimmed_by_positions() -> None:
    rig = FakeRig()
    lease = rig.begin(rig.prompt(b"abcdef"))
    lease.sequence.positions = Positions([(2, 4)])  # an image of four positions
    rig.memory.decode(lease.sequence.number, (), [0, 0, 0])
    rig.cache.trim(lease.sequence)
    assert len(lease.sequence.tokens) == 6  # nothing is too much
    rig.memory.decode(lease.sequence.number, (), [0])
    rig.cache.repair(lease)
    assert len(lease.sequence.tokens) == 6
    assert rig.memory.pos_max(lease.sequence.number) + 1 == lease.position == 9
    assert lease.held == 6


def test_a_window_is_counted_in_positions() -> None:
    traits = window(8)
    wide = Positions([(2, 30)])
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
    rig.cache.trim(lease.sequence)
    assert len(lease.sequence.tokens) == (40 if whole else 0)
    assert rig.memory.pos_max(lease.sequence.number) == len(lease.sequence.tokens) - 1


def test_trim_takes_back_what_was_decoded_beyond_the_bookkeeping() -> None:
    rig = FakeRig(FULL)
    lease = rig.begin(rig.prompt(b"abc"))
    rig.memory.decode(lease.sequence.number, (), [1, 2])
    rig.cache.trim(lease.sequence)
    rig.check()
    assert lease.sequence.tokens == [*b"abc"]
