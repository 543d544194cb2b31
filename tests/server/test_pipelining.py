"""Clients that send requests ahead, and clients of HTTP/1.0."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from llama_py.server.config.settings import Settings
from llama_py.server.transport.connection import connection_class
from tests.patience import PATIENCE
from tests.server.leaving import until

HEADS_LIMIT = 8192


class App:
    """Echoes bodies; under ``/wait`` it answers only when it is told to, or when the client left.

    Attributes:
        waiting, left: how many requests are there, and how many have seen their client leave.
        go: lets those that wait go on.
    """

    def __init__(self) -> None:
        self.waiting = self.left = 0
        self.go = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if scope["path"] == "/wait":
            await self._wait(receive)
        head: list[tuple[bytes, bytes]] = []
        if scope["path"] == "/whole":
            head = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for part in (body[:3], body[3:]):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    async def _wait(self, receive: Any) -> None:
        self.waiting += 1
        leaving = asyncio.ensure_future(receive())
        while not (leaving.done() or self.go.is_set()):
            await asyncio.wait([leaving], timeout=0.01)
        if leaving.done():
            assert leaving.result()["type"] == "http.disconnect"
            self.left += 1
        leaving.cancel()


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[App, int]]:
    app = App()
    protocol = connection_class(Settings(max_header_bytes=HEADS_LIMIT, header_timeout=5))
    config = uvicorn.Config(app, "127.0.0.1", 0, lifespan="off", log_config=None, http=protocol)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield app, server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(PATIENCE)


@pytest.fixture
def app(served: tuple[App, int]) -> App:
    app = served[0]
    app.waiting = app.left = 0
    app.go.clear()
    return app


@pytest.fixture
def client(served: tuple[App, int]) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", served[1]), timeout=PATIENCE) as connection:
        yield connection


def post(path: str, body: bytes, version: str = "1.1") -> bytes:
    head = f"POST {path} HTTP/{version}\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def read_until(client: socket.socket, text: bytes) -> bytes:
    data = b""
    while text not in data:
        more = client.recv(1 << 16)
        assert more, data
        data += more
    return data


@pytest.mark.parametrize("pieces", ["one", "several"])
def test_leaving_with_requests_sent_ahead(app: App, client: socket.socket, pieces: str) -> None:
    """The one that is being answered ends, and those behind it never begin."""
    requests = [post("/wait", b"first"), post("/wait", b"second"), post("/wait", b"third")]
    if pieces == "one":
        client.sendall(b"".join(requests))
    else:
        client.sendall(requests[0])
        until(lambda: app.waiting, "it is being answered")
        for each in requests[1:]:
            client.sendall(each)
            time.sleep(0.02)
    until(lambda: app.waiting, "it is being answered")
    time.sleep(0.05)
    client.close()
    until(lambda: app.left, "it has noticed")
    time.sleep(0.05)
    assert (app.waiting, app.left) == (1, 1)


@pytest.mark.parametrize("size", [10, 3 * HEADS_LIMIT, 200_000])
def test_requests_sent_ahead_are_answered_in_order(
    app: App, client: socket.socket, size: int
) -> None:
    """However the bytes arrive, and however long the bodies are."""
    bodies = [f"{number}".encode() * size for number in range(1, 5)]
    data = post("/wait", b"begin") + b"".join(post("/whole", body) for body in bodies)
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()
    until(lambda: app.waiting, "the first one is being answered")
    time.sleep(0.05)
    app.go.set()
    received = read_until(client, b"0\r\n\r\n")
    for body in bodies:
        while body not in received:
            received += client.recv(1 << 16)
    assert received.count(b"HTTP/1.1 200") == 5
    places = [received.index(body) for body in bodies]
    assert places == sorted(places)
    sender.join()


@pytest.mark.parametrize(("path", "declared"), [("/stream", False), ("/whole", True)])
def test_clients_of_http_1_0_get_no_chunks(
    app: App, client: socket.socket, path: str, declared: bool
) -> None:
    """The end of a stream is the end of the connection."""
    client.sendall(post(path, b"one two three", "1.0"))
    received = b""
    with contextlib.suppress(ConnectionError):
        while more := client.recv(4096):
            received += more
    head, _, body = received.partition(b"\r\n\r\n")
    assert body == b"one two three"
    assert b"transfer-encoding" not in head.lower()
    assert (b"content-length: 13" in head.lower()) is declared
    assert b"connection: close" in head.lower()
