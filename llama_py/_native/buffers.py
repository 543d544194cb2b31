"""``address_of``: where the bytes of a Python object lie, for C that reads them.

``ctypes`` finds out for objects that may be written to; a file that is mapped for reading is none.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["address_of"]


class _Buffer(ctypes.Structure):
    """``Py_buffer`` of CPython's buffer protocol, which its stable ABI fixes."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_get = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes = (ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int)
_get.restype = ctypes.c_int
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = (ctypes.POINTER(_Buffer),)
_release.restype = None


@contextmanager
def address_of(readable: Any) -> Iterator[tuple[int, int]]:
    """The address of an object's bytes, and their number; they stay there meanwhile.

    Raises:
        BufferError, TypeError, ValueError: it has none, or (a mapped file) it was closed.
    """
    buffer = _Buffer()
    _get(readable, buffer, 0)  # PyBUF_SIMPLE: bytes in one piece
    try:
        yield buffer.buf or 0, buffer.len
    finally:
        _release(buffer)
