"""``http_protocol``: uvicorn's protocol for HTTP, with what it lacks.

* Connections can be aborted. Closing one sends first what is still to be sent: a client that does
  not read would so keep it for ever, and what is waiting in memory.
* Bodies of streams are given to it directly (``streaming.BODY``).
* Both parsers refuse the same lines.
* A client of HTTP/1.0 knows no chunks. The end of a stream is the end of its connection.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from llama_py.server.transport.event_stream import BODY
from llama_py.server.transport.lines import strict_lines
from llama_py.server.transport.relied_on import check_uvicorn
from llama_py.server.transport.upgrades import without_upgrades

__all__ = ["ABORT", "http_protocol"]

#: The key in ``scope["extensions"]`` of a function that ends the connection at once.
ABORT = "llama_py.abort"


class _Abortable:
    """Goes before a protocol of uvicorn's."""

    app: Any

    def connection_made(self, transport: asyncio.Transport) -> None:
        """A client has connected."""
        super().connection_made(transport)  # type: ignore[misc]
        app = self.app

        async def with_abort(scope: Scope, receive: Receive, send: Send) -> None:
            scope.setdefault("extensions", {})[ABORT] = transport.abort
            if scope["type"] == "http" and scope["http_version"] == "1.0":
                send = _without_chunks(send)
            scope.setdefault("state", {})[BODY] = send
            await app(scope, receive, send)

        self.app = with_abort


def _without_chunks(send: Send) -> Send:
    """Sends what has no ``Content-Length`` as it is; uvicorn closes the connection after it.

    h11 does so by itself. The other parser's protocol knows bodies of a declared length, and those
    in chunks: so each part is declared when it is sent.
    """
    cycle: Any = getattr(send, "__self__", None)
    if not hasattr(cycle, "chunked_encoding"):
        return send
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


def http_protocol(protocol: type[Any] | None = None) -> type[asyncio.Protocol]:
    """The class to be given to uvicorn as ``http``.

    Args:
        protocol: one of uvicorn's; by default that of the faster parser that is installed.
    """
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    chosen = AutoHTTPProtocol if protocol is None else protocol
    check_uvicorn(chosen)
    return type("HttpProtocol", (_Abortable, without_upgrades(strict_lines(chosen))), {})
