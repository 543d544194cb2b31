"""Weights that are NaN or infinite are found in files of every type of weights."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from llama_py.core.weights import check_finite
from llama_py.errors import InvalidModelError
from llama_py.gguf.reader import GGML_TYPES, GGUFHeader, GGUFTensor

#: Of whole numbers, never of weights, and scales of eight bits that are numbers all.
WITHOUT = {"I8", "I16", "I32", "I64", "Q8_1", "Q8_K", "NVFP4"}
BLOCKS = (1 << 14) + 3


def header(folder: Path, kind: str, bad: int | None) -> GGUFHeader:
    """A file of one tensor, in which a block has all bits set."""
    _, block, size = next(each for each in GGML_TYPES.values() if each[0] == kind)
    data = bytearray(32 + BLOCKS * size)
    if bad is not None:
        data[32 + bad * size : 32 + (bad + 1) * size] = b"\xff" * size
    path = folder / "weights"
    path.write_bytes(data)
    with path.open("rb") as file:
        buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    tensor = GGUFTensor("it", (block * BLOCKS,), kind, 0, BLOCKS * size)
    return GGUFHeader(3, {}, {}, {}, (tensor,), 32, len(data), buffer)


@pytest.mark.parametrize("kind", [name for name, *_ in GGML_TYPES.values()])
def test_a_block_that_is_not_finite_is_found(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    check_finite(header(tmp_path, kind, None))
    _, block, _ = next(each for each in GGML_TYPES.values() if each[0] == kind)
    for bad in (0, BLOCKS - 1):
        if kind in WITHOUT:
            check_finite(header(tmp_path, kind, bad))
            continue
        with pytest.raises(InvalidModelError, match=rf"'it' \({kind}\) .*is -?(nan|inf)") as caught:
            check_finite(header(tmp_path, kind, bad))
        number = int(str(caught.value).partition("number ")[2].split()[0])
        assert bad * block <= number < (bad + 1) * block
    assert capfd.readouterr() == ("", "")
