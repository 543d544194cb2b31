"""``read_matrix``: an importance matrix, as llama.cpp's ``llama-imatrix`` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import InvalidModelError
from llama_py.gguf.check import whole_file
from llama_py.gguf.reader import GGUFHeader, GGUFTensor

__all__ = ["Matrix", "read_matrix"]

_SUMS, _COUNTS = ".in_sum2", ".counts"


@dataclass(frozen=True, slots=True)
class Matrix:
    """How much each input of each weight matters.

    Attributes:
        entries: means of squares by the name of the weight: float32, for each expert a row.
        datasets: the texts that it was computed from.
        n_chunks: how many pieces of them.
    """

    entries: Mapping[str, NDArray[np.float32]]
    datasets: tuple[str, ...]
    n_chunks: int


def read_matrix(path: Path) -> Matrix:
    """Read an importance matrix.

    Raises:
        InvalidModelError: it is none, or has values that are not finite.
    """
    header = whole_file(path)
    if header.scalars.get("general.type") != "imatrix":
        raise InvalidModelError(f"{path} is not an importance matrix (general.type is not imatrix)")
    tensors = {each.name: each for each in header.tensors}
    entries = {}
    for name, sums in tensors.items():
        counts = tensors.get(name.removesuffix(_SUMS) + _COUNTS)
        if name.endswith(_SUMS) and counts is not None:
            entries[name.removesuffix(_SUMS)] = _means(path, header, sums, counts)
    if not entries:
        raise InvalidModelError(f"{path} has no entries NAME{_SUMS} with NAME{_COUNTS}")
    chunks = header.scalars.get("imatrix.chunk_count", 0)
    return Matrix(entries, _datasets(header), int(chunks))


def _means(
    path: Path, header: GGUFHeader, sums: GGUFTensor, counts: GGUFTensor
) -> NDArray[np.float32]:
    """Sums by counts, as ``llama-quantize`` divides them; 1 for an expert without any."""
    total, seen = _floats(header, sums), _floats(header, counts)
    if not seen.size or total.size % seen.size:
        raise InvalidModelError(f"{path}: {sums.name} does not fit {counts.name}")
    rows = total.reshape(seen.size, -1)
    filled = seen.reshape(-1, 1).astype(np.float32)
    means = np.where(filled > 0, rows / np.where(filled > 0, filled, 1), np.float32(1))
    if not np.isfinite(means).all():
        raise InvalidModelError(f"{path}: {sums.name} has values that are not finite")
    return np.ascontiguousarray(means.reshape(-1), dtype=np.float32)


def _floats(header: GGUFHeader, tensor: GGUFTensor) -> NDArray[np.float32]:
    if tensor.type != "F32":
        raise InvalidModelError(f"{tensor.name} is {tensor.type}, and not F32")
    start = header.data_offset + tensor.offset
    return np.frombuffer(header.buffer, np.float32, tensor.n_elements, start)


def _datasets(header: GGUFHeader) -> tuple[str, ...]:
    found = header.arrays.get("imatrix.datasets")
    if found is None or found.type != "str":
        return ()
    texts, at = [], found.start
    for _ in range(found.count):
        size = int.from_bytes(header.buffer[at : at + 8], "little")
        texts.append(header.buffer[at + 8 : at + 8 + size].decode("utf-8", "replace"))
        at += 8 + size
    return tuple(texts)
