"""Looks at a projector's weights, and encodes one small picture and one short sound.

Run by ``trial_load``. The model gives its sizes and its vocabulary only: no weights of it are read.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np

from llama_py._native import llama_h
from llama_py.core import logs
from llama_py.core.handle import Handle
from llama_py.core.model import Model
from llama_py.core.projector import Cells, Chunks, Projector
from llama_py.core.trial_load import REFUSED
from llama_py.core.weights import check_finite
from llama_py.errors import InvalidModelError, LlamaError
from llama_py.gguf.reader import read_header

__all__ = ["main"]


class _Outline(Handle[llama_h.llama_model_p]):
    """A model without its weights."""

    def __init__(self, path: Path) -> None:
        self.path = path
        params = llama_h.llama_model_default_params()
        params.no_alloc, params.load_mode, params.n_gpu_layers = True, 0, 0
        with logs.ErrorLines() as lines:
            pointer = llama_h.llama_model_load_from_file(os.fsencode(path), params)
        if not pointer:
            raise InvalidModelError(f"llama.cpp cannot load {path}: {lines}")
        super().__init__(pointer, llama_h.llama_model_free)


def _encode(projector: Projector, chunks: Chunks) -> None:
    for part in chunks.parts:
        if isinstance(part, Cells):
            projector.encode(chunks, part.index)


def _use(projector: Projector) -> None:
    if projector.sees:
        ramp: Any = np.arange(96 * 64 * 3) % 251
        _encode(projector, projector.split_pixels(ramp.astype(np.uint8).reshape(64, 96, 3), "it"))
    if projector.hears:
        wave = np.sin(np.arange(projector.sample_rate, dtype=np.float32) / 7)
        _encode(projector, projector.split_samples(wave.astype(np.float32), "it"))


def main(model: str, projector: str) -> int:
    """Try a projector for a model; the exit status."""
    logs.install()
    try:
        check_finite(read_header(Path(projector)))
        with _Outline(Path(model)) as outline:
            tried = Projector(cast("Model", outline), projector, use_gpu=False, rehearsed=True)
            with tried:
                _use(tried)
    except LlamaError as error:
        print(error)  # to the process that started this one
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
