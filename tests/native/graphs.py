"""Single operations of ggml over numpy arrays."""

from __future__ import annotations

import ctypes
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from llama_py._native import ggml_h as G

__all__ = ["Graph"]

_FLOATS = {np.dtype(np.float16): G.GGML_TYPE_F16, np.dtype(np.float32): G.GGML_TYPE_F32}


class Graph:
    """A context for one operation: make its ``tensor``s, and ``compute`` what it gives."""

    def __enter__(self) -> Graph:
        memory = G.ggml_init_params(mem_size=256 << 20, mem_buffer=None, no_alloc=False)
        self.context = G.ggml_init(memory)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        G.ggml_free(self.context)

    def tensor(
        self,
        values: npt.NDArray[Any],
        kind: int | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> ctypes._Pointer[G.ggml_tensor]:
        """A tensor with these values.

        Args:
            kind: ggml's type; by default that of the array.
            shape: in the order of numpy, if it is not the array's (blocks of several numbers).
        """
        values = np.ascontiguousarray(values)
        whole = (1,) * (4 - len(shape or values.shape)) + (shape or values.shape)
        kind = _FLOATS[values.dtype] if kind is None else kind
        made = G.ggml_new_tensor_4d(self.context, kind, *whole[::-1])
        data = G.ggml_get_data(made)
        assert data
        ctypes.memmove(data, values.ctypes.data, values.nbytes)
        return made

    def compute(
        self,
        result: ctypes._Pointer[G.ggml_tensor],
        threads: int,
        shape: tuple[int, ...],
        *,
        plainly: bool = False,
    ) -> npt.NDArray[np.float32]:
        """What it gives.

        Args:
            plainly: by the code that ggml compares others with; no rule takes part in it.
        """
        graph = G.ggml_new_graph(self.context)
        G.ggml_build_forward_expand(graph, result)
        plan = G.ggml_graph_plan(graph, threads, G.ggml_threadpool_t())
        work = (ctypes.c_uint8 * max(1, plan.work_size))()
        plan.work_data, plan.use_ref = work, plainly
        assert G.ggml_graph_compute(graph, plan) == 0
        return np.array(np.ctypeslib.as_array(G.ggml_get_data_f32(result), shape), np.float32)
