"""What stands between a client and a server, and spoils what goes through it."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["Proxy", "through"]


#: Bytes of requests by which a connection is a model's: others ask who is there, and leave.
_OF_A_MODEL = 4096


class Proxy:
    """Passes on what comes, with faults that a test turns on.

    Attributes:
        endpoint: where clients find it.
        pause: seconds that the next reply to a model is held back, once.
        garbage: replies to models are made of other bytes.
        alone: the server seems to be one that serves one client at a time: beside a model, others
            get no answer.
        replies: how many were passed on, to whomever.
        last: after so many replies the server is gone, for all.
        zeros: what follows ``last`` is of the right size, and nothing but zeros, in place of that.
        lie: what follows ``last`` is the server's, but for the numbers that this changes, in place
            of both.
        lies: how many replies that is about.
    """

    def __init__(self, server: str) -> None:
        host, _, port = server.partition(":")
        self._server = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.pause, self.garbage, self.alone = 0.0, False, False
        self.replies, self.last, self.zeros = 0, sys.maxsize, False
        self.lie: Callable[[bytes], bytes] | None = None
        self.lies = sys.maxsize
        self._ended = threading.Event()
        self._models: set[socket.socket] = set()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._server)
                self._open += [client, server]
                for way in (self._ask, self._answer):
                    thread = threading.Thread(target=way, args=(client, server), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        count = 0
        with suppress(OSError):
            while data := client.recv(1 << 16):
                count += len(data)
                if count > _OF_A_MODEL:
                    self._models.add(client)
                if self.alone and self._models and client not in self._models:
                    continue
                server.sendall(data)
        self._models.discard(client)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            for number, message in enumerate(_messages(server)):
                if client in self._models:
                    message = self._spoiled(message)
                if self.alone and number == 0:
                    message = message[:11] + b"\0" + message[12:]  # as of llama.cpp's own server
                if self.replies >= self.last:
                    message = self._last_words(message)
                    if not message:
                        break
                self.replies += 1
                client.sendall(message)
        for each in (client, server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _last_words(self, message: bytes) -> bytes:
        """What comes in place of a reply after the last one; nothing if the server is gone."""
        if self.lie is not None and self.replies < self.last + self.lies:
            return message[:8] + self.lie(message[8:])
        if self.lie is not None:
            return message
        return message[:8] + bytes(len(message) - 8) if self.zeros else b""

    def _spoiled(self, data: bytes) -> bytes:
        if self.pause:
            pause, self.pause = self.pause, 0.0
            self._ended.wait(pause)
        return bytes(byte ^ 0x5A for byte in data) if self.garbage else data

    def close(self) -> None:
        """End all connections."""
        self._ended.set()
        for each in [self._listening, *self._open]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for each in [self._listening, *self._open]:
            each.close()


def _messages(server: socket.socket) -> Iterator[bytes]:
    """What a server says, one reply at a time: 8 bytes that say how many follow, and those."""
    with server.makefile("rb") as stream:
        while len(size := stream.read(8)) == 8:
            yield size + stream.read(int.from_bytes(size, "little"))


@contextmanager
def through(server: str) -> Iterator[Proxy]:
    """A proxy of a server until the end of the block."""
    proxy = Proxy(server)
    try:
        yield proxy
    finally:
        proxy.close()
