"""The outcome of the rules of the build: those that it applied, and that llama.cpp calls.

A rule replaces code of llama.cpp (``native/kernels``). That its header was compiled says the build
(``build_info.json``). Whether what it replaces is still what llama.cpp calls is seen by computing
something that needs it: the libraries have a flag for each, which is set when its code is reached.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llama_py._native import ggml_h as G
from llama_py._native.loader import build_info, library
from llama_py.errors import LibraryNotFoundError, SymbolNotFoundError

__all__ = ["cpu_variant", "extra_buffer_types", "rule_states"]

#: A buffer that is large enough for huge pages, and for being cleared without being written.
_MEMORY = 8 << 20
#: Rows and columns of the matrices, tokens and cells: enough for each kernel, however wide.
_SIZE = 64
_HEADS = 2


def rule_states() -> dict[str, str]:
    """The outcome of each rule of the build, by the name of its option.

    Returns:
        ``"applied"``, ``"without effect"`` or ``"off"``, as the build says it; and ``"not
        reached"`` where the build applied it, but llama.cpp does not call what it replaces. Rules
        without a flag (options of the compiler, corrected lines) are as the build says. Of a build
        for many CPUs, they are those of the variant that this process has loaded.
    """
    info = build_info()
    states = dict(info.get("rules", {}))
    states.update(info.get("variants", {}).get(cpu_variant(), {}))
    flags = {rule: [*_flags(rule)] for rule, state in states.items() if state == "applied"}
    if any(flags.values()):
        _compute()
    for rule, found in flags.items():
        if found and not any(flag.value for flag in found):
            states[rule] = "not reached"
    return states


def cpu_variant() -> str | None:
    """For which kind of CPU the CPU's backend in use was built, such as ``icelake``.

    None where there is only one (``llama_py/lib`` was built for one kind of CPU).
    """
    try:
        name = Path(library("ggml-cpu")._name).name
    except LibraryNotFoundError:
        return None
    return name.partition(".")[0].rpartition("ggml-cpu-")[2] if "ggml-cpu-" in name else None


def _flags(rule: str) -> Iterator[ctypes.c_ubyte]:
    """Those of the libraries that have the rule's code."""
    name = f"llama_py_reached_{rule.removeprefix('LLAMA_PY_').lower()}"
    for stem in ("ggml-base", "ggml-cpu"):
        try:
            yield ctypes.c_ubyte.in_dll(library(stem), name)
        except (ValueError, LibraryNotFoundError):  # none here
            continue


def _compute() -> None:
    """Everything that a rule has code for, once, over zeros."""
    kind = G.ggml_backend_cpu_buffer_type()
    G.ggml_backend_buft_get_alignment(kind)
    buffer = G.ggml_backend_buft_alloc_buffer(kind, _MEMORY)
    if buffer:
        G.ggml_backend_buffer_clear(buffer, 0)
        G.ggml_backend_buffer_free(buffer)
    memory = G.ggml_init_params(mem_size=_MEMORY, mem_buffer=None, no_alloc=False)
    context = G.ggml_init(memory)
    if not context:
        return
    try:
        with _weights_in_panels() as weights:
            graph = G.ggml_new_graph(context)
            for result in _results(context, weights):
                G.ggml_build_forward_expand(graph, result)
            G.ggml_graph_compute_with_ctx(context, graph, 1)
    except SymbolNotFoundError:
        pass  # the CPU's backend is not found, and no flag of it is seen
    finally:
        G.ggml_free(context)


def extra_buffer_types() -> Iterator[G.ggml_backend_buffer_type_t]:
    """The CPU's types of buffers in which weights lie otherwise than in a file, by preference."""
    cpu = G.ggml_backend_cpu_reg()
    address = G.ggml_backend_reg_get_proc_address(cpu, b"ggml_backend_dev_get_extra_bufts")
    if not address:
        return
    listed = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), G.ggml_backend_dev_t)(address)
    for pointer in listed(G.ggml_backend_reg_dev_get(cpu, 0)):
        if pointer is None:
            return
        yield G.ggml_backend_buffer_type_t(pointer)


@contextmanager
def _weights_in_panels() -> Iterator[list[Any]]:
    """A matrix as a model's would lie, if this build has panels (``weight_panels``)."""
    memory = G.ggml_init_params(mem_size=_MEMORY, mem_buffer=None, no_alloc=True)
    context, made, buffers = G.ggml_init(memory), [], []
    try:
        for kind in extra_buffer_types():
            if G.ggml_backend_buft_name(kind) == b"CPU_PANELS":
                made.append(G.ggml_new_tensor_2d(context, G.GGML_TYPE_Q4_0, _SIZE, _SIZE))
                buffers.append(G.ggml_backend_alloc_ctx_tensors_from_buft(context, kind))
        yield made
    finally:
        for buffer in buffers:
            G.ggml_backend_buffer_free(buffer)
        G.ggml_free(context)


def _results(context: G.ggml_context_p, laid_out: list[Any]) -> Iterator[Any]:
    def zeros(kind: int, *shape: int) -> Any:
        whole = (*shape, *(1,) * (4 - len(shape)))
        return G.ggml_set_zero(G.ggml_new_tensor_4d(context, kind, *whole))

    f32, f16 = G.GGML_TYPE_F32, G.GGML_TYPE_F16
    columns = zeros(f32, _SIZE, _SIZE)
    yield G.ggml_mul_mat(context, zeros(G.GGML_TYPE_Q8_0, _SIZE, _SIZE), columns)
    yield G.ggml_mul_mat(context, zeros(f16, _SIZE, _SIZE), zeros(f16, _SIZE, _SIZE))
    for weights in laid_out:
        yield G.ggml_mul_mat(context, weights, columns)
    yield G.ggml_gelu(context, columns)
    cells = zeros(f16, _SIZE, _SIZE, _HEADS)
    for tokens in (1, _SIZE):
        queries = zeros(f32, _SIZE, tokens, _HEADS)
        mask = zeros(f16, _SIZE, _SIZE)
        yield G.ggml_flash_attn_ext(context, queries, cells, cells, mask, 1.0, 0.0, 0.0)
