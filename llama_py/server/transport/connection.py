"""``Connection``: uvicorn's protocol for HTTP, with the limits that it lacks.

* **The head of a request** is bounded in bytes and in time, before an application hears of it; what
  fits in here is counted exactly by ``guard``. The same limit of bytes holds for what comes with a
  body and is none: the headers behind it, which the parser would keep, and notes on chunks.
* **A client that does not read** is cut off after a while. What is sent waits in memory for as long
  as it does not, and so do its request and a connection that was closed. ``EventStream`` sees this
  for streams, and ends their requests; here it ends the connection, whatever was asked for.
* **Requests sent ahead.** uvicorn stops reading then, and takes the last request that came for the
  one that is being answered; so nobody learns that the client has left, and the model goes on for
  nobody. Here what comes meanwhile is kept aside and parsed afterwards, and everything that is
  unanswered ends with the connection.
* **Offers of another protocol** are ignored. Java's client offers HTTP/2 with each request, and the
  parser takes what follows such a head for the other protocol: the body would be lost. So the head
  is read once more, without the offer.
* **A client of HTTP/1.0** knows no chunks. The end of a stream is the end of its connection.
* **The app** can end a connection at once, and send bodies past its middleware; see ``extras``.

The parser is httptools: it refuses lines that not every program reads alike, which are those that
end with LF alone, and headers that go on in the next line.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import FunctionType
from typing import Any

import httptools
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http import flow_control, httptools_impl

from llama_py.dialects.failures import Failure, Kind, openai_error
from llama_py.dialects.wire_json import json_bytes
from llama_py.errors import NativeLibraryError
from llama_py.server.config.settings import Settings
from llama_py.server.transport.extras import ABORT, BODY

__all__ = ["Connection", "check_uvicorn", "connection_class"]

#: What is used here of uvicorn beyond what it documents: of its classes, methods, and attributes
#: that these set. If a release renamed one, a limit would be gone and nobody would notice.
_RELIED_ON = {
    (httptools_impl, "HttpToolsProtocol"): (
        "_unset_keepalive_if_required connection_lost connection_made on_body on_header "
        "on_headers_complete on_message_complete on_response_complete pause_writing resume_writing "
        "timeout_keep_alive_handler",
        "app client cycle flow headers logger loop parser transport url",
    ),
    (httptools_impl, "RequestResponseCycle"): (
        "receive send",
        "chunked_encoding disconnected expected_content_length message_event more_body "
        "response_complete response_started",
    ),
    (flow_control, "FlowControl"): ("pause_reading resume_reading", ""),
}

#: Bytes sent ahead beyond which nothing more is read before the answer.
_MOST_AHEAD = 64 << 10
#: What belongs to an offer of another protocol, as a header or as a word in ``Connection``.
_OFFER = frozenset({b"upgrade", b"http2-settings"})


def check_uvicorn() -> None:
    """Raise if this release of uvicorn lacks something that the limits need.

    Raises:
        NativeLibraryError: what it is; another release of uvicorn has to be installed.
    """
    missing: list[str] = []
    for (module, name), (methods, attributes) in _RELIED_ON.items():
        kind = getattr(module, name, None)
        if kind is None:
            missing.append(name)
            continue
        code = [each.__code__ for each in vars(kind).values() if isinstance(each, FunctionType)]
        named = {word for each in code for word in each.co_names}
        missing += [f"{name}.{each}" for each in methods.split() if not hasattr(kind, each)]
        missing += [f"{name}.{each}" for each in attributes.split() if each not in named]
    if missing:
        raise NativeLibraryError(
            f"this release of uvicorn has no {', '.join(missing)}, on which the limits on "
            "connections rely; install one that llama-py[server] allows"
        )


def connection_class(settings: Settings) -> type[asyncio.Protocol]:
    """The class to be given to uvicorn as ``http``.

    Raises:
        NativeLibraryError: as ``check_uvicorn``.
    """
    check_uvicorn()
    return type("Connection", (Connection,), {"settings": settings})


class Connection(httptools_impl.HttpToolsProtocol):
    """See the module. The methods that begin with ``on_`` are called by httptools or by uvicorn.

    Attributes:
        settings: with the limits; set by ``connection_class``.
    """

    settings: Settings
    cycle: Any  # None before the first request

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        #: Bytes of the head that comes now, and those since the last byte of a body.
        self._head_size = self._beside_body = 0
        self._head_timer: asyncio.TimerHandle | None = None
        #: A head has come, and the rest of its request has not; it offers another protocol.
        self._in_body = self._offered = False
        #: Requests that were parsed and are not answered, the one that is being answered first.
        self._unanswered: list[Any] = []
        self._ahead: deque[bytes] = deque()
        #: Bytes that were unsent when the timer was set.
        self._unsent = 0
        self._unsent_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        app: Any = self.app

        async def with_extras(scope: Scope, receive: Receive, send: Send) -> None:
            scope.setdefault("extensions", {})[ABORT] = transport.abort
            if scope["type"] == "http" and scope["http_version"] == "1.0":
                send = _without_chunks(send)
            scope.setdefault("state", {})[BODY] = send
            await app(scope, receive, send)

        self.app = with_extras
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, and waits for none of its answers."""
        self._ahead.clear()
        self._stop_waiting_for_head()
        self._stop_watching_unsent()
        for each in self._unanswered:
            if not each.response_complete:
                each.disconnected = True
                each.message_event.set()
        super().connection_lost(exc)

    # -- what comes in --------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Some bytes came."""
        if self._is_answering():
            self._ahead.append(data)
            if sum(map(len, self._ahead)) > _MOST_AHEAD:
                self.flow.pause_reading()
            return
        cycle, was_in_body = self.cycle, self._in_body
        self._beside_body += len(data)
        self._parse(data)
        if self.cycle is cycle and not was_in_body and not self._in_body:
            self._head_size += len(data)
            if self._head_size > self.settings.max_header_bytes:
                self._refuse_head()
            elif self._head_timer is None:
                self._wait_for_head()
        else:
            self._head_size = 0
            self._stop_waiting_for_head()
            if self._in_body and self._beside_body > self.settings.max_header_bytes:
                self._refuse_head()
        if self._is_answering():  # several came in one piece, and uvicorn has stopped reading
            self.flow.resume_reading()

    def _parse(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:  # it says how far it came
                if not self._offered:
                    return
                data = self._head_without_offer() + data[upgrade.args[0] :]
            except httptools.HttpParserError:
                self._refuse(Failure(Kind.INVALID_VALUE, "this is not a valid HTTP request"))
                return

    def _head_without_offer(self) -> bytes:
        lines = [b"%s %s HTTP/1.1" % (self.parser.get_method(), self.url)]
        for name, value in self.headers:
            if name == b"connection":
                words = (word.strip() for word in value.split(b","))
                value = b", ".join(word for word in words if word.lower() not in _OFFER)
            if value and name not in _OFFER:
                lines.append(b"%s: %s" % (name, value))
        return b"\r\n".join((*lines, b"", b""))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header came. What stands behind a body is dropped: nobody has looked at it."""
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._in_body, self._beside_body = True, 0
        self._offered = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if not self._offered:
            super().on_headers_complete()
            open_ones = [each for each in self._unanswered if not each.response_complete]
            self._unanswered = [*open_ones, self.cycle]

    def on_body(self, body: bytes) -> None:
        """A part of the body came."""
        self._beside_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is there, or so it seems."""
        self._in_body = False
        if not self._offered:
            super().on_message_complete()

    def _is_answering(self) -> bool:
        """Whether a request is there as a whole, and its answer is not."""
        left = (each for each in self._unanswered if not each.response_complete)
        cycle = next(left, None)
        return cycle is not None and not cycle.more_body

    # -- heads ----------------------------------------------------------------------------------

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(self.settings.header_timeout, self._no_head_came)

    def _stop_waiting_for_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _no_head_came(self) -> None:
        self._head_timer = None
        if self._is_idle():
            self.transport.close()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _refuse_head(self) -> None:
        limit = self.settings.max_header_bytes
        message = f"the headers of the request are larger than the limit of {limit} bytes"
        self._refuse(Failure(Kind.HEADERS_TOO_LARGE, message))

    def _refuse(self, failure: Failure) -> None:
        """Say what is wrong, if nothing else is being said, and end the connection."""
        self._stop_waiting_for_head()
        if self.transport.is_closing():
            return
        client = self.client[0] if self.client else ""
        fields = {"client": client, "error": failure.kind.value}
        self.logger.warning("refused: %s", failure.message, extra={"fields": fields})
        if self._is_idle() or not self.cycle.response_started:
            status, body, _ = openai_error(failure)
            content = json_bytes(body)
            head = (
                f"HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + content)
        self.transport.close()

    # -- what goes out --------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """A request was answered: the next one begins."""
        super().on_response_complete()
        # The rest of a body that was not read is not another request.
        if self._is_idle() and self.cycle.more_body:
            self.transport.close()
        self._watch_unsent_if_closing()
        while self._ahead and not self._is_answering() and not self.transport.is_closing():
            self.data_received(self._ahead.popleft())

    def timeout_keep_alive_handler(self) -> None:
        """Nothing was asked for a while."""
        super().timeout_keep_alive_handler()
        self._watch_unsent_if_closing()

    def pause_writing(self) -> None:
        """There is no room for more."""
        super().pause_writing()
        self._watch_unsent()

    def resume_writing(self) -> None:
        """There is again."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_watching_unsent()

    def _watch_unsent_if_closing(self) -> None:
        if self.transport.is_closing():
            self._watch_unsent()

    def _watch_unsent(self) -> None:
        """Look later. Nothing more is written meanwhile: there is no room, or nothing to come."""
        self._unsent = self.transport.get_write_buffer_size()
        if self._unsent and self._unsent_timer is None:
            later = self.settings.write_timeout
            self._unsent_timer = self.loop.call_later(later, self._look_at_unsent)

    def _look_at_unsent(self) -> None:
        before, self._unsent_timer = self._unsent, None
        if self.transport.get_write_buffer_size() < before:  # somebody reads
            self._watch_unsent()
        else:
            self.transport.abort()

    def _stop_watching_unsent(self) -> None:
        if self._unsent_timer is not None:
            self._unsent_timer.cancel()
            self._unsent_timer = None


def _without_chunks(send: Send) -> Send:
    """Sends what has no ``Content-Length`` as it is; uvicorn closes the connection after it.

    uvicorn knows bodies of a declared length, and those in chunks: so each part is declared when it
    is sent.
    """
    cycle: Any = send.__self__  # type: ignore[attr-defined]
    endless = False

    async def plain(message: Message) -> None:
        nonlocal endless
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            endless = b"content-length" not in names and message["status"] not in (204, 304)
            if endless:
                cycle.chunked_encoding = False
        elif endless:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return plain
