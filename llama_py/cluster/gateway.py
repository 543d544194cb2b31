"""``Gateway``: the one address of a cluster, as an ASGI application.

It does once what must not be done once for each replica: ``server.access.guard`` looks at keys,
scopes, rates and sizes. What is let in is read, and goes to a replica with a hint for the router;
what comes back is passed on as it comes.

A replica may die. As long as nothing of its answer but the opening was passed on, another one
answers, and the client notices nothing: openings wait for what follows them. Behind that, a stream
ends with an error in its dialect.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol
from urllib.parse import unquote

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from llama_py.cluster.ask import AnswerHead, AnswerTail, Ask, Piece
from llama_py.cluster.pages import merged
from llama_py.dialects.failures import Failure, Kind, RequestError, failure_of
from llama_py.dialects.routing_hints import Hint, hint_of
from llama_py.dialects.session_ids import label_of, session_of
from llama_py.errors import ParameterError
from llama_py.server.access.guard import Guard
from llama_py.server.access.keys import Caller
from llama_py.server.app import routes_of
from llama_py.server.config.settings import Settings
from llama_py.server.errors import failure_answer, failure_event, route_path
from llama_py.server.lifecycle import Lifecycle
from llama_py.server.logs import log_request
from llama_py.server.operations import Operations
from llama_py.server.request_record import RequestRecord
from llama_py.server.transport.bodies import parse_body, read_bytes
from llama_py.server.transport.extras import client_left

__all__ = ["REPLICA_HEADER", "Gateway", "ReplicaGone", "Replicas", "gateway_app"]

#: Says in each answer which replica gave it.
REPLICA_HEADER = b"x-llama-py-replica"
#: How often a request is sent, at most.
_ATTEMPTS = 4
#: Replies of ``/v1/responses`` whose conversation is known.
_MOST_RESPONSES = 65_536
#: Bytes of a body that are read and cut into blocks before another thread would wake up.
_SMALL = 64 << 10
#: What belongs to one connection, what says who asks, and what the gateway says itself.
_NOT_PASSED_ON = frozenset(
    b"authorization connection content-length expect keep-alive origin proxy-authorization "
    b"request-id te trailer transfer-encoding upgrade x-api-key x-request-id".split()
)
_RESPONSE_ENDS = re.compile(rb"^event: response\.(completed|incomplete|failed)\r?$", re.MULTILINE)
_NOT_PASSED_BACK = frozenset(
    b"connection keep-alive request-id transfer-encoding x-content-type-options "
    b"x-request-id".split()
)
_SESSION = re.compile(r"/v1/sessions/(?P<id>.+?)(/fork|/save|/snapshots.*)?")
_RESPONSE = re.compile(r"/v1/responses/(?P<id>[^/]+)(/.*)?")
#: What may be in the memory of more than one replica.
_KEPT = ("/v1/sessions/", "/v1/responses/")


class ReplicaGone(Exception):
    """A replica ended before its answer did. It does not leave the gateway."""


class Replicas(Protocol):
    """Those who answer, however they are reached."""

    def stream(self, ask: Ask) -> AsyncGenerator[Piece, None]:
        """The answer of the replica that the router chooses. Closing it cancels the request.

        Raises:
            ReplicaGone: it died, or was stopped.
        """

    async def everywhere(self, method: str, *arguments: Any) -> list[Any]:
        """What a method of all replicas returns; of those that fail nothing."""

    def begun(self, request: str) -> None:
        """A request has its first token."""

    def ready(self) -> bool:
        """Whether there is any."""


def gateway_app(settings: Settings, replicas: Replicas) -> ASGIApp:
    """The application: the gateway behind the guard.

    Args:
        settings: of the server; keys and limits count here.
    """
    operations = Operations(routes_of(settings))
    gateway = Gateway(settings, replicas, operations)
    return Guard(gateway, settings, Lifecycle(), operations, (log_request,))


class Gateway:
    """See the module. Used by one event loop."""

    def __init__(self, settings: Settings, replicas: Replicas, operations: Operations) -> None:
        self._settings = settings
        self._replicas = replicas
        self._operations = operations
        #: Name -> id of the models; nothing where there is one, which takes any name.
        models = settings.models if len(settings.models) > 1 else ()
        self._names = {name: each.id for each in models for name in (each.id, *each.aliases)}
        #: Which conversation, for the router, a reply of ``/v1/responses`` belongs to.
        self._conversations: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "lifespan":
            while True:
                event = await receive()
                await send({"type": f"{event['type']}.complete"})
                if event["type"] == "lifespan.shutdown":
                    return
        answer = _ClientAnswer(scope, send)
        try:
            path = route_path(scope)
            if path in ("/livez", "/api/hello"):
                await answer.whole(200, b'{"status":"ok"}')
            elif path in ("/readyz", "/health", "/v1/health"):
                if not self._replicas.ready():
                    message = "there is no replica yet"
                    raise RequestError(Kind.UNAVAILABLE, message, retry_after=2.0)
                await answer.whole(200, b'{"status":"ok"}')
            elif path == "/metrics":
                pages = await self._replicas.everywhere("metrics")
                await answer.whole(200, merged(pages), b"text/plain; version=0.0.4; charset=utf-8")
            else:
                await self._pass_on(Request(scope, receive), answer)
        except ClientDisconnect:
            raise
        except Exception as error:
            await answer.fail(failure_of(error), self._settings.overflow_status)

    async def _pass_on(self, request: Request, answer: _ClientAnswer) -> None:
        data = await read_bytes(request, self._settings)
        if len(data) > _SMALL:
            ask = await asyncio.to_thread(self._ask_of, request, data)
        else:
            ask = self._ask_of(request, data)
        if self._operations.find(ask.method, ask.path).every_replica:
            answers: list[tuple[AnswerHead, bytes]]
            answers = await self._replicas.everywhere("whole", ask)
            if not answers:
                raise RequestError.of(_gone())
            # That of the first replica that refuses, or else of any.
            head, body = max(answers, key=lambda each: each[0].status)
            answer.open(head)
            await answer.add(body)
            await answer.end()
            return
        leaving = asyncio.ensure_future(client_left(request.receive))
        working = asyncio.ensure_future(self._exchange(ask, answer))
        try:
            await asyncio.wait({leaving, working}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientDisconnect
            working.result()
        finally:
            leaving.cancel()
            working.cancel()
            await asyncio.wait({leaving, working})
        if ask.method == "DELETE" and ask.path.startswith(_KEPT):
            await self._replicas.everywhere("forget", ask)

    # -- what is asked --------------------------------------------------------------------------

    def _ask_of(self, request: Request, data: bytes) -> Ask:
        scope = request.scope
        caller: Caller = scope["state"]["caller"]
        body: Mapping[str, Any] = {}
        if data and "json" in request.headers.get("content-type", ""):
            try:
                body = parse_body(data, self._settings.max_json_depth)
            except RequestError:
                pass  # a replica says what is wrong
        path = route_path(scope)
        record: RequestRecord = scope["state"]["record"]
        headers = [each for each in scope["headers"] if each[0] not in _NOT_PASSED_ON]
        headers.append((b"x-request-id", record.id.encode()))
        headers.append((b"content-length", str(len(data)).encode()))
        hint = self._hint(request, path, body, caller)
        # A client may use one id for two requests: the router needs its own.
        return Ask(
            scope["method"],
            path,
            scope.get("query_string", b""),
            tuple(headers),
            data,
            caller,
            uuid.uuid4().hex,
            hint,
        )

    def _hint(self, request: Request, path: str, body: Mapping[str, Any], caller: Caller) -> Hint:
        tenant = caller.tenant
        try:
            name = session_of(body, request.headers)
        except ParameterError:
            name = None  # a replica says what is wrong
        named = _SESSION.fullmatch(path)
        if named is not None:
            name = unquote(named["id"])
        session = label_of(tenant, name)
        before = _RESPONSE.fullmatch(path)
        previous = before["id"] if before is not None else body.get("previous_response_id")
        if session is None and isinstance(previous, str):
            session = self._conversations.get((tenant, previous))
        model = body.get("model")
        known = self._names.get(model, "") if isinstance(model, str) else ""
        hint = hint_of(body, owner=tenant, model=known, session=session)
        if session is None and path.endswith("/responses") and body.get("store") is not False:
            hint = replace(hint, session=f"{tenant}\x1f\x1f{uuid.uuid4().hex}")
        return hint

    # -- answers --------------------------------------------------------------------------------

    async def _exchange(self, ask: Ask, answer: _ClientAnswer) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._try(ask, answer)
            except ReplicaGone:
                answer.forget()
                if answer.begun:
                    return await answer.interrupt()
                if attempt == _ATTEMPTS:
                    raise RequestError.of(_gone()) from None
        raise AssertionError

    async def _try(self, ask: Ask, answer: _ClientAnswer) -> None:
        tail, count = AnswerTail(), 0
        async with contextlib.aclosing(self._replicas.stream(ask)) as stream:
            async for piece in stream:
                if isinstance(piece, AnswerHead):
                    answer.open(piece)
                elif isinstance(piece, AnswerTail):
                    tail = piece
                else:
                    count += 1
                    if count == 2:
                        self._replicas.begun(ask.id)
                    await answer.add(piece)
        # Before its end is out: the next request of the client may be here before this goes on.
        if tail.model:
            record = answer.record
            record.model, record.generated_tokens = tail.model, tail.generated_tokens
            record.prompt_tokens, record.cached_tokens = tail.prompt_tokens, tail.cached_tokens
        if tail.response and ask.hint.session is not None and ask.path.endswith("/responses"):
            self._conversations[ask.caller.tenant, tail.response] = ask.hint.session
            while len(self._conversations) > _MOST_RESPONSES:
                self._conversations.popitem(last=False)
        await answer.end()


def _gone() -> Failure:
    message = "the replica that worked on this request is gone; send the request again"
    return Failure(Kind.UNAVAILABLE, message, code="replica_gone", retry_after=1.0)


@dataclass(slots=True, eq=False)
class _ClientAnswer:
    """The answer to a client.

    Attributes:
        begun: its head is out.
    """

    scope: Scope
    send: Send
    begun: bool = False
    head: AnswerHead | None = None
    held: bytes = b""
    pieces: int = 0

    @property
    def record(self) -> RequestRecord:
        """The request's facts."""
        record: RequestRecord = self.scope["state"]["record"]
        return record

    @property
    def is_stream(self) -> bool:
        """Whether it is a stream of events."""
        headers = dict(self.head.headers) if self.head is not None else {}
        return headers.get(b"content-type", b"").startswith(b"text/event-stream")

    def open(self, head: AnswerHead) -> None:
        """Its head, which waits for what follows."""
        self.head, self.held, self.pieces = head, b"", 0

    def forget(self) -> None:
        """Nothing of it was sent, and nothing will be."""
        if not self.begun:
            self.head, self.held, self.pieces = None, b"", 0

    async def add(self, piece: bytes) -> None:
        """A piece of its body. The opening of a stream waits, and all of what is not a stream.

        So does the last event of a reply of ``/v1/responses``: with it, its id can be used.
        """
        self.pieces += 1
        self.held += piece
        if self.is_stream and self.pieces > 1 and not _RESPONSE_ENDS.search(self.held):
            await self._flush(more=True)

    async def end(self) -> None:
        """That was all."""
        await self._flush(more=False)

    async def _flush(self, *, more: bool) -> None:
        if self.head is None:
            raise ReplicaGone("a replica ended before it answered")
        if not self.begun:
            self.begun = True
            kept = [each for each in self.head.headers if each[0] not in _NOT_PASSED_BACK]
            headers = [*kept, (REPLICA_HEADER, self.head.replica.encode())]
            start = {"type": "http.response.start", "status": self.head.status}
            await self.send({**start, "headers": headers})
        held, self.held = self.held, b""
        await self.send({"type": "http.response.body", "body": held, "more_body": more})

    async def interrupt(self) -> None:
        """The end of a stream whose replica is gone."""
        failure = _gone()
        self.record.error = failure.kind.value
        last = failure_event(self.scope, failure)
        await self.send({"type": "http.response.body", "body": last, "more_body": False})

    async def whole(self, status: int, body: bytes, kind: bytes = b"application/json") -> None:
        """An answer of the gateway itself."""
        self.begun = True
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    async def fail(self, failure: Failure, overflow_status: int) -> None:
        """Say what is wrong."""
        self.record.error = failure.kind.value
        if self.begun:
            raise RequestError.of(failure)
        status, headers, body = failure_answer(self.scope, failure, overflow_status)
        pairs = [(name.lower().encode(), text.encode()) for name, text in headers.items()]
        pairs.append((b"content-length", str(len(body)).encode()))
        self.begun = True
        await self.send({"type": "http.response.start", "status": status, "headers": pairs})
        await self.send({"type": "http.response.body", "body": body})
