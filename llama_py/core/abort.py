"""``Abort``: ends a ``llama_decode`` from another thread, or when its time is over.

Backends that cannot be interrupted (all but the CPU's) finish what they were given.
"""

from __future__ import annotations

import contextlib
import math

from llama_py._native import chat_h
from llama_py._native import llama_h as C
from llama_py.core.handle import Handle
from llama_py.errors import ClosedError, ContextCreationError, ForkedProcessError

__all__ = ["Abort"]


class Abort(Handle[chat_h.llama_py_abort_p]):
    """The abort callback of one context, which has to be closed first."""

    def __init__(self) -> None:
        pointer = chat_h.llama_py_abort_init()
        if not pointer:
            raise ContextCreationError("there is no memory left")
        super().__init__(pointer, chat_h.llama_py_abort_free)
        self._timed = False

    def attach(self, context: C.llama_context_p) -> None:
        """Let ``llama_decode`` of this context return 2 when asked to."""
        chat_h.llama_py_abort_attach(self.pointer, context)

    def ask(self) -> None:
        """End what is being decoded. May be called by any thread.

        One that comes too late ends the next decode: whoever gets a 2 looks for the reason, and
        decodes again if there is none.
        """
        with contextlib.suppress(ClosedError, ForkedProcessError), self.in_use() as pointer:
            chat_h.llama_py_abort_ask(pointer)

    def after(self, seconds: float | None) -> None:
        """End every decode from then on; None: let them take their time. Not during a decode."""
        if seconds is None and not self._timed:
            return
        self._timed = seconds is not None
        chat_h.llama_py_abort_after(self.pointer, math.inf if seconds is None else seconds)
