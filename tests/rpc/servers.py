"""RPC servers for tests: ``llama-py rpc-server`` in a process of its own, and what is none."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llama_py.core.rpc import protocol_version

__all__ = ["Server", "answering", "hello", "running"]


class Server:
    """A server that was started; ``endpoint`` is where it listens."""

    def __init__(self, *options: str, port: int = 0) -> None:
        command = [sys.executable, "-m", "llama_py", "rpc-server", "--port", str(port), "-t", "1"]
        self.process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("listening at "):
                self.endpoint = line.split()[2]
                return
        raise AssertionError("it did not start")

    def close(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def running(*options: str) -> Iterator[Server]:
    """A server until the end of the block."""
    server = Server(*options)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def answering(handle: Callable[[socket.socket], None]) -> Iterator[str]:
    """Something that listens, and does what a function says with each connection; its endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    try:
                        handle(connection)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def hello(connection: socket.socket, version: tuple[int, ...] | None = None) -> None:
    """Answer the first message of a client."""
    connection.recv(1 + 8 + 24, socket.MSG_WAITALL)
    body = bytes(version or protocol_version()) + bytes(1 + 24)
    connection.sendall(struct.pack("<Q", len(body)) + body)
