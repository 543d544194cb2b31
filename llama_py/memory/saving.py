"""``Saving``: takes conversations out of the context piece by piece, between two steps.

When a reply has ended, its conversation is to be written to the store that was set. ``begin`` notes
what is to be saved; each ``step`` copies a few MiB out of the context and hands them to the store,
which writes them beside the streams. What the store has already is not copied again: with full
attention a range of cells can be copied by itself, so a conversation is a chain of segments, of
which only the last, shorter than a piece, is written anew when it grows, and conversations that
share cells share segments. States of the other kinds (a window, a recurrent part) cannot be taken
apart, and are copied whole.

In the same way a conversation that has to make room is copied for the offload store, so that the
streams beside it go on meanwhile (``offload``).
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llama_py.errors import LlamaError, StateError
from llama_py.memory.kinds import MemoryKind
from llama_py.memory.sequences import Kept, LiveSequence, Runs, cut_at
from llama_py.states.state import Key, Segment, StoredState
from llama_py.states.store import StateStore

if TYPE_CHECKING:
    from llama_py.memory.kinds import SequenceMemory
    from llama_py.memory.stores import StoredSource, Stores

__all__ = ["WORTH_SAVING", "Copying", "Saving", "append_cells", "hurried", "load_cells"]

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
#: The same while a request waits for the room: so many steps of the streams, and seconds at most.
_HURRY_STEPS, _HURRY = 2.0, 0.05
#: With fewer pieces a conversation is offloaded at once.
_FEW_PIECES = 4


@dataclass(slots=True, eq=False)
class Copying:
    """A conversation that is being copied out of the context.

    Attributes:
        store: what gets it; None: a caller who wants it in memory.
        state: all of it but the cells, as it was when this began.
        cells: of one segment; None: they can only be copied whole.
        segments: what was copied so far.
        result: the whole, when it is copied; None before, and if a store got it.
        error: why that failed.
        offloads: it is for the offload store, when it is whole.
        nbytes: of all of it, where ``offloads``.
    """

    sequence: LiveSequence
    store: StateStore | None
    state: StoredState
    cells: int | None
    segments: _Chain = ()
    result: StoredState | None = None
    error: Exception | None = None
    offloads: bool = False
    nbytes: int = 0

    @property
    def saves(self) -> bool:
        """Whether it is for the saving store."""
        return self.store is not None and not self.offloads


class Saving:
    """What is being saved, one piece after another. Calls must not overlap: the engine's thread.

    Nothing here fails a request: a conversation that cannot be saved is a line in the log.

    Attributes:
        piece: bytes that are copied at a time, and of a segment.
        jobs: what is being copied, in the order in which that is done.
    """

    def __init__(self, stores: Stores, clock: Callable[[], float] = time.perf_counter) -> None:
        self._stores = stores
        self._clock = clock
        self.piece = _PIECE
        self.jobs: list[Copying] = []
        self._hurries = False
        self._cell_bytes = 0.0
        #: Of the stores that are used.
        self._kept: list[Kept] = []
        #: Of offloaded sequences, by key: which cells they had, the saving store, and its entry.
        self._offloaded: dict[Key, tuple[Runs, StateStore | None, Key | None, int]] = {}

    def note_offloaded(self, sequence: LiveSequence) -> None:
        """Remember, for when it comes back, what the stores have of an offloaded sequence."""
        offload_store = self._stores.offload_store
        if sequence.offloaded_key is None or offload_store is None:
            return
        if len(self._offloaded) >= 2 * len(offload_store) + 16:
            self._offloaded = {
                key: it for key, it in self._offloaded.items() if offload_store.info(key)
            }
        self._offloaded[sequence.offloaded_key] = (
            cut_at(sequence.runs, len(sequence.tokens)),
            self._stores.saved,
            sequence.saved_key,
            sequence.saved_length,
        )

    def loaded(self, sequence: LiveSequence, source: StoredSource, stored: StoredState) -> None:
        """What the stores have of a sequence that was just loaded is not copied to them again."""
        if sequence.offloaded_key == source.key and source.key in self._offloaded:
            runs, store, saved_key, length = self._offloaded[source.key]
            # Another one that is loaded from there, too, goes on with other cells.
            sequence.runs = cut_at(runs, len(sequence.tokens))
            if store is not None and store is self._stores.saved:
                sequence.saved_key, sequence.saved_length = saved_key, length
        kept = self._kept_by(source.store)
        for segment in stored.segments:
            kept.add(sequence.runs, dataclasses.replace(segment, state=None))

    def _kept_by(self, store: StateStore) -> Kept:
        for kept in self._kept:
            if kept.store is store:
                return kept
        in_use = (self._stores.offload_store, self._stores.saved)
        self._kept = [*(each for each in self._kept if each.store in in_use), Kept(store)]
        return self._kept[-1]

    def begin(self, sequence: LiveSequence, *, least: int = WORTH_SAVING) -> None:
        """Note that ``sequence`` is to be saved, if it grew by ``least`` tokens since last time.

        It takes the place of an older note of the same sequence; what was copied for that is used.
        """
        stores = self._stores
        if stores.saved is None or sequence.transient:
            return
        if not (open_ := stores.open) or (store := open_[-1]) is not stores.saved:  # it was closed
            return
        try:
            job = self._job(sequence, store, max(1, least))
        except (LlamaError, MemoryError, OSError) as error:
            _not_saved(len(sequence.tokens), error)
            return
        if job is not None:
            # An older one ends here; what it copied is the beginning of this one.
            for older in [it for it in self.jobs if it.sequence is sequence and it.saves]:
                job.segments = older.segments
                self.jobs.remove(older)
            self.jobs.append(job)

    def copy(self, sequence: LiveSequence) -> Copying:
        """Begin to copy a sequence for a caller, who calls ``advance`` until there is a result.

        Raises:
            StateError: it cannot be copied.
        """
        state, cells = self._stores.describe(sequence), self._cells_per_piece(sequence)
        job = Copying(sequence, None, state, cells)
        self.jobs.append(job)
        self.advance(job)
        return job

    def offload_ahead(self, sequence: LiveSequence) -> bool:
        """Begin to copy an idle sequence that may have to make room; False if it is not done.

        Not if older copies would have to go for it, nor if it is long and cannot be taken apart,
        which would keep a request waiting that comes meanwhile.
        """
        store = self._stores.offload_store
        if store is None or any(job.sequence is sequence for job in self.jobs):
            return False
        try:
            job = self._copy_for(sequence, store)
        except (LlamaError, MemoryError) as error:
            _log.warning("a conversation is not copied ahead: %r", error)
            return False
        fits = store.used_bytes + job.nbytes <= store.capacity_bytes
        if not fits or (job.cells is None and job.nbytes > _FEW_PIECES * self.piece):
            return False
        self.jobs.append(job)
        return True

    def offload(self, sequence: LiveSequence, *, at_once: bool = False) -> Copying | None:
        """Begin to copy an idle sequence that has to make room; None if that is done at once.

        It is small, or cannot be taken apart, or the store has no room beside the others that are
        copied. When the copy is whole, the store has it.

        Args:
            at_once: the caller goes on to ``finish`` it: what else is copied does not matter.
        """
        offloads = [job for job in self.jobs if job.offloads]
        older = next((job for job in offloads if job.sequence is sequence), None)
        if older is not None and len(older.state.tokens) == len(sequence.tokens):
            return older
        cells, store = self._cells_per_piece(sequence), self._stores.offload_store
        if store is None or cells is None or len(sequence.tokens) <= _FEW_PIECES * cells:
            return None
        job = self._copy_for(sequence, store)
        planned = 0 if at_once else sum(other.nbytes for other in offloads if other is not older)
        if planned + job.nbytes > store.capacity_bytes:
            return None
        if older is not None:  # what it copied is the beginning of this one
            job.segments = older.segments
            offloads.remove(older)
            self.jobs.remove(older)
        self.jobs.insert(len(offloads), job)
        return job

    def _copy_for(self, sequence: LiveSequence, store: StateStore) -> Copying:
        """A copy of a sequence for the offload store."""
        state, cells = self._stores.describe(sequence), self._cells_per_piece(sequence)
        nbytes = state.nbytes + self._stores.memory.state_size(sequence.number)
        return Copying(sequence, store, state, cells, offloads=True, nbytes=nbytes)

    def pieces(self, sequence: LiveSequence) -> int:
        """In how many pieces a sequence is copied; 0 if it is small, or cannot be taken apart."""
        cells = self._cells_per_piece(sequence)
        count = 0 if cells is None else -(-len(sequence.tokens) // cells)
        return count if count > _FEW_PIECES else 0

    def grew(self, sequence: LiveSequence) -> bool:
        """Whether a sequence has a piece more than what is offloaded of it."""
        count = len(sequence.tokens)
        if sequence.offloaded_key is not None:
            count -= sequence.offloaded_length
        cells = self._cells_per_piece(sequence) if count > 0 else None
        return cells is not None and count >= cells

    def hurry(self, jobs: Sequence[Copying]) -> bool:
        """Let the next step take longer, because a request waits for these; False if all ended.

        One whose sequence is in use again makes no room, and is given up.
        """
        for job in jobs:
            if job.sequence.busy and job in self.jobs:
                self._drop(job, StateError("the conversation went on before it was copied"))
        self._hurries = any(job in self.jobs for job in jobs)
        return self._hurries

    def advance(self, job: Copying) -> bool:
        """Copy a few pieces for a caller; True if there are more.

        Raises:
            StateError: its cells went before they were copied.
        """
        end = self._clock() + _BUDGET
        while job in self.jobs:
            self._advance(job)
            if self._clock() >= end:
                break
        if job.error is not None:
            raise job.error
        return job.result is None

    @property
    def pending(self) -> bool:
        """True if ``step`` has something to do."""
        return bool(self.jobs)

    def step(self, took: float = 0.0, usual: float = 0.0) -> bool:
        """Copy pieces for about 3 ms, at least one; True if there is more to do.

        Args:
            took, usual: of the step of the streams, which is longer while somebody waits
                (``hurried``).
        """
        if not self.jobs:
            return False
        budget = hurried(took, usual) if self._hurries else _BUDGET
        self._hurries = False
        end = self._clock() + budget
        while self.jobs:
            job = self.jobs[0]
            if job.store is None or job.store.wait(_BACKLOG, _BUDGET):
                self._advance(job)
            if self._clock() >= end:
                break
        return bool(self.jobs)

    def finish(self, sequence: LiveSequence, *, offloads: bool = False) -> None:
        """Copy at once what is left of a sequence: its cells are about to go.

        Args:
            offloads: also what was begun because it might have to make room; else that is given up.
        """
        while jobs := [job for job in self.jobs if job.sequence is sequence]:
            self._finish(jobs[0], offloads=offloads)

    def flush(self) -> None:
        """The same for all. The stores may still be writing afterwards: ask them to ``wait``."""
        while self.jobs:
            self._finish(self.jobs[0])

    def _finish(self, job: Copying, *, offloads: bool = False) -> None:
        if job.offloads and not offloads:
            self._drop(job, StateError("the conversation has not had to make room"))
        else:
            self._advance(job)

    def give_up(self, sequence: LiveSequence | None = None) -> None:
        """Forget a sequence, or all: its cells are gone, or not certain."""
        for job in [*self.jobs]:
            if sequence is None or job.sequence is sequence:
                self._drop(job, StateError("the cells went before they were copied"))

    def _drop(self, job: Copying, error: Exception) -> None:
        self.jobs.remove(job)
        job.error = error
        self._release(job)
        job.segments = ()

    # -- pieces ---------------------------------------------------------------------------------

    def _job(self, sequence: LiveSequence, store: StateStore, least: int) -> Copying | None:
        """A copy of a sequence for the saving store; None if it grew less, or is not accepted."""
        if sequence.saved_key is not None and store.info(sequence.saved_key) is None:
            sequence.saved_key, sequence.saved_length = None, 0  # its entry was evicted meanwhile
        if len(sequence.tokens) - sequence.saved_length < least:
            return None
        state, cells = self._stores.describe(sequence), self._cells_per_piece(sequence)
        if not store.accepts(state.nbytes + self._stores.memory.state_size(sequence.number)):
            return None
        return Copying(sequence, store, state, cells)

    def _cells_per_piece(self, sequence: LiveSequence) -> int | None:
        traits = self._stores.traits
        whole = traits.kind is MemoryKind.FULL and traits.copies_parts and not traits.window
        if not whole or self._stores.memory.spare is None:
            return None
        if not sequence.positions.as_tokens:
            return None  # cells of a picture that share one position cannot be told apart
        return max(1, int(self.piece // self._bytes_per_cell(sequence)))

    def _bytes_per_cell(self, sequence: LiveSequence) -> float:
        if not self._cell_bytes:
            size = self._stores.memory.state_size(sequence.number)
            self._cell_bytes = max(1.0, size / len(sequence.tokens))
        return self._cell_bytes

    def _advance(self, job: Copying) -> None:
        """Copy the next piece of a job. It is no job any more when that was the last."""
        try:
            self._copy_piece(job)
        except (LlamaError, MemoryError, OSError) as error:
            self._drop(job, error)
            if job.store is not None:
                _not_saved(len(job.state.tokens), error)

    def _copy_piece(self, job: Copying) -> None:
        sequence, length = job.sequence, len(job.state.tokens)
        if job.cells is None:
            if len(sequence.tokens) != length:  # a saved one is saved when that has ended
                self._drop(job, StateError("the conversation went on before it was copied"))
            else:
                self._put(job, self._stores.memory.state_get(sequence.number))
            return
        if job.store is not None:
            known = self._kept_by(job.store).chain(sequence.runs, _end(job.segments), length)
            job.segments += known
        start = _end(job.segments)
        end = min(start + job.cells, length)
        state = self._cells(sequence, start, end)
        if end == length:
            self._put(job, state)
        elif job.store is None:
            job.segments += (Segment("", start, end, state.nbytes, state),)
        elif job.store.holds([segment.key for segment in job.segments[-1:]]):
            segment = Segment(job.store.keep(state), start, end, state.nbytes)
            job.segments += (segment,)
            self._kept_by(job.store).add(sequence.runs, segment)
        else:  # it could not be written, as the store has told
            self._drop(job, StateError("the store could not keep the first part"))

    def _cells(self, sequence: LiveSequence, start: int, end: int) -> NDArray[np.uint8]:
        """The state of a sequence that holds only the cells ``[start, end)`` of this one."""
        memory, spare = self._stores.memory, self._stores.memory.spare
        assert spare is not None
        try:
            memory.seq_cp(sequence.number, spare, start, end)
            if (memory.pos_min(spare), memory.pos_max(spare)) != (start, end - 1):
                raise StateError(f"the cells {start} to {end} are not in memory any more")
            return memory.state_get(spare)
        finally:
            memory.seq_rm(spare, -1, -1)

    def _put(self, job: Copying, cells: NDArray[np.uint8]) -> None:
        sequence = job.sequence
        state = dataclasses.replace(job.state, state=cells, segments=job.segments)
        if job.store is None:
            job.result = state
        elif job.offloads:
            if not self._stores.put_offloaded(sequence, state):
                self._release(job)
        elif key := job.store.put_soon(state, replaces=sequence.saved_key):
            sequence.saved_key, sequence.saved_length = key, len(state.tokens)
        else:
            self._release(job)
        job.segments = ()
        self.jobs.remove(job)

    def _release(self, job: Copying) -> None:
        """Nothing will come of a job: its store forgets what no other job needs either."""
        if job.store is None:
            return
        needed = {each.key for other in self.jobs if other is not job for each in other.segments}
        try:
            job.store.release([each.key for each in job.segments if each.key not in needed])
        except LlamaError:  # it was closed
            pass


def hurried(took: float, usual: float) -> float:
    """Seconds that a step is longer while somebody waits.

    Args:
        took: seconds of the step so far, with the prompts in it.
        usual: seconds that a step of its streams usually takes; 0: that is not known.
    """
    return max(_BUDGET, min(_HURRY, (1 + _HURRY_STEPS) * (usual or took) - took))


def _end(segments: _Chain) -> int:
    return segments[-1].end if segments else 0


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
            append_cells(memory, number, segment.state, segment.start, segment.end)
        last = stored.segments[-1].end
        append_cells(memory, number, stored.state, last, len(stored.tokens))
    except StateError:
        memory.seq_rm(number, -1, -1)
        raise


def append_cells(
    memory: SequenceMemory, number: int, cells: NDArray[np.uint8] | None, start: int, end: int
) -> None:
    """Load the cells ``[start, end)`` behind those that a sequence has.

    Raises:
        StateError: they do not fit, or are damaged. The sequence is what it was.
    """
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
