"""``EmbeddingQueue``: computes the inputs of calls in threads of its own.

Inputs of several calls go into the same batch. Calls take turns, so that one with many inputs does
not keep others waiting. Whoever waits only waits: Ctrl-C hits no computation.

On a CPU several batches are computed side by side, each with a part of the threads, which otherwise
would wait for each other. A batch has all threads if there is nothing for others to do.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING

from llama_py import forks
from llama_py.core.host.core_turns import TURNS, Share
from llama_py.embeddings.computing import (
    Computer,
    Setup,
    longest_input,
    on_gpu,
    threads_and_computers,
)
from llama_py.embeddings.inputs import Input
from llama_py.embeddings.packing import by_length, room_beside
from llama_py.embeddings.pooling import Rows
from llama_py.errors import ClosedError

if TYPE_CHECKING:
    from llama_py.core.model import Model

__all__ = ["EmbeddingJob", "EmbeddingQueue"]

#: Seconds that the end of the process, or of an embedder, waits for the batch that is computed.
_PATIENCE = 10.0
#: Tokens of an input from which on only one computer takes it: its attention needs much memory.
_LARGE = 512


class EmbeddingJob:
    """The inputs of one call.

    Attributes:
        inputs: their tokens.
        ranks: scores are wanted, and not vectors.
        future: its result is None when all inputs are done, or it raises what went wrong.
        done: inputs that are done.
    """

    def __init__(
        self, inputs: Sequence[Input], ranks: bool, put: Callable[[int, Rows], None]
    ) -> None:
        """``put(index, rows)`` gets what was computed of an input, in no particular order."""
        self.inputs = inputs
        self.ranks = ranks
        self.future: Future[None] = Future()
        self.done = 0
        self._counting = threading.Lock()
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
        with self._counting:
            self.done += 1
            all_done = self.done == len(self.inputs)
        if all_done:
            with contextlib.suppress(InvalidStateError):  # it was cancelled just now
                self.future.set_result(None)

    def fail(self, error: BaseException) -> None:
        """End it with an error, unless it has ended."""
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(error)

    def cancel(self) -> None:
        """Compute nothing more for it. Any thread may say so."""
        self.future.cancel()


_Pack = list[tuple[EmbeddingJob, int]]


class EmbeddingQueue:
    """The jobs of all callers, and the threads that compute them.

    Args:
        model: stays open as long as it is used; whoever closes it closes this before.
        in_place: start no thread; calls compute themselves. One thread at a time may use it then.

    Attributes:
        limit: tokens of the longest input.
    """

    def __init__(self, model: Model, setup: Setup, *, in_place: bool = False) -> None:
        self.limit = longest_input(model, setup.params)
        self._process = forks.current()
        self._worker = worker = _Worker(model, setup, in_place=in_place)
        # The worker refers to nothing that its users hold, so that it ends when they drop it.
        self._finalizer = weakref.finalize(self, _close, worker, self._process)

    def submit(self, job: EmbeddingJob) -> None:
        """Queue the inputs of a call.

        Raises:
            ClosedError, ForkedProcessError: it cannot be used any more, or not here.
            ModelChangedError: the model's file was changed in place.
        """
        self.check()
        self._worker.add(job)

    def check(self) -> None:
        """Raise unless it can be used; see ``submit``."""
        if self._process.inherited:
            raise forks.refuse()
        if self._worker.closed:
            raise ClosedError("this model was closed; load it again")

    def close(self) -> None:
        """Fail what is waiting, and free the contexts. Closing twice does nothing."""
        _close(self._worker, self._process)


def _close(worker: _Worker, process: forks.Process) -> None:
    if not process.inherited:
        worker.close()


class _Worker:
    """The queue, and the threads that empty it: one for each computer."""

    def __init__(self, model: Model, setup: Setup, *, in_place: bool) -> None:
        n_threads, n_computers = threads_and_computers(model, setup.params)
        self._check_file = model.check_file
        share = Share()
        self._computers = [
            Computer(model, setup, share) for _ in range(1 if in_place else n_computers)
        ]
        #: Threads of computation that no batch has; all of them belong to a single computer.
        self._free = n_threads
        self._most = setup.params.n_ubatch
        self._gpu = on_gpu()
        self._jobs: deque[EmbeddingJob] = deque()
        self._changed = threading.Condition()
        self._in_place = in_place
        self._threads: list[threading.Thread] = []
        self.closed = False

    def add(self, job: EmbeddingJob) -> None:
        self._check_file()
        with self._changed:
            if self.closed:
                raise ClosedError("this model was closed; load it again")
            if job.waiting:
                self._jobs.append(job)
            if not self._threads and not self._in_place:
                for computer in self._computers:
                    thread = threading.Thread(
                        target=self._run, args=[computer], name="llama_py-embedding", daemon=True
                    )
                    thread.start()
                    self._threads.append(thread)
            self._changed.notify_all()
        if self._in_place:
            self._empty(self._computers[0])

    def close(self) -> None:
        with self._changed:
            self.closed = True
            jobs = [*self._jobs]
            self._jobs.clear()
            self._changed.notify_all()
        for job in jobs:
            job.fail(_closed_while_embedding())
        for computer in self._computers:
            computer.abort()
        if not self._threads:
            self._computers[0].close()
        end = time.monotonic() + _PATIENCE
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))

    def _run(self, computer: Computer) -> None:
        largest = self._largest(computer)
        try:
            while True:
                with self._changed:
                    while not self.closed and not (self._free and self._waiting(largest)):
                        self._changed.wait()
                    if self.closed:
                        return
                with TURNS.shared():
                    self._empty(computer)
        finally:
            computer.close()

    def _empty(self, computer: Computer) -> None:
        """Compute what is waiting."""
        while pack := self._begin(computer):
            self._compute(computer, pack)
            del pack  # a job may be all that keeps its owner alive

    def _compute(self, computer: Computer, pack: _Pack) -> None:
        jobs = dict.fromkeys(job for job, _ in pack)
        compute = computer.scores if pack[0][0].ranks else computer.rows
        try:
            try:
                results = compute([job.inputs[index] for job, index in pack])
            finally:
                self._end(computer)  # before callers hear of it, and call again
            for (job, index), rows in zip(pack, results, strict=True):
                job.put(index, rows)
        except BaseException as error:  # whatever it is, those who wait get it
            for job in jobs:
                job.fail(_closed_while_embedding() if self.closed else error)

    # -- choosing ---------------------------------------------------------------------------------

    def _begin(self, computer: Computer) -> _Pack:
        """The inputs of the next batch, if there are any, and the threads for it."""
        with self._changed:
            pack = self._next_pack(computer) if self._free else []
            if pack and len(self._computers) > 1:
                # As many threads as are free, unless others can use them at once.
                busy = sum(each.threads is not None for each in self._computers)
                others = min(len(self._computers) - busy - 1, self._waiting(_LARGE))
                computer.threads = max(1, self._free // (1 + others))
                self._free -= computer.threads
            return pack

    def _end(self, computer: Computer) -> None:
        with self._changed:
            if computer.threads is not None:
                self._free += computer.threads
                computer.threads = None
                self._changed.notify_all()

    def _largest(self, computer: Computer) -> int | None:
        """Tokens of the longest input for this computer, None: any number."""
        return None if computer is self._computers[0] else _LARGE

    def _waiting(self, largest: int | None) -> int:
        """Inputs of calls that begin with one that is not larger than that."""
        return sum(job.waiting for job in self._jobs if _fits(job, largest))

    def _next_pack(self, computer: Computer) -> _Pack:
        """The inputs of the next batch: of the call whose turn it is, and then of the others."""
        pack: _Pack = []
        self._forget_ended()
        largest = self._largest(computer)
        # The call whose turn it is; it goes to the end of the queue.
        first = next((job for job in self._jobs if _fits(job, largest)), None)
        if first is None:
            return pack
        self._jobs.remove(first)
        self._jobs.append(first)
        longest, total = 0, 0
        for job in (first, *[each for each in self._jobs if each is not first]):
            while _fits(job, largest) and job.ranks == first.ranks:
                length = job.next_length
                longest = max(longest, length)
                room = room_beside(longest, self._most, gpu=self._gpu)
                if (pack and total + length > room) or len(pack) == computer.most_inputs:
                    break
                pack.append((job, job.take()))
                total += length
        self._forget_ended()
        return pack

    def _forget_ended(self) -> None:
        """Also those that were cancelled."""
        self._jobs = deque(job for job in self._jobs if job.waiting)


def _fits(job: EmbeddingJob, largest: int | None) -> bool:
    """Whether a call has a next input, which is not larger than that."""
    return job.waiting > 0 and (largest is None or job.next_length <= largest)


def _closed_while_embedding() -> ClosedError:
    return ClosedError("the model was closed while it embedded")
