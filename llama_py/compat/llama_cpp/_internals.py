"""Small classes around llama.cpp's structs, as llama-cpp-python has them.

A ``Llama`` lends its own objects (``Llama._model``, ``_ctx``): these are not freed here.
"""

from __future__ import annotations

from llama_py.compat.contexts import LlamaBatch, LlamaContext
from llama_py.compat.handles import LlamaModel
from llama_py.compat.samplers import (
    CustomSampler,
    LlamaSampler,
    LlamaSamplingContext,
    LlamaSamplingParams,
    LlamaTokenDataArray,
    normalize_embedding,
)

__all__ = [
    "CustomSampler",
    "LlamaBatch",
    "LlamaContext",
    "LlamaModel",
    "LlamaSampler",
    "LlamaSamplingContext",
    "LlamaSamplingParams",
    "LlamaTokenDataArray",
    "normalize_embedding",
]
