"""``split`` and ``merge``: a model in several files, as ``llama-gguf-split`` does it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from llama_py.errors import InvalidModelError, ParameterError
from llama_py.gguf.check import whole_file
from llama_py.gguf.reader import GGUFHeader
from llama_py.gguf.writer import TensorPiece, kept_pairs, new_file, pair, write_gguf

__all__ = ["merge", "split"]

_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_KEYS = ("split.no", "split.tensors.count", "split.count")

Progress = Callable[[int], None]


def split(
    source: Path,
    prefix: Path,
    *,
    max_bytes: int | None = None,
    max_tensors: int = 128,
    progress: Progress = lambda _: None,
) -> list[Path]:
    """Write a model as ``PREFIX-00001-of-0000N.gguf`` and so on; their paths.

    Args:
        max_bytes: of the tensors of a part; None counts tensors.
        max_tensors: of a part.

    Raises:
        InvalidModelError: the source is not a whole GGUF.
        ParameterError: it is one part of several already; a tensor is larger than a part; a file of
            such a name exists.
    """
    if max_tensors < 1:
        raise ParameterError(f"max_tensors must be at least 1, not {max_tensors}")
    header = whole_file(source)
    if int(header.scalars.get("split.count", 0)) > 1:
        raise ParameterError(f"{source} is one of several parts; merge them first")
    groups = _groups(header, max_bytes, max_tensors)
    count = len(groups)
    paths = [
        prefix.with_name(f"{prefix.name}-{n:05}-of-{count:05}.gguf") for n in range(1, count + 1)
    ]
    _refuse_to_overwrite(paths)
    with ExitStack() as failed:
        for path in paths:  # a part alone is nothing, and would be in the way of the next call
            failed.callback(path.unlink, missing_ok=True)
        _write_parts(header, paths, groups, progress)
        failed.pop_all()
    return paths


def _write_parts(
    header: GGUFHeader,
    paths: Sequence[Path],
    groups: Sequence[Sequence[TensorPiece]],
    progress: Progress,
) -> None:
    count, total = len(groups), len(header.tensors)
    for number, (path, pieces) in enumerate(zip(paths, groups, strict=True)):
        pairs = kept_pairs(header) if number == 0 else {}
        for key in _KEYS:  # in this order, at the end
            pairs.pop(key, None)
        pairs["split.no"] = pair("split.no", "u16", number)
        pairs["split.tensors.count"] = pair("split.tensors.count", "i32", total)
        pairs["split.count"] = pair("split.count", "u16", count)
        # Only the first part has the key that names another alignment.
        alignment = header.alignment if number == 0 else 32
        with new_file(path) as (file, _):
            write_gguf(file.write, [*pairs.values()], pieces, alignment, progress)


def _groups(header: GGUFHeader, max_bytes: int | None, max_tensors: int) -> list[list[TensorPiece]]:
    groups: list[list[TensorPiece]] = [[]]
    size = 0
    for number, tensor in enumerate(header.tensors):
        padded = -(-tensor.n_bytes // 32) * 32
        if max_bytes is not None and padded > max_bytes:
            raise ParameterError(
                f"{tensor.name} has {padded:,} bytes, more than a part of {max_bytes:,}"
            )
        full = size + padded > max_bytes if max_bytes is not None else number % max_tensors == 0
        if number and full:
            groups.append([])
            size = 0
        groups[-1].append(TensorPiece.of(header, tensor))
        size += padded
    return groups


def merge(first: Path, target: Path, progress: Progress = lambda _: None) -> None:
    """Write the parts of a model as one file, without the keys that number them.

    Args:
        first: the first part, ``...-00001-of-0000N.gguf``.

    Raises:
        InvalidModelError: a part is missing or damaged.
        ParameterError: it is not a first part; the target exists.
    """
    found = _NAME.fullmatch(str(first))
    if found is None or int(found[2]) != 1:
        raise ParameterError(f"{first} is not a first part, which ends in -00001-of-0000N.gguf")
    _refuse_to_overwrite([target])
    count = int(found[3])
    paths = [Path(f"{found[1]}-{n:05}-of-{count:05}.gguf") for n in range(1, count + 1)]
    headers = [whole_file(path) for path in paths]
    pieces = [TensorPiece.of(header, tensor) for header in headers for tensor in header.tensors]
    names = {piece.tensor.name for piece in pieces}
    expected = headers[0].scalars.get("split.tensors.count", len(pieces))
    if len(names) != len(pieces) or len(pieces) != expected:
        raise InvalidModelError(
            f"the parts of {first} have {len(names)} tensors, and {expected} belong to the model: "
            "they are not parts of one model"
        )
    pairs = kept_pairs(headers[0])
    for key in _KEYS:
        pairs.pop(key, None)
    with new_file(target) as (file, _):
        write_gguf(file.write, [*pairs.values()], pieces, headers[0].alignment, progress)


def _refuse_to_overwrite(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.exists():
            raise ParameterError(f"{path} exists already; remove it, or choose another name")
