"""Requests whose headers have no end, or do not come."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn

from llama_py.server.config.settings import Settings
from llama_py.server.transport.connection import connection_class
from tests.patience import PATIENCE, in_the_end

LIMIT = 4096
REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


#: Names of the headers of each request.
HEADERS: list[list[str]] = []


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the size of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    HEADERS.append([name.decode() for name, _ in scope["headers"]])
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a server that gives clients as much time for their headers as they need."""
    with serving(PATIENCE) as port:
        yield port


@pytest.fixture(scope="module")
def hasty() -> Iterator[int]:
    """That of one that gives them half a second, which a busy machine may need for itself."""
    with serving(0.5) as port:
        yield port


@contextlib.contextmanager
def serving(seconds: float) -> Iterator[int]:
    settings = Settings(max_header_bytes=LIMIT, header_timeout=seconds)
    config = uvicorn.Config(
        app, "127.0.0.1", 0, lifespan="off", log_config=None,
        http=connection_class(settings), ws="none", timeout_keep_alive=30,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(PATIENCE)


def exchange(port: int, *parts: bytes) -> bytes:
    """Send bytes, and read until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
        received = b""
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(65536):
                received += piece
    return received


def error_of(answer: bytes) -> dict[str, Any]:
    """What is wrong, as JSON."""
    head, _, content = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    error: dict[str, Any] = json.loads(content)["error"]
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize(
    "parts",
    [[b"X: " + b"x" * 200_000], [b"X-%d: 1\r\n" % n for n in range(2000)]],
    ids=["a long one", "many"],
)
def test_headers_without_an_end(port: int, parts: list[bytes]) -> None:
    answer = exchange(port, REQUEST, *parts)
    if answer:  # else the connection was reset before it was read
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert error_of(answer)["code"] == "request_headers_too_large"


def test_headers_that_are_a_little_too_large(port: int) -> None:
    answer = exchange(port, REQUEST, b"X: " + b"x" * LIMIT)
    assert answer.startswith(b"HTTP/1.1 431 ")


def test_headers_that_do_not_come(hasty: int) -> None:
    assert exchange(hasty) == b""
    assert exchange(hasty, REQUEST) == b""

    def after_an_answer() -> None:
        with socket.create_connection(("127.0.0.1", hasty), timeout=PATIENCE) as connection:
            connection.sendall(REQUEST + b"\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            with contextlib.suppress(ConnectionError):
                connection.sendall(REQUEST)
                while connection.recv(65536):
                    pass

    in_the_end(after_an_answer)


def test_what_is_no_http(port: int) -> None:
    answer = exchange(port, b"\x16\x03\x01\x02\x00 hello\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert error_of(answer)["message"] == "this is not a valid HTTP request"


def test_a_body_that_is_no_http(port: int) -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = exchange(port, head + b"2\r\nhi\r\nzz\r\nnothing\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert error_of(answer)["message"] == "this is not a valid HTTP request"


CHUNKS = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "endless",
    [b"0\r\n" + b"X: 1\r\n" * 300_000, b"0\r\nX: " + b"x" * 1_500_000, b"1;" + b"x" * 1_500_000],
    ids=["headers behind it", "a long one", "a note on a chunk"],
)
def test_what_comes_with_a_body_and_is_none(port: int, endless: bytes) -> None:
    """It would be kept, or at least read, for as long as it comes."""
    answer = exchange(port, CHUNKS, b"2\r\nhi\r\n", endless)
    if answer:  # else the connection was reset before it was read
        assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))


def test_headers_behind_a_body_are_none_of_the_request(port: int) -> None:
    body = b"2\r\nhi\r\n0\r\nX-Api-Key: wanted\r\n\r\n"
    close = b"Connection: close\r\n\r\n"
    answer = exchange(port, CHUNKS[:-2] + close + body)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"\r\n2\r\n" in answer or answer.endswith(b"2")  # the size of the body
    assert "x-api-key" not in HEADERS[-1]


def test_a_connection_is_used_for_as_long_as_one_likes(hasty: int) -> None:
    in_the_end(lambda: use_a_connection(hasty), httpx.TransportError)


def use_a_connection(port: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as http:
        for _ in range(100):  # the limit is for one head, not for all of them
            assert http.get("/", headers={"x": "x" * 100}).text == "0"
        connection = next(iter(http._transport._pool.connections))  # type: ignore[attr-defined]
        time.sleep(0.7)
        for size in (300_000, 1, 5000, 70_000):  # nor for bodies
            assert http.post("/", content=b"x" * size).text == str(size)
        assert next(iter(http._transport._pool.connections)) is connection  # type: ignore[attr-defined]


OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"


@pytest.mark.parametrize("cut", [40, 130, 1000], ids=["in the head", "near its end", "nowhere"])
def test_an_offer_of_another_protocol_costs_no_body(port: int, cut: int) -> None:
    """As Java's client sends it, which goes on with the same connection."""
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
    offered = head + OFFER + b"Content-Length: 5\r\n\r\nhello"
    last = head + b"Content-Length: 3\r\nConnection: close\r\n\r\nbye"
    answers = exchange(port, offered[:cut], offered[cut:], last)
    assert answers.count(b"HTTP/1.1 200") == 2
    assert answers.index(b"\r\n5\r\n") < answers.index(b"\r\n3\r\n")
