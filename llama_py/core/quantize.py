"""``quantize_model``: llama.cpp's own quantization of a whole file.

It ends the process on some files, and cannot be stopped: call it in a process of its own
(``llama_py.tools.quantize``).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from llama_py._native import llama_h as C
from llama_py.core import logs
from llama_py.errors import InvalidModelError
from llama_py.gguf.reader import GGML_TYPES

__all__ = ["FILE_TYPES", "TENSOR_TYPES", "QuantizeOptions", "quantize_model"]

_PREFIXES = ("LLAMA_FTYPE_MOSTLY_", "LLAMA_FTYPE_ALL_")
#: What ``llama-quantize`` takes by other names.
_SHORT = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
_KINDS: Mapping[type, int] = {bool: 2, int: 0, float: 1, str: 3}


def _file_types() -> dict[str, int]:
    named = {
        name.removeprefix(prefix): getattr(C, name)
        for name in dir(C)
        for prefix in _PREFIXES
        if name.startswith(prefix)
    }
    return {**named, **{short: named[name] for short, name in _SHORT.items()}}


#: Types of files by name ("Q4_K_M"), as llama.cpp numbers them.
FILE_TYPES: Mapping[str, int] = _file_types()
#: The same of tensors ("Q4_K").
TENSOR_TYPES: Mapping[str, int] = {name: number for number, (name, _, _) in GGML_TYPES.items()}


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """How a file is quantized; see ``llama_py.tools.quantize``."""

    file_type: str
    n_threads: int = 0
    output_type: str | None = None
    embedding_type: str | None = None
    tensor_types: Sequence[tuple[str, str]] = ()
    allow_requantize: bool = False
    quantize_output: bool = True
    pure: bool = False
    dry_run: bool = False
    prune_layers: Sequence[int] = ()
    matrix: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    metadata: Mapping[str, bool | int | float | str] = field(default_factory=dict)


def quantize_model(source: str, target: str, options: QuantizeOptions) -> None:
    """Write a file whose tensors have other types.

    Raises:
        InvalidModelError: llama.cpp refuses; a part of the target may be there.
    """
    params = C.llama_model_quantize_default_params()
    params.nthread = options.n_threads
    params.ftype = FILE_TYPES[options.file_type]
    for name, wanted in (
        ("output_tensor_type", options.output_type),
        ("token_embedding_type", options.embedding_type),
    ):
        if wanted is not None:
            setattr(params, name, TENSOR_TYPES[wanted])
    params.allow_requantize = options.allow_requantize
    params.quantize_output_tensor = options.quantize_output
    params.pure, params.dry_run = options.pure, options.dry_run
    if options.matrix:
        params.imatrix = _matrix(options.matrix)
    if options.metadata:
        params.kv_overrides = _overrides(options.metadata)
    if options.tensor_types:
        params.tt_overrides = _patterns(options.tensor_types)
    if options.prune_layers:
        layers = [*options.prune_layers, -1]
        params.prune_layers = (ctypes.c_int32 * len(layers))(*layers)
    with logs.ErrorLines() as lines:
        failed = C.llama_model_quantize(
            os.fsencode(source), os.fsencode(target), ctypes.byref(params)
        )
    if failed:
        raise InvalidModelError(f"llama.cpp cannot quantize {source}: {lines}")


def _matrix(matrix: Mapping[str, NDArray[np.float32]]) -> ctypes.Array[C.llama_model_imatrix_data]:
    entries = (C.llama_model_imatrix_data * (len(matrix) + 1))()
    for entry, (name, values) in zip(entries, matrix.items(), strict=False):
        entry.name = name.encode()
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        entry.size = values.size
    return entries


def _overrides(
    metadata: Mapping[str, bool | int | float | str],
) -> ctypes.Array[C.llama_model_kv_override]:
    entries = (C.llama_model_kv_override * (len(metadata) + 1))()
    for entry, (key, value) in zip(entries, metadata.items(), strict=False):
        entry.key, entry.tag = key.encode(), _KINDS[type(value)]
        if isinstance(value, str):
            entry.u0.val_str = value.encode()[:127]
        else:
            name = {bool: "val_bool", int: "val_i64", float: "val_f64"}[type(value)]
            setattr(entry.u0, name, value)
    return entries


def _patterns(
    types: Sequence[tuple[str, str]],
) -> ctypes.Array[C.llama_model_tensor_override]:
    entries = (C.llama_model_tensor_override * (len(types) + 1))()
    for entry, (pattern, wanted) in zip(entries, types, strict=False):
        entry.pattern, entry.type = pattern.encode(), TENSOR_TYPES[wanted]
    return entries
