"""Importance matrices, in the form of llama.cpp's ``llama-imatrix``: made, read and merged.

For each weight, the sums of its inputs' squares (``NAME.in_sum2``) and of its inputs
(``NAME.in_sum``) over the rows of a text, and how many rows those were (``NAME.counts``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llama_py.core.importance import ImportanceSums, WeightSums
from llama_py.errors import InvalidModelError, ParameterError
from llama_py.gguf.check import whole_file
from llama_py.gguf.reader import GGUFHeader, GGUFTensor
from llama_py.gguf.writer import TensorPiece, new_file, pair, write_gguf
from llama_py.tools.chunks import TextChunks

__all__ = ["Matrix", "collect_matrix", "merge_matrices", "read_matrix"]

_SUMS, _PLAIN, _COUNTS = ".in_sum2", ".in_sum", ".counts"
#: Pieces after which the file is written: that much is lost when the process is killed.
_EVERY = 32


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
    sums = _read_sums(path)
    entries = {each.name: _means(path, each) for each in sums.weights.values()}
    return Matrix(entries, sums.datasets, sums.n_chunks)


def _means(path: Path, sums: WeightSums) -> NDArray[np.float32]:
    """Sums by counts, as ``llama-quantize`` divides them; 1 for an expert without any."""
    counts = sums.counts.reshape(-1, 1).astype(np.float32)
    means = np.where(counts > 0, sums.squares / np.where(counts > 0, counts, 1), np.float32(1))
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


# ---- making one --------------------------------------------------------------------------------


def collect_matrix(
    model: str | os.PathLike[str],
    text: str,
    target: str | os.PathLike[str],
    *,
    dataset: str = "",
    n_ctx: int = 512,
    n_batch: int = 2048,
    chunks: int | None = None,
    output: bool = False,
    resume: bool = False,
    n_threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> int:
    """Evaluate a text, and write how much each input of each weight matters.

    The file is written again and again on the way, so that ``resume`` can go on with it.

    Args:
        dataset: the name of the text, which the file and quantized models tell.
        n_ctx: tokens of a piece of the text.
        chunks: pieces at most; None for all.
        output: the output matrix as well.
        resume: go on with a target that is there, behind the pieces it was computed from.
        progress: is called with the pieces that are done, and all of them.

    Returns:
        The pieces that it was computed from.

    Raises:
        ParameterError: the text is too short, or the target exists and ``resume`` is False.
        InvalidModelError: the model computes values that are not finite.
    """
    path = Path(target)
    if path.exists() and not resume:
        raise ParameterError(f"{path} exists already; pass resume=True (--resume) to go on with it")
    before = _read_sums(path) if path.exists() else _Sums({}, (), 0, n_ctx)
    if before.chunk_size != n_ctx:
        raise ParameterError(f"{path} was computed with n_ctx={before.chunk_size}, not {n_ctx}")
    names = tuple(dict.fromkeys([*before.datasets, *([dataset] if dataset else [])]))
    with (
        ImportanceSums(output=output) as sums,
        TextChunks(Path(model), n_ctx, n_batch, n_threads, watcher=sums.watch) as evaluated,
    ):
        tokens = evaluated.tokens(text, chunks)[before.n_chunks * n_ctx :]
        total = before.n_chunks + len(tokens) // n_ctx
        written = done = before.n_chunks
        for more in evaluated.run(tokens):
            sums.check()
            done = before.n_chunks + more
            if progress is not None:
                progress(done, total)
            if done - written >= _EVERY or done == total:
                _write_sums(
                    path, _added([before, _Sums({e.name: e for e in sums}, names, done, n_ctx)])
                )
                written = done
    return done


def merge_matrices(paths: Sequence[str | os.PathLike[str]], target: str | os.PathLike[str]) -> None:
    """Write the sum of several matrices of one model.

    Raises:
        InvalidModelError: one cannot be read, or is of another model.
    """
    if Path(target).exists():
        raise ParameterError(f"{target} exists already; remove it, or choose another name")
    found = [_read_sums(Path(path)) for path in paths]
    total = sum(each.n_chunks for each in found)
    merged = _added(found)
    _write_sums(Path(target), _Sums(merged.weights, merged.datasets, total, merged.chunk_size))


@dataclass(frozen=True, slots=True)
class _Sums:
    weights: Mapping[str, WeightSums]
    datasets: tuple[str, ...]
    n_chunks: int
    chunk_size: int


def _added(every: Sequence[_Sums]) -> _Sums:
    """The sums of several; the pieces and their length are those of the last one."""
    weights: dict[str, WeightSums] = {}
    for name in sorted({name for each in every for name in each.weights}):
        parts = [each.weights[name] for each in every if name in each.weights]
        if len({(part.squares.shape, part.counts.shape) for part in parts}) > 1:
            raise InvalidModelError(f"{name} has other shapes: these are not of one model")
        weights[name] = WeightSums(
            name,
            _total(part.squares for part in parts),
            _total(part.sums for part in parts),
            np.sum([part.counts for part in parts], axis=0, dtype=np.int64),
        )
    datasets = tuple(dict.fromkeys(name for each in every for name in each.datasets))
    return _Sums(weights, datasets, every[-1].n_chunks, every[-1].chunk_size)


def _total(parts: Iterable[NDArray[np.float32]]) -> NDArray[np.float32]:
    found: NDArray[np.float32] = np.sum([*parts], axis=0, dtype=np.float32)
    return found


def _read_sums(path: Path) -> _Sums:
    header = whole_file(path)
    if header.scalars.get("general.type") != "imatrix":
        raise InvalidModelError(f"{path} is not an importance matrix (general.type is not imatrix)")
    tensors = {each.name: each for each in header.tensors}
    weights = {}
    for name, squares in tensors.items():
        plain = name.removesuffix(_SUMS)
        counts = tensors.get(plain + _COUNTS)
        if not name.endswith(_SUMS) or counts is None:
            continue
        seen, flat = _floats(header, counts), _floats(header, squares)
        if not seen.size or flat.size % seen.size or not np.isfinite(seen).all():
            raise InvalidModelError(f"{path}: {name} does not fit {counts.name}")
        rows = flat.reshape(seen.size, -1)
        sums = tensors.get(plain + _PLAIN)
        plain_sums = _floats(header, sums) if sums else np.zeros_like(flat)
        if plain_sums.size != flat.size:
            raise InvalidModelError(f"{path}: {plain}{_PLAIN} does not fit {name}")
        values = plain_sums.reshape(rows.shape)
        weights[plain] = WeightSums(plain, rows, values, seen.astype(np.int64))
    if not weights:
        raise InvalidModelError(f"{path} has no entries NAME{_SUMS} with NAME{_COUNTS}")
    scalars = header.scalars
    chunks, size = (int(scalars.get(f"imatrix.chunk_{each}", 0)) for each in ("count", "size"))
    return _Sums(weights, _datasets(header), chunks, size)


def _write_sums(path: Path, sums: _Sums) -> None:
    pairs = [
        pair("general.type", "str", "imatrix"),
        pair("imatrix.datasets", "str", [*sums.datasets]),
        pair("imatrix.chunk_count", "u32", sums.n_chunks),
        pair("imatrix.chunk_size", "u32", sums.chunk_size),
    ]
    pieces = []
    for each in sums.weights.values():
        pieces += [
            _tensor(each.name + _SUMS, each.squares),
            _tensor(each.name + _COUNTS, each.counts.astype(np.float32).reshape(-1, 1)),
            _tensor(each.name + _PLAIN, each.sums),
        ]
    with new_file(path) as (file, _):
        write_gguf(file.write, pairs, pieces)


def _tensor(name: str, values: NDArray[np.float32]) -> TensorPiece:
    data = np.ascontiguousarray(values, np.float32)
    shape = tuple(reversed(data.shape))
    return TensorPiece(GGUFTensor(name, shape, "F32", 0, data.nbytes), data.tobytes())
