"""``MessageSocket``: messages over the socket that the two processes of a model share."""

from __future__ import annotations

import os
import socket
import struct
import threading
from contextlib import suppress

__all__ = ["MessageSocket"]

#: Bytes of a message that follow.
_LENGTH = struct.Struct("<Q")
#: A message up to this size is sent in one piece with its length.
_SMALL = 1 << 16


class MessageSocket:
    """Sends from any thread; one thread receives.

    The socket is one of a pair that the process which calls has made: it has no name, so that
    nobody else can connect.
    """

    def __init__(self, own: socket.socket) -> None:
        self._socket = own
        self._read = own.makefile("rb", buffering=1 << 18)
        self._lock = threading.Lock()

    def send(self, data: bytes) -> None:
        """Send a message. If nobody is there any more it is lost; who receives hears of that."""
        length = _LENGTH.pack(len(data))
        with suppress(OSError), self._lock:
            if len(data) <= _SMALL:
                self._socket.sendall(length + data)
            else:
                self._socket.sendall(length)
                self._socket.sendall(data)

    def receive(self) -> bytes | None:
        """The next message; None when the other process is gone."""
        try:
            head = self._read.read(_LENGTH.size)
            if len(head) < _LENGTH.size:
                return None
            (length,) = _LENGTH.unpack(head)
            data = self._read.read(length)
        except (OSError, ValueError):
            return None
        return data if len(data) == length else None

    def shut(self) -> None:
        """Let ``receive`` of both sides end. The socket is closed when nobody uses it any more."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this process's end."""
        self.shut()
        with suppress(OSError):
            self._read.close()
            self._socket.close()

    def drop(self) -> None:
        """Close a copy of the socket that a fork has left here; its owner's goes on."""
        with suppress(OSError):
            os.close(self._socket.detach())
