"""Walking the string arrays of a GGUF with numpy.

A vocabulary is an array of some 150 000 strings, each with a length of eight bytes before its
bytes, and its merges are another one. A loop over them in Python would take longer than the rest of
the header, so they are handled as arrays of offsets and lengths.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["duplicate_string", "scan_strings", "unspelled_byte"]

_Offsets = npt.NDArray[np.int64]

#: Bytes of the file that are looked at in one go.
_WINDOW: Final = 1 << 22


def scan_strings(buffer: mmap.mmap, at: int, count: int) -> tuple[_Offsets, _Offsets]:
    """Return where each of ``count`` length-prefixed strings begins, and the strings' lengths.

    A length below 256 is a byte followed by seven zeros, which text does not contain. So all
    places that look like a length are found at once, and confirmed if each string begins where the
    one before ends. Other strings (long ones, and those after a NUL) are read one by one.
    Fewer than ``count`` are returned if the file ends too early.
    """
    starts: list[_Offsets] = []
    lengths: list[_Offsets] = []
    size = len(buffer)
    while count > 0 and size - at >= 8:
        begin = at
        window = min(size - at, _WINDOW, 64 + 24 * count)
        words = np.ndarray((window - 7,), "<u8", buffer, at, (1,))
        places = np.flatnonzero(words < 256)
        found, found_lengths = places + at, words[places].astype(np.int64)
        breaks = np.flatnonzero(found[1:] != (found + 8 + found_lengths)[:-1])
        while count > 0 and size - at >= 8 and at - begin < window - 7:
            first = int(np.searchsorted(found, at))
            if first < found.size and found[first] == at:
                broken = int(np.searchsorted(breaks, first))
                last = int(breaks[broken]) if broken < breaks.size else found.size - 1
                chain = slice(first, min(last + 1, first + count))
                starts.append(found[chain])
                lengths.append(found_lengths[chain])
                at = int(starts[-1][-1] + 8 + lengths[-1][-1])
            else:
                (length,) = struct.unpack_from("<Q", buffer, at)
                if length > size - at - 8:
                    return _joined(starts), _joined(lengths)
                starts.append(np.array([at]))
                lengths.append(np.array([length]))
                at += 8 + length
            count -= starts[-1].size
    if at > size:  # the last string of a chain runs past the end
        starts[-1], lengths[-1] = starts[-1][:-1], lengths[-1][:-1]
    return _joined(starts), _joined(lengths)


def _joined(parts: list[_Offsets]) -> _Offsets:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def duplicate_string(buffer: mmap.mmap, at: int, count: int) -> str | None:
    """Return a string that occurs twice among ``count`` strings, or None.

    Strings are compared as C strings, up to their first NUL, and empty ones are never equal:
    that is how llama.cpp's vocabulary sees its tokens.
    """
    starts, lengths = scan_strings(buffer, at, count)
    if not starts.size:
        return None
    end = int(starts[-1] + 8 + lengths[-1])
    data = np.ndarray((end - at,), np.uint8, buffer, at)
    prefixes = int(np.count_nonzero(lengths.view(np.uint8)))
    has_nul = int(np.count_nonzero(data)) != int(lengths.sum()) + prefixes
    if has_nul or end + 8 > len(buffer):
        suspects = np.arange(starts.size)
    else:
        suspects = _suspects(buffer, starts, lengths)
    seen: set[bytes] = set()
    for start, length in zip(starts[suspects].tolist(), lengths[suspects].tolist(), strict=True):
        text = buffer[start + 8 : start + 8 + length].split(b"\0", 1)[0]
        if text and text in seen:
            return text.decode("utf-8", "replace")
        seen.add(text)
    return None


def _suspects(buffer: mmap.mmap, starts: _Offsets, lengths: _Offsets) -> npt.NDArray[np.intp]:
    """Return the strings that share length, first and last eight bytes with another one."""
    words = np.ndarray((len(buffer) - 7,), "<u8", buffer, 0, (1,))
    shift = (8 * (8 - np.minimum(lengths, 8))).astype(np.uint64)
    empty = lengths == 0
    shift[empty] = 0
    head = (words[starts + 8] << shift) >> shift
    head[empty] = np.flatnonzero(empty).astype(np.uint64)  # never equal to one another
    tail = words[starts + np.maximum(lengths, 8)]
    tail[lengths < 8] = 0
    with np.errstate(over="ignore"):
        key = head * np.uint64(0x9E3779B97F4A7C15)
        key ^= tail * np.uint64(0xC2B2AE3D27D4EB4F) + lengths.astype(np.uint64)
    ordered = np.sort(key)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if not repeated.size:
        return np.empty(0, np.intp)
    places = np.searchsorted(repeated, key)
    places[places == repeated.size] = 0
    return np.flatnonzero(repeated[places] == key)  # np.isin would sort once more


_ESCAPES: Final = {ord("t"): 9, ord("n"): 10, ord("r"): 13}


def unspelled_byte(buffer: mmap.mmap, at: int, count: int) -> int | None:
    """Return a byte that begins one of ``count`` escaped strings, and is none of them by itself.

    The strings are those of an RWKV vocabulary, in which ``\\x41`` and ``\\n`` are one byte each.
    """
    starts, lengths = scan_strings(buffer, at, count)
    starts, lengths = starts[lengths > 0], lengths[lengths > 0]
    if not starts.size:
        return None
    heads = np.ndarray((len(buffer),), np.uint8, buffer)[starts + 8]
    plain = heads != ord("\\")
    begun = set(np.unique(heads[plain]).tolist())
    alone = set(np.unique(heads[plain & (lengths == 1)]).tolist())
    for start, length in zip(starts[~plain].tolist(), lengths[~plain].tolist(), strict=True):
        escaped = buffer[start + 9 : start + 8 + min(length, 4)]
        size = 4 if escaped[:1] == b"x" else 2
        if length < size:  # spells nothing
            continue
        byte = _ESCAPES.get(escaped[0], escaped[0])
        if size == 4:  # llama.cpp reads any two characters as hexadecimal digits
            high, low = (d - ord("a") + 10 if d >= ord("a") else d - ord("0") for d in escaped[1:])
            byte = (high * 16 + low) % 256
        begun.add(byte)
        if length == size:
            alone.add(byte)
    return min(begun - alone, default=None)
