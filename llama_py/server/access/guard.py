"""``Guard``: the outermost middleware, which decides who is let in and notes what became of it.

Pure ASGI. What is not let in costs nothing further: no body is kept, and no handler is called. In
this order a request is looked at: the size of its headers, ``Host``, ``Origin``, the key, its
scopes, whether the server is loading or draining, the type and declared size of the body, the
key's limits. Whatever is wrong is said in the dialect of the path.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable, Sequence

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llama_py.dialects.failures import Failure, Kind
from llama_py.server.access.clients import ClientAddresses
from llama_py.server.access.keys import Allowance, Caller, KeyRing
from llama_py.server.access.origins import HostCheck, OriginCheck, preflight_headers
from llama_py.server.config.settings import Settings
from llama_py.server.errors import failure_answer, route_path
from llama_py.server.lifecycle import Lifecycle
from llama_py.server.operations import PUBLIC, Operation, Operations
from llama_py.server.request_record import RequestRecord
from llama_py.server.transport.extras import BODY, CALLER
from llama_py.server.transport.unread import Unread
from llama_py.tenants import working_for

__all__ = ["Guard"]

_log = logging.getLogger("llama_py.server")

#: Characters that cannot harm a log or a header.
_ID = re.compile(r"[A-Za-z0-9._:=+/@-]{1,128}")
_CLIENT_LEFT = 499
_KEY_NEEDED = "an API key is needed: send it as Authorization: Bearer KEY, or as x-api-key: KEY"


class RequestHead:
    """The head of a request.

    Attributes:
        size: bytes of its line and its headers, about.
    """

    __slots__ = ("_values", "headers", "method", "path", "size")

    def __init__(self, scope: Scope) -> None:
        headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        self.method: str = scope["method"]
        self.path = route_path(scope)
        self.headers = headers
        line = len(scope.get("raw_path") or self.path) + len(scope.get("query_string", b""))
        self.size = line + sum(len(name) + len(value) + 4 for name, value in headers)
        # A dozen of them are asked for, of each request.
        self._values: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            self._values.setdefault(name, []).append(value)

    def all(self, name: bytes) -> list[str]:
        """The values of a header."""
        return [value.decode("latin-1") for value in self._values.get(name, ())]

    def first(self, name: bytes) -> str | None:
        """The first value of a header, or None."""
        values = self._values.get(name)
        return values[0].decode("latin-1") if values else None


def _has_two_ends(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a proxy in front might see another end of a request than we do."""
    encodings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if not encodings:
        return False
    return encodings != [b"chunked"] or any(name == b"content-length" for name, _ in headers)


