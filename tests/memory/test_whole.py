"""A stored state as one file: it comes back as it was, and nothing that is damaged does."""

from __future__ import annotations

import dataclasses
from io import FileIO
from pathlib import Path

import numpy as np
import pytest

from llama_py.errors import StateError
from llama_py.states.state import Checkpoint, Segment, StoredState
from llama_py.states.whole import read_whole, write_whole


def some_bytes(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


def state(*, segments: bool = True) -> StoredState:
    text = b"hello there"
    parts = [
        Segment("a", 0, 2, 100, some_bytes(100, 2)),
        Segment("b", 2, 3, 4096 + 7, some_bytes(4096 + 7, 3)),
    ]
    return StoredState(
        tokens=np.array([5, 6, 7, 8], np.int32),
        offsets=np.array([0, 2, 4, 6, 11], np.int64),
        text=text,
        state=some_bytes(1000),
        checkpoints=(Checkpoint(2, some_bytes(33, 4)),),
        pos_min=0,
        fingerprint="f",
        session="anna",
        segments=tuple(parts) if segments else (),
    )


def write(path: Path, stored: StoredState) -> bytes:
    with path.open("wb") as file:
        write_whole(file, stored)
    return path.read_bytes()


def read(path: Path) -> StoredState:
    with FileIO(str(path)) as file:
        return read_whole(file, path)


@pytest.mark.parametrize("segments", [False, True])
def test_it_comes_back_as_it_was(tmp_path: Path, segments: bool) -> None:
    stored = state(segments=segments)
    write(tmp_path / "a", stored)
    found = read(tmp_path / "a")
    assert (found.text, found.session, found.fingerprint) == (b"hello there", "anna", "f")
    assert found.tokens.tolist() == [5, 6, 7, 8]
    np.testing.assert_array_equal(found.state, stored.state)
    np.testing.assert_array_equal(found.checkpoints[0].state, stored.checkpoints[0].state)
    for old, new in zip(stored.segments, found.segments, strict=True):
        assert (old.start, old.end) == (new.start, new.end)
        assert old.state is not None
        assert new.state is not None
        np.testing.assert_array_equal(old.state, new.state)


def test_segments_that_only_a_store_has(tmp_path: Path) -> None:
    stored = state()
    named = tuple(dataclasses.replace(each, state=None) for each in stored.segments)
    with pytest.raises(StateError, match="in a store"):
        write(tmp_path / "a", dataclasses.replace(stored, segments=named))


def test_every_changed_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a"
    whole = write(path, state())
    read(path)
    padding = 0
    for place in range(0, len(whole), 61):
        changed = bytearray(whole)
        changed[place] ^= 0x10
        path.write_bytes(changed)
        try:
            read(path)
        except StateError:
            continue
        assert whole[place] == 0, f"the change at {place} was not found"
        padding += 1  # of what stands between two parts, which is not read
    assert padding < 10


def test_files_of_every_other_length(tmp_path: Path) -> None:
    path = tmp_path / "a"
    whole = write(path, state())
    for length in [*range(0, 60, 7), *range(60, len(whole), 211), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(StateError):
            read(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(StateError, match="behind its end"):
        read(path)
    path.write_bytes(b"GGUF" + bytes(5000))
    with pytest.raises(StateError):
        read(path)
