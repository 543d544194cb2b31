"""``ImportanceSums``: sums over the inputs of weights, while a context evaluates."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llama_py._native import chat_h
from llama_py._native import llama_h as C
from llama_py.core.handle import Handle
from llama_py.errors import InvalidModelError

__all__ = ["ImportanceSums", "WeightSums"]


@dataclass(frozen=True, slots=True)
class WeightSums:
    """The sums of one weight.

    Attributes:
        name: of the weight.
        squares, sums: of its inputs: float32 ``(n_counts, n_inputs)``; a row for each expert.
        counts: the rows of a text that were summed: int64 ``(n_counts,)``.
    """

    name: str
    squares: NDArray[np.float32]
    sums: NDArray[np.float32]
    counts: NDArray[np.int64]


class ImportanceSums(Handle[chat_h.llama_py_importance_p]):
    """What is summed by the contexts that watch with it.

    Args:
        output: the output matrix as well.

    Raises:
        SymbolNotFoundError: the native library was built before it had this.
    """

    def __init__(self, *, output: bool = False) -> None:
        made = chat_h.llama_py_importance_new(output)
        super().__init__(made, chat_h.llama_py_importance_free)

    def watch(self, params: C.llama_context_params) -> None:
        """Have the context that is made with these parameters watched."""
        chat_h.llama_py_importance_watch(self.pointer, ctypes.byref(params))

    def check(self) -> None:
        """Look at what was summed.

        Raises:
            InvalidModelError: the inputs of a weight are not finite.
        """
        problem = chat_h.llama_py_importance_problem(self.pointer)
        if problem:
            raise InvalidModelError(
                f"the inputs of {problem.decode('utf-8', 'replace')} are not finite, or changed "
                "their shape: nothing can be learnt of them"
            )

    def __iter__(self) -> Iterator[WeightSums]:
        """Copies of the sums, in the order of names."""
        for index in range(chat_h.llama_py_importance_count(self.pointer)):
            entry = chat_h.llama_py_importance_entry()
            chat_h.llama_py_importance_get(self.pointer, index, ctypes.byref(entry))
            shape = (entry.n_counts, entry.n_values // max(entry.n_counts, 1))
            if entry.n_counts == 1:  # several matrices have one count
                shape = (1, entry.n_values)
            values = (entry.squares, entry.sums)
            squares, sums = (np.ctypeslib.as_array(each, shape).copy() for each in values)
            counts = np.ctypeslib.as_array(entry.counts, (entry.n_counts,)).copy()
            name = (entry.name or b"").decode("utf-8", "replace")
            yield WeightSums(name, squares, sums, counts)
