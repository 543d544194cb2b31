"""Clients that leave, or do not read: nothing stays busy, and nobody else notices."""

from __future__ import annotations

import contextlib
import gc
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_py.server.transport.event_stream import EventStream
from tests.allocated import allocated_bytes, needs_allocated_bytes
from tests.patience import PATIENCE, in_the_end
from tests.server.leaving import Visitor, joined_chunks, until
from tests.server.serving import Server, demo_settings, serving
from tests.slowness import slow_steps

#: A reply that goes on for as long as there is room.
ENDLESS: dict[str, Any] = {"ignore_eos": True, "max_tokens": 1500, "temperature": 0}
COUNT = {"messages": [{"role": "user", "content": "Count from 1 to 20."}], "temperature": 0}
FILES = Path("/proc/self/fd")
LONG_PROMPT = "one two three four five six seven eight nine ten " * 40


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Two sequences, and small steps, so that there is time to leave in the middle of a prompt."""
    with serving(demo_settings(n_seq_max=2, n_batch=8, n_ubatch=8, n_ctx=4096)) as server:
        yield server


def chat(content: str = "Hello", **options: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **options}


def model_of(server: Server) -> Any:
    """The model that is served."""
    return server.service.models.models[0].llama


def at_rest(server: Server) -> None:
    """Wait until nothing is in flight."""
    driver = model_of(server).runtime.loaded.driver
    until(lambda: not driver.in_flight and not server.service.exchanges, "nothing is in flight")


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_while_the_reply_is_generated(server: Server, stream: bool) -> None:
    visitor = Visitor(server, "/v1/chat/completions", chat(stream=stream, **ENDLESS))
    until(lambda: len(visitor.record.generated) > 3, "it generates")
    visitor.leave()
    visitor.wait_for_the_end()
    assert visitor.record.reason == "cancelled"
    assert visitor.exchange.gone
    assert len(visitor.record.generated) < 1500
    at_rest(server)


def test_leaving_with_another_request_sent_ahead(server: Server) -> None:
    """It is on the same connection, and waits for the answer before it."""
    visitor = Visitor(server, "/v1/chat/completions", chat(stream=False, **ENDLESS))
    visitor.socket.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
    until(lambda: len(visitor.record.generated) > 3, "it generates")
    visitor.leave()
    visitor.wait_for_the_end()
    assert visitor.record.reason == "cancelled"
    at_rest(server)


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_while_the_prompt_is_evaluated(server: Server, stream: bool) -> None:
    visitor = Visitor(server, "/v1/chat/completions", chat(LONG_PROMPT, stream=stream))
    until(lambda: visitor.record.started, "it has begun")
    visitor.leave()
    visitor.wait_for_the_end()
    assert visitor.record.reason == "cancelled"
    assert not visitor.record.generated
    at_rest(server)


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_while_waiting_for_a_place(server: Server, stream: bool) -> None:
    running = [Visitor(server, "/v1/completions", {"prompt": p, **ENDLESS}) for p in ("a", "b")]
    for each in running:
        until(lambda each=each: each.record.started, "it has begun")  # type: ignore[misc]
    visitor = Visitor(server, "/v1/chat/completions", chat(stream=stream))
    assert not visitor.record.started
    visitor.leave()
    visitor.wait_for_the_end()
    assert visitor.record.reason == "cancelled"
    assert not visitor.record.started
    assert not any(each.record.reason for each in running)  # who has a place keeps it
    for each in running:
        each.leave()
    at_rest(server)


def test_a_neighbour_who_leaves_changes_nothing(server: Server, client: Any) -> None:
    """Where he leaves from differs each time, and the reply beside him does not."""
    alone = client.chat.completions.create(model="demo", **COUNT).choices[0].message.content
    for tokens in (1, 7, 23):
        neighbour = Visitor(server, "/v1/chat/completions", chat("Hello", stream=True, **ENDLESS))
        text = ""
        for chunk in client.chat.completions.create(model="demo", stream=True, **COUNT):
            text += chunk.choices[0].delta.content or ""
            if len(neighbour.record.generated) >= tokens:
                neighbour.leave()
        assert text == alone
        neighbour.leave()
    at_rest(server)


def test_what_was_begun_is_there_for_who_comes_back(server: Server, client: Any) -> None:
    """A client that lost its connection sends the same again: its prompt is not done twice."""
    prompt = f"{LONG_PROMPT[:800]} and so on"
    visitor = Visitor(server, "/v1/chat/completions", chat(prompt, stream=True, **ENDLESS))
    until(lambda: len(visitor.record.generated) > 3, "it generates")
    visitor.leave()
    visitor.wait_for_the_end()
    messages = [{"role": "user", "content": prompt}]
    again = client.chat.completions.create(model="demo", messages=messages, max_tokens=4)
    assert again.usage.prompt_tokens_details.cached_tokens >= again.usage.prompt_tokens - 1


def test_a_reader_who_stops_reading() -> None:
    """His request waits without harm to others; after a while it ends, and the connection too."""
    settings = demo_settings({"write_timeout": 0.5})
    with serving(settings, send_buffer=4096) as server, server.openai() as client:
        # Every token has a text, and makes a frame of a few kilobytes.
        ends = {str(token): False for token in model_of(server).vocab.eog_tokens()}
        options: dict[str, Any] = {
            "logit_bias": ends,
            "logprobs": True,
            "top_logprobs": 20,
            **ENDLESS,
        }
        body = chat(stream=True, **options)
        visitor = Visitor(server, "/v1/chat/completions", body, receive_buffer=4096)
        visitor.read_until(b"assistant")
        assert client.chat.completions.create(model="demo", **COUNT).choices[0].message.content
        visitor.wait_for_the_end()
        assert visitor.record.reason == "cancelled"
        assert visitor.exchange.gone
        assert len(visitor.record.generated) < 1000  # it was paused long before its end
        until(lambda: not server.service.exchanges, "the server is done with it")
        # The server has closed the connection, without waiting for what was still to be read.
        assert b"[DONE]" not in visitor.read_all()
        visitor.leave()


def test_a_reader_who_pauses_gets_everything() -> None:
    with serving(demo_settings(), send_buffer=4096) as server:
        ends = {str(token): False for token in model_of(server).vocab.eog_tokens()}
        options: dict[str, Any] = {
            "logit_bias": ends,
            "logprobs": True,
            "top_logprobs": 20,
            **ENDLESS,
            "max_tokens": 500,
        }
        with server.http() as http:
            path = "/v1/chat/completions"
            told = http.post(path, json=chat(**options)).json()["choices"][0]["message"]["content"]
        visitor = Visitor(server, path, chat(stream=True, **options), receive_buffer=4096)
        assert visitor.record
        mailbox = visitor.exchange._events._mailbox  # type: ignore[union-attr]
        until(lambda: mailbox.paused, "the engine waits for the reader")
        text = ""
        for line in joined_chunks(visitor.read_until(b"[DONE]")).splitlines():
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["delta"].get("content") or ""
        assert text == told
        visitor.leave()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages"])
def test_the_last_event_and_the_end_go_out_as_one(
    server: Server, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Each piece costs a system call here and a wake there."""
    pieces: list[bytes] = []
    send = EventStream.send_now

    def noted(stream: EventStream, frames: bytes, *, more: bool = True) -> bool:
        pieces.append(frames)
        return send(stream, frames, more=more)

    monkeypatch.setattr(EventStream, "send_now", noted)
    body: dict[str, Any] = {"prompt": "a"} if "completions" in path else {**COUNT}
    with server.http() as http:
        text = http.post(path, json={**body, "stream": True, "max_tokens": 5}).text
    assert b"".join(pieces).decode() == text
    last = pieces[-1].decode()
    ends = ("[DONE]", "finish_reason") if "completions" in path else ("message_stop", "end_turn")
    assert ends[0] in last
    assert ends[1] in last or "max_tokens" in last
    assert len(pieces) <= 1 + 5


