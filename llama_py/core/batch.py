"""``Batch``: the tokens of one ``llama_decode``, written in bulk through numpy.

The arrays belong to numpy and the C struct points into them, so setting a batch of any size is five
slice assignments and no per-token work. Token ``i`` belongs to exactly one sequence.
``VectorBatch`` has vectors in place of tokens.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llama_py._native import llama_h as C
from llama_py.errors import ParameterError

__all__ = ["Batch", "VectorBatch"]

IntSequence = Sequence[int] | NDArray[np.int32]


class Batch:
    """Room for ``capacity`` tokens.

    Attributes:
        struct: the ``llama_batch`` to pass to C.
        tokens, positions, sequences: int32 ``(capacity,)``, views of what C reads.
        outputs: int8 ``(capacity,)``, non-zero where logits are wanted.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ParameterError(f"a batch needs room for at least one token, not {capacity}")
        self.capacity = capacity
        self.tokens: NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.positions: NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.sequences: NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.outputs: NDArray[np.int8] = np.zeros(capacity, np.int8)
        self._counts = np.ones(capacity, np.int32)
        first = self.sequences.ctypes.data
        self._rows = first + 4 * np.arange(capacity, dtype=np.intp)
        self.struct = C.llama_batch(
            n_tokens=0,
            token=_pointer(self.tokens, ctypes.c_int32),
            embd=None,
            pos=_pointer(self.positions, ctypes.c_int32),
            n_seq_id=_pointer(self._counts, ctypes.c_int32),
            seq_id=_pointer(self._rows, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self.outputs, ctypes.c_int8),
        )

    def __len__(self) -> int:
        return int(self.struct.n_tokens)

    def clear(self) -> None:
        """Forget all tokens."""
        self.struct.n_tokens = 0

    def set(
        self,
        tokens: IntSequence,
        positions: IntSequence | int,
        sequence: IntSequence | int,
        outputs: Sequence[bool] | NDArray[np.int8] | bool,
    ) -> None:
        """Replace the contents. Scalars are broadcast; an int position counts up from there."""
        self.clear()
        self.add(tokens, positions, sequence, outputs)

    def add(
        self,
        tokens: IntSequence,
        positions: IntSequence | int,
        sequence: IntSequence | int,
        outputs: Sequence[bool] | NDArray[np.int8] | bool,
    ) -> int:
        """Append tokens (see ``set``); returns the index of the first one.

        Raises:
            ParameterError: the batch has no room for them.
        """
        start = int(self.struct.n_tokens)
        stop = start + len(tokens)
        if stop > self.capacity:
            raise ParameterError(
                f"the batch has room for {self.capacity} tokens, and {stop} were given"
            )
        self.tokens[start:stop] = tokens
        if isinstance(positions, (int, np.integer)):
            self.positions[start:stop] = np.arange(positions, positions + stop - start)
        else:
            self.positions[start:stop] = positions
        self.sequences[start:stop] = sequence
        self.outputs[start:stop] = outputs
        self.struct.n_tokens = stop
        return start

    def add_one(self, token: int, position: int, sequence: int) -> int:
        """Append one token whose logits are wanted: the hot path of generation."""
        index: int = self.struct.n_tokens
        if index >= self.capacity:
            raise ParameterError(f"the batch has room for only {self.capacity} tokens")
        self.tokens[index] = token
        self.positions[index] = position
        self.sequences[index] = sequence
        self.outputs[index] = 1
        self.struct.n_tokens = index + 1
        return index


class VectorBatch:
    """Vectors of a picture or a sound in place of tokens, all of one sequence.

    Args:
        vectors: float32 ``(n, n_embd_inp)``.
        positions: int32 ``(p, n)``, a row for each number that a position consists of.
        output: the logits of the last one are wanted.

    Attributes:
        struct: the ``llama_batch`` to pass to C.
    """

    def __init__(
        self,
        vectors: NDArray[np.float32],
        positions: NDArray[np.int32],
        sequence: int,
        output: bool,
    ) -> None:
        count = len(vectors)
        self._vectors = np.ascontiguousarray(vectors)
        self._positions = np.ascontiguousarray(positions)
        self._sequences = np.full(count, sequence, np.int32)
        self._counts = np.ones(count, np.int32)
        self._rows = self._sequences.ctypes.data + 4 * np.arange(count, dtype=np.intp)
        self._outputs = np.zeros(count, np.int8)
        self._outputs[-1:] = output
        self.struct = C.llama_batch(
            n_tokens=count,
            token=None,
            embd=_pointer(self._vectors, ctypes.c_float),
            pos=_pointer(self._positions, ctypes.c_int32),
            n_seq_id=_pointer(self._counts, ctypes.c_int32),
            seq_id=_pointer(self._rows, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self._outputs, ctypes.c_int8),
        )


def _pointer(array: NDArray[np.generic], kind: type) -> object:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
