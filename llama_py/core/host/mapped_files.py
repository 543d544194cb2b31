"""``MappedFiles``: pages of a file that stay in this process's memory although nobody needs them.

Weights that are arranged for the CPU's instructions are copied out of the mapped file, and what was
read of it stays mapped: a model would take its size twice, while it is loaded and for good.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from llama_py.core.host.machine import own_memory

__all__ = ["MappedFiles"]

#: Pages are given back each time that so much of the files was loaded, and so many bytes.
_STEP, _STEP_BYTES = 0.1, 64 << 20
#: Where the process's own memory grows by less than so much of what was loaded, the files are used
#: where they are mapped.
_COPIED = 0.25


class MappedFiles:
    """Gives back the pages of files that are copied while they are loaded.

    The system reads them again from its cache where they are needed after all. On Linux; elsewhere
    nothing is done.

    Args:
        paths: the files.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = {os.path.realpath(path) for path in paths}
        self._size = sum(Path(path).stat().st_size for path in self._paths)
        #: How much is loaded between two calls of ``note`` that do something, 0.0 to 1.0.
        self.step = max(_STEP, min(1.0, _STEP_BYTES / max(1, self._size)))
        self._before: int | None = None
        self._next = self.step

    def note(self, loaded: float) -> None:
        """So much of the files was loaded, 0.0 to 1.0; first when no tensor was."""
        if not sys.platform.startswith("linux"):
            return
        if self._before is None:
            self._before, _ = own_memory()
        if loaded < self._next:
            return
        self._next = min(1.0, loaded + self.step) if loaded < 1.0 else 2.0
        own, mapped = own_memory()
        if mapped and own - self._before >= _COPIED * loaded * self._size:
            self._give_back()

    def _give_back(self) -> None:
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        try:
            lines = Path("/proc/self/maps").read_bytes().split(b"\n")
        except OSError:
            return
        for line in lines:
            fields = line.split(maxsplit=5)
            # llama.cpp maps files to be shared, and to be read only.
            if len(fields) == 6 and fields[1] == b"r--s" and os.fsdecode(fields[5]) in self._paths:
                start, end = (int(place, 16) for place in fields[0].split(b"-"))
                advise(start, end - start, mmap.MADV_DONTNEED)