def test_a_body_that_does_not_come() -> None:
    """It keeps no connection for ever; one that comes slowly is answered."""
    with serving(demo_settings({"body_timeout": 0.5})) as server:
        body = json.dumps(chat(max_tokens=1)).encode()
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        where = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        with socket.create_connection(where, PATIENCE) as client:
            client.sendall(head + body[:10])
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(100) == b""

        def slowly() -> None:
            with socket.create_connection(where, PATIENCE) as client:
                client.sendall(head)
                for place in range(len(body)):
                    client.sendall(body[place : place + 1])
                    time.sleep(0.6 / len(body))
                assert client.recv(100).startswith(b"HTTP/1.1 200 OK")

        in_the_end(slowly)


def test_only_who_leaves_is_a_client_that_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that the server ends with an error has had its answer."""
    settings = demo_settings({"queue_timeout": 0.5}, n_seq_max=1)
    slow_steps(monkeypatch, 0.02)  # the reply takes half a minute
    with serving(settings) as server, server.http() as http:
        running = Visitor(server, "/v1/completions", {"prompt": "a", **ENDLESS})
        until(lambda: running.record.started, "it has begun")
        late = http.post("/v1/completions", json={"prompt": "b", "stream": True})
        assert "timed out waiting for a free slot" in late.text
        until(lambda: len(server.service.exchanges) == 1, "the server is done with it")
        assert '"/v1/completions",status="200"' in http.get("/metrics").text
        running.leave()


def test_a_reader_who_has_not_even_read_the_answer_before() -> None:
    settings = demo_settings({"write_timeout": 0.5})
    with serving(settings, send_buffer=4096) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        body = json.dumps(chat(stream=True, **ENDLESS)).encode()
        begun = server.begun()
        client.sendall(
            b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        until(lambda: begun, "it is being answered")
        until(lambda: not server.service.exchanges, "the server has given up")


@pytest.mark.parametrize(
    ("path", "count", "more"),
    [
        ("/openapi.json", 20, b""),
        ("/openapi.json", 1, b"Connection: close\r\n"),
        ("/page/js/app.js", 1, b"Connection: close\r\n"),
    ],
    ids=["kept", "closed", "closed, with little to be read"],
)
def test_a_reader_who_reads_no_answer_at_all(path: str, count: int, more: bytes) -> None:
    """Also without a stream, and without a key, his connection does not stay for ever."""
    settings = demo_settings({"write_timeout": 0.5})
    with serving(settings, send_buffer=4096) as server, socket.socket() as client:
        with server.http() as http:
            whole = len(http.get(path).raise_for_status().content)
        until(lambda: not server.connections, "that connection has ended")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(PATIENCE)
        client.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        client.sendall(
            count * (b"GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n" % (path.encode(), more))
        )
        until(lambda: server.connections, "it is being answered")
        until(lambda: not server.connections, "the server has given up")
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while piece := client.recv(1 << 16):
                received += len(piece)
        assert received < count * whole


def test_a_reader_who_is_slow_gets_a_whole_answer() -> None:
    settings = demo_settings({"write_timeout": 0.5})
    with serving(settings, send_buffer=4096) as server:
        in_the_end(lambda: read_slowly(server))


def read_slowly(server: Server) -> None:
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(PATIENCE)
        client.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        client.sendall(
            b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        received, end = b"", time.monotonic() + 2
        while piece := client.recv(4096):
            received += piece
            if time.monotonic() < end:
                time.sleep(0.2)
        head, _, body = received.partition(b"\r\n\r\n")
        assert b"content-length: %d\r\n" % len(body) in head
        assert json.loads(body)["openapi"]


def visits(server: Server, count: int) -> None:
    """Clients that leave at different moments."""
    for number in range(count):
        stream = number % 2 == 0
        visitor = Visitor(server, "/v1/chat/completions", chat(stream=stream, **ENDLESS))
        if number % 3:
            until(lambda v=visitor: v.exchange.records, "it is queued")  # type: ignore[misc]
        if stream and number % 4:
            visitor.read_until(b"assistant")
        if number % 5 == 0:  # a reset in place of a close
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
            visitor.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        visitor.leave()
    at_rest(server)


def resources() -> tuple[int, int]:
    """Open file descriptors, and bytes of memory."""
    gc.collect()
    return len([*FILES.iterdir()]), allocated_bytes()


@pytest.mark.skipif(not FILES.is_dir(), reason="needs /proc")
@needs_allocated_bytes
@pytest.mark.parametrize("count", [30, pytest.param(500, marks=pytest.mark.long)])
def test_those_who_leave_leave_nothing_behind(server: Server, count: int) -> None:
    visits(server, 20)  # what is made once is there now
    files, memory = resources()
    visits(server, count)
    until(lambda: resources()[0] <= files, "no file is open that was not")
    assert resources()[1] < memory + (2 << 20)
