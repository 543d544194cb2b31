"""``respond``: answers a request with a model, whole or as a stream, in any dialect.

Nothing can be said of a request before its model is there, not even that it is wrong. But clients
and proxies give up when there are no headers for a while. So a stream that has waited for
``ping_interval`` begins with signs of life, and what goes wrong from then on is an error in the
stream. Replies without a stream just wait.

Checking, rendering and tokenizing happen in a worker thread. From then on everything belongs to the
task of the request: the engine wakes it once per step, and all frames of a wake are sent as one
body. One more task waits for the client to leave; then the request is cancelled, whether it waits
for its turn, evaluates its prompt or generates.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from llama_py.dialects.durations import seconds_of
from llama_py.dialects.failures import Failure, Kind, RequestError, failure_of
from llama_py.dialects.routing_hints import opening_of
from llama_py.dialects.usage import PromptProgress
from llama_py.dialects.wire import WireCall, WireReply
from llama_py.dialects.wire_json import json_bytes
from llama_py.engine.async_events import AsyncEvents
from llama_py.engine.request import Event, FinishEvent, GenerationRequest, Record
from llama_py.errors import ContextOverflowError, RequestCancelled
from llama_py.server.access.keys import ADMIN
from llama_py.server.call_defaults import adapted
from llama_py.server.errors import failure_event, sign_of_life, stream_type
from llama_py.server.pool.pool import ServedModel
from llama_py.server.request_record import RequestRecord
from llama_py.server.service import Service, caller_of, in_thread, service_of
from llama_py.server.transport.bodies import model_of, read_body, read_form
from llama_py.server.transport.event_stream import EventStream
from llama_py.server.transport.extras import BODY, abort, client_left

__all__ = ["Exchange", "Parse", "count_tokens", "keep", "respond", "respond_to", "respond_to_form"]

#: Makes the call of a body, for a model, in a worker thread.
Parse = Callable[[dict[str, Any], ServedModel], WireCall]

#: Events that the event loop itself makes a reply of; it takes it a millisecond or two.
_SHORT = 64
#: Seconds after which to try again if there was no place.
_RETRY_AFTER = 5.0
#: Seconds between two looks at whether a request that is being prepared has got a place.
_LOOK = 0.02


async def respond(request: Request, parse: Parse) -> Response:
    """Answer a request with the model that its body asks for.

    Returns:
        The response; one that does nothing, if everything was sent or the client has left.

    Raises:
        RequestError, LlamaError: it failed before anything was sent; ``server.app`` tells the
            client in the dialect of the path.
        ClientDisconnect: the client left before there was anything to be ended.
    """
    return await respond_to(request, await read_body(request, service_of(request).settings), parse)


async def respond_to(request: Request, body: dict[str, Any], parse: Parse) -> Response:
    """The same for a body that was read."""
    record: RequestRecord = request.scope["state"]["record"]
    record.prefix = opening_of(body, owner=caller_of(request).tenant)
    keep(request, body)
    return await Exchange(request, service_of(request)).run(body, parse)


def keep(request: Request, body: dict[str, Any]) -> None:
    """Note how long the model of a body is to stay in memory, if it says so (``keep_alive``).

    Callers without the scope ``admin`` are not obeyed.

    Raises:
        RequestError: it is not a duration, or there is no such model.
    """
    if body.get("keep_alive") is None:
        return
    seconds = seconds_of(body["keep_alive"])
    if ADMIN in caller_of(request).scopes:
        service_of(request).models.keep(model_of(body), seconds)


async def respond_to_form(request: Request, parse: Parse) -> Response:
    """The same for a request that carries a form (``transport.forms``)."""
    service = service_of(request)
    form = await read_form(request, service.settings)
    stream = str(form.get("stream", "")).lower() in ("true", "1")
    return await Exchange(request, service).run({**form, "stream": stream}, parse)


class _Sent(Response):
    """Stands for a response that was sent already."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Do nothing."""


