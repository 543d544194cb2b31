"""``check_finite``: weights of any type that are NaN or infinite, before they are used.

llama.cpp's own look (``ggml_validate_row_data``) writes on standard error; its functions that turn
blocks into floats say as much, and what is looked at is what will be computed with.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from llama_py._native import ggml_h as G
from llama_py.errors import InvalidModelError
from llama_py.gguf.reader import GGML_TYPES, GGUFHeader, GGUFTensor

__all__ = ["check_finite"]

_NUMBERS: Final = {name: number for number, (name, *_) in GGML_TYPES.items()}
_PLAIN: Final = {"F32": "<f4", "F64": "<f8"}
#: Blocks that are looked at together.
_PIECE: Final = 1 << 14


def check_finite(header: GGUFHeader) -> None:
    """Look at every tensor of a file.

    Raises:
        InvalidModelError: one has a weight that is NaN or infinite; the message names it.
    """
    for tensor in header.tensors:
        for start, values in _pieces(header, tensor):
            wrong = np.flatnonzero(~np.isfinite(values))
            if wrong.size:
                raise InvalidModelError(
                    f"tensor {tensor.name!r} ({tensor.type}) has weights that are NaN or infinite: "
                    f"number {start + wrong[0]} of {tensor.n_elements} is {values[wrong[0]]}; the "
                    "file is damaged: download or convert it again"
                )


def _pieces(header: GGUFHeader, tensor: GGUFTensor) -> Iterator[tuple[int, NDArray[Any]]]:
    """Weights as floats, each time with the number of the first; nothing of whole numbers."""
    number = _NUMBERS[tensor.type]
    _, block, size = GGML_TYPES[number]
    first = header.data_offset + tensor.offset
    if tensor.type in _PLAIN:
        yield 0, np.frombuffer(header.buffer, _PLAIN[tensor.type], tensor.n_elements, first)
        return
    convert = G.ggml_get_type_traits(number).contents.to_float
    floats = np.empty(block * _PIECE, np.float32)
    into: Any = floats.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    for at in range(0, tensor.n_bytes if convert else 0, size * _PIECE):
        count = min(size * _PIECE, tensor.n_bytes - at)
        raw = np.frombuffer(header.buffer, np.uint8, count, first + at)
        convert(raw.ctypes.data, into, count // size * block)
        yield at // size * block, floats[: count // size * block]
