"""``EnginePort``: what whoever submits requests needs of an engine, wherever it runs.

In this process that is a ``Driver``; of a model in a process of its own, ``IsolatedPort``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from llama_py.engine.mailbox import Command, Mailbox
from llama_py.engine.request import GenerationRequest

__all__ = ["EnginePort"]


class EnginePort(Protocol):
    """See the module, and ``Driver``, whose methods these are."""

    def submit(
        self,
        requests: Sequence[GenerationRequest],
        mailbox: Mailbox,
        *,
        read_here: bool = True,
        first: Command | None = None,
    ) -> None:
        """Check and queue the requests of a call: all of them, or none."""

    def cancel(self, mailbox: Mailbox, *, wait: bool = True) -> None:
        """End a call. Does nothing if it has ended."""

    def resume(self, mailbox: Mailbox) -> None:
        """Go on with a call that was paused because nobody read what came."""

    def wait_for(self, done: Callable[[], bool]) -> None:
        """Where there is no thread: step until ``done()`` is true."""

    def check_alive(self) -> None:
        """Raise if nobody is there any more who could deliver something."""

    def check_process(self) -> None:
        """Raise ``ForkedProcessError`` in a child of the process that made it."""

    def refuse_callbacks(self) -> None:
        """Raise ``LlamaError`` in a callback of a request, which would wait for itself."""
