"""``StateLoader``: brings a stored conversation into the context piece by piece, between two steps.

A conversation that was copied in pieces is a chain of segments (``saving``), and each of them is
loaded by itself. Meanwhile the sequence that gets them is busy, and nobody finds it; its ``tokens``
list what it holds so far. When all of it is there, the plan to load it finds that done. What is on
disk is read by a thread.

States of a window or a recurrent part are one piece, which llama.cpp loads in one call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from llama_py.errors import StateError
from llama_py.memory.saving import Copying, Saving, append_cells
from llama_py.memory.sequences import LiveSequence, Namespace
from llama_py.memory.stores import StoredSource, Stores
from llama_py.states.state import StoredState

if TYPE_CHECKING:
    from llama_py.memory.kinds import SequenceMemory
    from llama_py.memory.live import LiveSet

__all__ = ["StateLoad", "StateLoader"]

#: With fewer pieces a conversation is loaded at once.
_FEW_PIECES = 4
#: Seconds after which a step lets the streams go on.
_BUDGET = 0.003


class StateLoad:
    """A stored conversation that is being loaded.

    Attributes:
        source: the entry that it is read from; None: somebody brought the state.
        stored: the state; None as long as it is read, or if it could not be.
        sequence: has the cells that were loaded so far; None if nobody has.
        ended: there is nothing more to do: it was loaded, or cannot be in this way.
    """

    def __init__(
        self, namespace: Namespace, source: StoredSource | None, stored: StoredState | None
    ) -> None:
        self.namespace = namespace
        self.source = source
        self.stored = stored
        self.sequence: LiveSequence | None = None
        self.ended = False
        #: Of conversations that make room for it; None: not looked for yet.
        self.copies: list[Copying] | None = None
        self._thread: threading.Thread | None = None

    def read(self, *, beside: bool) -> None:
        """Get the state from its store; ``beside``: in a thread, if one can be started."""
        if beside:
            self._thread = threading.Thread(target=self._read, name="llama_py-load", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no more threads, or none at all on this platform
                self._thread = None
        if self._thread is None:
            self._read()

    def _read(self) -> None:
        if self.source is not None:
            try:
                self.stored = self.source.store.get(self.source.key)
            except Exception:  # whoever begins with it asks the store again, and is told
                self.ended = True

    @property
    def reading(self) -> bool:
        """True while the state is read."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Wait until the state is read."""
        if self._thread is not None:
            self._thread.join()

    @property
    def whole(self) -> bool:
        """Whether all cells are loaded."""
        stored, sequence = self.stored, self.sequence
        return (
            stored is not None
            and sequence is not None
            and len(sequence.tokens) == len(stored.tokens)
        )


class StateLoader:
    """See the module. Calls must not overlap: the engine's thread."""

    def __init__(
        self,
        memory: SequenceMemory,
        live: LiveSet,
        stores: Stores,
        saving: Saving,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._memory = memory
        self._live = live
        self._stores = stores
        self._saving = saving
        self._clock = clock

    def begin(self, source: StoredSource, namespace: Namespace) -> StateLoad | None:
        """Begin to load an entry; None if that is better done at once."""
        info = source.store.info(source.key)
        if self._memory.spare is None or info is None:
            return None
        if info.nbytes <= _FEW_PIECES * self._saving.piece:
            return None
        loading = StateLoad(namespace, source, None)
        loading.read(beside=source.store is not self._stores.offload_store)
        return loading

    def begin_with(self, stored: StoredState, namespace: Namespace) -> StateLoad | None:
        """Begin to load a state; None if that is better done at once."""
        small = stored.nbytes <= _FEW_PIECES * self._saving.piece
        if small or not stored.segments or self._memory.spare is None:
            return None
        return StateLoad(namespace, None, stored)

    def step(self, loading: StateLoad, seconds: float | None = None) -> bool:
        """Load pieces for so long (3 ms), at least one; True if there is more to do.

        Raises:
            LlamaError, MemoryError, OSError: nothing more can be loaded of it.
        """
        end = self._clock() + (_BUDGET if seconds is None else seconds)
        while not loading.ended and not loading.reading:
            self._load_piece(loading)
            if self._clock() >= end:
                break
        return not loading.ended

    def finish(self, loading: StateLoad) -> None:
        """Load at once what is left: nobody generates beside it."""
        loading.wait()
        while self.step(loading, 0.0):
            pass

    def release(self, loading: StateLoad) -> None:
        """Nobody wants it any more, or its cells are needed: free what was not handed over."""
        sequence, loading.sequence, loading.ended = loading.sequence, None, True
        if sequence is not None:
            self._live.drop(sequence)

    def take(self, loading: StateLoad) -> LiveSequence | None:
        """The sequence that holds all of the state, and is not busy any more; None if none does."""
        sequence = loading.sequence
        if sequence is None or sequence not in self._live or not loading.whole:
            self.release(loading)
            return None
        loading.sequence, sequence.busy = None, False
        return sequence

    def _load_piece(self, loading: StateLoad) -> None:
        stored, sequence = loading.stored, loading.sequence
        if stored is None or not stored.segments or self._memory.spare is None:
            loading.ended = True
        elif sequence is None:
            self._obtain(loading, stored)
        elif sequence not in self._live:  # the memory was cleared
            self.release(loading)
        else:
            try:
                self._append(sequence, stored)
                loading.ended = loading.whole
            except StateError:
                left = len(stored.tokens) - len(sequence.tokens)
                if not (self._live.leaving(left, besides=sequence) and self._live.make_room()):
                    self.release(loading)  # who begins with it finds out why

    def _obtain(self, loading: StateLoad, stored: StoredState) -> None:
        """Get a sequence; what has to make room is copied before."""
        if loading.copies is None:
            leaving = self._live.leaving(len(stored.tokens))
            begun = [
                self._saving.offload(it) for it in leaving if self._stores.must_be_offloaded(it)
            ]
            loading.copies = [copying for copying in begun if copying is not None]
        if self._saving.hurry(loading.copies):
            self._saving.step()
            return
        fits = stored.fingerprint == self._stores.fingerprint(loading.namespace)
        sequence = self._live.obtain(loading.namespace) if fits else None
        loading.sequence, loading.ended = sequence, sequence is None
        if sequence is not None:
            sequence.busy = True
            sequence.touch()

    def _append(self, sequence: LiveSequence, stored: StoredState) -> None:
        """Load the next segment, or what is behind all of them."""
        start = len(sequence.tokens)
        cells, end = stored.state, len(stored.tokens)
        for segment in stored.segments:
            if segment.start == start:
                if segment.state is None:
                    raise StateError("a segment is not in memory")
                cells, end = segment.state, segment.end
        append_cells(self._memory, sequence.number, cells, start, end)
        sequence.tokens.extend(stored.tokens[start:end].tolist())
