"""One stored state as one file: written once from start to end, never changed, checked when read.

A state whose first cells are kept apart names their segments in its head; each has a file of its
own, with a head of 64 bytes (magic, digests of the body and of the key).

::

    head     magic, digest of the rest of the head, lengths, JSON (key, fingerprint, session,
             positions, sizes), tokens, offsets, text, sources, padding
    body     the sequence state, then each checkpoint's, each padded to 64 bytes
    trailer  digest of each part of the body, digest of the head, magic

Three accidents are provided for: a writer that is killed, a full disk, and a machine that stops.
The first two leave files that the ledger never lists. After the third, the ledger may list a file
of which some pages never reached the disk, because there is no fsync: it would cost more than the
write, and a cache may lose an entry. The digests find such files. A digest is BLAKE2b over one
64-bit sum per 4-KiB page: pages of zeros, of another file or in another place are found, and so is
any flipped bit, at the speed at which memory is read (20 GB/s and more, where CRC-32 made 4 and
writing the file 2). It is no protection against somebody who may write to the directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import StateError
from llama_py.regular_files import open_regular
from llama_py.states.state import Checkpoint, EntryInfo, Key, Segment, StoredState

__all__ = [
    "Head",
    "Payload",
    "digest",
    "read_head",
    "read_segment",
    "read_segment_from",
    "read_state",
    "read_state_from",
    "segment_file_bytes",
    "write_segment",
    "write_segment_to",
]

Bytes = NDArray[np.uint8]

_MAGIC = b"LLPYST03"
_END = b"LLPYEND1"
#: magic, digest of the head behind it, bytes of the whole head, bytes of JSON.
_PREFIX = struct.Struct("<8s16sQQ")
_SEGMENT = struct.Struct("<8s16s16s24x")
_SEGMENT_MAGIC = b"LLPYSG01"
_CHECKED = 24  # where what the digest covers begins
_ALIGN = 64
_PAGE = 4096
#: Read by parts that are still in the processor's cache when they are summed. Whole pages.
_CHUNK = 1 << 22


def digest(data: Bytes) -> bytes:
    """16 bytes that tell whether ``data`` is what it was.

    BLAKE2b over the 64-bit sum of each 4-KiB page.
    """
    sums = _page_sums(data.nbytes)
    _add_pages(data, sums)
    return _value(sums, data)


def _page_sums(nbytes: int) -> NDArray[np.uint64]:
    return np.empty(nbytes // _PAGE, np.uint64)


def _add_pages(data: Bytes, sums: NDArray[np.uint64]) -> None:
    """The sums of the whole pages of ``data``."""
    pages = data[: sums.size * _PAGE].view(np.uint64).reshape(sums.size, _PAGE // 8)
    np.einsum("ij->i", pages, out=sums)  # the same as sum(axis=1), and faster


def _value(sums: NDArray[np.uint64], data: Bytes) -> bytes:
    """The digest, from the sums of the whole pages and the bytes behind them."""
    rest = b""
    left = data.nbytes % _PAGE
    if left:
        words = data.nbytes - data.nbytes % 8
        total = data[sums.size * _PAGE : words].view(np.uint64).sum(dtype=np.uint64)
        rest = total.tobytes() + data[words:].tobytes() + left.to_bytes(8, "little")
    return hashlib.blake2b(sums.tobytes() + rest, digest_size=16).digest()


def _padding(nbytes: int) -> int:
    return -nbytes % _ALIGN


# --- writing --------------------------------------------------------------------------------------


class Payload:
    """A state on its way to a file.

    Attributes:
        head_bytes, file_bytes: how long the head and the whole file will be.
    """

    def __init__(self, key: Key, state: StoredState) -> None:
        states = [state.state, *(checkpoint.state for checkpoint in state.checkpoints)]
        self._parts: list[Bytes] = [
            np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in states
        ]
        self._head = _make_head(key, state, [part.nbytes for part in self._parts])
        self.head_bytes = len(self._head)
        body = sum(part.nbytes + _padding(part.nbytes) for part in self._parts)
        self.file_bytes = self.head_bytes + body + _trailer_bytes(len(self._parts))

    def write(self, path: Path) -> None:
        """Write the file; there must be none.

        Raises:
            OSError: it cannot be written; what was written is gone again.
        """
        with _new_file(path) as file:
            self.write_to(file)

    def write_to(self, file: BinaryIO) -> None:
        """Write to a file that is open.

        Raises:
            OSError: it cannot be written.
        """
        file.write(self._head)
        digests = []
        for part in self._parts:
            # In one call: a process that returns from the kernel for every megabyte loses its place
            # on a busy machine, and then writes at a tenth of the speed.
            file.write(part.data)
            file.write(bytes(_padding(part.nbytes)))
            digests.append(digest(part))
        file.write(b"".join(digests) + self._head[len(_MAGIC) : _CHECKED] + _END)


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """A file to be written, which is gone again if that fails; there must be none."""
    with path.open("xb") as file:
        try:
            yield file
            file.flush()  # here, and not in close(), is where a full disk is noticed
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def _make_head(key: Key, state: StoredState, sizes: list[int]) -> bytes:
    described = {
        "key": key,
        "fingerprint": state.fingerprint,
        "session": state.session,
        "pos_min": state.pos_min,
        "tokens": len(state.tokens),
        "text": None if state.text is None else len(state.text),
        "checkpoints": [checkpoint.position for checkpoint in state.checkpoints],
        "sizes": sizes,
        "segments": [[each.key, each.start, each.end, each.nbytes] for each in state.segments],
    }
    note = json.dumps(described).encode()
    rest = note + state.tokens.astype("<i4").tobytes()
    if state.offsets is not None and state.text is not None:
        rest += state.offsets.astype("<i8").tobytes() + state.text
        rest += b"" if state.sources is None else state.sources.tobytes()
    rest += bytes(_padding(_PREFIX.size + len(rest)))
    lengths = struct.pack("<QQ", _PREFIX.size + len(rest), len(note))
    return _MAGIC + digest(np.frombuffer(lengths + rest, np.uint8)) + lengths + rest


def _trailer_bytes(parts: int) -> int:
    return 16 * parts + 16 + len(_END)


def segment_file_bytes(nbytes: int) -> int:
    """How long the file of a segment of ``nbytes`` bytes is."""
    return _SEGMENT.size + nbytes


def write_segment(path: Path, key: Key, state: Bytes) -> None:
    """Write the file of a segment; there must be none.

    Raises:
        OSError: it cannot be written; what was written is gone again.
    """
    with _new_file(path) as file:
        write_segment_to(file, key, state)


def write_segment_to(file: BinaryIO, key: Key, state: Bytes) -> None:
    """Write a segment to a file that is open.

    Raises:
        OSError: it cannot be written.
    """
    file.write(_SEGMENT.pack(_SEGMENT_MAGIC, digest(state), _digest_of_key(key)))
    file.write(state.data)


def _digest_of_key(key: Key) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=16).digest()


# --- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Head:
    """A file without its body.

    Attributes:
        check: the head's digest, which the trailer repeats.
        sizes: bytes of the sequence state and of each checkpoint.
        segments: where the first cells are, without their bytes.
    """

    info: EntryInfo
    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64] | None
    text: bytes | None
    sources: NDArray[np.uint8] | None
    check: bytes
    sizes: tuple[int, ...]
    segments: tuple[Segment, ...]


def read_head(path: Path, key: Key, head_bytes: int, file_bytes: int) -> Head:
    """Read what is needed to find a state, and none of its body.

    Raises:
        StateError: the file is not what was written.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        return _read_head(file, path, key, head_bytes, file_bytes)


