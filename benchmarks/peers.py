"""llama-cpp-python in a process of its own, for measurements side by side.

It needs an interpreter that has it, which is best a virtual environment made for the purpose:

    python -m venv peer && peer/bin/pip install llama-cpp-python==0.3.36
    python -m benchmarks sessions --peer-python peer/bin/python

Its release has a llama.cpp of its own (0c1e57098), which is older than ours: what is compared is
what each package brings. The two never run at the same time: one waits while the other answers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typing_extensions import Self

from llama_py.bench.subject import flash_attention, resolve_model

__all__ = ["Peer", "add_peer_arguments", "start_peer"]


class PeerError(RuntimeError):
    """The other process failed, or said that a call failed."""


class Peer:
    """Talks to one worker process.

    Args:
        python: an interpreter that can import ``llama_cpp``.
    """

    def __init__(self, python: str) -> None:
        worker = Path(__file__).with_name("peer_worker.py")
        self._process = subprocess.Popen(
            [python, "-I", str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """One request and its answer.

        Raises:
            PeerError: the call failed there, or the process is gone.
        """
        source, sink = self._process.stdout, self._process.stdin
        if source is None or sink is None:
            raise PeerError("the process has no pipes")
        try:
            sink.write(json.dumps({"operation": operation, **arguments}) + "\n")
            sink.flush()
        except BrokenPipeError:
            raise PeerError("llama-cpp-python's process ended; can it import llama_cpp?") from None
        line = source.readline()
        if not line:
            raise PeerError("llama-cpp-python's process ended; can it import llama_cpp?")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"llama-cpp-python: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process.wait(timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def add_peer_arguments(parser: argparse.ArgumentParser) -> None:
    """``--peer-python``."""
    parser.add_argument(
        "--peer-python",
        metavar="PATH",
        help="interpreter that has llama-cpp-python; it then does the same beside us, turn by turn",
    )


@contextmanager
def start_peer(options: argparse.Namespace, n_ctx: int) -> Iterator[Peer | None]:
    """A loaded peer under the same settings, or None if none was asked for."""
    if not options.peer_python:
        yield None
        return
    with Peer(options.peer_python) as peer:
        peer.ask(
            "load",
            clock=options.clock,
            model_path=resolve_model(options.model),
            n_ctx=n_ctx,
            n_threads=options.threads,
            n_threads_batch=options.threads,
            n_batch=options.n_batch,
            n_ubatch=min(options.n_batch, 512),
            **flash_attention(options),
        )
        yield peer
