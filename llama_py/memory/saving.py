"""``Saving``: takes conversations out of the context piece by piece, between two steps.

When a reply has ended, its conversation is to be written to the store that was set. ``begin`` notes
what is to be saved; each ``step`` copies a few MiB out of the context and hands them to the store,
which writes them beside the streams. What the store has already is not copied again: with full
attention a range of cells can be copied by itself, so a conversation is a chain of segments, of
which only the last, shorter than a piece, is written anew when it grows. States of the other kinds
(a window, a recurrent part) cannot be taken apart, and are copied whole.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import LlamaError, StateError
from llama_py.memory.kinds import MemoryKind
from llama_py.memory.sequences import LiveSequence
from llama_py.memory.state import Key, Segment, StateStore, StoredState

if TYPE_CHECKING:
    from llama_py.memory.kinds import SequenceMemory
    from llama_py.memory.tiers import Tiers

__all__ = ["WORTH_SAVING", "Saving", "load_cells"]

_Chain = tuple[Segment, ...]

_log = logging.getLogger("llama_py")

#: A conversation is saved again when it grew by this many tokens, which a crash may then cost.
WORTH_SAVING = 48
#: Bytes that are copied at a time: about a millisecond.
_PIECE = 4 << 20
#: Copies that may wait for the store before no more are made: a disk may be slower than memory.
_BACKLOG = 256 << 20
#: Seconds after which a step lets the streams go on, also if the store is slow.
_BUDGET = 0.003


@dataclass(slots=True, eq=False)
class _Job:
    """A conversation that is being saved.

    Attributes:
        state: all of it but the cells, as it was when its reply ended.
        cells: of one segment; None: they can only be copied whole.
    """

    sequence: LiveSequence
    store: StateStore
    state: StoredState
    cells: int | None


class Saving:
    """What is being saved, one piece after another. Calls must not overlap: the engine's thread.

    Nothing here fails a request: a conversation that cannot be saved is a line in the log.
    """

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._jobs: dict[LiveSequence, _Job] = {}
        self._cell_bytes = 0.0
        #: Of parked sequences, by key: the store, and what it had of them.
        self._parked: dict[Key, tuple[StateStore | None, Key | None, int, _Chain]] = {}

    def parked(self, sequence: LiveSequence) -> None:
        """Remember, for when it comes back, what the store has of a sequence that is parked."""
        parking = self._tiers.parking
        if sequence.parked_key is None or parking is None or sequence.saved_key is None:
            return
        if len(self._parked) >= 2 * len(parking) + 16:
            self._parked = {key: it for key, it in self._parked.items() if parking.info(key)}
        self._parked[sequence.parked_key] = (
            self._tiers.saved,
            sequence.saved_key,
            sequence.saved_length,
            sequence.segments,
        )

    def unparked(self, sequence: LiveSequence, key: Key) -> None:
        """The same sequence is back: what the store has of it is not written again."""
        store, saved_key, length, segments = self._parked.get(key, (None, None, 0, ()))
        if store is not None and store is self._tiers.saved:
            sequence.saved_key, sequence.saved_length = saved_key, length
            sequence.segments = segments

    def begin(self, sequence: LiveSequence, *, least: int = WORTH_SAVING) -> None:
        """Note that ``sequence`` is to be saved, if it grew by ``least`` tokens since last time.

        It takes the place of an older note of the same sequence; what was copied for that is used.
        """
        tiers = self._tiers
        grown = len(sequence.tokens) - sequence.saved_length
        if tiers.saved is None or sequence.transient or grown < max(1, least):
            return
        store = tiers.stores[-1]
        if store is not tiers.saved:  # it was closed
            return
        try:
            job = self._job(sequence, store)
        except (LlamaError, MemoryError, OSError) as error:
            _not_saved(len(sequence.tokens), error)
            return
        if job is not None:
            self._jobs[sequence] = job

    @property
    def pending(self) -> bool:
        """True if ``step`` has something to do."""
        return bool(self._jobs)

    def step(self) -> bool:
        """Copy pieces for about 3 ms, at least one; True if there is more to do."""
        if not self._jobs:
            return False
        end = time.perf_counter() + _BUDGET
        while self._jobs:
            job = next(iter(self._jobs.values()))
            if job.store.wait(_BACKLOG, _BUDGET):
                self._advance(job)
            if time.perf_counter() >= end:
                break
        return bool(self._jobs)

    def finish(self, sequence: LiveSequence) -> None:
        """Copy at once what is left of a sequence: its cells are about to go."""
        while (job := self._jobs.get(sequence)) is not None:
            self._advance(job)

    def flush(self) -> None:
        """The same for all. The stores may still be writing afterwards: ask them to ``wait``."""
        for sequence in list(self._jobs):
            self.finish(sequence)

    def give_up(self, sequence: LiveSequence | None = None) -> None:
        """Forget a sequence, or all: its cells are gone, or not certain."""
        for each in list(self._jobs) if sequence is None else [sequence]:
            job = self._jobs.pop(each, None)
            if job is not None:
                _release(job)

    # -- pieces ---------------------------------------------------------------------------------

    def _job(self, sequence: LiveSequence, store: StateStore) -> _Job | None:
        state = self._tiers.describe(sequence)
        in_parts = self._comes_apart()
        if in_parts:
            nbytes = int(self._bytes_per_cell(sequence) * len(sequence.tokens))
            cells = max(1, int(_PIECE // self._bytes_per_cell(sequence)))
        else:
            nbytes = self._tiers.memory.state_size(sequence.number)
        if not store.accepts(state.nbytes + nbytes):
            return None
        if not store.holds([segment.key for segment in sequence.segments]):
            sequence.segments = ()
        return _Job(sequence, store, state, cells if in_parts else None)

    def _comes_apart(self) -> bool:
        traits = self._tiers.traits
        whole = traits.kind is MemoryKind.FULL and traits.copies_parts and not traits.window
        return whole and self._tiers.memory.spare is not None

    def _bytes_per_cell(self, sequence: LiveSequence) -> float:
        if not self._cell_bytes:
            size = self._tiers.memory.state_size(sequence.number)
            self._cell_bytes = max(1.0, size / len(sequence.tokens))
        return self._cell_bytes

    def _advance(self, job: _Job) -> None:
        """Copy the next piece of a job. It is no job any more when that was the last."""
        try:
            done = self._copy_piece(job)
        except (LlamaError, MemoryError, OSError) as error:
            self.give_up(job.sequence)
            _not_saved(len(job.state.tokens), error)
            return
        if done:
            self._jobs.pop(job.sequence, None)

    def _copy_piece(self, job: _Job) -> bool:
        sequence, length = job.sequence, len(job.state.tokens)
        if job.cells is None:
            if len(sequence.tokens) != length:
                return True  # it went on: it is saved when that has ended
            return self._put(job, self._tiers.memory.state_get(sequence.number))
        start = sequence.segments[-1].end if sequence.segments else 0
        end = min(start + job.cells, length)
        state = self._cells(sequence, start, end)
        if end == length:
            return self._put(job, state)
        if not job.store.holds([segment.key for segment in sequence.segments[-1:]]):
            self.give_up(sequence)  # it could not be written, as the store has told
            return False
        key = job.store.keep(state)
        sequence.segments += (Segment(key, start, end, state.nbytes),)
        return False

    def _cells(self, sequence: LiveSequence, start: int, end: int) -> NDArray[np.uint8]:
        """The state of a sequence that holds only the cells ``[start, end)`` of this one."""
        memory, spare = self._tiers.memory, self._tiers.memory.spare
        assert spare is not None
        try:
            memory.seq_cp(sequence.number, spare, start, end)
            if (memory.pos_min(spare), memory.pos_max(spare)) != (start, end - 1):
                raise StateError(f"the cells {start} to {end} are not in memory any more")
            return memory.state_get(spare)
        finally:
            memory.seq_rm(spare, -1, -1)

    def _put(self, job: _Job, cells: NDArray[np.uint8]) -> bool:
        sequence = job.sequence
        state = dataclasses.replace(job.state, state=cells, segments=sequence.segments)
        key = job.store.put_soon(state, replaces=sequence.saved_key)
        if key is None:
            _release(job)
        else:
            sequence.saved_key, sequence.saved_length = key, len(state.tokens)
        return True


def _release(job: _Job) -> None:
    try:
        job.store.release([segment.key for segment in job.sequence.segments])
    except LlamaError:  # it was closed
        pass


def _not_saved(count: int, error: Exception) -> None:
    _log.warning("a conversation of %d tokens could not be saved: %r", count, error)


def load_cells(memory: SequenceMemory, number: int, stored: StoredState) -> None:
    """Load the cells of a stored state into an empty sequence.

    Raises:
        StateError: they do not fit, or are damaged. The sequence is then empty.
    """
    if not stored.segments:
        memory.state_set(number, stored.state)
        return
    try:
        for segment in stored.segments:
            _append(memory, number, segment.state, segment.start, segment.end)
        last = stored.segments[-1].end
        _append(memory, number, stored.state, last, len(stored.tokens))
    except StateError:
        memory.seq_rm(number, -1, -1)
        raise


def _append(
    memory: SequenceMemory, number: int, cells: NDArray[np.uint8] | None, start: int, end: int
) -> None:
    """Load the cells ``[start, end)`` behind those that a sequence has."""
    spare = memory.spare
    if spare is None or cells is None:
        raise StateError("a state in segments cannot be loaded into this context")
    try:
        memory.state_set(spare, cells)
        if (memory.pos_min(spare), memory.pos_max(spare)) != (start, end - 1):
            raise StateError(f"a segment does not hold the cells {start} to {end}")
        memory.seq_cp(spare, number)
    finally:
        memory.seq_rm(spare, -1, -1)
