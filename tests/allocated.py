"""How much memory is allocated and not freed: what a leak adds to, and nothing else does.

The pages that a process has (``rss``) differ by a fifth from one moment to the next without any
leak, because the allocator and the system keep, or take back, what is idle.
"""

from __future__ import annotations

import ctypes
import platform

import pytest


class _MallInfo2(ctypes.Structure):
    """``struct mallinfo2`` of glibc's malloc.h."""

    _fields_ = (
        ("arena", ctypes.c_size_t),
        ("ordblks", ctypes.c_size_t),
        ("smblks", ctypes.c_size_t),
        ("hblks", ctypes.c_size_t),
        ("hblkhd", ctypes.c_size_t),
        ("usmblks", ctypes.c_size_t),
        ("fsmblks", ctypes.c_size_t),
        ("uordblks", ctypes.c_size_t),
        ("fordblks", ctypes.c_size_t),
        ("keepcost", ctypes.c_size_t),
    )


def allocated_bytes() -> int:
    """Of ``malloc``, by C, C++, numpy and Python's larger objects, in all threads."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _MallInfo2
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


def _can_be_asked() -> bool:
    return platform.libc_ver()[0] == "glibc" and hasattr(ctypes.CDLL(None), "mallinfo2")


needs_allocated_bytes = pytest.mark.skipif(
    not _can_be_asked(), reason="asks the allocator of glibc 2.33 or later"
)
