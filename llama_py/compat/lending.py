"""``Lending``: the context of a model while somebody else decodes with it."""

from __future__ import annotations

from typing import Any

__all__ = ["Lending"]


class Lending:
    """Gives the pointer of a context away, and finds out what was done with it.

    Args:
        native: the ``llama_py.Llama``, which is kept as long as this is.
    """

    def __init__(self, native: Any) -> None:
        self._native = native
        self._before: list[int] | None = None

    def lend(self) -> int:
        """The pointer."""
        pointer: int = self._native.ctx.value
        if self._before is None:
            self._before = self._positions(pointer)
        return pointer

    def changed(self) -> bool:
        """Whether the memory is not what it was when the pointer was given away; asked once."""
        before, self._before = self._before, None
        return before is not None and before != self._positions(self._native.ctx.value)

    def _positions(self, pointer: int) -> list[int]:
        """The last position of each sequence."""
        from llama_py.compat.llama_cpp import llama_cpp as C

        memory = C.llama_get_memory(pointer)
        if memory is None:
            return []
        count = C.llama_n_seq_max(pointer)
        return [C.llama_memory_seq_pos_max(memory, seq) for seq in range(count)]
