"""Streams as they arrive: HTTP's chunks may come in any pieces."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from llama_py.bench.http_load import Endpoint
from tests.patience import PATIENCE

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: keep-alive\r\n\r\n"
)


@contextmanager
def answering(
    pieces: Sequence[bytes], *, pause: float = 0.0, stays: bool = True
) -> Iterator[Endpoint]:
    """A server that sends these bytes to whoever asks; ``stays``: it does not hang up then."""
    done = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            request = b""
            while b"\r\n\r\n" not in request:
                request += connection.recv(65536)
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause)
            if stays:
                done.wait(PATIENCE)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield Endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}")
    finally:
        done.set()
        thread.join()
        listener.close()


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text, "index": 0}]}).encode() + b"\n\n"


def chunk(payload: bytes) -> bytes:
    return f"{len(payload):X}\r\n".encode() + payload + b"\r\n"


EVENTS = [event(text) for text in ("Hello", ", ", "wörld", "!\r\n0\r\n")] + [b"data: [DONE]\n\n"]
BODY = b"".join(map(chunk, EVENTS)) + b"0\r\n\r\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
def test_any_pieces_make_the_same_reply(size: int) -> None:
    pieces = [HEAD, *(BODY[start : start + size] for start in range(0, len(BODY), size))]
    with answering(pieces) as endpoint:
        reply = endpoint.complete("Greet")
    assert reply.error == ""
    assert reply.text == "Hello, wörld!\r\n0\r\n"
    assert len(reply.times) == 4


def test_chunks_need_not_be_lines() -> None:
    whole = b"".join(EVENTS)
    body = b"".join(chunk(whole[start : start + 5]) for start in range(0, len(whole), 5))
    with answering([HEAD + body + b"0\r\n\r\n"]) as endpoint:
        reply = endpoint.complete("Greet")
    assert reply.error == ""
    assert reply.text == "Hello, wörld!\r\n0\r\n"


def test_a_text_has_the_time_when_it_was_whole() -> None:
    first, second, third = map(chunk, (event("a"), event("b"), b"data: [DONE]\n\n"))
    pieces = [HEAD + first, second[:9], second[9:] + third + b"0\r\n\r\n"]
    with answering(pieces, pause=0.2) as endpoint:
        reply = endpoint.complete("Count")
    assert reply.text == "ab"
    assert min(reply.gaps) > 0.3


def test_a_stream_that_breaks_off_is_an_error() -> None:
    with answering([HEAD + chunk(event("a"))[:-4]], stays=False) as endpoint:
        reply = endpoint.complete("Count")
    assert reply.error.startswith(("IncompleteRead", "ConnectionReset"))
