"""``ThreadPools``: the threads that a context computes with on the CPU.

They belong to the context, so it does not matter which thread calls ``llama_decode``. Without them
ggml would start new threads for every batch; and a build with OpenMP gives each calling thread a
team of its own, whose members then compete for the cores (GNU's library stops spinning as soon as
there are more threads than cores, which makes generation half as fast).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from llama_py import forks
from llama_py._native import ggml_h as G
from llama_py._native import llama_h as C
from llama_py.errors import ContextCreationError, NativeLibraryError

__all__ = ["ThreadPools"]

#: How long an idle thread spins for the next batch before it sleeps, in ggml's units of 131,072
#: rounds: a few milliseconds, which is longer than the pause between two tokens. ggml's own default
#: of 50 would keep the cores busy for a good part of a second.
_POLL = 1


class ThreadPools:
    """The pools of one context: one for single tokens and one for batches, or one for both.

    A draft model's context computes with those of its target, one after the other.
    """

    def __init__(self) -> None:
        self._pools: dict[int, G.ggml_threadpool_t] = {}
        _all.add(self)
        backend = G.ggml_backend_dev_backend_reg(
            G.ggml_backend_dev_by_type(G.GGML_BACKEND_DEVICE_TYPE_CPU)
        )
        # Not by name: with backends as plug-ins, the CPU's functions are in none of our libraries.
        self._new = _function(
            backend, b"ggml_threadpool_new", G.ggml_threadpool_t, G.ggml_threadpool_params_p
        )
        self._free = _function(backend, b"ggml_threadpool_free", None, G.ggml_threadpool_t)

    def attach(self, context: C.llama_context_p, n_threads: int, n_threads_batch: int) -> None:
        """Let ``context`` compute with pools of these sizes.

        Pools that were attached before are kept for the next change, and until ``free``: the
        context still pauses the last one when it switches.
        """
        C.llama_attach_threadpool(context, self._pool(n_threads), self._pool(n_threads_batch))

    def can_attach(self, *sizes: int) -> bool:
        """Whether pools of these sizes are there, or can be started.

        ggml ends the process if the system refuses a thread, which is no price for being faster.
        """
        return all(size in self._pools or _can_start(size - 1) for size in sizes)

    def _pool(self, size: int) -> G.ggml_threadpool_t:
        if size not in self._pools:
            params = G.ggml_threadpool_params_default(size)
            params.poll = _POLL
            # It wakes up with its first batch.
            params.paused = True
            pool = self._new(ctypes.byref(params))
            if not pool:
                raise ContextCreationError(f"{size} threads could not be started")
            self._pools[size] = pool
        return self._pools[size]

    def free(self) -> None:
        """End the threads. The context must be gone."""
        while self._pools:
            self._free(self._pools.popitem()[1])


def _can_start(count: int) -> bool:
    """Start this many threads at once, and let them end."""
    stop, started = threading.Event(), list[threading.Thread]()
    try:
        for _ in range(count):
            thread = threading.Thread(target=stop.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        return False
    finally:
        stop.set()
        for thread in started:
            thread.join()
    return True


def _lose_all() -> None:
    """In a forked child: to free a pool would be to wait for its threads, which are not there."""
    for pools in _all:
        pools._pools = {}


_all: WeakSet[ThreadPools] = WeakSet()
forks.after_in_child(_lose_all)


def _function(backend: Any, name: bytes, result: Any, *arguments: Any) -> Callable[..., Any]:
    address = G.ggml_backend_reg_get_proc_address(backend, name)
    if not address:
        raise NativeLibraryError(
            f"the CPU backend has no {name.decode()}: it was built from another version of "
            "llama.cpp than these declarations. Reinstall llama_py."
        )
    return ctypes.CFUNCTYPE(result, *arguments)(address)
