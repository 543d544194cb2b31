"""Walking the string arrays of a GGUF in C.

A vocabulary is an array of some 150 000 strings, each with a length of eight bytes before its
bytes, and its merges are another one. A loop over them in Python would take longer than the rest of
the header. numpy is not imported for it: a model is read while numpy is (``api/opening.py``).
"""

from __future__ import annotations

import mmap

from llama_py._native import chat_h
from llama_py._native.buffers import address_of

__all__ = ["duplicate_string", "end_of_strings", "unspelled_byte"]


def end_of_strings(buffer: mmap.mmap, at: int, count: int) -> int | None:
    """Where the last of ``count`` length-prefixed strings ends; the first begins at ``at``.

    None if the buffer ends before that.
    """
    with address_of(buffer) as (data, size):
        end = chat_h.llama_py_strings_end(data, size, at, count)
    return end if end >= 0 else None


def duplicate_string(buffer: mmap.mmap, at: int, count: int) -> str | None:
    """A string that occurs twice among ``count`` strings, which lie within the buffer, or None.

    Strings are compared as C strings, up to their first NUL, and empty ones are never equal:
    that is how llama.cpp's vocabulary sees its tokens.

    Raises:
        MemoryError: there is not enough to find out.
    """
    with address_of(buffer) as (data, size):
        place = chat_h.llama_py_strings_twice(data, size, at, count)
    if place == -2:
        raise MemoryError(f"{count} strings cannot be compared")
    if place < 0:
        return None
    text = place + 8
    length = int.from_bytes(buffer[place:text], "little")
    return buffer[text : text + length].split(b"\0", 1)[0].decode("utf-8", "replace")


def unspelled_byte(buffer: mmap.mmap, at: int, count: int) -> int | None:
    """A byte that begins one of ``count`` escaped strings, and is none of them by itself, or None.

    The strings are those of an RWKV vocabulary, in which ``\\x41`` and ``\\n`` are one byte each.
    """
    with address_of(buffer) as (data, size):
        byte = chat_h.llama_py_strings_unspelled(data, size, at, count)
    return byte if byte >= 0 else None
