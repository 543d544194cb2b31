"""The process-wide part of llama.cpp: its log, NUMA, and what it says about the machine."""

from __future__ import annotations

from typing import Any

from llama_py._native import ggml_h, llama_h
from llama_py.core import logs

__all__ = ["devices", "start", "system_info"]


def start(numa: bool | int = False) -> None:
    """Route the log and set the NUMA strategy (True: distribute; or a ``GGML_NUMA_STRATEGY_*``)."""
    logs.install()
    if numa:
        llama_h.llama_numa_init(int(numa))


def system_info() -> str:
    """llama.cpp's line of CPU features and backends."""
    logs.install()
    return (llama_h.llama_print_system_info() or b"").decode()


def devices() -> list[dict[str, Any]]:
    """Every device of every backend: name, description, kind, and memory in bytes."""
    logs.install()
    kinds = {
        ggml_h.GGML_BACKEND_DEVICE_TYPE_CPU: "cpu",
        ggml_h.GGML_BACKEND_DEVICE_TYPE_GPU: "gpu",
        ggml_h.GGML_BACKEND_DEVICE_TYPE_IGPU: "integrated gpu",
        ggml_h.GGML_BACKEND_DEVICE_TYPE_ACCEL: "accelerator",
    }
    return [
        _device(ggml_h.ggml_backend_dev_get(index), kinds)
        for index in range(ggml_h.ggml_backend_dev_count())
    ]


def _device(pointer: Any, kinds: dict[int, str]) -> dict[str, Any]:
    import ctypes

    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml_h.ggml_backend_dev_memory(pointer, ctypes.byref(free), ctypes.byref(total))
    return {
        "name": (ggml_h.ggml_backend_dev_name(pointer) or b"").decode(),
        "description": (ggml_h.ggml_backend_dev_description(pointer) or b"").decode(),
        "kind": kinds.get(ggml_h.ggml_backend_dev_type(pointer), "other"),
        "free_bytes": free.value,
        "total_bytes": total.value,
    }
