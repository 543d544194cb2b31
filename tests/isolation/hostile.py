"""A process of a model that is not what it seems: it says what a test wants.

It runs in place of ``llama_py.api.isolation.child``, found first on ``sys.path``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import llama_py.api.isolation.process as isolation

__all__ = ["speaking"]

#: Loads nothing; ``SAY`` is what it does when it is asked something.
_CHILD = """
import os, signal, socket, struct, sys, time
sys.path[:] = __import__("json").loads(sys.argv[2])
from llama_py.api.facts import ContextFacts
from llama_py.api.isolation.codec import Codec
from llama_py.api.isolation.connection import MessageSocket
from llama_py.api.isolation.messages import Down, Facts, Up
raw = socket.socket(fileno=int(sys.argv[1]))
there, codec = MessageSocket(raw, (1 << 30, 1 << 40)), Codec(builds=True)
"""
_LOOP = """
def tell(*message):
    there.send(codec.encode(message))

def bytes_of(data):
    raw.sendall(data)

while (data := there.receive()) is not None:
    kind, *contents = codec.decode(data)
    if kind == Down.LOAD:
        tell(int(Up.READY), Facts(None))
    elif kind == Down.PING:
        tell(int(Up.PONG))
    elif kind == Down.ASK:
        call, name, arguments, tenant = contents
        {say}
    elif kind == Down.CLOSE and {ends}:
        break
"""


@contextmanager
def speaking(
    monkeypatch: pytest.MonkeyPatch, say: str, *, ends: bool = True
) -> Iterator[isolation.ModelProcess]:
    """A ``ModelProcess`` whose other process does ``say`` when it is asked something."""
    text = _CHILD + _LOOP.format(say=say, ends=ends)
    with monkeypatch.context() as patch:
        patch.setattr(isolation, "_BOOT", text)
        process = isolation.ModelProcess("model.gguf", {})
        process.wait_until_loaded(None)
        try:
            yield process
        finally:
            process.close()
