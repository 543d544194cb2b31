"""``bounded_heads``: uvicorn's protocol, with a limit on the head of a request.

A head is what comes before the body: the request line and the headers. Neither of uvicorn's parsers
limits how long it may take, and httptools keeps a header of any length, before an application hears
of the request. What fits in here is counted exactly by ``guard``. The same limit holds for what
comes with a body and is none: the headers behind it, which httptools keeps as well, and notes on
chunks. Nobody asks for either.
"""

from __future__ import annotations

import asyncio
from typing import Any

from llama_py.dialects.failures import Failure, Kind, openai_error
from llama_py.dialects.wire_json import json_bytes

__all__ = ["bounded_heads"]


class _Bounded:
    """Goes before a protocol of uvicorn's.

    Attributes:
        most: bytes of a head.
        seconds: how long it may take.
    """

    most: int
    seconds: float
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    cycle: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._size = 0
        #: Bytes since the last one of a body.
        self._beside = 0
        self._timer: asyncio.TimerHandle | None = None
        self._body_comes = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        """A client has connected."""
        super().connection_made(transport)  # type: ignore[misc]
        self._wait()

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        self._stop_waiting()
        super().connection_lost(error)  # type: ignore[misc]

    def data_received(self, data: bytes) -> None:
        """Some bytes came."""
        cycle, was_in_head = self.cycle, self._in_head()
        self._beside += len(data)
        super().data_received(data)  # type: ignore[misc]
        if self.cycle is not cycle or not (was_in_head and self._in_head()):
            self._size = 0
            self._stop_waiting()
            if self._body_comes and self._beside > self.most:
                self._end_too_large()
            return
        self._size += len(data)
        if self._size > self.most:
            self._end_too_large()
        elif self._timer is None:
            self._wait()

    def send_400_response(self, _message: str) -> None:
        """Answer what is no HTTP."""
        self._end(Failure(Kind.INVALID_VALUE, "this is not a valid HTTP request"))

    # -- where in a message it is ---------------------------------------------------------------

    def _in_head(self) -> bool:
        connection = getattr(self, "conn", None)  # h11's
        if connection is not None:
            return str(connection.their_state) == "IDLE"
        return not self._body_comes

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by httptools, also for what stands behind a body, which nobody has looked at."""
        if not self._body_comes:
            super().on_header(name, value)  # type: ignore[misc]

    def on_headers_complete(self) -> None:
        """Called by httptools."""
        self._body_comes = True
        self._beside = 0
        super().on_headers_complete()  # type: ignore[misc]

    def on_body(self, body: bytes) -> None:
        """Called by httptools."""
        self._beside = 0
        super().on_body(body)  # type: ignore[misc]

    def on_message_complete(self) -> None:
        """Called by httptools."""
        self._body_comes = False
        super().on_message_complete()  # type: ignore[misc]

    def on_response_complete(self) -> None:
        """A request was answered. What still comes of it would be taken for the next one."""
        super().on_response_complete()  # type: ignore[misc]
        if self.cycle.response_complete and self.cycle.more_body:
            self.transport.close()

    # -- ending it ------------------------------------------------------------------------------

    def _wait(self) -> None:
        self._timer = self.loop.call_later(self.seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if not self.transport.is_closing() and self._is_idle():
            self.transport.close()

    def _is_idle(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def _end_too_large(self) -> None:
        message = f"the headers of the request are larger than the limit of {self.most} bytes"
        self._end(Failure(Kind.HEADERS_TOO_LARGE, message))

    def _end(self, failure: Failure) -> None:
        self._stop_waiting()
        if self.transport.is_closing():
            return
        if self._is_idle() or not self.cycle.response_started:
            status, body, _ = openai_error(failure)
            content = json_bytes(body)
            head = (
                f"HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + content)
        self.transport.close()


def bounded_heads(protocol: type[Any], most: int, seconds: float) -> type[asyncio.Protocol]:
    """A protocol of uvicorn's with these limits.

    Args:
        most: bytes of a head.
        seconds: how long a client may take for it, and for the first one of a connection.
    """
    return type("Bounded", (_Bounded, protocol), {"most": most, "seconds": seconds})
