"""Writes GGUF files from pieces of others: pairs as they are or made anew, tensors as they lie.

The layout is that of ``gguf_write_to_file`` of ggml: the header, the pairs, one record per tensor,
padding, and the bytes of the tensors, each padded. A few megabytes are in memory at a time.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from typing_extensions import Self

from llama_py.errors import ParameterError
from llama_py.gguf.reader import ARRAY, GGML_TYPES, SCALARS, STRING, GGUFHeader, GGUFTensor

__all__ = ["TensorPiece", "kept_pairs", "new_file", "pair", "refuse_folder", "write_gguf"]

_PIECE = 1 << 22
_NUMBERS = {name: (number, form) for number, (name, form) in SCALARS.items()}
_TYPE_NUMBERS = {name: number for number, (name, _, _) in GGML_TYPES.items()}

Value = bool | int | float | str


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """A tensor, and where its bytes are."""

    tensor: GGUFTensor
    data: mmap.mmap | bytes
    start: int = 0

    @classmethod
    def of(cls, header: GGUFHeader, tensor: GGUFTensor) -> Self:
        """One of a file."""
        return cls(tensor, header.buffer, header.data_offset + tensor.offset)


def kept_pairs(header: GGUFHeader) -> dict[str, bytes]:
    """The metadata pairs of a file as they are in it, by key."""
    return {key: header.buffer[start:end] for key, (start, end) in header.places.items()}


def pair(key: str, kind: str, value: Value | Sequence[Value]) -> bytes:
    """A metadata pair.

    Args:
        kind: "str", "bool", "u8" ... "f64".
        value: one of that type, or a list of them.

    Raises:
        ParameterError: the value is not one of that type.
    """
    head = _string(key)
    if isinstance(value, (str, bool, int, float)):
        return head + struct.pack("<I", _number(kind)) + _packed(key, kind, value)
    body = b"".join(_packed(key, kind, each) for each in value)
    return head + struct.pack("<IIQ", ARRAY, _number(kind), len(value)) + body


def _number(kind: str) -> int:
    if kind == "str":
        return STRING
    if kind not in _NUMBERS:
        raise ParameterError(f"{kind!r} is not a type; types are str, {', '.join(_NUMBERS)}")
    return _NUMBERS[kind][0]


def _packed(key: str, kind: str, value: Value) -> bytes:
    if kind == "str" and isinstance(value, str):
        return _string(value)
    try:
        return struct.pack("<" + _NUMBERS[kind][1], value)
    except (struct.error, KeyError, OverflowError):
        raise ParameterError(f"{key}: {value!r} is not a value of the type {kind}") from None


def _string(text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise ParameterError(f"{text[:80]!r} has half of a character, which is not UTF-8") from None
    return struct.pack("<Q", len(data)) + data


def write_gguf(
    write: Callable[[bytes], object],
    pairs: Sequence[bytes],
    pieces: Sequence[TensorPiece],
    alignment: int = 32,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Write a file.

    Args:
        write: is called with its bytes, one part after another.
        progress: is called with the bytes that were written since.
    """
    records, offset = [], 0
    for piece in pieces:
        tensor = piece.tensor
        shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        place = struct.pack("<IQ", _TYPE_NUMBERS[tensor.type], offset)
        records.append(_string(tensor.name) + shape + place)
        offset += -(-tensor.n_bytes // alignment) * alignment
    head = b"GGUF" + struct.pack("<IQQ", 3, len(pieces), len(pairs))
    head += b"".join([*pairs, *records])
    write(head + bytes(-len(head) % alignment))
    for piece in pieces:
        for part in _parts(piece):
            write(part)
            progress(len(part))
        write(bytes(-piece.tensor.n_bytes % alignment))


def _parts(piece: TensorPiece) -> Iterator[bytes]:
    end = piece.start + piece.tensor.n_bytes
    for at in range(piece.start, end, _PIECE):
        yield piece.data[at : min(at + _PIECE, end)]


@contextmanager
def new_file(path: Path) -> Iterator[tuple[FileIO, str]]:
    """A file that gets its name when it is complete; until then there is none of that name.

    Yields:
        The file, and a path by which another library can open it within this process. On Linux it
        has no name before, so that nothing stays of it however the process ends.
    """
    refuse_folder(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    unnamed = _unnamed(path.parent)
    file = unnamed or _made(draft, path)
    try:
        with file:
            inner = f"/proc/self/fd/{file.fileno()}" if unnamed else str(draft)
            yield file, inner
            os.fsync(file.fileno())
            if unnamed:
                draft.unlink(missing_ok=True)
                # Python follows the link of /proc only where it calls linkat.
                os.link(inner, draft, src_dir_fd=file.fileno(), follow_symlinks=True)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def refuse_folder(path: Path) -> None:
    """Say before the work, and not behind it, that the target is a folder."""
    if path.is_dir():
        raise ParameterError(f"{path} is a folder; name a file in it")


def _made(draft: Path, path: Path) -> FileIO:
    try:
        return FileIO(str(draft), "w")
    except OSError as error:  # it names the draft, of which nobody has heard
        raise OSError(error.errno, error.strerror, str(path)) from error


def _unnamed(folder: Path) -> FileIO | None:
    """A file without a name, where the system has such."""
    if sys.platform != "linux":
        return None
    try:
        return FileIO(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666), "r+")
    except OSError:
        return None
