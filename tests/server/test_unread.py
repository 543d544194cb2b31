"""Requests that are answered before their body has come: clients can read why."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator

import httpx
import openai
import pytest

from llama_py.server.access.keys import ApiKey
from llama_py.server.transport import unread
from tests.models import tiny_model
from tests.patience import PATIENCE
from tests.server.serving import Server, serving, tiny_settings

CHATS = "/v1/chat/completions"
KEY = ApiKey("alice", "alice-secret")
JSON = {"Content-Type": "application/json", "x-api-key": KEY.key}
#: What no buffer between the two takes.
LARGE = b"x" * (24 << 20)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    settings = tiny_settings(tiny_model("full"), {"api_keys": (KEY,), "max_body_bytes": 4096})
    with serving(settings) as server:
        yield server


async def pieces() -> AsyncIterator[bytes]:
    for start in range(0, len(LARGE), 1 << 16):
        yield LARGE[start : start + (1 << 16)]


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("path", [CHATS, "/v1/messages", "/v1/embeddings"])
def test_an_event_loop_learns_that_its_body_was_too_large(
    server: Server, path: str, declared: bool
) -> None:
    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, headers=JSON, timeout=PATIENCE) as http:
            contents = [LARGE if declared else pieces() for _ in range(3)]
            return [await http.post(path, content=each) for each in contents]

    for answer in asyncio.run(ask()):
        assert answer.status_code == 413
        assert "is larger than the limit of 4096 bytes" in answer.json()["error"]["message"]
        assert answer.headers["connection"] == "close"


def test_so_does_the_official_client(server: Server) -> None:
    async def ask() -> None:
        async with server.async_openai(default_headers={"x-api-key": KEY.key}) as client:
            message = {"role": "user", "content": LARGE.decode()}
            await client.chat.completions.create(model="x", messages=[message])

    with pytest.raises(openai.APIStatusError, match=r"larger than the limit") as caught:
        asyncio.run(ask())
    assert caught.value.status_code == 413


def test_a_client_that_closes_learns_that_its_key_was_wrong(server: Server) -> None:
    headers = {**JSON, "x-api-key": "wrong"}
    for _ in range(3):
        request = urllib.request.Request(server.url + CHATS, LARGE, headers)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=PATIENCE)
        assert caught.value.code == 401
        assert json.load(caught.value)["error"]["code"] == "invalid_api_key"


@contextlib.contextmanager
def connected(server: Server, length: int, *more: str) -> Iterator[socket.socket]:
    """A connection on which a body is announced."""
    host, port = server.url.removeprefix("http://").split(":")
    lines = [f"POST {CHATS} HTTP/1.1", f"Host: {host}", f"Content-Length: {length}", *more]
    lines += [f"{name}: {value}" for name, value in JSON.items()]
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        yield connection


def read_answer(connection: socket.socket) -> bytes:
    """One answer, as far as it says."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    lines = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    while len(body) < int(lines[b"content-length"]):
        body += connection.recv(65536)
    return head


def test_a_connection_goes_on_behind_what_was_not_read(server: Server) -> None:
    with connected(server, 100_000, "Content-Encoding: gzip") as connection:
        assert read_answer(connection).startswith(b"HTTP/1.1 415")  # at once
        connection.sendall(b"x" * 100_000 + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_answer(connection).startswith(b"HTTP/1.1 200")


def test_who_waits_to_be_asked_for_the_body_is_not(server: Server) -> None:
    with connected(server, 100_000, "Expect: 100-continue") as connection:
        assert read_answer(connection).startswith(b"HTTP/1.1 413")


def test_silence_ends_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "_SILENCE", 0.2)
    with connected(server, 100_000) as connection:
        assert read_answer(connection).startswith(b"HTTP/1.1 413")
        connection.sendall(b"x" * 1000)
        assert connection.recv(1) == b""


def test_a_body_that_does_not_come_to_its_end_keeps_no_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What still comes of it would be taken for the next request, or waited for for ever."""
    monkeypatch.setattr(unread, "_SILENCE", 0.2)
    with connected(server, 100_000, "Content-Encoding: gzip") as connection:
        head = read_answer(connection)
        assert head.startswith(b"HTTP/1.1 415")
        assert b"connection: close" not in head.lower()
        time.sleep(1)
        with contextlib.suppress(ConnectionError):  # it is closed already
            connection.sendall(b"x")
            assert connection.recv(1) == b""


@pytest.mark.parametrize(("limit", "most"), [("_BYTES", 1 << 20), ("_SECONDS", 0.3)])
def test_nothing_is_read_for_ever(
    server: Server, monkeypatch: pytest.MonkeyPatch, limit: str, most: float
) -> None:
    monkeypatch.setattr(unread, limit, most)
    with connected(server, 10**12) as connection:
        assert read_answer(connection).startswith(b"HTTP/1.1 413")
        with pytest.raises(ConnectionError):
            send_for(PATIENCE, connection)


def send_for(seconds: float, connection: socket.socket) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection.sendall(b"x" * 65536)
