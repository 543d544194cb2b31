"""``model_params`` and ``context_params`` of a ``Llama``, as llama.cpp's structs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_py.compat.llama_cpp import llama_cpp as C

__all__ = ["context_struct", "model_struct"]

_SAME = (
    "rope_scaling_type",
    "pooling_type",
    "attention_type",
    "rope_freq_base",
    "rope_freq_scale",
    "yarn_ext_factor",
    "yarn_attn_factor",
    "yarn_beta_fast",
    "yarn_beta_slow",
    "yarn_orig_ctx",
    "offload_kqv",
    "op_offload",
    "swa_full",
    "no_perf",
    "type_k",
    "type_v",
)


def model_struct(given: Mapping[str, Any]) -> Any:
    """How the model was loaded: a copy, which changes nothing."""
    params = C.llama_model_default_params()
    layers = given["n_gpu_layers"]
    params.n_gpu_layers = 0x7FFFFFFF if layers == -1 else layers
    params.split_mode = given["split_mode"]
    params.main_gpu = given["main_gpu"]
    params.vocab_only = given["vocab_only"]
    return params


def context_struct(given: Mapping[str, Any], n_ctx: int, n_batch: int, n_threads: int) -> Any:
    """How the context was made: a copy, which changes nothing."""
    params = C.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_batch = n_batch
    params.n_ubatch = min(n_batch, given["n_ubatch"])
    params.n_threads = n_threads
    params.n_threads_batch = given["n_threads_batch"] or n_threads
    params.embeddings = bool(given["embedding"])
    for name in _SAME:
        if isinstance(given[name], (int, float)):
            setattr(params, name, given[name])
    flash = "LLAMA_FLASH_ATTN_TYPE_" + ("ENABLED" if given["flash_attn"] else "DISABLED")
    params.flash_attn_type = getattr(C, flash)
    return params
