"""Clients that leave: requests over plain sockets, and what became of them in the engine."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from llama_py.server.exchange import Exchange
from tests.patience import PATIENCE
from tests.server.serving import Server

__all__ = ["Visitor", "joined_chunks", "until"]

_PATIENCE = PATIENCE


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until a condition holds; returns its value."""
    end = time.monotonic() + _PATIENCE
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"it never came to that: {what}")
        time.sleep(0.002)
    return value


def joined_chunks(response: bytes) -> bytes:
    """The body of a response that was sent in chunks; the last one may be cut off."""
    rest, body = response.partition(b"\r\n\r\n")[2], b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        body, rest = body + rest[:length], rest[length + 2 :]
    return body


class Visitor:
    """One request, over a connection of its own.

    Attributes:
        exchange: how the server answers it.
    """

    def __init__(
        self, server: Server, path: str, body: dict[str, Any], *, receive_buffer: int = 0
    ) -> None:
        where = urlsplit(server.url)
        begun = server.begun()
        self._sockets = server.sockets
        self.socket = socket.socket()
        self._sockets.add(self.socket)
        self.socket.settimeout(_PATIENCE)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect((where.hostname, where.port))
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        self.socket.sendall(head.encode() + data)
        self.exchange: Exchange = until(lambda: begun, "the request is being answered")[0]
        begun.clear()  # nothing else holds it

    @property
    def record(self) -> Any:
        """What the engine knows about it."""
        return until(lambda: self.exchange.records, "the request is queued")[0]

    def read_until(self, text: bytes) -> bytes:
        """Read until a text has come."""
        data = b""
        while text not in data:
            more = self.socket.recv(4096)
            if not more:
                raise AssertionError(f"the connection was closed after {len(data)} bytes")
            data += more
        return data

    def read_all(self) -> bytes:
        """Read until the connection is closed."""
        data = b""
        with contextlib.suppress(ConnectionResetError):
            while more := self.socket.recv(1 << 16):
                data += more
        return data

    def leave(self) -> None:
        """Close the connection."""
        self._sockets.discard(self.socket)
        self.socket.close()

    def wait_for_the_end(self) -> None:
        """Wait until the request has ended in the engine."""
        until(lambda: self.record.reason, "the request has ended")
