"""``EventStream``: the response of a stream of server-sent events, as it is sent.

Plain ASGI, without a task or a timer for each event: a stream has one timer, which is not moved
when something is sent; when it fires, it looks how long ago that was.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from starlette.types import Send

__all__ = ["EventStream"]

_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


class EventStream:
    """Sends frames, and notices silence and readers that do not read.

    Args:
        send: of the ASGI request.
        send_body: the same for bodies, by a shorter way.
        interval: seconds of silence after which ``on_silence`` is called.
        patience: seconds that the client may take to read before ``on_stall`` is called.
        media_type: of the stream.

    Attributes:
        begun: the headers are out, or on their way.
    """

    def __init__(
        self,
        send: Send,
        send_body: Send,
        interval: float,
        patience: float,
        on_silence: Callable[[], None],
        on_stall: Callable[[], None],
        media_type: str,
    ) -> None:
        self._headers = [(b"content-type", media_type.encode()), *_HEADERS]
        self._asgi_send, self._send_body = send, send_body
        self._interval, self._patience = interval, patience
        self._on_silence, self._on_stall = on_silence, on_stall
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._sending = False
        self._timer: asyncio.TimerHandle | None = None
        self._rest: Awaitable[None] | None = None
        self._beginning: asyncio.Future[None] | None = None
        self.begun = False

    def begin_later(self, frames: bytes) -> None:
        """Begin with these frames after ``interval``, unless ``close`` comes before."""

        async def begun() -> None:
            await self._send_headers()
            await self.send(frames)

        def begin() -> None:
            self.begun = True
            self._beginning = asyncio.ensure_future(begun())

        self._timer = self._loop.call_later(self._interval, begin)

    async def begin(self, frames: bytes, *, more: bool = True) -> None:
        """Send the headers and the first frames; only these if it has begun already."""
        if not self.begun:
            self.begun = True
            await self._send_headers()
        elif self._beginning is not None:
            await self._beginning
            await self.flush()
        await self.send(frames, more=more)

    async def _send_headers(self) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self._headers}
        self._since = self._loop.time()
        self._sending = True  # what was answered before on this connection may be unread
        self._look()
        await self._asgi_send(start)

    async def send(self, frames: bytes, *, more: bool = True) -> None:
        """Send frames; returns when there is room for more."""
        if not self.send_now(frames, more=more):
            await self.flush()

    def send_now(self, frames: bytes, *, more: bool = True) -> bool:
        """Send frames outside of any task; returns whether there is room for more.

        If there is none, ``flush`` is to be awaited before anything else is sent.
        """
        self._since = self._loop.time()
        self._sending = True
        body = {"type": "http.response.body", "body": frames, "more_body": more}
        sending = self._send_body(body).__await__()
        try:
            awaited = next(sending)
        except StopIteration:  # the usual case: there was room, and nothing to wait for
            self._sending = False
            return True
        self._rest = _resumed(sending, awaited)
        return False

    async def flush(self) -> None:
        """Wait until what ``send_now`` could not send is on its way."""
        rest, self._rest = self._rest, None
        if rest is not None:
            await rest
            self._sending = False

    def close(self) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        waited = self._loop.time() - self._since
        limit = self._patience if self._sending else self._interval
        pause = min(self._interval, self._patience)
        if waited < limit:
            pause = min(pause, limit - waited)
        elif self._sending:
            self._on_stall()
        else:
            self._on_silence()
        self._timer = self._loop.call_later(pause, self._look)


@types.coroutine
def _resumed(begun: Generator[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """The rest of something that was begun outside of a task, and waits for ``awaited``."""
    yield awaited
    yield from begun
