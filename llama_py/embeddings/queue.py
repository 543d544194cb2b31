"""``EmbeddingQueue``: computes the inputs of calls in a thread of its own.

Inputs of several calls go into the same batch. Calls take turns, so that one with many inputs does
not keep others waiting. Whoever waits only waits: Ctrl-C hits no computation.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING

from llama_py import forks
from llama_py.core.turns import TURNS
from llama_py.embeddings.computing import Computer, Setup, longest_input
from llama_py.embeddings.inputs import Tokens
from llama_py.embeddings.packing import by_length, room_beside
from llama_py.embeddings.pooling import Rows
from llama_py.errors import ClosedError

if TYPE_CHECKING:
    from llama_py.core.model import Model

__all__ = ["EmbeddingQueue", "Job"]

#: Seconds that the end of the process, or of an embedder, waits for the batch that is computed.
_PATIENCE = 10.0


class Job:
    """The inputs of one call.

    Attributes:
        inputs: their tokens.
        ranks: scores are wanted, and not vectors.
        future: its result is None when all inputs are done, or it raises what went wrong.
        done: inputs that are done.
    """

    def __init__(
        self, inputs: Sequence[Tokens], ranks: bool, put: Callable[[int, Rows], None]
    ) -> None:
        """``put(index, rows)`` gets what was computed of an input, in no particular order."""
        self.inputs = inputs
        self.ranks = ranks
        self.future: Future[None] = Future()
        self.done = 0
        self._put = put
        self._order = deque(by_length([len(each) for each in inputs]))
        if not inputs:
            self.future.set_result(None)

    @property
    def waiting(self) -> int:
        """Inputs that are still to be computed; none of a call that has ended."""
        return 0 if self.future.done() else len(self._order)

    @property
    def next_length(self) -> int:
        """Tokens of the input that is next."""
        return len(self.inputs[self._order[0]])

    def take(self) -> int:
        """Take the next input out; returns its index."""
        return self._order.popleft()

    def put(self, index: int, rows: Rows) -> None:
        """An input was computed."""
        if self.future.done():  # it failed, or was cancelled
            return
        self._put(index, rows)
        self.done += 1
        if self.done == len(self.inputs):
            with contextlib.suppress(InvalidStateError):  # it was cancelled just now
                self.future.set_result(None)

    def fail(self, error: BaseException) -> None:
        """End it with an error, unless it has ended."""
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(error)

    def cancel(self) -> None:
        """Compute nothing more for it. Any thread may say so."""
        self.future.cancel()


_Pack = list[tuple[Job, int]]


class EmbeddingQueue:
    """See the module.

    Args:
        model: stays open as long as it is used; whoever closes it closes this before.
        in_place: start no thread; calls compute themselves. One thread at a time may use it then.

    Attributes:
        limit: tokens of the longest input.
    """

    def __init__(self, model: Model, setup: Setup, *, in_place: bool = False) -> None:
        self.limit = longest_input(model, setup.params)
        self._process = forks.current()
        self._worker = worker = _Worker(Computer(model, setup), setup.params.n_ubatch)
        self._in_place = in_place
        # The worker refers to nothing that its users hold, so that it ends when they drop it.
        self._finalizer = weakref.finalize(self, _close, worker, self._process)

    def submit(self, job: Job) -> None:
        """Queue the inputs of a call.

        Raises:
            ClosedError, ForkedProcessError: it cannot be used any more, or not here.
        """
        self.check()
        self._worker.add(job, start=not self._in_place)
        if self._in_place:
            self._worker.empty()

    def check(self) -> None:
        """Raise unless it can be used; see ``submit``."""
        if self._process != forks.current():
            raise forks.refuse()
        if self._worker.closed:
            raise ClosedError("this model was closed; load it again")

    def close(self) -> None:
        """Fail what is waiting, and free the contexts. Closing twice does nothing."""
        _close(self._worker, self._process)


def _close(worker: _Worker, process: int) -> None:
    if process == forks.current():
        worker.close()


class _Worker:
    """The queue, and the thread that empties it."""

    def __init__(self, computer: Computer, most: int) -> None:
        self._computer = computer
        self._most = most
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.closed = False

    def add(self, job: Job, *, start: bool) -> None:
        with self._changed:
            if self.closed:
                raise ClosedError("this model was closed; load it again")
            if job.waiting:
                self._jobs.append(job)
            if start and self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="llama_py-embedding", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def empty(self) -> None:
        """Compute all that is waiting, in this thread."""
        while pack := self._next_pack():
            self._compute(pack)
            del pack  # a job may be all that keeps its owner alive

    def close(self) -> None:
        with self._changed:
            self.closed = True
            jobs = [*self._jobs]
            self._jobs.clear()
            self._changed.notify_all()
        for job in jobs:
            job.fail(_closed_while_embedding())
        self._computer.abort()
        thread = self._thread
        if thread is None:
            self._computer.close()
        elif thread is not threading.current_thread():
            thread.join(_PATIENCE)

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not self.closed and not self._jobs:
                        self._changed.wait()
                    if self.closed:
                        return
                with TURNS.shared():
                    self.empty()
        finally:
            self._computer.close()

    def _compute(self, pack: _Pack) -> None:
        jobs = dict.fromkeys(job for job, _ in pack)
        compute = self._computer.scores if pack[0][0].ranks else self._computer.rows
        try:
            results = compute([job.inputs[index] for job, index in pack])
            for (job, index), rows in zip(pack, results, strict=True):
                job.put(index, rows)
        except BaseException as error:  # whatever it is, those who wait get it
            for job in jobs:
                job.fail(_closed_while_embedding() if self.closed else error)

    # -- choosing ---------------------------------------------------------------------------------

    def _next_pack(self) -> _Pack:
        """The inputs of the next batch: of the call whose turn it is, and then of the others."""
        with self._changed:
            pack: _Pack = []
            first = self._first()
            if first is None:
                return pack
            longest, total = 0, 0
            for job in (first, *[each for each in self._jobs if each is not first]):
                while job.waiting and job.ranks == first.ranks:
                    length = job.next_length
                    longest = max(longest, length)
                    full = pack and total + length > room_beside(longest, self._most)
                    if full or len(pack) == self._computer.most_inputs:
                        break
                    pack.append((job, job.take()))
                    total += length
            self._jobs = deque(job for job in self._jobs if job.waiting)
            return pack

    def _first(self) -> Job | None:
        """The call whose turn it is; it goes to the end of the queue."""
        while self._jobs and not self._jobs[0].waiting:  # it was cancelled
            self._jobs.popleft()
        if not self._jobs:
            return None
        self._jobs.rotate(-1)
        return self._jobs[-1]


def _closed_while_embedding() -> ClosedError:
    return ClosedError("the model was closed while it embedded")
