"""How much memory a model will take, judged before it is loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping

from llama_py.core.host.machine import available_bytes, memory_bytes
from llama_py.core.placement import gpus
from llama_py.gguf.check import GGUFInfo, check_model_file
from llama_py.params import ContextParams, ModelParams

__all__ = [
    "MEMORY_SHARE",
    "bytes_per_cell",
    "cache_bytes",
    "chosen_n_ctx",
    "expected_bytes",
    "room_for_model",
]

#: The most of this process's memory that the cache takes unless its size is given.
MEMORY_SHARE = 0.25
#: The smallest context that is chosen.
_SMALLEST_CONTEXT = 4096
#: Bytes of an element of the cache by its ggml type (F32, F16, BF16); the others are blocks.
_ELEMENT = {None: 2.0, 0: 4.0, 1: 2.0, 30: 2.0}
_BLOCK_ELEMENT = 1.0625
_SIZES = ("block_count", "embedding_length")


def bytes_per_cell(
    architecture: str, metadata: Mapping[str, object], n_layer: int, n_embd: int
) -> int:
    """Bytes that one token takes in an F16 cache, if every layer kept it.

    Args:
        metadata: the scalars of the file, as numbers or as text.
    """

    def number(key: str) -> int:
        return _number(metadata.get(f"{architecture}.{key}"))

    heads = number("attention.head_count") or 1
    width = number("attention.key_length") or n_embd // heads
    kv_heads = number("attention.head_count_kv") or heads
    return n_layer * kv_heads * width * 2 * 2


def chosen_n_ctx(trained: int, per_cell: int, room: float, buffers: int = 1) -> int:
    """Cells of a context whose size is not given, with ``room`` bytes for its cache.

    Args:
        buffers: sequences with cells of their own: each gets the model's length, if they fit.
    """
    trained = max(trained, 1)
    fit = int(room / per_cell / buffers) if per_cell else trained
    return min(trained, max(_SMALLEST_CONTEXT, fit // 256 * 256)) * buffers


def expected_bytes(
    path: str | os.PathLike[str], params: ModelParams, context: ContextParams
) -> int:
    """Bytes for the weights and the cache of a model; rather too many than too few.

    It reads the header of the file only.

    Raises:
        ModelNotFoundError, InvalidModelError: see ``check_model_file``.
    """
    info = check_model_file(path)
    return info.n_bytes + (0 if params.vocab_only else cache_bytes(info, context))


def cache_bytes(info: GGUFInfo, context: ContextParams) -> int:
    """Bytes of the cells of a context, if every layer keeps each token; 0 of a recurrent one."""
    name, metadata = info.architecture, info.metadata
    if f"{name}.attention.head_count" not in {*metadata, *info.arrays}:
        return 0  # recurrent: a state of fixed size
    layers, width = (_number(metadata.get(f"{name}.{key}")) for key in _SIZES)
    per_cell = bytes_per_cell(name, metadata, layers, width)
    room = memory_bytes() * MEMORY_SHARE
    buffers = 1 if context.kv_unified else context.n_seq_max
    cells = context.n_ctx or chosen_n_ctx(info.context_length or 0, per_cell, room, buffers)
    kinds = (context.type_k, context.type_v)
    element = sum(_ELEMENT.get(kind, _BLOCK_ELEMENT) for kind in kinds) / len(kinds)
    return int(cells * per_cell * element / 2)


def room_for_model(params: ModelParams) -> int:
    """Bytes that a model which is loaded with ``params`` could take now.

    Those of the GPUs, if all its layers go there, with their experts; else those of the machine.
    """
    if params.n_gpu_layers < 0 and not params.n_cpu_moe:
        free = [device["free_bytes"] for device in gpus(params) if device["kind"] == "gpu"]
        if free:
            return sum(free)
    return available_bytes()


def _number(value: object) -> int:
    text = str(value)
    return int(text) if text.isdigit() else 0
