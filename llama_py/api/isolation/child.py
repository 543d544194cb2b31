"""The process of a model: it loads a ``Llama`` as ever, and answers with it.

Its main thread reads what the other process says; threads prepare calls, as threads of callers
would, and the engine has its own. When the other process is gone, this one ends.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from llama_py.api.facts import ContextFacts
from llama_py.api.isolation.codec import Codec
from llama_py.api.isolation.connection import Frame, MessageSocket
from llama_py.api.isolation.messages import USUAL, Down, Ended, Facts, Row, Up, row_of
from llama_py.api.kept.conversations import Conversations
from llama_py.api.kept.states import SequenceStates
from llama_py.api.llama import Llama
from llama_py.api.media import MediaReader
from llama_py.api.port import OPERATIONS
from llama_py.api.scoring.scoring import ScoringJob
from llama_py.embeddings.queue import EmbeddingJob
from llama_py.engine.mailbox import Mailbox
from llama_py.engine.media import without_source
from llama_py.engine.request import GenerationRequest, Output
from llama_py.errors import IsolationError, LlamaError, shown
from llama_py.tenants import working_for
from llama_py.version import __version__

__all__ = ["main"]

#: Threads that prepare requests, and those that ask something of the engine, or wait for a disk.
_PREPARING, _ASKING = 4, 16
#: Seconds between two reports of the metrics with the ends of requests.
_BETWEEN_METRICS = 0.5
#: Most bytes that the other process may send: pictures, conversations that come back.
_LIMITS = (1 << 30, 1 << 46)
#: Seconds that this process has to write its conversations when nobody is there any more.
_LAST_MOMENTS = 5.0
#: By how many thousandths of the memory this process seems larger to the system that looks for one
#: to end: it is the one that can be started again.
_RATHER_THIS_ONE = "300"


class _Outbox:
    """Output of the engine's thread for the other process: one message for all calls of a step."""

    def __init__(self, connection: MessageSocket, codec: Codec) -> None:
        self._connection = connection
        self._codec = codec
        self._rows: list[Row] = []
        self._ends = False
        self._told = 0.0
        self.metrics: Callable[[], Any] = lambda: None

    def add(self, rows: list[Row]) -> None:
        self._rows += rows
        self._ends = self._ends or any(len(row) == 2 for row in rows)

    def ring(self) -> None:
        """Everybody has got what a step made: send it."""
        rows, ends = self._rows, self._ends
        self._rows, self._ends = [], False
        if not ends:
            self._connection.send(self._codec.encode_plain((int(Up.EVENTS), rows)))
            return
        now, metrics = time.monotonic(), None
        if now - self._told > _BETWEEN_METRICS:
            self._told, metrics = now, self.metrics()
        self.send_ends(rows, metrics)

    def send_ends(self, rows: list[Row], metrics: Any) -> None:
        """Send rows among which requests end."""
        try:
            frame = _checked(self._codec.encode((int(Up.ENDS), rows, metrics)))
        except IsolationError as problem:
            rows = [_plain(row, problem) for row in rows]
            frame = self._codec.encode((int(Up.ENDS), rows, metrics))
        self._connection.send(frame)


def _checked(frame: Frame) -> Frame:
    """A frame that the other process takes.

    Raises:
        IsolationError: it is too long.
    """
    if len(frame[0]) > USUAL[0]:
        raise IsolationError(
            f"an answer of {len(frame[0])} bytes is more than the {USUAL[0]} that may come from a "
            "model's own process; ask for less of it, or load the model without isolate=True"
        )
    return frame


def _plain(row: Row, problem: IsolationError) -> Row:
    """A row that can cross: without errors of others, and without what is too long."""
    if len(row) != 2:
        return row
    ended: Ended = row[1]
    _, text, stop, error = ended.event
    if error is None and ended.record["prompt_logprobs"] is None:
        return row
    plain = problem if error is None else LlamaError(f"{type(error).__name__}: {error}")
    record = {**ended.record, "prompt_logprobs": None}
    return row[0], Ended(("error", text, stop, plain), record)


