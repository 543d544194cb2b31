"""``Engine``: requests in, events out, for any number of threads.

One ``step`` admits waiting requests, decodes once for everybody, samples, and hands out events. The
thread that waits for an event drives: whoever gets the lock runs a step, and the others, whose
requests ride along in the same batch, sleep until they have an event or it is their turn to drive.
A background thread can drive instead, for asyncio and for servers.

A request that fails, is cancelled or runs out of time ends alone. Bookkeeping is committed only
after a decode succeeded, and what a failed decode left behind is repaired before anything else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from llama_py.core.context import Context
from llama_py.core.sampler import Sampler
from llama_py.engine.logprobs import top_logprobs
from llama_py.engine.metrics import Metrics
from llama_py.engine.request import Event, FinishEvent, Prompt, Request, RequestState, TokenEvent
from llama_py.engine.runner import Runner
from llama_py.engine.scheduler import Chunk, plan_step
from llama_py.errors import (
    CacheFullError,
    ClosedError,
    ContextOverflowError,
    DecodeError,
    GenerationTimeout,
    QueueFullError,
)
from llama_py.memory.cache import SequenceCache, common_prefix
from llama_py.memory.sequences import LiveSequence

__all__ = ["Engine"]

#: Waiting for another request's prefill must save at least this many tokens.
_WORTH_WAITING = 32
#: Seconds a waiting thread sleeps before it looks whether it should drive.
_NAP = 0.05


class Engine:
    """Drives one context.

    Args:
        context: the context; nothing else may decode with it.
        cache: its sequences.
        max_waiting: requests that may wait for a sequence; one more raises ``QueueFullError``.

    Attributes:
        metrics: what was done so far.
        lock: held during a step; take it for anything that touches the context or the cache.
        last_logits: float32 ``(n_vocab,)``, a copy of the logits at the last evaluated position
            of the request that ended last; ``last_sequence`` is the sequence it belongs to.
    """

    def __init__(self, context: Context, cache: SequenceCache, *, max_waiting: int = 1024) -> None:
        self.context = context
        self.cache = cache
        self.vocab = context.model.vocab
        self.max_waiting = max_waiting
        self.metrics = Metrics()
        self.lock = threading.RLock()
        self.last_logits: NDArray[np.float32] | None = None
        self.last_sequence: LiveSequence | None = None
        self._runner = Runner(context, self.metrics)
        self._chunk = min(context.n_ubatch, context.n_batch)
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._sleepers: set[Request] = set()
        self._deadlines = 0
        self._closed = False
        self._work = threading.Condition(threading.Lock())
        self._driver: threading.Thread | None = None

    # -- the way in -----------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ContextOverflowError: the prompt does not fit; nothing was touched.
            QueueFullError: too many requests are waiting.
            GrammarError, ParameterError: the sampler cannot be made.
        """
        with self.lock:
            if self._closed:
                raise ClosedError("this model was closed; load it again")
            if len(self._waiting) >= self.max_waiting:
                raise QueueFullError(
                    f"{len(self._waiting)} requests are waiting already, which is the limit; "
                    "try again later, or raise max_waiting"
                )
            self._resolve(request)
            request.sampler = Sampler(
                self.vocab, request.sampling, request.tokens, request.choice
            )
            self._waiting.append(request)
            self._waiting.sort(key=lambda waiting: (waiting.priority, waiting.number))
            self._deadlines += request.generation.timeout is not None
            self.metrics.requests += 1
        self._notify_driver()

    def events(self, request: Request) -> Iterator[Event]:
        """The events of a submitted request, until the last. Closing the iterator cancels it."""
        try:
            while True:
                while request.events:
                    event = request.events.popleft()
                    yield event
                    if type(event) is FinishEvent:
                        return
                if request.done:
                    return
                self._drive_until_event(request)
        finally:
            if not request.done:
                self.cancel(request)

    def events_of(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Event]]:
        """The events of several requests as they come. Closing the iterator cancels them all."""
        pending = [*requests]
        try:
            while pending:
                for request in [*pending]:
                    while request.events:
                        event = request.events.popleft()
                        yield request, event
                    if request.done and not request.events:
                        pending.remove(request)
                if pending and not any(request.events for request in pending):
                    self._drive_until_event(pending[0])
        finally:
            for request in pending:
                self.cancel(request)

    def cancel(self, request: Request) -> None:
        """End a request; its sequence keeps what was decoded. Does nothing if it has ended."""
        request.cancelled = True
        with self.lock:
            if not request.done:
                self._end(request, FinishEvent("cancelled", request.text.finish()))
        self._wake()

    def cancel_all(self) -> None:
        """End every request, running or waiting."""
        with self.lock:
            for request in [*self._waiting, *self._running]:
                self.cancel(request)

    def reset_counters(self) -> None:
        """Begin the metrics anew, and forget the last logits."""
        self.metrics = self._runner.metrics = Metrics()
        self.last_logits = self.last_sequence = None

    def close(self) -> None:
        """Cancel everything and stop the background thread."""
        with self.lock:
            self._closed = True
            for request in [*self._waiting, *self._running]:
                error = ClosedError("the model was closed while this request was running")
                self._fail(request, error)
        self._wake()
        driver, self._driver = self._driver, None
        if driver is not None and driver is not threading.current_thread():
            self._notify_driver()
            driver.join()

    # -- driving --------------------------------------------------------------------------------

    def step(self) -> bool:
        """One step; False if there was nothing to do."""
        with self.lock:
            worked = self._step()
        self._wake()
        return worked

    def run_in_background(self) -> None:
        """Start a thread that drives whenever there is work (for asyncio and servers)."""
        with self.lock:
            if self._driver is None and not self._closed:
                self._driver = threading.Thread(
                    target=self._drive_forever, name="llama_py-engine", daemon=True
                )
                self._driver.start()

    def _drive_forever(self) -> None:
        while not self._closed:
            if not self.step():
                with self._work:
                    self._work.wait(_NAP if self._waiting or self._running else 1.0)

    def _notify_driver(self) -> None:
        if self._driver is not None:
            with self._work:
                self._work.notify()

    def _drive_until_event(self, request: Request) -> None:
        while not request.events and not request.done:
            worked = False
            if self.lock.acquire(blocking=False):
                try:
                    if request.events or request.done:
                        return
                    worked = self._step()
                finally:
                    self.lock.release()
                if self._sleepers:
                    self._wake()
            if not worked and not request.events:
                self._sleep(request)

    def _sleep(self, request: Request) -> None:
        """Wait until there is an event, or until it is this thread's turn to drive."""
        self._sleepers.add(request)
        if not request.events and not request.done:
            request.wakeup.wait(_NAP)
        self._sleepers.discard(request)
        request.wakeup.clear()

    def _wake(self) -> None:
        """Wake those who have something to read, and one more, who will drive."""
        driver: Request | None = None
        for request in list(self._sleepers):
            if request.events or request.done:
                request.wakeup.set()
            else:
                driver = request
        if driver is not None:
            driver.wakeup.set()

    # -- one step -------------------------------------------------------------------------------

    def _step(self) -> bool:
        if self._deadlines:
            self._expire()
        if self._waiting:
            self._admit()
        running = self._running
        if not running:
            return False
        try:
            if len(running) == 1 and running[0].state is RequestState.DECODING:
                return self._step_one(running[0])
            chunks = plan_step(running, self._runner.n_batch, self._chunk)
            return bool(chunks) and self._step_many([*running], chunks)
        except BaseException:
            # An interrupt may have come between a decode and its bookkeeping.
            self._resynchronize()
            raise

    def _step_one(self, request: Request) -> bool:
        if request.blocked:
            return False
        code = self._runner.decode_one(request)
        if code:
            self._handle_failure(code, [request])
        else:
            request.lease.sequence.tokens.append(request.generated[-1])  # type: ignore[union-attr]
            self._sample(request, 0)
        return True

    def _step_many(self, running: list[Request], chunks: Sequence[Chunk]) -> bool:
        code, rows = self._runner.decode(running, chunks)
        if code:
            self._handle_failure(code, [running[chunk.index] for chunk in chunks])
            return True
        self.metrics.batch_streams.add(len(chunks))
        for chunk in chunks:  # first all bookkeeping, because a checkpoint must not be late
            self._advance(running[chunk.index], chunk.count)
        for chunk, row in zip(chunks, rows, strict=True):
            request = running[chunk.index]
            if request.generation.prompt_logprobs and chunk.count:
                self._read_prompt_logprobs(request, chunk.count, row)
            if not request.prompt_left and not request.done:
                self._sample(request, row)
        return True

    def _advance(self, request: Request, count: int) -> None:
        lease = request.lease
        if lease is None:
            return
        if count == 0:
            lease.sequence.tokens.append(request.generated[-1])
            return
        self.cache.advance(lease, count)
        self.metrics.evaluated += count
        if request.on_progress is not None:
            self._guard(request, lambda: request.on_progress(lease.position, request.n_prompt))  # type: ignore[misc]
        if not lease.remaining:
            request.state = RequestState.DECODING
            self.cache.commit(lease.sequence, lease.prompt)

    def _guard(self, request: Request, call: object) -> None:
        """Run a callback of the request's owner; its failure is this request's failure."""
        try:
            call()  # type: ignore[operator]
        except Exception as error:
            self._fail(request, error)

    def _read_prompt_logprobs(self, request: Request, count: int, row: int) -> None:
        """Rows ``row - count + 1 .. row`` predict the tokens after each of these prompt tokens."""
        lease = request.lease
        if lease is None:
            return
        wanted = request.generation.logprobs or 0
        for back in range(count - 1, -1, -1):
            follower = lease.position - back
            if follower < request.n_prompt:
                logits = self._runner.logits(row - back)
                request.prompt_logprobs.append(
                    top_logprobs(logits, request.tokens[follower], wanted)
                )

    # -- sampling -------------------------------------------------------------------------------

    def _sample(self, request: Request, row: int) -> None:
        """Choose the next token of a request whose logits are at ``row``, and hand it out."""
        start = time.perf_counter()
        generation = request.generation
        if generation.max_tokens == 0:
            self._end(request, FinishEvent("length"), row)
            return
        try:
            logits = self._runner.logits(row)
            token = request.sampler.sample(logits)  # type: ignore[union-attr]
            logprobs = (
                top_logprobs(logits, token, generation.logprobs)
                if generation.logprobs is not None
                else None
            )
        except Exception as error:  # the request's own processor or grammar
            self._fail(request, error)
            return
        now = time.perf_counter()
        self.metrics.sample_seconds += now - start
        self._count_token(request, now)
        request.generated.append(token)
        self._emit_token(request, token, logprobs, row)

    def _count_token(self, request: Request, now: float) -> None:
        metrics = self.metrics
        metrics.generated += 1
        if request.generated:
            metrics.token_seconds.add(now - request.last_token)
        else:
            request.first_token = now
            metrics.first_token_seconds.add(now - request.submitted)
        request.last_token = now

    def _emit_token(
        self, request: Request, token: int, logprobs: object, row: int
    ) -> None:
        generation = request.generation
        ends = not generation.ignore_eos and self.vocab.is_eog(token)
        if ends or token in generation.stop_tokens:
            self._end(request, FinishEvent("stop", request.text.finish()), row)
            return
        vocab = self.vocab
        shown = request.echo_special or token in request.visible
        piece = vocab.piece(token) if shown else vocab.plain_piece(token)
        text = request.text.feed(piece)
        self._put(request, TokenEvent(token, text, logprobs))  # type: ignore[arg-type]
        if request.text.stopped_by is not None:
            self._end(request, FinishEvent("stop", "", request.text.stopped_by), row)
        elif self._criteria_met(request, row):
            self._end(request, FinishEvent("stop", request.text.finish()), row)
        elif self._at_limit(request):
            self._end(request, FinishEvent("length", request.text.finish()), row)

    def _at_limit(self, request: Request) -> bool:
        most = request.generation.max_tokens
        if most is not None and len(request.generated) >= most:
            return True
        return request.lease is not None and request.lease.position >= self.cache.limit

    def _criteria_met(self, request: Request, row: int) -> bool:
        if not request.generation.stopping_criteria:
            return False
        tokens = np.array(request.tokens + request.generated, np.intc)
        logits = self._runner.logits(row)
        try:
            return any(stop(tokens, logits) for stop in request.generation.stopping_criteria)
        except Exception as error:
            self._fail(request, error)
            return False

    # -- admission ------------------------------------------------------------------------------

    def _resolve(self, request: Request) -> None:
        prompt = request.prompt
        if prompt.tokens is not None:
            self.vocab.check_tokens(prompt.tokens)
            request.resolved = self.cache.resolve_tokens(prompt.tokens)
        else:
            request.resolved = self.cache.resolve_text(
                prompt.text or b"", prompt.boundaries, add_special=prompt.add_special
            )
        request.tokens = request.resolved.tokens

    def _admit(self) -> None:
        for request in [*self._waiting]:
            if len(self._running) >= self.context.n_seq_max:
                return
            if not self._must_wait(request) and not self._start(request):
                return

    def _must_wait(self, request: Request) -> bool:
        """True while another request is about to evaluate what this one begins with."""
        if request.waits_for is not None:
            other, position = request.waits_for
            if other.state is RequestState.PREFILL and other.lease is not None:
                if other.lease.position < position:
                    return True
                self.cache.commit(other.lease.sequence, other.lease.prompt)
            request.waits_for = None
        if request.generation.prompt_logprobs:
            return False
        return any(self._waits_for(request, other) for other in self._running)

    def _waits_for(self, request: Request, other: Request) -> bool:
        if other.state is not RequestState.PREFILL or other.lease is None:
            return False
        shared = min(common_prefix(request.tokens, other.tokens), request.n_prompt - 1)
        if shared <= other.lease.position:
            return False
        if shared - self.cache.best_keep(request.resolved) < _WORTH_WAITING:  # type: ignore[arg-type]
            return False
        self.cache.add_cut(other.lease, shared)
        request.waits_for = (other, shared)
        return True

    def _start(self, request: Request) -> bool:
        """Give a waiting request a sequence; False if there is none."""
        try:
            if request.prompt.tokens is None and self._running_or_changed(request):
                self._resolve(request)
            lease = self.cache.acquire(
                request.resolved,  # type: ignore[arg-type]
                request.session,
                reuse=not request.generation.prompt_logprobs,
            )
        except Exception as error:
            self._fail(request, error)
            return True
        if lease is None:
            return False
        self._waiting.remove(request)
        self._running.append(request)
        request.lease = lease
        request.state = RequestState.PREFILL
        request.started = time.perf_counter()
        request.cache = lease.info.as_dict()
        self.metrics.queue_seconds.add(request.started - request.submitted)
        self.metrics.prompt_tokens += request.n_prompt
        self.metrics.reused += lease.info.reused
        return True

    def _running_or_changed(self, request: Request) -> bool:
        """True if replies may have been cached since the prompt was tokenized."""
        return time.perf_counter() - request.submitted > 0.001

    # -- endings --------------------------------------------------------------------------------

    def _put(self, request: Request, event: Event) -> None:
        if request.on_event is not None:
            self._guard_event(request, event)
        else:
            request.events.append(event)

    def _guard_event(self, request: Request, event: Event) -> None:
        try:
            request.on_event(event)  # type: ignore[misc]
        except Exception as error:
            request.on_event = None
            if not request.done:
                self._fail(request, error)

    def _end(self, request: Request, event: FinishEvent, row: int | None = None) -> None:
        """Release what a request holds, and hand out its last event."""
        if request.done:
            return
        if row is not None:
            self.last_logits = self._runner.logits(row).copy()
            self.last_sequence = request.lease.sequence if request.lease else None
        self._withdraw(request)
        lease, request.lease = request.lease, None
        if lease is not None:
            self.cache.release(lease)
        if request.sampler is not None:
            request.sampler.close()
        self._deadlines -= request.generation.timeout is not None
        request.ended = time.perf_counter()
        request.state = _STATES.get(event.reason, RequestState.FINISHED)
        self._count_end(request.state)
        self._put(request, event)

    def _withdraw(self, request: Request) -> None:
        if request in self._running:
            self._running.remove(request)
        elif request in self._waiting:
            self._waiting.remove(request)

    def _count_end(self, state: RequestState) -> None:
        metrics = self.metrics
        metrics.finished += state is RequestState.FINISHED
        metrics.cancelled += state is RequestState.CANCELLED
        metrics.failed += state is RequestState.FAILED

    def _fail(self, request: Request, error: BaseException) -> None:
        self._end(request, FinishEvent("error", request.text.finish(), error=error))

    def _expire(self) -> None:
        now = time.perf_counter()
        for request in [*self._running, *self._waiting]:
            timeout = request.generation.timeout
            if timeout is not None and now - request.submitted > timeout:
                message = f"the request took longer than timeout={timeout} seconds"
                self._fail(request, GenerationTimeout(message))

    # -- failures -------------------------------------------------------------------------------

    def _handle_failure(self, code: int, requests: list[Request]) -> None:
        if code == 1:
            self._out_of_cells(requests)
            return
        for request in requests:
            if request.lease is not None:
                self.cache.repair(request.lease)
            self._fail(request, DecodeError(_describe(code), code))

    def _out_of_cells(self, requests: list[Request]) -> None:
        """Park an idle conversation; else let the youngest request start again later."""
        if self.cache.make_room():
            return
        if len(self._running) > 1:
            self._preempt(self._running[-1])
            return
        request = requests[0]
        if request.state is RequestState.DECODING:
            self._end(request, FinishEvent("length", request.text.finish()))
        else:
            limit = request.lease.position if request.lease else 0
            self._fail(request, CacheFullError(
                f"no free cells after {limit} of {request.n_prompt} prompt tokens, with nothing "
                "else in memory; load the model with a larger n_ctx", 1
            ))

    def _preempt(self, request: Request) -> None:
        """Put a request back into the queue. What it generated becomes part of its prompt."""
        lease, request.lease = request.lease, None
        self._running.remove(request)
        if lease is not None:
            tokens = lease.prompt.tokens + request.generated[request.n_resumed :]
            request.n_resumed = len(request.generated)
            request.prompt = Prompt(tokens=tokens)
            request.resolved = self.cache.resolve_tokens(tokens)
            self.cache.release(lease)
            self.cache.evict(lease.sequence)
        request.state = RequestState.WAITING
        self._waiting.insert(0, request)
        self.metrics.preempted += 1

    def _resynchronize(self) -> None:
        for request in [*self._running]:
            if request.lease is not None:
                before = request.lease.position
                self.cache.repair(request.lease)
                if request.lease.position != before:
                    self._fail(request, DecodeError("the evaluation was interrupted"))

    # -- without a request ------------------------------------------------------------------------

    def evaluate(
        self, sequence: LiveSequence, tokens: Sequence[int], *, every: bool = False
    ) -> list[NDArray[np.float32]]:
        """Append tokens to a sequence that no request uses (``Llama.eval``).

        Args:
            every: return the logits of each token and not only of the last.

        Returns:
            Copies of rows, float32 ``(n_vocab,)``.

        Raises:
            ContextOverflowError: they do not fit; nothing was evaluated.
            DecodeError: llama_decode failed; the sequence holds what was evaluated before.
        """
        with self.lock:
            room = self.cache.limit - len(sequence.tokens)
            if len(tokens) > room:
                raise ContextOverflowError(
                    len(sequence.tokens) + len(tokens), self.cache.limit, self.cache.limit
                )
            rows: list[NDArray[np.float32]] = []
            size = 64 if every else self._chunk
            for start in range(0, len(tokens), size):
                rows += self._evaluate_chunk(sequence, tokens[start : start + size], every)
            self.last_logits, self.last_sequence = rows[-1], sequence
            return rows

    def _evaluate_chunk(
        self, sequence: LiveSequence, tokens: Sequence[int], every: bool
    ) -> list[NDArray[np.float32]]:
        position = len(sequence.tokens)
        code = self._runner.decode_tokens(tokens, position, sequence.number, every)
        while code == 1 and self.cache.make_room():
            code = self._runner.decode_tokens(tokens, position, sequence.number, every)
        if code:
            self.cache.trim(sequence)
            raise DecodeError(_describe(code), code)
        sequence.tokens.extend(tokens)
        first = 0 if every else len(tokens) - 1
        return [self._runner.logits(row).copy() for row in range(first, len(tokens))]


_STATES = {"cancelled": RequestState.CANCELLED, "error": RequestState.FAILED}


def _describe(code: int) -> str:
    meanings = {
        1: "there are no free cells for the batch; load the model with a larger n_ctx",
        2: "the computation was aborted",
        -1: "llama.cpp found the batch invalid",
    }
    return f"llama_decode returned {code}: {meanings.get(code, 'the computation failed')}"
