"""``IsolatedPort``: stands where the engine's driver stands, for a model in another process."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from llama_py import forks
from llama_py.api.isolation.messages import Down
from llama_py.api.isolation.process import ModelProcess
from llama_py.embeddings.queue import EmbeddingJob, EmbeddingQueue
from llama_py.engine.loop import LOOK
from llama_py.engine.mailbox import Command, Mailbox
from llama_py.engine.request import GenerationRequest, Record
from llama_py.errors import EngineDeadError, IsolationError, LlamaError
from llama_py.options.drafters import MTP, DraftModel, PromptLookup, Speculative
from llama_py.tenants import tenant

__all__ = ["IsolatedEmbeddingQueue", "IsolatedPort", "check_drafters"]

_numbers = itertools.count(1)
_REMEDY = "it is a function of this process; leave it out, or load the model without isolate=True"


class IsolatedPort:
    """Submits requests to a model's own process; see ``EnginePort``.

    In a forked child its methods raise ``ForkedProcessError``.
    """

    def __init__(self, process: ModelProcess) -> None:
        self.process = process
        self._finalizer = weakref.finalize(self, process.close_soon)

    def submit(
        self,
        requests: Sequence[GenerationRequest],
        mailbox: Mailbox,
        *,
        read_here: bool = True,
        first: Command | None = None,
    ) -> None:
        """Check and queue the requests of a call: all of them, or none.

        It waits while the process is loaded again.

        Args:
            first: of no account: it is about what ``eval`` has evaluated, which there is not here.

        Raises:
            EngineDeadError: the process died meanwhile, or is not there.
            IsolationError: a request has a callback that cannot be called there.
            LlamaError: as of ``Driver.submit``.
        """
        self.check_process()
        self.refuse_callbacks()
        for request in requests:
            _check(request)
        me = threading.get_ident() if read_here else None
        numbers = [next(_numbers) for _ in requests]
        records = [Record(request) for request in requests]
        mailbox.expect(numbers, records, me)
        told = [request.on_progress is not None for request in requests]
        plain = [replace(each, on_progress=None) if each.on_progress else each for each in requests]
        contents = numbers, plain, mailbox.whole, told, tenant()
        try:
            tokens = self._queue(mailbox, contents)
        except EngineDeadError:
            if self.process.silent or any(record.started for record in records):
                raise
            tokens = self._queue(mailbox, contents)  # nothing was done for it, and it waits
        for record, found in zip(records, tokens, strict=True):
            if not record.started:  # else they came with its start, and may be others
                record.tokens = found.tolist()

    def _queue(self, mailbox: Mailbox, contents: tuple[Any, ...]) -> Any:
        """Have the requests of a call queued; their tokens."""
        process = self.process
        call, answer = process.begin(mailbox)
        try:
            return process.queue(call, answer, *contents)
        except BaseException:
            process.requests.forget(mailbox.numbers)
            raise

    def cancel(self, mailbox: Mailbox, *, wait: bool = True) -> None:
        """End a call; see ``Driver.cancel``."""
        if mailbox.ended.is_set() or self.process.process.inherited:
            return
        self.process.cancel(mailbox)
        if wait and threading.current_thread() is not self.process.thread:
            while not mailbox.ended.wait(LOOK):
                self.check_alive()

    def resume(self, mailbox: Mailbox) -> None:
        """Go on with a call that was paused because nobody read what came."""
        mailbox.paused = False
        call = self.process.requests.call_of(mailbox)
        if call is not None:
            self.process.send(Down.RESUME, call)

    def wait_for(self, done: Callable[[], bool]) -> None:
        """A thread sees to that."""
        self.check_process()
        if not done():
            self.refuse_callbacks()

    def check_alive(self) -> None:
        """Raise if nobody is there any more who could deliver something."""
        if not self.process.thread.is_alive():
            self.process.check()

    def check_process(self) -> None:
        """Raise ``ForkedProcessError`` in a child of the process that made it."""
        if self.process.process.inherited:
            raise forks.refuse()

    def refuse_callbacks(self) -> None:
        """Raise ``LlamaError`` in a callback of a request, which would wait for itself."""
        if threading.current_thread() is self.process.thread:
            raise LlamaError(
                "a callback of a request (progress) cannot call, reset or close the model it "
                "belongs to; do it when the reply has ended"
            )

    def ask(self, name: str, *arguments: Any) -> Any:
        """Have a function of the other process called; see ``ModelProcess.ask``."""
        self.check_process()
        self.refuse_callbacks()
        return self.process.ask(name, *arguments, tenant=tenant())


class IsolatedEmbeddingQueue(EmbeddingQueue):
    """Stands where an ``EmbeddingQueue`` stands: tokens cross, and vectors come back.

    Attributes:
        limit: tokens of the longest input.
    """

    def __init__(self, port: IsolatedPort, limit: int) -> None:  # no threads of its own
        self.limit = limit
        self._port = port

    def submit(self, job: EmbeddingJob) -> None:
        """Queue the inputs of a call; see ``EmbeddingQueue.submit``."""
        if not job.waiting:
            return
        self._port.check_process()
        self._port.refuse_callbacks()
        process = self._port.process
        call = process.begin_job(job)
        inputs = [*job.inputs]
        try:
            contents = int(Down.EMBED), call, inputs, job.ranks, tenant()
            frame = process.codec.encode(contents)
        except BaseException as error:
            job.fail(error)
            raise
        process.send_frame(frame)
        job.future.add_done_callback(
            lambda ended: process.send(Down.CANCEL, call) if ended.cancelled() else None
        )

    def check(self) -> None:
        """Raise unless it can be used."""
        self._port.check_process()
        self._port.process.check()

    def close(self) -> None:
        """Nothing: the process is closed with its model."""


def _check(request: GenerationRequest) -> None:
    """Refuse what would have to be called in the other process, by the name of its option."""
    for name, value in (
        ("logits_processor", request.sampling.logits_processors),
        ("stopping_criteria", request.generation.stopping_criteria),
    ):
        if value:
            raise IsolationError(
                f"{name} cannot be used with a model in a process of its own: {_REMEDY}"
            )
    check_drafters(request.speculative)


def check_drafters(speculative: Speculative | None) -> None:
    """Raise ``IsolationError`` for drafters that are functions of this process."""
    for each in speculative.drafters if speculative is not None else ():
        if not isinstance(each, (PromptLookup, DraftModel, MTP)):
            raise IsolationError(
                f"speculative: the drafter {each!r} cannot be used with a model in a process of "
                f"its own: {_REMEDY}"
            )
