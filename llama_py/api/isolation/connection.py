"""``MessageSocket``: messages over the socket that the two processes of a model share.

A frame is a structure, which MessagePack describes, and the arrays and long byte strings that it
refers to, one after the other. Both lengths are said before, and compared with a limit; memory is
taken as bytes arrive, and not as they are announced.
"""

from __future__ import annotations

import os
import queue
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from llama_py.errors import IsolationError

__all__ = ["Frame", "Limits", "MessageSocket", "QueuedSocket"]

#: The structure, and what it refers to.
Frame = Sequence["bytes | memoryview[Any]"]
#: Most bytes of the structure of a message, and of the arrays behind it.
Limits = tuple[int, int]

#: Bytes of the structure, and of everything behind it.
_HEAD = struct.Struct("<IQ")
#: A message up to this size is sent in one piece; a longer one is read in pieces of this size.
_SMALL, _PIECE = 1 << 16, 1 << 24


class MessageSocket:
    """Sends from any thread; one thread receives.

    The socket is one of a pair that the process which calls has made: it has no name, so that
    nobody else can connect.

    Args:
        limits: of what is received.

    Attributes:
        moving: bytes of the messages that are being sent and received now.
    """

    def __init__(self, own: socket.socket, limits: Limits) -> None:
        self.limits = limits
        self._socket = own
        self._read: Any = own.makefile("rb", buffering=1 << 18)
        self._lock = threading.Lock()
        self._sending = self._receiving = 0

    @property
    def moving(self) -> int:
        return self._sending + self._receiving

    def send(self, frame: Frame) -> None:
        """Send a message. If nobody is there any more it is lost; who receives hears of that."""
        behind = sum(len(each) for each in frame[1:])
        head = _HEAD.pack(len(frame[0]), behind)
        with suppress(OSError), self._lock:
            self._sending = len(frame[0]) + behind
            try:
                if self._sending <= _SMALL:
                    self._socket.sendall(b"".join((head, *frame)))
                else:
                    for each in (head, *frame):
                        self._socket.sendall(each)
            finally:
                self._sending = 0

    def receive(self) -> tuple[bytes, bytearray] | None:
        """The next message, as ``Codec.decode`` takes it; None when the other process is gone.

        Raises:
            IsolationError: it is longer than the limits.
            MemoryError: there is no memory for it.
        """
        try:
            head = self._read.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return None
            lengths = _HEAD.unpack(head)
            for length, limit in zip(lengths, self.limits, strict=True):
                if length > limit:
                    raise IsolationError(f"a message of {length} bytes came, and {limit} may")
            self._receiving = sum(lengths)
            structure = self._read.read(lengths[0])
            behind = self._read_behind(lengths[1])
        except (OSError, ValueError):
            return None
        finally:
            self._receiving = 0
        return None if len(structure) < lengths[0] or behind is None else (structure, behind)

    def _read_behind(self, length: int) -> bytearray | None:
        data = bytearray(min(length, _PIECE))
        done = 0
        while done < length:
            if done == len(data):
                data.extend(bytes(min(len(data), length - done)))
            with memoryview(data) as view:
                count = self._read.readinto(view[done:])
            if not count:
                return None
            done += count
        return data

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


class QueuedSocket(MessageSocket):
    """Whose ``send`` never waits: a thread sends, also to a process that does not read."""

    def __init__(self, own: socket.socket, limits: Limits) -> None:
        super().__init__(own, limits)
        self._queue: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        name = "llama_py-isolated-sends"
        threading.Thread(target=self._pass_on, name=name, daemon=True).start()

    def send(self, frame: Frame) -> None:
        """Send a message, in its turn; see ``MessageSocket.send``."""
        self._queue.put(frame)

    def shut(self) -> None:
        """See ``MessageSocket.shut``."""
        super().shut()
        self._queue.put(None)

    def _pass_on(self) -> None:
        while (frame := self._queue.get()) is not None:
            super().send(frame)
            del frame
