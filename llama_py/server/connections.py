"""``http_protocol``: uvicorn's protocol for HTTP, with connections that can be aborted.

Closing a connection sends first what is still to be sent. A client that does not read would so keep
it for ever, and what is waiting in memory.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive, Scope, Send

from llama_py.server.upgrades import without_upgrades

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
            await app(scope, receive, send)

        self.app = with_abort


def http_protocol() -> type[asyncio.Protocol]:
    """The class to be given to uvicorn as ``http``."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    return type("HttpProtocol", (_Abortable, without_upgrades(AutoHTTPProtocol)), {})
