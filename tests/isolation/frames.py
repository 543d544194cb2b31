"""Frames that no model's process sends, drawn at random and changed from true ones.

Run as a program it reads them for some seconds as the process that calls does, and prints how many
there were, how many were refused, and the most memory that reading them took.
"""

from __future__ import annotations

import json
import random
import resource
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np

from llama_py.api.isolation.codec import Codec
from llama_py.api.isolation.connection import MessageSocket
from llama_py.api.isolation.messages import USUAL, Up
from llama_py.engine.metrics import Metrics
from llama_py.engine.request import TokenLogprobs
from llama_py.errors import ContextOverflowError, LlamaError, StorageError
from llama_py.states.state import StoredState

__all__ = ["read_for"]

#: What is sent in one frame, at most.
_MOST_SENT = 1 << 20


def _true_frames() -> list[list[bytes]]:
    """Frames of each kind, as they are sent: structure, and what is behind it."""
    codec = Codec()
    some = np.arange(100, dtype=np.int32)
    state = StoredState(some, None, None, np.zeros(5000, np.uint8), (), 0, "print", "me")
    logprobs = TokenLogprobs(-0.5, some[:3], np.zeros(3, np.float32))
    messages: list[Any] = [
        (int(Up.EVENTS), [(1, 2, "text"), (2, 3, "more", -0.5, b"1234", b"5678")]),
        (int(Up.ENDS), [], Metrics()),
        (int(Up.ANSWER), 7, state),
        (int(Up.ANSWER), 7, {"a": [1, {2, 3}, frozenset({4}), b"x" * 5000, logprobs]}),
        (int(Up.REFUSED), 7, ContextOverflowError(7, 5)),
        (int(Up.REFUSED), 7, StorageError("full", 28, "/a")),
        (int(Up.STARTED), 7, 1.5, {"reused": 3}, some),
        (int(Up.VECTORS), 7, 0, np.ones((4, 8), np.float32)),
        (int(Up.LOG), 20, "a line"),
    ]
    return [[bytes(f[0]), b"".join(f[1:])] for f in map(codec.encode, messages)]


def _frames(rng: random.Random) -> Iterator[bytes]:
    true = _true_frames()
    while True:
        structure, behind = map(bytearray, rng.choice(true))
        for _ in range(rng.randrange(4)):
            _change(rng, structure)
        lengths = [len(structure), len(behind)]
        if rng.random() < 0.1:
            lengths[rng.randrange(2)] = rng.choice([0, 1, 2**16, 2**20, 2**24, 2**31, 2**32 - 1])
        if rng.random() < 0.1:
            del behind[rng.randrange(len(behind) + 1) :]
        yield struct.pack("<IQ", *lengths) + structure + behind


def _change(rng: random.Random, data: bytearray) -> None:
    where = rng.randrange(len(data)) if data else 0
    kind = rng.randrange(6)
    if kind == 0:
        data[where : where + 1] = bytes([rng.randrange(256)])
    elif kind == 1:
        del data[where : where + rng.randrange(1, 9)]
    elif kind == 2:
        data[where:where] = rng.randbytes(rng.randrange(1, 9))
    elif kind == 3:  # a head that promises a lot
        length = struct.pack(">I", rng.choice([2**16, 2**20, 2**24, 2**31, 2**32 - 1]))
        data[where:where] = rng.choice([b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"]) + length
    elif kind == 4:  # an object, an error, an array of anything
        contents = [
            rng.choice([0, 1, -1, 2**40, 2**63, "x", [], [2**31, 2**31], None]) for _ in "1234"
        ]
        inner = msgpack.packb([rng.randrange(60), *contents])
        data[where:where] = msgpack.packb(msgpack.ExtType(rng.randrange(12), inner))
    else:  # a lot of little
        part = rng.choice([b"\x90", b"\x80", b"\xc0", b"\x91", b"\xd4\x00\x90"])
        count = rng.randrange(_MOST_SENT // len(part))
        data[:] = b"\xdd" + struct.pack(">I", count) + part * count


def _most_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def read_for(seconds: float, seed: int) -> dict[str, Any]:
    """Read frames for some seconds, as the process that calls does."""
    rng, codec = random.Random(seed), Codec()
    frames, end, before = _frames(rng), time.monotonic() + seconds, _most_memory()
    read = refused = 0
    slowest = 0.0
    while time.monotonic() < end:
        frame = next(frames)
        ours, theirs = socket.socketpair()
        sender = threading.Thread(target=_send, args=(theirs, frame))
        sender.start()
        connection, start = MessageSocket(ours, USUAL), time.monotonic()
        try:
            found = connection.receive()
            if found is not None:
                codec.decode(found)
        except LlamaError:
            refused += 1
        slowest = max(slowest, time.monotonic() - start)
        connection.close()
        sender.join()
        read += 1
    return {
        "read": read,
        "refused": refused,
        "slowest": round(slowest, 3),
        "memory": _most_memory() - before,
    }


def _send(there: socket.socket, frame: bytes) -> None:
    with there:
        try:
            there.sendall(frame)
        except OSError:
            return


if __name__ == "__main__":
    print(json.dumps(read_for(float(sys.argv[1]), int(sys.argv[2]))))
