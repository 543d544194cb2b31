"""What a model and its context take, device by device: of one that is loaded, or before it is.

Before it is loaded, llama.cpp itself says what it would allocate: a model is read without its
weights (``no_alloc``), and a context of it is made that has no buffers. That takes as long as
reading the vocabulary does.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from llama_py._native import chat_h
from llama_py.core import backend
from llama_py.core.context import Context
from llama_py.core.model import Model
from llama_py.params import ContextParams, ModelParams

__all__ = ["DeviceMemory", "Measured", "measured", "memory_by_device"]

_MOST_ROWS = 64
_CPU = "CPU"
_MAPPED = b"_Mapped"


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes on one device.

    Attributes:
        device: its name (``core.backend.devices``); ``CPU`` is the memory of the machine.
        weights: of the model. Those that are mapped from a file take memory as they are read.
        cells: of the context: KV cells, and recurrent states.
        buffers: what a step computes in.
    """

    device: str
    weights: int
    cells: int
    buffers: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.cells + self.buffers


@dataclass(frozen=True, slots=True)
class Measured:
    """What a model would take.

    Attributes:
        n_ctx: cells of its context.
        devices: those that would have something, the machine's memory last.
    """

    n_ctx: int
    devices: tuple[DeviceMemory, ...]


def memory_by_device(context: Context) -> tuple[DeviceMemory, ...]:
    """What a context and its model take; devices that have nothing are left out.

    It is empty where the library of this installation is too old to say it.
    """
    rows = (chat_h.llama_py_memory_row * _MOST_ROWS)()
    try:
        count = int(chat_h.llama_py_memory_rows(context.pointer, rows, _MOST_ROWS))
    except AttributeError:  # a library that was built before there was this function
        return ()
    given = rows[: max(0, min(count, _MOST_ROWS))]
    found: dict[str, list[int]] = {}
    for row in given:
        name = _CPU if row.on_host or row.device is None else row.device.decode()
        sums = found.setdefault(name, [0, 0, 0])
        for place, size in enumerate((row.model, row.context, row.compute)):
            sums[place] += size
    _count_mapped_once(
        found, context.model, [row for row in given if _MAPPED in (row.buffers or b"")]
    )
    order = [device["name"] for device in backend.devices() if device["name"] != _CPU]
    names = sorted(found, key=lambda name: order.index(name) if name in order else len(order))
    return tuple(DeviceMemory(name, *found[name]) for name in names if any(found[name]))


def _count_mapped_once(found: dict[str, list[int]], model: Model, mapped: list[Any]) -> None:
    """Of a file that is mapped, only the weights count that nobody else has.

    The system forgets the pages of those that were copied to a device, or into another order.
    """
    if mapped and _CPU in found:
        spans = sum(row.model for row in mapped)
        copied = sum(sums[0] for sums in found.values()) - spans
        found[_CPU][0] += max(0, model.size_bytes - copied) - spans


def measured(
    path: str | os.PathLike[str], params: ModelParams, context_params: ContextParams
) -> Measured:
    """What a model would take if it were loaded so. No weights are read.

    Raises:
        ModelLoadError, ContextCreationError: it could not be loaded.
    """
    backend.start()
    with (
        Model(path, params, without_weights=True) as model,
        Context(model, context_params) as context,
    ):
        return Measured(context.n_ctx, memory_by_device(context))
