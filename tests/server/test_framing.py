"""A request whose end two programs could see in two places is refused, and its connection ends."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn

from llama_py.server.access.guard import Guard
from llama_py.server.app import routes_of
from llama_py.server.config.settings import Settings
from llama_py.server.lifecycle import Lifecycle
from llama_py.server.operations import Operations
from llama_py.server.transport.connection import connection_class
from tests.patience import PATIENCE
from tests.server.serving import serving

HOST = b"Host: localhost\r\nContent-Type: application/json\r\n"
BEHIND = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
FORMS = {
    "both": b"Content-Length: 7\r\nTransfer-Encoding: chunked\r\n",
    "both, the other way round": b"Transfer-Encoding: chunked\r\nContent-Length: 7\r\n",
    "packed": b"Transfer-Encoding: gzip, chunked\r\n",
    "twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
}


async def app(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"reached"})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    settings, lifecycle = Settings(), Lifecycle()
    guard = Guard(app, settings, lifecycle, Operations(routes_of(settings)))
    config = uvicorn.Config(
        guard, "127.0.0.1", 0, lifespan="off", log_config=None,
        http=connection_class(settings), ws="none",
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(PATIENCE)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", [b"POST", b"GET"])
def test_two_ends(port: int, form: str, method: bytes) -> None:
    request = method + b" /v1/completions HTTP/1.1\r\n" + HOST + FORMS[form] + b"\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        client.sendall(request + b"2\r\n{}\r\n0\r\n\r\n" + BEHIND)
        said = b""
        while data := client.recv(1 << 16):  # to the end: the connection is closed
            said += data
    assert said.startswith((b"HTTP/1.1 400", b"HTTP/1.1 501")), said[:200]
    assert said.count(b"HTTP/1.1") == 1, "what is behind it is not a request"


CHUNKED = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
LINES = {
    "a header that goes on": b"GET /health HTTP/1.1\r\n" + HOST + b"X: 1\r\n 2\r\n\r\n",
    "with a tab": b"GET /health HTTP/1.1\r\n" + HOST + b"X: 1\r\n\t2\r\n\r\n",
    "the host goes on": b"GET /health HTTP/1.1\r\nHost:\r\n localhost\r\n\r\n",
    "nothing goes on": b"GET /health HTTP/1.1\r\n X: 1\r\n" + HOST + b"\r\n",
    "LF behind the request": b"GET /health HTTP/1.1\n" + HOST + b"\r\n",
    "LF behind a header": b"GET /health HTTP/1.1\r\nX: 1\n" + HOST + b"\r\n",
    "LF behind the last header": b"GET /health HTTP/1.1\r\n" + HOST + b"X: 1\n\r\n",
    "LF as the empty line": b"GET /health HTTP/1.1\r\n" + HOST + b"\n",
    "LF everywhere": b"GET /health HTTP/1.1\nHost: localhost\n\n",
    "CR alone": b"GET /health HTTP/1.1\r\nX: 1\rY: 2\r\n" + HOST + b"\r\n",
    "LF behind a body": CHUNKED + b"2\r\n{}\r\n0\r\n\n",
    "LF in headers behind a body": CHUNKED + b"2\r\n{}\r\n0\r\nX: 1\n\r\n",
    "LF behind a size": CHUNKED + b"2\n{}\r\n0\r\n\r\n",
    "LF behind a chunk": CHUNKED + b"2\r\n{}\n0\r\n\r\n",
}


@pytest.mark.parametrize("form", LINES)
@pytest.mark.parametrize("step", [1 << 16, 1], ids=["at once", "byte by byte"])
def test_lines_that_are_read_in_two_ways(port: int, form: str, step: int) -> None:
    data = LINES[form] + BEHIND
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        said = b""
        with contextlib.suppress(ConnectionError):  # it is closed before everything was sent
            for place in range(0, len(data), step):
                client.sendall(data[place : place + step])
        with contextlib.suppress(ConnectionError):
            while piece := client.recv(1 << 16):  # to the end: the connection is closed
                said += piece
    assert said.count(b"HTTP/1.1 ") <= 1, "what is behind it is not a request"
    if step > 1 or said:  # else it was reset before it was read
        assert said.startswith(b"HTTP/1.1 400"), said[:200]


@pytest.mark.parametrize(
    "said",
    [b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000],
    ids=["TLS", "long"],
)
def test_the_log_says_who_was_refused(
    port: int, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
        client.sendall(said)
        with contextlib.suppress(ConnectionError):
            while client.recv(1 << 16):
                pass
    line = next(each for each in caplog.records if "refused" in each.getMessage())
    assert vars(line)["fields"]["client"] == "127.0.0.1"


def test_a_long_method_and_path_are_not_repeated_in_full() -> None:
    with serving() as server:
        address = httpx.URL(server.url)
        said = []
        for method, path in ((b"M" * 9000, b"/v1/models"), (b"GET", b"/" + b"p" * 9000)):
            with socket.create_connection((address.host, address.port or 0), PATIENCE) as client:
                # At once: the server does not read on after what it refuses.
                head = method + b" " + path + b" HTTP/1.1\r\n" + HOST
                client.sendall(head + b"Connection: close\r\n\r\n")
                answer = b""
                while data := client.recv(1 << 16):
                    answer += data
            said.append(answer)
    assert said[0].startswith(b"HTTP/1.1 400")  # there is no such method
    assert said[1].startswith(b"HTTP/1.1 404")
    assert all(len(each) < 2000 for each in said)