class _Outgoing(Mailbox):
    """The mailbox of a call of the other process."""

    def __init__(self, whole: bool, named: Sequence[int], outbox: _Outbox) -> None:
        super().__init__(whole)
        self._named = named
        self._outbox = outbox
        self.owner = lambda: outbox
        self.bell = outbox.ring

    def _pass_on(self, outputs: list[Output]) -> None:
        self.taken += len(outputs)
        rows = []
        for number, event in outputs:
            index = self.numbers.index(number)
            rows.append(row_of(self._named[index], event, self.records[index]))
        self._outbox.add(rows)


class _Task:
    """A call of the other process, while it is prepared or runs."""

    def __init__(self) -> None:
        self.mailbox: _Outgoing | None = None
        self.cancelled = False
        self.cancel: Callable[[], None] | None = None


class _Child:
    def __init__(self, connection: MessageSocket) -> None:
        self.connection = connection
        self.codec = Codec(builds=True)
        self.outbox = _Outbox(connection, self.codec)
        self._llama: Llama | None = None
        self._calls: dict[int, _Task] = {}
        self._stores: list[Any] = []
        self._preparing = ThreadPoolExecutor(_PREPARING, thread_name_prefix="llama_py-calls")
        self._asking = ThreadPoolExecutor(_ASKING, thread_name_prefix="llama_py-asked")
        self._loader: threading.Thread | None = None
        self._unwanted = False
        self._closing: threading.Thread | None = None

    @property
    def llama(self) -> Llama:
        if self._llama is None:
            raise LlamaError("the model is not loaded yet")
        return self._llama

    # -- listening ------------------------------------------------------------------------------

    def run(self) -> None:
        """Do what is said, until nobody is there any more."""
        actions: dict[int, Callable[..., None]] = {
            Down.LOAD: self._load,
            Down.SUBMIT: self._submit,
            Down.CANCEL: self._cancel,
            Down.PAUSE: partial(self._set_paused, True),
            Down.RESUME: partial(self._set_paused, False),
            Down.ASK: self._ask,
            Down.EMBED: self._embed,
            Down.STOP_LOADING: self._stop_loading,
            Down.PING: self._pong,
            Down.CLOSE: self._close_soon,
        }
        while (data := self.connection.receive()) is not None:
            kind, *contents = self.codec.decode(data)
            actions[kind](*contents)
        # The other process is gone, in whatever way, or this one has closed its model.
        timer = threading.Timer(_LAST_MOMENTS, os._exit, [1])
        timer.daemon = True
        timer.start()
        if self._closing is None:
            self._close()
        else:
            self._closing.join()

    def _pong(self) -> None:
        self.connection.send(self.codec.encode_plain((int(Up.PONG),)))

    def _close_soon(self) -> None:
        """Close it in a thread: until that is done, this one tells that it is alive."""
        self._closing = threading.Thread(target=self._close, name="llama_py-close", daemon=True)
        self._closing.start()

    def _close(self) -> None:
        self._unwanted = True
        if self._llama is not None:
            self._llama.close()
        for store in self._stores:
            store.close()
        self.connection.shut()

    def _say(self, kind: Up, *contents: Any) -> None:
        self.connection.send(_checked(self.codec.encode((int(kind), *contents))))

    # -- loading --------------------------------------------------------------------------------

    def _load(
        self,
        path: str,
        options: dict[str, Any],
        level: int,
        again: list[tuple[str, tuple[Any, ...]]],
    ) -> None:
        logger = logging.getLogger("llama_py")
        logger.setLevel(level)
        logger.addHandler(_Forwarding(self))
        logger.propagate = False

        def load() -> None:
            try:
                self._llama = Llama(path, **options, progress=self._progress)
                self.codec.vocab = self._llama.vocab
                loaded = self._llama.runtime.loaded
                for name, arguments in again:
                    self._perform(name, *arguments)
                context: ContextFacts | None = None
                if loaded.generates:
                    context, engine = loaded.facts, loaded.engine
                    self.outbox.metrics = lambda: engine.metrics
            except Exception as error:
                self._say(Up.FAILED, error)
                self.connection.shut()
            else:
                self._say(Up.READY, Facts(context))

        # The main thread goes on listening: the loading may be given up.
        self._loader = threading.Thread(target=load, name="llama_py-load", daemon=True)
        self._loader.start()

    def _progress(self, done: float) -> bool:
        self.connection.send(self.codec.encode_plain((int(Up.LOADING), done)))
        return not self._unwanted

    def _stop_loading(self) -> None:
        self._unwanted = True

    # -- requests -------------------------------------------------------------------------------

    def _submit(
        self,
        call: int,
        numbers: list[int],
        requests: list[GenerationRequest],
        whole: bool,
        told: list[bool],
        tenant: str,
    ) -> None:
        known = self._calls[call] = _Task()
        mailbox = _Outgoing(whole, numbers, self.outbox)
        known.mailbox = mailbox
        if len(self._calls) > 64:  # many of which have ended
            for number, task in [*self._calls.items()]:
                if task.mailbox is not None and task.mailbox.ended.is_set():
                    self._calls.pop(number, None)
        adapted = [
            replace(each, on_progress=_Report(self, mailbox, index, told[index]))
            for index, each in enumerate(requests)
        ]

        def submit() -> Any:
            with working_for(tenant):
                self.llama.runtime.loaded.driver.submit(adapted, mailbox, read_here=False)
            if known.cancelled:
                self.llama.runtime.loaded.driver.cancel(mailbox, wait=False)
            return [_tokens(record.tokens) for record in mailbox.records]

        self._preparing.submit(self._answer, call, submit)

    def _answer(self, call: int, function: Callable[[], Any]) -> None:
        try:
            value = function()
            self._say(Up.ANSWER, call, value)
        except Exception as error:
            self._calls.pop(call, None)
            self._refuse(call, error)

    def _refuse(self, call: int, error: BaseException) -> None:
        """Say what went wrong, in whatever form it can cross."""
        try:
            self._say(Up.REFUSED, call, error)
        except IsolationError:
            self._say(Up.REFUSED, call, LlamaError(f"{type(error).__name__}: {error}"))

    def _cancel(self, call: int) -> None:
        known = self._calls.get(call)
        if known is None:
            return
        known.cancelled = True
        if known.cancel is not None:
            known.cancel()
        if known.mailbox is not None and known.mailbox.numbers:
            self.llama.runtime.loaded.driver.cancel(known.mailbox, wait=False)

    def _set_paused(self, paused: bool, call: int) -> None:
        known = self._calls.get(call)
        if known is not None and known.mailbox is not None:
            driver = self.llama.runtime.loaded.driver
            (driver.pause if paused else driver.resume)(known.mailbox)

    # -- everything else ------------------------------------------------------------------------

    def _ask(self, call: int, name: str, arguments: tuple[Any, ...], tenant: str) -> None:
        known = self._calls[call] = _Task()

        def ask() -> Any:
            try:
                with working_for(tenant):
                    if name != "score":
                        return self._perform(name, *arguments)
                    prefix, continuations, timeout = arguments
                    job = ScoringJob(self.llama.runtime, prefix, continuations, timeout, {})
                    known.cancel = job.cancel
                    if known.cancelled:
                        job.cancel()
                    return [each.token_logprobs for each in job.run()]
            finally:
                self._calls.pop(call, None)

        self._asking.submit(self._answer, call, ask)

    def _embed(self, call: int, inputs: list[Any], ranks: bool, tenant: str) -> None:
        def put(index: int, rows: Any) -> None:
            self._say(Up.VECTORS, call, index, rows)

        job = EmbeddingJob(inputs, ranks, put)
        known = self._calls[call] = _Task()
        known.cancel = job.cancel

        def done(future: Future[None]) -> None:
            self._calls.pop(call, None)
            if future.cancelled():
                self._say(Up.ANSWER, call, None)
            elif (error := future.exception()) is not None:
                self._refuse(call, error)
            else:
                self._say(Up.ANSWER, call, None)

        job.future.add_done_callback(done)

        def submit() -> None:
            try:
                with working_for(tenant):
                    self.llama.runtime.port.embedding_queue.submit(job)
            except Exception as error:
                job.fail(error)

        self._asking.submit(submit)

    def _perform(self, name: str, *arguments: Any) -> Any:
        """Do what the other process asks for."""
        other = _OTHERS.get(name)
        if other is not None:
            return other(self, *arguments)
        if name not in OPERATIONS | _OF_A_MODEL:
            raise LlamaError(f"there is no operation {shown(name)}")
        owner, _, member = name.partition(".")
        found = getattr(_OWNERS[owner](self.llama), member)
        return found(*arguments) if callable(found) else found

    def set_store(self, store: Any) -> None:
        """Write conversations to a store, which is opened here as well."""
        if store is not None:
            self._stores.append(store)
        self.llama.cache.set_store(store)


