"""Quantizes a file with llama.cpp's own quantizer: the types of most models that people run.

The package gguf quantizes the simple types only. What each matrix becomes in a mixture such as
Q4_K_M is llama.cpp's choice, which depends on its name, its layer and its width.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from llama_py._native import llama_h
from llama_py.core import logs
from llama_py.errors import LlamaError

__all__ = ["MIXTURES", "quantize_file"]

#: Name -> llama.cpp's file type.
MIXTURES: Final[dict[str, int]] = {
    "q4_k_m": llama_h.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    "q5_k_m": llama_h.LLAMA_FTYPE_MOSTLY_Q5_K_M,
    "q6_k": llama_h.LLAMA_FTYPE_MOSTLY_Q6_K,
    "iq4_xs": llama_h.LLAMA_FTYPE_MOSTLY_IQ4_XS,
}


def quantize_file(source: Path, target: Path, quant: str) -> None:
    """Write ``target`` with the matrices of ``source``, which is not quantized, as ``quant``.

    Raises:
        LlamaError: llama.cpp refuses.
    """
    logs.install()
    params = llama_h.llama_model_quantize_default_params()
    params.ftype = MIXTURES[quant]
    params.nthread = os.cpu_count() or 1
    with logs.ErrorLines() as errors:
        if llama_h.llama_model_quantize(bytes(source), bytes(target), params):
            raise LlamaError(f"{source} could not be quantized as {quant}: {errors}")