class Exchange:
    """One request that a model answers, until its last byte was sent.

    Attributes:
        id: of the response; empty until the request was parsed, or if it has none.
        model: who answers; there as soon as it was leased.
        tenant: whose sessions and prefixes it works with; "" is everybody.
        records: what is known of each of its requests to the engine; empty until they are queued.
        gone: the client left, or did not read.
        failure: what it ended with, or None.
    """

    model: ServedModel

    def __init__(self, request: Request, service: Service) -> None:
        self._request = request
        self._service = service
        self._out = EventStream(
            request._send,
            request.scope["state"][BODY],
            service.settings.ping_interval,
            service.settings.write_timeout,
            self._note_silence,
            self._give_up,
            stream_type(request.scope),
        )
        self._caller = caller_of(request)
        self._events: AsyncEvents | None = None
        self._silent = self._cancelled = self._said_all = False
        #: How far its prompt had come, and when, if that is to be told. The engine's thread notes
        #: it before it hands out any token, so that it is there whenever those are read.
        self._progress: deque[tuple[int, int, float]] = deque()
        self._noted: set[int] = set()
        #: Frames of the last events, which go out together with the end.
        self._held = b""
        #: When its model was there, when a worker began to prepare it, and for how long that took.
        self._came = time.perf_counter()
        self._turn: float | None = None
        self._preparing = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.id = ""
        self.tenant = self._caller.tenant
        self.records: Sequence[Record] = ()
        self.gone = False
        self.failure: Failure | None = None

    def stop(self, failure: Failure) -> None:
        """End it with an error. Called by the event loop, as ``cancel`` is."""
        self.failure = failure
        self._end()

    def cancel(self) -> None:
        """End it as if the reply were complete: the client has asked for that."""
        self._cancelled = True
        self._end()

    def _leave(self) -> None:
        self.gone = True
        self._end()

    def _end(self) -> None:
        if self._events is not None:
            self._events.cancel()
            self._events.wake()

    @property
    def _over(self) -> bool:
        """Nothing more is to be sent but an error, if there was one."""
        return self.gone or self.failure is not None

    async def run(self, body: dict[str, Any], parse: Parse) -> Response:
        """See ``respond``."""
        models, scope = self._service.models, self._request.scope
        try:
            name = model_of(body)
            if body.get("stream") is True and not models.is_ready(name):
                self._out.begin_later(sign_of_life(scope))
            async with models.lease(name, self._request.receive) as model:
                if not self._out.begun:
                    self._out.close()
                return await self._run(model, partial(parse, body, model))
        except ClientDisconnect:
            raise
        except Exception as error:
            if not self._out.begun:
                raise
            failure = failure_of(error)
            scope["state"]["record"].error = failure.kind.value
            await self._out.begin(failure_event(scope, failure), more=False)
            return _Sent()
        finally:
            self._out.close()

    async def _run(self, model: ServedModel, parse: Callable[[], WireCall]) -> Response:
        """Answer it while its model is leased."""
        self.model = model
        self._came = time.perf_counter()
        self._request.scope["state"]["exchange"] = self
        self._service.exchanges.add(self)
        watcher = asyncio.ensure_future(self._watch())
        self._expect_place()
        try:
            call = await self._begin(parse)
            if self.gone:
                return _Sent()
            if self._events is None:
                return await self._refused(call)
            return await (self._stream if call.stream else self._whole)(call, self._events)
        finally:
            if self._events is not None:
                self._events.cancel()  # whatever is still running
            if self._timer is not None:
                self._timer.cancel()
            watcher.cancel()
            self._service.exchanges.discard(self)
            for index in range(len(self.records)):  # whose end nobody has read
                self._note_end(index)

    async def _watch(self) -> None:
        """Wait for the client to leave."""
        await client_left(self._request.receive)
        if not self._said_all:  # after the last byte of a response, that comes in any case
            self._leave()

    def _expect_place(self) -> None:
        """Refuse it when it has waited for ``queue_timeout``, and look again if it has not yet."""
        limit = self._service.settings.queue_timeout
        if limit is None or any(record.started for record in self.records):
            return
        # Only the time for others counts, for a worker or a sequence: not its own preparation.
        turn, done = self._turn, self._preparing  # a worker sets the second one last
        now = time.perf_counter()
        if turn is None:
            waited = now - self._came
        else:
            waited = turn - self._came if not done else now - self._came - done
        left = limit - waited
        if left > 0:
            later = max(left, _LOOK)  # while it is prepared, as much is left later
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(later, self._expect_place)
            return
        message = "timed out waiting for a free slot (queue_timeout); try again later"
        self.stop(Failure(Kind.QUEUE_FULL, message, retry_after=_RETRY_AFTER))

    # -- beginning ------------------------------------------------------------------------------

    async def _begin(self, parse: Callable[[], WireCall]) -> WireCall:
        """Check and queue the call in a worker thread. ``_events`` is None if it is not queued."""
        loop = asyncio.get_running_loop()

        def report(done: int, total: int) -> None:  # in the engine's thread
            self._progress.append((done, total, time.perf_counter()))
            loop.call_soon_threadsafe(self._wake)

        def begin() -> WireCall:
            if self.gone:  # while others were parsed
                raise ClientDisconnect
            self._turn = time.perf_counter()
            try:
                self.model.llama.runtime.port.check_generates()
                call = parse()
                self.id = call.id
                if not self._over:
                    self._service.sessions.attach(self.model.id, self.model.llama)
                    call.requests = adapted(call, self.model, self._service, self._caller, report)
                    self._submit(call, loop)
                return call
            finally:
                self._preparing = time.perf_counter() - self._turn

        call = await self._service.prepare(self.model.id, begin)
        if self._over or self._cancelled:  # it came to that while the call was queued
            self._end()
        return call

    def _submit(self, call: WireCall, loop: asyncio.AbstractEventLoop) -> None:
        runtime = self.model.llama.runtime
        try:
            events = runtime.submit_from(loop, call.requests, whole=not call.stream)
        except ContextOverflowError as error:
            if not (call.stream and call.overflows_in_stream):
                raise
            self.failure = failure_of(error)
        else:
            self._events, self.records = events, events.records

    # -- a whole reply --------------------------------------------------------------------------

    async def _whole(self, call: WireCall, events: AsyncEvents) -> Response:
        batch: list[tuple[int, Event]] = []
        while events.unfinished and (
            self._cancelled
            or not any(type(event) is FinishEvent and event.error for _, event in batch)
        ):
            batch += await events.some()
        if self.gone:
            return _Sent()
        if self.failure is not None:
            raise RequestError.of(self.failure)
        reply = call.encoder(events.records)

        def encode() -> bytes | str:
            self._feed(reply, batch)
            failure = self.failure
            if failure is None:
                value = reply.whole()
                return value if isinstance(value, str) else json_bytes(value)
            # How much there was by then is said beside what it ended with.
            whole = reply.whole() if failure.kind is Kind.TIMEOUT else None
            if isinstance(whole, dict) and "usage" in whole:
                failure = replace(failure, details={"usage": whole["usage"]})
            raise RequestError.of(failure)

        if len(batch) <= _SHORT:
            body = encode()
        else:
            loop = asyncio.get_running_loop()
            body = await loop.run_in_executor(self._service.workers, encode)
        kind = "text/plain" if isinstance(body, str) else "application/json"
        return Response(body, media_type=kind)

    # -- a stream -------------------------------------------------------------------------------

    async def _stream(self, call: WireCall, events: AsyncEvents) -> Response:
        reply = call.encoder(events.records)
        await self._out.begin(reply.open())
        try:
            await self._pump(events, reply, self._out)
        except Exception as error:
            self.failure = failure_of(error)
        if not self.gone:
            last = reply.close() if self.failure is None else reply.fail(self.failure)
            self._said_all = True
            await self._out.send(self._held + last, more=False)
        self._out.close()
        # Wait until the requests have ended, which takes at most a step.
        events.cancel()
        while events.unfinished:
            await events.some()
        return _Sent()

    async def _pump(self, events: AsyncEvents, reply: WireReply, out: EventStream) -> None:
        """Pass on what the engine says, until the end, a failure, or the client's leaving.

        While all goes well, events are sent where they arrive, without waking this task.
        """
        problems: list[Exception] = []

        def send_on() -> bool:
            if self._over or self._has_news:
                return False
            try:
                batch = events.ready()
                frames = self._news(reply, events.records[0]) if self._has_news else b""
                frames += self._feed(reply, batch)
                if not events.unfinished:
                    self._held += frames
                    return False
                room = not frames or out.send_now(frames)
            except Exception as error:  # what is wrong is for the task to tell
                problems.append(error)
                return False
            return room and not self._over

        events.handle(send_on)
        while events.unfinished and not self._over:
            batch = events.ready() if self._has_news else await events.some()
            if problems:
                raise problems[0]
            await out.flush()
            frames = self._news(reply, events.records[0]) if self._has_news else b""
            frames += self._feed(reply, batch)
            if not events.unfinished:
                self._held += frames
            elif frames and not self.gone:
                await out.send(frames)

    def _feed(self, reply: WireReply, batch: Sequence[tuple[int, Event]]) -> bytes:
        """Encode events, up to the first failure."""
        frames: list[bytes] = []
        for index, event in batch:
            if self.failure is not None:
                break
            if isinstance(event, FinishEvent) and self._cancelled:
                # What its client has ended is complete, and no failure.
                asked = isinstance(event.error, RequestCancelled)
                event = replace(event, error=None) if asked else event
            frames.append(reply.feed(index, event))
            if type(event) is FinishEvent:
                self._note_end(index)
                if event.error is not None:
                    self.failure = failure_of(event.error)
        return b"".join(frames)

    def _note_end(self, index: int) -> None:
        """Tell the sessions, once, that a request has ended or is about to."""
        if index not in self._noted:
            self._noted.add(index)
            self._service.sessions.note(self.model.id, self.records[index])

    @property
    def _has_news(self) -> bool:
        return self._silent or bool(self._progress)

    def _news(self, reply: WireReply, record: Record) -> bytes:
        """What no event of the engine says, and what comes before those that there are."""
        self._silent = False
        if not self._progress:
            return reply.keep_alive()
        frames = b""
        while self._progress:
            done, total, now = self._progress.popleft()
            waited, seconds = now - record.submitted, now - record.started
            frames += reply.progress(PromptProgress(done, record.reused, total, waited, seconds))
        return frames

    async def _refused(self, call: WireCall) -> Response:
        """It was not queued: an error, or a stream that begins and fails."""
        failure = self.failure or Failure(Kind.UNAVAILABLE, "the request was ended; try again")
        if not (call.stream and call.overflows_in_stream):
            raise RequestError.of(failure)
        reply = call.encoder(())
        await self._out.begin(reply.open())
        await self._out.send(reply.fail(failure), more=False)
        return _Sent()

    # -- what the stream and the engine report --------------------------------------------------

    def _note_silence(self) -> None:
        if self._events is None:  # its model is being loaded, or the call parsed
            self._out.send_now(sign_of_life(self._request.scope))
            return
        self._silent = True
        self._wake()

    def _wake(self) -> None:
        if self._events is not None:
            self._events.wake()

    def _give_up(self) -> None:
        """The client does not read: nothing more is done for it, and the connection goes."""
        self._leave()
        abort(self._request.scope)


# ---- counting ------------------------------------------------------------------------------------
#
# ``count_tokens``: how long a prompt is, without evaluating it.


async def count_tokens(request: Request, parse: Parse) -> int:
    """The tokens that the prompts of a request would have if it were sent now.

    It waits for its model, but for nobody else: the engine has no part in it.

    Raises:
        RequestError, LlamaError: the request could not be answered.
    """
    service = service_of(request)
    caller = caller_of(request)
    body = await read_body(request, service.settings)
    async with service.models.lease(model_of(body), request.receive) as model:

        def count() -> tuple[int, list[GenerationRequest]]:
            requests = adapted(parse(body, model), model, service, caller)
            port = model.llama.runtime.port
            tokens, too_long = 0, []
            for each in requests:
                try:
                    tokens += port.count(each) if not each.choice else 0
                except ContextOverflowError:  # a caller that counts wants the number
                    too_long.append(each)
            return tokens, too_long

        counted, longer = await service.prepare(model.id, count)
        if longer:  # which takes seconds if there are megabytes: calls have threads of their own
            calls = model.llama.runtime.calls
            counted += await in_thread(
                service, lambda: sum(len(calls.tokens_of(each.prompt)) for each in longer)
            )
    return counted