def read_state(path: Path, key: Key, head_bytes: int, file_bytes: int) -> StoredState:
    """Read a whole state, without the bytes of its segments; each array has its own memory.

    Raises:
        StateError: the file is not what was written.
        OSError: it cannot be read.
        MemoryError: there is no room for it.
    """
    with open_regular(path) as file:
        return _read_rest(file, path, _read_head(file, path, key, head_bytes, file_bytes))


def read_state_from(file: FileIO, name: Path, key: Key) -> StoredState:
    """``read_state`` from an open file, which says itself how long its parts are.

    There may be more behind it; the file is left there.

    Args:
        name: its name, for messages.
    """
    size = os.fstat(file.fileno()).st_size
    start = _read_exactly(file, min(size, _PREFIX.size)).tobytes().ljust(_PREFIX.size, b"\0")
    file.seek(0)
    head = _read_head(file, name, key, _PREFIX.unpack(start)[2], size)
    body = sum(nbytes + _padding(nbytes) for nbytes in head.sizes)
    if size < file.tell() + body + sum(each.nbytes for each in head.segments):
        raise StateError(f"{name} ends too early")
    return _read_rest(file, name, head)


def _read_rest(file: FileIO, path: Path, head: Head) -> StoredState:
    parts, checks = _read_body(file, head.sizes)
    trailer = file.read(_trailer_bytes(len(parts)))
    if trailer != b"".join(checks) + head.check + _END:
        raise StateError(f"{path} is damaged: its bytes are not those that were written")
    info = head.info
    return StoredState(
        tokens=head.tokens,
        offsets=head.offsets,
        text=head.text,
        sources=head.sources,
        state=parts[0],
        checkpoints=tuple(map(Checkpoint, info.checkpoints, parts[1:])),
        pos_min=info.pos_min,
        fingerprint=info.fingerprint,
        session=info.session,
        segments=head.segments,
    )


