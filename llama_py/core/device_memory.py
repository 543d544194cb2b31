"""What a model and its context take, device by device: of one that is loaded, or before it is.

Before it is loaded, llama.cpp itself says what it would allocate: a model is read without its
weights (``no_alloc``), and a context of it is made that has no buffers. That takes as long as
reading the vocabulary does.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf

from llama_py._native import chat_h
from llama_py.core import backend
from llama_py.core.context import Context
from llama_py.core.host.footprint import cache_bytes
from llama_py.core.host.memory_check import cells_are_usual
from llama_py.core.model import Model
from llama_py.core.placement import gpus
from llama_py.errors import NotEnoughMemoryError
from llama_py.gguf.check import GGUFInfo, check_model_file
from llama_py.params import ContextParams, ModelParams

__all__ = [
    "DeviceMemory",
    "Measured",
    "fitted",
    "free_by_device",
    "measured",
    "memory_by_device",
    "note_loaded",
    "noted",
]

_MOST_ROWS = 64
_CPU = "CPU"
#: What is left free on a device, for what its driver and its kernels need: so many bytes, or a part
#: of a small one.
_MARGIN, _MARGIN_SHARE = 512 << 20, 0.05
#: What is estimated to take less of what is free is not measured.
_SURELY_FITS = 0.5
#: Cells that are estimated to take so many times what is free are not measured either.
_SURELY_TOO_MUCH = 1.2
#: Cells that are asked for where the context's size is to be what fits.
_LEAST_CONTEXT = 4096
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
    mapped = [row for row in given if _MAPPED in (row.buffers or b"")]
    if mapped and _CPU in found:
        # Of a file that is mapped, only the weights count that nobody else has: the system forgets
        # the pages of those that were copied to a device, or into another order.
        spans = sum(row.model for row in mapped)
        copied = sum(sums[0] for sums in found.values()) - spans
        # Copies may be larger than what they were made of (AMX), and one matrix may be needed twice
        # (tied embeddings); but rows of tokens are always looked up in the file.
        least = context.model.info.embedding_bytes
        found[_CPU][0] += max(least, context.model.size_bytes - copied) - spans
    order = [*context.model.devices]
    names = sorted(found, key=lambda name: order.index(name) if name in order else len(order))
    return tuple(DeviceMemory(name, *found[name]) for name in names if any(found[name]))


#: What contexts of this process take on GPUs: not every driver counts it.
_loaded: weakref.WeakKeyDictionary[Context, tuple[DeviceMemory, ...]] = weakref.WeakKeyDictionary()
_noting = threading.Lock()


def note_loaded(context: Context) -> tuple[DeviceMemory, ...]:
    """Remember what a context takes, with its model, as long as it lives; returns it."""
    found = memory_by_device(context)
    with _noting:
        _loaded[context] = found
    return found


def noted(context: Context) -> tuple[DeviceMemory, ...]:
    """What was remembered of a context; any thread may ask, whatever the context does."""
    with _noting:
        return _loaded.get(context, ())


def free_by_device(params: ModelParams) -> dict[str, int]:
    """Bytes that are free on each GPU that a model is to use, by its name.

    What models of this process have there counts as taken, also if the driver does not say so.
    """
    with _noting:
        own = [each for context, them in _loaded.items() if not context.closed for each in them]
    free = {}
    for device in gpus(params):
        taken = sum(each.total for each in own if each.device == device["name"])
        left = max(0, device["total_bytes"] - taken)
        free[device["name"]] = min(device["free_bytes"], left)
    return free


def fitted(
    path: str | os.PathLike[str], params: ModelParams, context_params: ContextParams
) -> ModelParams:
    """The parameters of a model with as many layers on the GPUs as they can hold, if they do not
    say how many; else they are checked. llama.cpp would end the process over what does not fit, or
    fail after minutes.

    Of a mixture of experts, the experts of the first layers leave the GPUs before whole layers do.

    Raises:
        NotEnoughMemoryError: so many layers have no room; with what is needed, and what to do.
        ModelLoadError: it could not be loaded anyway.
    """
    free = free_by_device(params) if params.n_gpu_layers and not params.vocab_only else {}
    if not free:
        return params
    try:
        _check(path, params, context_params, free)
    except NotEnoughMemoryError:
        if params.n_gpu_layers >= 0:
            raise
    else:
        return params
    info = check_model_file(path)
    layers = _layers(info)

    def fits(changed: ModelParams) -> bool:
        try:
            _check(path, changed, context_params, free)
        except NotEnoughMemoryError:
            return False
        return True

    if info.metadata.get(f"{info.architecture}.expert_count") and not params.n_cpu_moe:
        count = _least(layers, lambda n: fits(replace(params, n_cpu_moe=n)))
        if count is not None:
            return replace(params, n_cpu_moe=count)
        params = replace(params, n_cpu_moe=-1)
    # The last one that is counted is the output matrix.
    off = _least(layers + 1, lambda n: fits(replace(params, n_gpu_layers=layers + 1 - n)))
    return replace(params, n_gpu_layers=0 if off is None else layers + 1 - off)


def _layers(info: GGUFInfo) -> int:
    return int(info.metadata.get(f"{info.architecture}.block_count", 0))


def _least(most: int, fits: Callable[[int], bool]) -> int | None:
    """The least number, from 1 to ``most``, that fits, if all larger ones do; None if none does."""
    if most < 1 or not fits(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _check(
    path: str | os.PathLike[str],
    params: ModelParams,
    context_params: ContextParams,
    free: Mapping[str, int],
) -> None:
    """Raise ``NotEnoughMemoryError`` if the GPUs cannot hold it."""
    info = check_model_file(path)
    least = context_params.n_ctx or min(_LEAST_CONTEXT, info.context_length or _LEAST_CONTEXT)
    context_params = replace(context_params, n_ctx=least)
    cells = cache_bytes(info, context_params)
    if info.n_bytes + cells < _SURELY_FITS * max(free.values()):
        return
    some = 0 <= params.n_gpu_layers <= _layers(info)
    everything = context_params.offload_kqv and not some
    if context_params.offload_kqv and params.n_gpu_layers and cells_are_usual(info):
        _check_tensors(path, cells // (2 * max(1, _layers(info))), least, free)
    if everything and cells_are_usual(info) and cells > _SURELY_TOO_MUCH * sum(free.values()):
        # Not measured: a backend may end the process over tensors that are too large for it.
        lacking: DeviceMemory | None = DeviceMemory(next(iter(free)), 0, cells, 0)
    else:
        room = {name: size - min(_MARGIN, int(_MARGIN_SHARE * size)) for name, size in free.items()}
        needed = measured(path, params, context_params).devices
        lacking = next((each for each in needed if each.total > room.get(each.device, inf)), None)
    if lacking is not None:
        weights = f"{_mib(lacking.weights)} of weights, " if lacking.weights else ""
        raise NotEnoughMemoryError(
            f"{os.fspath(path)} needs {_mib(lacking.total)} on {lacking.device} "
            f"({weights}{_mib(lacking.cells)} of cells for n_ctx={least}, {_mib(lacking.buffers)} "
            f"of buffers), where {_mib(free[lacking.device])} are free; pass a smaller n_ctx, "
            'n_gpu_layers for the layers that fit, or type_k="q8_0" and type_v="q8_0", or unload '
            "other models"
        )


def _check_tensors(
    path: str | os.PathLike[str], nbytes: int, n_ctx: int, free: Mapping[str, int]
) -> None:
    """Raise if the keys of a layer are more than a device computes with at once."""
    for name in free:
        if not backend.takes_tensor(name, nbytes):
            raise NotEnoughMemoryError(
                f"{os.fspath(path)}: the keys of one layer take {_mib(nbytes)} for n_ctx={n_ctx}, "
                f"more than the driver of {name} binds at once; pass a smaller n_ctx, or "
                "offload_kqv=False"
            )


def _mib(size: int) -> str:
    return f"{size >> 20:,} MiB"


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