class Guard:
    """The outermost middleware: lets requests in, and notes what became of them.

    Args:
        app: what is guarded.
        lifecycle: whether requests are let in now.
        operations: what there is, and who may ask for it.
        finished: called with the record of each request when it is over.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        lifecycle: Lifecycle,
        operations: Operations,
        finished: Iterable[Callable[[RequestRecord], None]] = (),
    ) -> None:
        self._app = app
        self._settings = settings
        self._lifecycle = lifecycle
        self._operations = operations
        self._finished = tuple(finished)
        self._keys = KeyRing(settings.api_keys)
        self._allowances = {key.name: Allowance(key) for key in settings.api_keys}
        self._clients = ClientAddresses(settings.trusted_proxies)
        self._hosts = HostCheck(settings)
        self._origins = OriginCheck(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008, "reason": "no WebSockets here"})
            return
        asked = RequestHead(scope)
        ids = (asked.first(name) for name in (b"x-request-id", b"request-id"))
        given = next((each for each in ids if each is not None and _ID.fullmatch(each)), None)
        record = RequestRecord(given or f"req_{uuid.uuid4().hex}", asked.method, asked.path)
        peer = (scope.get("client") or ("",))[0]
        record.client = self._clients.find(peer, asked.all(b"x-forwarded-for"))
        record.caller = scope.get("state", {}).get(CALLER, record.caller)
        scope.setdefault("state", {}).update(request_id=record.id, record=record)
        scope["state"].setdefault(BODY, send)
        unread = Unread(scope, receive)
        answer = _Answer(scope, send, record, self._settings.overflow_status, unread)
        try:
            failure = self._look(asked, record, answer)
            if failure is not None:
                await answer.fail(failure)
            elif asked.method == "OPTIONS":
                await answer.whole(204, {}, b"")
            else:
                await self._let_in(record, scope, unread.receive, answer)
        finally:
            self._finish(scope, record)
        await answer.end()

    # -- before ---------------------------------------------------------------------------------

    def _look(self, asked: RequestHead, record: RequestRecord, answer: _Answer) -> Failure | None:
        """Why a request is not let in, or None."""
        settings = self._settings
        if asked.size > settings.max_header_bytes or len(asked.headers) > settings.max_headers:
            message = (
                f"the request has {len(asked.headers)} headers, and {asked.size} bytes with its "
                f"line; the limits are {settings.max_headers} and {settings.max_header_bytes}"
            )
            return Failure(Kind.HEADERS_TOO_LARGE, message)
        failure = self._hosts.refusal(asked.all(b"host"))
        if failure is not None:
            return failure
        origin, host = asked.first(b"origin"), asked.first(b"host") or ""
        # The site whose page a browser sends this for; following a link is a person's own doing.
        followed = asked.first(b"sec-fetch-mode") == "navigate" and asked.method == "GET"
        failure, cors = self._origins.look(
            origin, host, None if followed else asked.first(b"sec-fetch-site")
        )
        answer.headers += cors
        if failure is not None:
            return failure
        if asked.method == "OPTIONS":
            if origin is not None:
                answer.headers += preflight_headers(asked.first(b"access-control-request-headers"))
            return None
        operation = self._operations.find(asked.method, asked.path)
        return None if operation.scope is PUBLIC else self._check_call(asked, record, operation)

    def _check_call(
        self, asked: RequestHead, record: RequestRecord, operation: Operation
    ) -> Failure | None:
        """The checks of what is not for everybody."""
        if self._keys:  # find out who asks
            given = _keys_of(asked)
            found = [key for key in map(self._keys.find, given) if key is not None]
            if not found:
                unknown = "the API key that was sent is not one of this server"
                return Failure(Kind.UNAUTHORIZED, unknown if given else _KEY_NEEDED)
            key = found[0]
            record.caller = Caller(key.name, key.scopes, self._settings.share_prefixes)
        if operation.scope not in record.caller.scopes:
            message = f"the API key {record.caller.name!r} may not do this: it lacks the scope "
            return Failure(Kind.FORBIDDEN, f"{message}{operation.scope!r}")
        refusal = None if operation.always else self._lifecycle.refusal()
        return refusal or self._check_body(asked, operation)

    def _check_body(self, asked: RequestHead, operation: Operation) -> Failure | None:
        if _has_two_ends(asked.headers):
            message = "a request has a Content-Length, or Transfer-Encoding: chunked, and not both"
            return Failure(Kind.INVALID_VALUE, message)
        length = asked.first(b"content-length") or "0"
        if asked.method in ("GET", "HEAD") or (
            length == "0" and asked.first(b"transfer-encoding") is None
        ):
            return None
        kind = (asked.first(b"content-type") or "").partition(";")[0].strip().lower()
        wanted = operation.body_type
        # A form of another site's page says where it comes from; what curl sends does not.
        by_hand = asked.first(b"origin") is None and asked.first(b"sec-fetch-site") is None
        if kind != wanted and not (operation.any_type and by_hand):
            message = f"send Content-Type: {wanted}, and not {kind or 'none'}"
            return Failure(Kind.MEDIA_TYPE, message)
        encoding = (asked.first(b"content-encoding") or "identity").strip().lower()
        if encoding != "identity":
            message = f"a body with Content-Encoding: {encoding[:40]} is not read; send it as it is"
            return Failure(Kind.MEDIA_TYPE, message)
        limit = self._settings.max_body_bytes
        if length.isdecimal() and (len(length) > 18 or int(length) > limit):
            # Clients take the words "prompt", "context" and "token" for too long a conversation.
            size = f"request body of {length[:18]} bytes"
            return Failure(Kind.BODY_TOO_LARGE, f"{size} is larger than the limit of {limit} bytes")
        return None

    # -- inside ---------------------------------------------------------------------------------

    async def _let_in(
        self, record: RequestRecord, scope: Scope, receive: Receive, answer: _Answer
    ) -> None:
        scope["state"]["caller"] = record.caller
        operation = self._operations.find(record.method, record.path)
        if operation.scope is PUBLIC:  # probes neither count nor delay a drain
            await self._run(scope, receive, answer)
            return
        allowance = self._allowances.get(record.caller.name)
        exceeded = allowance.begin() if allowance is not None else None
        if exceeded is not None:
            message, wait = exceeded
            await answer.fail(Failure(Kind.RATE_LIMIT, message, retry_after=wait))
            return
        self._lifecycle.begin()
        try:
            await self._run(scope, receive, answer)
        finally:
            self._lifecycle.end()
            if allowance is not None:
                allowance.end()

    async def _run(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        try:
            with working_for(answer.record.caller.tenant):
                await self._app(scope, receive, answer.send)
        except ClientDisconnect:
            answer.record.status = _CLIENT_LEFT
        except asyncio.CancelledError:  # the server stops, and has waited for long enough
            if answer.begun:
                raise
            await answer.fail(self._lifecycle.interrupted())
        except Exception:
            _log.exception("request %s failed", answer.record.id)
            if not answer.begun:
                message = "the server failed to answer this request; its log says why"
                await answer.fail(Failure(Kind.INTERNAL, message))

    # -- afterwards -----------------------------------------------------------------------------

    def _finish(self, scope: Scope, record: RequestRecord) -> None:
        record.ended = time.perf_counter()
        routed = scope.get("route")  # not in older Starlettes, nor for what was not let in
        if routed is None:
            path = route_path(scope)
            routes = scope["app"].routes if "app" in scope else ()
            routed = next((each for each in routes if each.path_regex.match(path)), None)
        # The path as its route declares it; empty if there is no such route.
        record.route = str(routed.path) if routed is not None else ""
        exchange = scope["state"].get("exchange")
        if exchange is not None:
            record.model = exchange.model.id
            record.note(exchange.records)
            if exchange.failure is not None:
                record.error = exchange.failure.kind.value
            if exchange.gone:
                record.status = _CLIENT_LEFT
        for tell in self._finished:
            tell(record)


def _keys_of(asked: RequestHead) -> list[bytes]:
    """The keys that a request shows; clients may send one in each of two headers."""
    keys = [value.strip() for value in asked.all(b"x-api-key")]
    for value in asked.all(b"authorization"):
        scheme, _, key = value.partition(" ")
        if scheme.lower() == "bearer":
            keys.append(key.strip())
    return [key.encode("latin-1") for key in keys[:4] if key]


class _Answer:
    """Sends what is answered, with the headers that every answer has.

    Attributes:
        begun: the headers are out.
        headers: those to be added.
    """

    def __init__(
        self,
        scope: Scope,
        send: Send,
        record: RequestRecord,
        overflow_status: int,
        unread: Unread,
    ) -> None:
        self._scope = scope
        self._send = send
        self._overflow_status = overflow_status
        self._unread = unread
        self._measured = self._open = False
        self.record = record
        self.begun = False
        self.headers = [
            ("x-request-id", record.id),
            ("request-id", record.id),
            ("X-Content-Type-Options", "nosniff"),
        ]

    async def send(self, message: Message) -> None:
        """Send a message of the app."""
        if message["type"] == "http.response.start":
            self.begun = True
            self.record.status = message["status"]
            own = [*self.headers]
            if self.record.prefix:
                own.append(("X-Prefix-Id", self.record.prefix))
            added = [(name.lower().encode(), text.encode()) for name, text in own]
            headers = [*message.get("headers", ()), *added]
            message = {**message, "headers": headers}
            self._measured = any(name == b"content-length" for name, _ in headers)
        elif self._unread and self._measured and not message.get("more_body", False):
            self._open = True  # all of it goes out now, and the connection ends in ``end``
            message = {**message, "more_body": True}
        await self._send(message)

    async def end(self) -> None:
        """It was answered. If the client is still sending, let it come to its end."""
        if self._open:
            await self._unread.forget()
            await self._send({"type": "http.response.body", "body": b""})

    async def fail(self, failure: Failure) -> None:
        """Say what is wrong."""
        self.record.error = failure.kind.value
        status, headers, body = failure_answer(self._scope, failure, self._overflow_status)
        if _has_two_ends(self._scope["headers"]):
            headers = {**headers, "Connection": "close"}
        await self.whole(status, headers, b"" if self.record.method == "HEAD" else body)

    async def whole(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Send a whole answer."""
        if status != 204:
            headers = {**headers, "Content-Length": str(len(body))}
        pairs = [(name.lower().encode(), text.encode()) for name, text in headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": pairs})
        await self.send({"type": "http.response.body", "body": body})
