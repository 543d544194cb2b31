"""``MediaEncoder``: pictures and sounds to tokens of a prompt, and to the vectors behind them.

A file becomes a ``Medium`` before its request is submitted: its tokens (``memory.media_tokens``),
which say how many cells it takes and by which it is found again. Its vectors are computed only when
a sequence needs them that does not have its cells: by a thread of the encoder, while the streams go
on, and kept as long as there is room, so that a prompt that is evaluated again encodes nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from llama_py.core.projector import Cells, Chunks, Projector
from llama_py.errors import LlamaError, MediaError, ParameterError
from llama_py.memory.media_tokens import media_tokens
from llama_py.quick_dataclass import dataclass

__all__ = ["MediaCells", "MediaEncoder", "Medium", "PlacedMedium"]

_log = logging.getLogger("llama_py")

#: How much behind (a nice value).
_BEHIND = 6
#: Files whose tokens are remembered.
_MOST_MEDIA = 512
#: Preprocessed pictures that are kept until they are encoded: some are 10 MB.
_MOST_CHUNKS = 8


@dataclass(frozen=True, slots=True, eq=False)
class MediaCells:
    """A stretch of cells of a medium.

    Attributes:
        key: its token ids as bytes: names its vectors.
        cells: how many, and at which positions.
    """

    key: bytes
    cells: Cells


@dataclass(frozen=True, slots=True, eq=False)
class Medium:
    """A picture or a sound as a prompt has it.

    Attributes:
        digest: of its pixels or samples, the encoder and its settings.
        tokens: the texts around and within it, and the ids of its cells.
        stretches: what there are vectors for, by their ``key``.
        data: the file.
        where: what it is called in errors.
    """

    digest: bytes
    tokens: tuple[int, ...]
    stretches: Mapping[bytes, MediaCells]
    data: bytes = field(repr=False)
    where: str = "a picture"


@dataclass(frozen=True, slots=True)
class PlacedMedium:
    """A medium in the text of a prompt, in place of the bytes ``[start, end)``."""

    start: int
    end: int
    medium: Medium


class MediaEncoder:
    """See the module. ``read`` may be called from any thread.

    Args:
        projector: what encodes.
        n_ubatch: most cells that can see each other.
        capacity_bytes: for vectors.

    Attributes:
        used_bytes: of vectors that are kept.
        encoded: how many stretches were encoded.
        seconds: that took.
    """

    def __init__(
        self, projector: Projector, *, n_ubatch: int, capacity_bytes: int = 256 << 20
    ) -> None:
        self.projector = projector
        self._n_ubatch = n_ubatch
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.encoded = 0
        self.seconds = 0.0
        self._lock = threading.Lock()
        self._media: OrderedDict[bytes, Medium] = OrderedDict()
        self._chunks: OrderedDict[bytes, Chunks] = OrderedDict()
        self._vectors: OrderedDict[bytes, NDArray[np.float32]] = OrderedDict()
        self._failures: dict[bytes, LlamaError] = {}
        self._wanted: set[bytes] = set()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    # -- tokens ---------------------------------------------------------------------------------

    def read(self, data: bytes, where: str) -> Medium:
        """A file that was checked (``media.files``) as a medium.

        Raises:
            MediaError: it is damaged, or cannot be used.
            ParameterError: the projector has no encoder for it.
        """
        name = hashlib.sha256(data).digest()
        with self._lock:
            known = self._media.get(name)
            if known is not None:
                self._media.move_to_end(name)
                return known
        chunks = self.projector.split(data, where)
        digest = hashlib.sha256(self.projector.fingerprint.encode() + chunks.digest).digest()
        medium = _medium(digest, chunks, data, where)
        for stretch in medium.stretches.values():
            cells = stretch.cells
            if not cells.causal and cells.count > self._n_ubatch:
                raise ParameterError(
                    f"{where} takes {cells.count} cells that see each other, and a step has room "
                    f"for {self._n_ubatch}; load the model with n_batch and n_ubatch of at least "
                    f"{cells.count}"
                )
        with self._lock:
            self._media[name] = medium
            self._chunks[digest] = chunks
            while len(self._media) > _MOST_MEDIA:
                self._media.popitem(last=False)
            while len(self._chunks) > _MOST_CHUNKS:
                self._chunks.popitem(last=False)
        return medium

    # -- vectors --------------------------------------------------------------------------------

    def vectors(self, medium: Medium, stretch: MediaCells) -> NDArray[np.float32]:
        """The vectors of a stretch, float32 ``(cells, n_embd_inp)``; encoded if need be.

        Raises:
            MediaError: the encoder failed.
        """
        with self._lock:
            failure = self._failures.pop(stretch.key, None)
            known = self._vectors.get(stretch.key)
            if known is not None:
                self._vectors.move_to_end(stretch.key)
                return known
        if failure is not None:
            raise failure
        return self._encode(medium, stretch)

    def is_ready(self, stretch: MediaCells) -> bool:
        """Whether ``vectors`` returns (or raises) at once."""
        with self._lock:
            return stretch.key in self._vectors or stretch.key in self._failures

    def prepare(self, medium: Medium, stretch: MediaCells, done: Callable[[], None]) -> bool:
        """Encode in a thread what is not ready, and call ``done`` then; False if that cannot be."""
        with self._lock:
            if stretch.key in self._vectors or stretch.key in self._wanted:
                return True
            self._wanted.add(stretch.key)
        self._jobs.put(lambda: self._encode_beside(medium, stretch, done))
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=_work, args=(self._jobs,), name="llama_py-media", daemon=True
            )
            try:
                self._thread.start()
            except RuntimeError:  # no threads here: whoever needs the vectors computes them
                self._thread = None
                self._jobs.get_nowait()
                self._wanted.discard(stretch.key)
                return False
        return True

    def forget(self) -> None:
        """Forget what was encoded."""
        with self._lock:
            self._vectors.clear()
            self.used_bytes = 0

    def __del__(self) -> None:
        self._jobs.put(None)

    def close(self) -> None:
        """End the thread, and free the projector."""
        self._jobs.put(None)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._lock:
            self._chunks.clear()
            self._vectors.clear()
            self.used_bytes = 0
        self.projector.close()

    def _encode_beside(self, medium: Medium, stretch: MediaCells, done: Callable[[], None]) -> None:
        try:
            if not self.is_ready(stretch):
                self._encode(medium, stretch)
        except LlamaError as error:
            with self._lock:
                self._failures[stretch.key] = error
        finally:
            with self._lock:
                self._wanted.discard(stretch.key)
            done()

    def _encode(self, medium: Medium, stretch: MediaCells) -> NDArray[np.float32]:
        with self._lock:
            chunks = self._chunks.get(medium.digest)
        if chunks is None:
            chunks = self.projector.split(medium.data, medium.where)
        rows = self.projector.encode(chunks, stretch.cells.index)
        if not np.isfinite(rows).all():
            raise MediaError(f"{medium.where} was encoded to vectors that are no numbers")
        with self._lock:
            self.encoded += 1
            if stretch.key not in self._vectors:
                self._vectors[stretch.key] = rows
                self.used_bytes += rows.nbytes
            while self.used_bytes > self.capacity_bytes and len(self._vectors) > 1:
                self.used_bytes -= self._vectors.popitem(last=False)[1].nbytes
        return rows


def _work(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    """The thread: it does not refer to the encoder, whose end ends it.

    On Linux, where threads have priorities of their own, it and those that it starts take the cores
    that the streams leave.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _BEHIND)
    while (job := jobs.get()) is not None:
        try:
            job()
        except Exception:  # of what nobody waits for: the thread must live on
            _log.exception("a picture or sound could not be encoded")
        del job


def _medium(digest: bytes, chunks: Chunks, data: bytes, where: str) -> Medium:
    tokens: list[int] = []
    stretches: dict[bytes, MediaCells] = {}
    for part in chunks.parts:
        if isinstance(part, list):
            tokens += part
            continue
        own = digest + part.index.to_bytes(4, "little")
        ids = media_tokens(own, part.count, part.positions, flat=part.flat)
        stretches[ids.tobytes()] = MediaCells(ids.tobytes(), part)
        tokens += ids.tolist()
    return Medium(digest, tuple(tokens), stretches, data, where)