def read_segment(path: Path, key: Key, nbytes: int) -> Bytes:
    """Read a segment of ``nbytes`` bytes.

    Raises:
        StateError: the file is not what was written.
        OSError: it cannot be read.
        MemoryError: there is no room for it.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != segment_file_bytes(nbytes):
            raise StateError(f"{path} has {size} bytes, not {segment_file_bytes(nbytes)}")
        return read_segment_from(file, path, key, nbytes)


def read_segment_from(file: FileIO, path: Path, key: Key, nbytes: int) -> Bytes:
    """``read_segment`` from an open file; what follows is expected at a multiple of 64 bytes."""
    head = _read_exactly(file, _SEGMENT.size).tobytes()
    (state,), (check,) = _read_body(file, (nbytes,))
    if head != _SEGMENT.pack(_SEGMENT_MAGIC, check, _digest_of_key(key)):
        raise StateError(f"{path} is damaged: its bytes are not those that were written")
    return state


def _read_head(file: FileIO, path: Path, key: Key, head_bytes: int, file_bytes: int) -> Head:
    size = os.fstat(file.fileno()).st_size
    if size != file_bytes or not _PREFIX.size <= head_bytes <= size:
        raise StateError(f"{path} has {size} bytes, not {file_bytes}")
    raw = _read_exactly(file, head_bytes)
    magic, check, length, note_bytes = _PREFIX.unpack_from(raw.data)
    rest = raw[_PREFIX.size :]
    if magic != _MAGIC or length != head_bytes or check != digest(raw[_CHECKED:]):
        raise StateError(f"{path} is damaged: its head is not what was written")
    note = json.loads(rest[:note_bytes].tobytes())
    if note["key"] != key:
        raise StateError(f"{path} is another entry's file")
    return _parse_head(note, rest[note_bytes:].tobytes(), check, file_bytes)


def _parse_head(note: dict[str, object], rest: bytes, check: bytes, file_bytes: int) -> Head:
    """Take the head apart. Its digest was right, so it is what ``_make_head`` made."""
    count, text_bytes = note["tokens"], note["text"]
    positions, sizes = note["checkpoints"], note["sizes"]
    assert isinstance(count, int)
    assert isinstance(positions, list)
    assert isinstance(sizes, list)
    assert isinstance(note["segments"], list)
    segments = tuple(Segment(*described) for described in note["segments"])
    tokens = np.frombuffer(rest, "<i4", count).astype(np.int32, copy=False)
    offsets, text, sources = None, None, None
    if isinstance(text_bytes, int):
        at = 4 * count
        offsets = np.frombuffer(rest, "<i8", count + 1, at).astype(np.int64, copy=False)
        at += offsets.nbytes
        text = rest[at : at + text_bytes]
        sources = np.frombuffer(rest, np.uint8, count, at + text_bytes)
    info = EntryInfo(
        key=str(note["key"]),
        fingerprint=str(note["fingerprint"]),
        session=None if note["session"] is None else str(note["session"]),
        length=count,
        pos_min=int(str(note["pos_min"])),
        checkpoints=tuple(positions),
        nbytes=file_bytes + sum(segment.nbytes for segment in segments),
    )
    return Head(info, tokens, offsets, text, sources, check, tuple(sizes), segments)


def _read_body(file: FileIO, sizes: tuple[int, ...]) -> tuple[list[Bytes], list[bytes]]:
    parts, checks = [], []
    for nbytes in sizes:
        data: Bytes = np.empty(nbytes, np.uint8)
        sums = _page_sums(nbytes)
        for start in range(0, nbytes, _CHUNK):
            chunk = data[start : start + _CHUNK]
            _fill(file, chunk)
            _add_pages(chunk, sums[start // _PAGE : (start + chunk.nbytes) // _PAGE])
        data.flags.writeable = False
        if nbytes % _ALIGN:
            file.seek(_padding(nbytes), 1)
        parts.append(data)
        checks.append(_value(sums, data))
    return parts, checks


def _read_exactly(file: FileIO, nbytes: int) -> Bytes:
    data: Bytes = np.empty(nbytes, np.uint8)
    _fill(file, data)
    return data


def _fill(file: FileIO, data: Bytes) -> None:
    at = file.readinto(data.data) or 0
    while at < data.nbytes:  # a signal came, or more than 2 GiB were asked for
        count = file.readinto(data[at:].data)
        if not count:
            raise StateError(f"a file of the store ends {data.nbytes - at} bytes too early")
        at += count
