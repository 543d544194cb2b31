"""``Unread``: the body of a request that was answered before all of it had come.

A system that closes a connection while something unread is there resets it, and then the client
loses the answer as well, or never looks for it, because writing failed. So what still comes is read
and forgotten for a while, when the answer is out, and the connection goes on or ends after that.
"""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive, Scope

from llama_py.server.transport.extras import abort

__all__ = ["Unread"]

#: What is read for nobody at most: bytes, seconds, and seconds in which nothing comes.
_BYTES, _SECONDS, _SILENCE = 256 << 20, 30.0, 5.0


class Unread:
    """See the module.

    Args:
        scope, receive: of the request.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        names = dict(scope["headers"])
        self._more = names.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in names
        self._scope = scope

    def __bool__(self) -> bool:
        """Whether there may be more."""
        return self._more

    async def receive(self) -> Message:
        """The next message, for who wants it."""
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._more = False
        return message

    async def forget(self) -> None:
        """Read what still comes. A client that does not come to an end is cut off."""
        loop, left = asyncio.get_running_loop(), _BYTES
        end = loop.time() + _SECONDS
        while self._more:
            rest = end - loop.time()
            if left < 0 or rest <= 0:
                abort(self._scope)
                return
            try:
                message = await asyncio.wait_for(self.receive(), min(rest, _SILENCE))
            except (asyncio.TimeoutError, asyncio.CancelledError):  # the latter: the server stops
                return
            left -= len(message.get("body", b""))
