"""``MediaEncoder``: pictures and sounds to tokens of a prompt, and to the vectors behind them.

A file or an array becomes a ``Medium`` before its request is submitted: its tokens
(``memory.positions``), which say how many cells it takes and by which it is found again. Its
vectors are computed only when a sequence needs them that does not have its cells: by a thread of
the encoder, while the streams go on.

Both are kept for the tenant whose request had them, as far as there is room: the tokens when the
request was submitted, so that a refused one leaves nothing; and the vectors, so that a prompt that
is evaluated again encodes nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from llama_py.core.projector import Cells, Chunks, Projector
from llama_py.errors import LlamaError, MediaError, ParameterError
from llama_py.media.arrays import Decoded, Source
from llama_py.media.decoding import read_picture, read_sound
from llama_py.media.files import look_at
from llama_py.media.limits import MediaLimits
from llama_py.memory.positions import media_tokens
from llama_py.tenants import Remembered, tenant, working_for

__all__ = [
    "MediaCells",
    "MediaEncoder",
    "Medium",
    "PlacedMedium",
    "Waiting",
    "digest_of",
    "without_source",
]

_log = logging.getLogger("llama_py")

#: How much behind (a nice value).
_BEHIND = 6
#: How many are decoded at a time in this process: each takes memory while it is.
_DECODING = threading.BoundedSemaphore(2)
#: Entries of a tenant: the bytes are the bound.
_MOST_KEPT = 1 << 16
#: Bytes of a token in a tuple, roughly.
_TOKEN = 40


@dataclass(frozen=True, slots=True, eq=False)
class MediaCells:
    """A stretch of cells of a medium.

    Attributes:
        key: its token ids as bytes: names its vectors.
        cells: how many, and at which positions.
    """

    key: bytes
    cells: Cells


class Waiting:
    """What is there for a request until it is evaluated, and no longer than the request.

    Attributes:
        chunks: what libmtmd encodes; None: not made yet, or others needed the room.
        rows: vectors that were encoded for it, by the ``key`` of their stretch.
        failure: why they were not.
    """

    __slots__ = ("__weakref__", "chunks", "failure", "rows")

    def __init__(self) -> None:
        self.chunks: Chunks | None = None
        self.rows: dict[bytes, NDArray[np.float32]] = {}
        self.failure: LlamaError | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Medium:
    """A picture or a sound as a prompt has it.

    Attributes:
        name: digest of what it came as.
        digest: of its pixels or samples, the encoder and its settings.
        tokens: the texts around and within it, and the ids of its cells.
        stretches: what there are vectors for, by their ``key``.
        decoded_bytes: of its pixels or samples.
        tenant: whose it is.
        source: the file or the array.
        where: its name in errors.
        waiting: what is there for its request only.
    """

    name: bytes
    digest: bytes
    tokens: tuple[int, ...]
    stretches: Mapping[bytes, MediaCells]
    decoded_bytes: int
    tenant: str
    source: Source = field(repr=False)
    where: str = "a picture"
    waiting: Waiting = field(default_factory=Waiting, repr=False)


@dataclass(frozen=True, slots=True)
class PlacedMedium:
    """A medium in the text of a prompt, in place of the bytes ``[start, end)``."""

    start: int
    end: int
    medium: Medium


def digest_of(source: Source) -> bytes:
    """Names a file, or an array."""
    if not isinstance(source, Decoded):
        return hashlib.sha256(source).digest()
    values = np.ascontiguousarray(source.values)
    found = hashlib.sha256(repr((values.shape, source.rate)).encode())
    found.update(values.data)
    return found.digest()


def without_source(medium: Medium) -> Medium:
    """The medium as it crosses to another process, which has what it came as."""
    return replace(medium, source=b"", waiting=Waiting())


class MediaEncoder:
    """See the module. ``read`` may be called from any thread.

    Args:
        projector: what encodes.
        limits: what may be decoded.
        n_ubatch: most cells that can see each other.
        capacity_bytes: for tokens and vectors that are kept, and as much again for what waits to be
            encoded.

    Attributes:
        encoded: how many stretches were encoded.
        decoded: how many files and arrays were read.
    """

    def __init__(
        self,
        projector: Projector,
        limits: MediaLimits,
        *,
        n_ubatch: int,
        capacity_bytes: int = 256 << 20,
    ) -> None:
        self.projector = projector
        self._limits = limits
        self._n_ubatch = n_ubatch
        self.capacity_bytes = capacity_bytes
        self.encoded = self.decoded = 0
        self._lock = threading.Lock()
        self._kept: Remembered[bytes, Medium | NDArray[np.float32]]
        self._kept = Remembered(_MOST_KEPT, capacity_bytes)
        self._waiting: list[weakref.ref[Waiting]] = []
        self._wanted: set[tuple[str, bytes]] = set()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def used_bytes(self) -> int:
        """Of what is kept for requests to come."""
        return self._kept.nbytes

    # -- tokens ---------------------------------------------------------------------------------

    def read(self, source: Source, where: str) -> Medium:
        """A file or an array as a medium. What is kept of it is for ``keep``.

        Raises:
            MediaError: it is damaged, too large, or cannot be used.
            ParameterError: the projector has no encoder for it.
        """
        name = digest_of(source)
        known = self._kept.get(name)
        if isinstance(known, Medium):
            return replace(known, source=source, where=where, waiting=Waiting())
        chunks = self._split(source, where)
        medium = self._medium(name, chunks, source, where)
        for stretch in medium.stretches.values():
            cells = stretch.cells
            if not cells.causal and cells.count > self._n_ubatch:
                raise ParameterError(
                    f"{where} takes {cells.count} cells that see each other, and a step has room "
                    f"for {self._n_ubatch}; load the model with n_batch and n_ubatch of at least "
                    f"{cells.count}"
                )
        self._hold(medium.waiting, chunks)
        return medium

    def keep(self, medium: Medium) -> None:
        """Remember the tokens of a medium whose request was submitted."""
        nbytes = _TOKEN * len(medium.tokens)
        for each in medium.stretches.values():
            nbytes += len(each.key) + each.cells.grid.nbytes + each.cells.moves.nbytes
        with working_for(medium.tenant):
            self._kept.put(medium.name, without_source(medium), nbytes)

    def _split(self, source: Source, where: str) -> Chunks:
        """Decode, and let libmtmd prepare what it encodes."""
        projector = self.projector
        sound = bool(source.rate) if isinstance(source, Decoded) else _is_sound(source, where)
        projector.check_kind(sound, where)
        self.decoded += 1
        with _DECODING:
            if sound:
                samples = read_sound(source, projector.sample_rate, where, self._limits)
                return projector.split_samples(samples, where)
            return projector.split_pixels(read_picture(source, where, self._limits), where)

    def _hold(self, waiting: Waiting, chunks: Chunks) -> None:
        """Let chunks wait with their request; the oldest go when it is too much."""
        waiting.chunks = chunks
        with self._lock:
            found = [each() for each in (*self._waiting, weakref.ref(waiting))]
            alive = [(one, held.nbytes) for one in found if one and (held := one.chunks)]
            while sum(nbytes for _, nbytes in alive) > self.capacity_bytes and len(alive) > 1:
                alive.pop(0)[0].chunks = None
            self._waiting = [weakref.ref(one) for one, _ in alive]

    def _medium(self, name: bytes, chunks: Chunks, source: Source, where: str) -> Medium:
        digest = hashlib.sha256(self.projector.fingerprint.encode() + chunks.digest).digest()
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
        cost = chunks.decoded_bytes
        return Medium(name, digest, tuple(tokens), stretches, cost, tenant(), source, where)

    # -- vectors --------------------------------------------------------------------------------

    def vectors(self, medium: Medium, stretch: MediaCells) -> NDArray[np.float32]:
        """The vectors of a stretch, float32 ``(cells, n_embd_inp)``; encoded if need be.

        Raises:
            MediaError: the encoder failed.
        """
        waiting = medium.waiting
        failure, waiting.failure = waiting.failure, None
        if failure is not None:
            raise failure
        rows = waiting.rows.pop(stretch.key, None)
        if rows is not None:
            return rows
        with working_for(medium.tenant):
            known = self._kept.get(stretch.key)
            return known if isinstance(known, np.ndarray) else self._encode(medium, stretch)

    def is_ready(self, medium: Medium, stretch: MediaCells) -> bool:
        """Whether ``vectors`` returns (or raises) at once."""
        if medium.waiting.failure is not None or stretch.key in medium.waiting.rows:
            return True
        with working_for(medium.tenant):
            return stretch.key in self._kept

    def prepare(self, medium: Medium, stretch: MediaCells, done: Callable[[], None]) -> bool:
        """Encode in a thread what is not ready, and call ``done`` then; False if that cannot be."""
        wanted = medium.tenant, stretch.key
        with self._lock:
            if wanted in self._wanted:
                return True
            self._wanted.add(wanted)
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
                self._wanted.discard(wanted)
                return False
        return True

    def forget(self) -> None:
        """Forget what was read and encoded."""
        self._kept.clear()

    def __del__(self) -> None:
        self._jobs.put(None)

    def close(self) -> None:
        """End the thread, and free the projector."""
        self._jobs.put(None)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._kept.clear()
        self.projector.close()

    def _encode_beside(self, medium: Medium, stretch: MediaCells, done: Callable[[], None]) -> None:
        waiting = medium.waiting
        try:
            if not self.is_ready(medium, stretch):
                with working_for(medium.tenant):
                    waiting.rows[stretch.key] = self._encode(medium, stretch)
        except LlamaError as error:
            waiting.failure = error
        finally:
            with self._lock:
                self._wanted.discard((medium.tenant, stretch.key))
            done()

    def _encode(self, medium: Medium, stretch: MediaCells) -> NDArray[np.float32]:
        """Encode, for the tenant whose work is done."""
        waiting = medium.waiting
        chunks = waiting.chunks
        if chunks is None:
            chunks = self._split(medium.source, medium.where)
            self._hold(waiting, chunks)
        rows = self.projector.encode(chunks, stretch.cells.index)
        if not np.isfinite(rows).all():
            raise MediaError(f"the projector produced NaN or infinity for {medium.where}")
        self.encoded += 1
        self._kept.put(stretch.key, rows, rows.nbytes)
        self.keep(medium)  # also where nothing is submitted: inputs of embeddings
        if len(medium.stretches) == 1:
            waiting.chunks = None  # they waited for this
        return rows


def _is_sound(data: bytes, where: str) -> bool:
    return look_at(data, where).kind == "audio"


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