class _Report:
    """``on_progress`` of a request: says that it has begun, and how far it is if that is wanted."""

    def __init__(self, child: _Child, mailbox: _Outgoing, index: int, told: bool) -> None:
        self._child = child
        self._mailbox = mailbox
        self._index = index
        self._told = told
        self._begun = False

    def __call__(self, done: int, total: int) -> None:
        child, record = self._child, self._mailbox.records[self._index]
        number = self._mailbox._named[self._index]
        if not self._begun:
            self._begun = True
            tokens = _tokens(record.tokens)
            child._say(Up.STARTED, number, record.started, record.cache, tokens)
        if self._told:
            child.connection.send(child.codec.encode_plain((int(Up.PROGRESS), number, done, total)))


def _tokens(tokens: Sequence[int]) -> Any:
    import numpy as np

    return np.array(tokens, np.int32)


# ---- what the other process may ask for ----------------------------------------------------------


def _reader(child: _Child) -> MediaReader:
    media = child.llama.runtime.port.media
    if media is None:
        raise LlamaError("this model reads no pictures")
    return media.encoder


#: Operations are methods of these; the attributes of a model that are asked for are named.
_OWNERS: Mapping[str, Callable[[Llama], Any]] = {
    "Conversations": lambda llama: Conversations(llama.runtime.port),
    "LoadedModel": lambda llama: llama.runtime.loaded,
    "SequenceStates": lambda llama: SequenceStates(
        llama.runtime.port, llama.runtime.by_hand, llama.runtime.last
    ),
}
_OF_A_MODEL = {
    f"LoadedModel.{name}"
    for name in ("count", "fingerprint", "report", "reset", "warm_up", "write_out")
}
_OTHERS: Mapping[str, Callable[..., Any]] = {
    "medium": lambda child, *given: without_source(_reader(child).read(*given)),
    "most_embedded": lambda child: child.llama.runtime.port.embedding_queue.limit,
    "set_store": _Child.set_store,
    "vectors": lambda child, *given: _reader(child).vectors(*given),
}


# ---- the process ---------------------------------------------------------------------------------


class _Forwarding(logging.Handler):
    """Hands what is logged here over to the other process's loggers."""

    def __init__(self, child: _Child) -> None:
        super().__init__()
        self._child = child

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record; its arguments are put in here, where they are."""
        try:
            text = self.format(record)
        except Exception:  # of a record that cannot be written: logging's own way to tell
            self.handleError(record)
            return
        child = self._child
        child.connection.send(child.codec.encode_plain((int(Up.LOG), record.levelno, text)))


def main(number: int, version: str) -> NoReturn:
    """Be the process of a model.

    Args:
        number: of the socket that was inherited.
        version: of the package in the other process.
    """
    # Ctrl-C and a manager's SIGTERM are for the other process, which ends this one in order; and
    # where memory runs out, this one can be started again.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_RATHER_THIS_ONE, encoding="ascii")
    child = _Child(MessageSocket(socket.socket(fileno=number), _LIMITS))
    if version != __version__:
        child._say(
            Up.FAILED,
            LlamaError(
                f"this process has llama_py {version}, and new ones find {__version__}: it was "
                "installed anew meanwhile; start the program again"
            ),
        )
        os._exit(1)
    child.run()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads that wait for something are not waited for
