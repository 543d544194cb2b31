"""Refuses a model for which this process has too little memory, before anything is allocated.

llama.cpp reports a large allocation that fails, but ends the process if a small one does
(``GGML_ASSERT``). So whatever else is loaded would be lost, too.

Two things can run out. *Addresses* (``ulimit -v``) are taken by all that is mapped, weights among
it, and by what is computed with: what is needed is judged rather too large, by some dozens of MiB.
*Memory* is not taken by mapped weights, which the system may give up and read again: what is needed
is judged rather too small, so that nothing is refused that would fit.
"""

from __future__ import annotations

from dataclasses import dataclass

from llama_py.core.host.footprint import cache_bytes
from llama_py.core.host.machine import addresses_left, memory_left
from llama_py.core.placement import gpus
from llama_py.errors import NotEnoughMemoryError
from llama_py.gguf.check import GGUFInfo
from llama_py.params import ContextParams, ModelParams

__all__ = ["Needs", "cells_are_usual", "check_memory", "needs"]

_MIB = 1 << 20
#: Addresses for threads, arenas and small buffers, beside what is listed in ``needs``.
_RESERVE = 128 * _MIB
#: Keys of models not all of whose layers keep a cell of the usual size for each token.
_UNUSUAL = ("attention.sliding_window", "attention.kv_lora_rank", "ssm.state_size", "wkv.head_size")
_LISTED = ("attention.head_count", "attention.head_count_kv")


@dataclass(frozen=True)
class Needs:
    """Bytes that a model takes: of addresses (at most), and of memory (at least)."""

    addresses: int
    memory: int


def check_memory(info: GGUFInfo, params: ModelParams, context: ContextParams) -> None:
    """Refuse a model that this process cannot hold.

    Raises:
        NotEnoughMemoryError: with what is needed, what is left, and what to do.
    """
    if params.vocab_only:
        return
    if params.n_gpu_layers != 0 and any(device["kind"] == "gpu" for device in gpus(params)):
        return
    left, addresses = memory_left(), addresses_left()
    needed = needs(info, params, context)
    if addresses is not None and needed.addresses > addresses:
        what, most, had = "addresses", needed.addresses, addresses
        remedy = "raise the limit (ulimit -v), unload other models, or pass a smaller n_ctx"
    elif needed.memory > left:
        what, most, had = "memory", needed.memory, left
        remedy = "pass a smaller n_ctx, keep use_mmap, unload other models, or end other programs"
    else:
        return
    raise NotEnoughMemoryError(
        f"{info.path} needs about {_mib(most)} of {what}, but this process has "
        f"{_mib(had)} left; {remedy}"
    )


def needs(info: GGUFInfo, params: ModelParams, context: ContextParams) -> Needs:
    """The memory that a model takes if it is computed with on the CPU."""
    cells = cache_bytes(info, context)
    rows = min(context.n_ubatch, context.n_ctx or context.n_ubatch)
    logits = rows * (info.n_vocab or 0) * 4
    weights = info.n_bytes
    # Weights are mapped, and kept a second time in an order that the CPU is fast with.
    copies = 2 if params.repack else 1
    addresses = copies * weights + cells + logits + _RESERVE
    memory = (0 if params.use_mmap else weights) + (cells if cells_are_usual(info) else 0)
    return Needs(addresses, memory)


def cells_are_usual(info: GGUFInfo) -> bool:
    """Whether each layer keeps a cell of the same size for each token."""
    name = info.architecture
    unusual = any(f"{name}.{key}" in info.metadata for key in _UNUSUAL)
    return not unusual and not any(f"{name}.{key}" in info.arrays for key in _LISTED)


def _mib(size: int) -> str:
    return f"{max(size, 0) // _MIB:,} MiB"
