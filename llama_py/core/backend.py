"""The process-wide part of llama.cpp: its log, NUMA, and what it says about the machine."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from llama_py._native import ggml_h, llama_h
from llama_py.core import logs, rpc
from llama_py.core.host.machine import memory_bytes, system_left

__all__ = ["devices", "local_devices", "start", "system_info", "takes_tensor"]


def start(numa: bool | int = False) -> None:
    """Route the log and set the NUMA strategy (True: distribute; or a ``GGML_NUMA_STRATEGY_*``)."""
    logs.install()
    if numa:
        llama_h.llama_numa_init(int(numa))


def system_info() -> str:
    """llama.cpp's line of CPU features and backends."""
    logs.install()
    return (llama_h.llama_print_system_info() or b"").decode()


def devices(names: Collection[str] | None = None) -> list[dict[str, Any]]:
    """Every device: name, description, kind, and memory in bytes.

    Those of RPC servers come first, as llama.cpp would have them: the first layers are there. A
    server that does not answer is left out.

    Args:
        names: ask the servers of these only, also if they were not added for all models.
    """
    return [*map(_device, rpc.devices(names)), *local_devices()]


def local_devices() -> list[dict[str, Any]]:
    """Those of this machine. What the CPU has free is what the system can give."""
    logs.install()
    count = ggml_h.ggml_backend_dev_count()
    found = [_device(ggml_h.ggml_backend_dev_get(index)) for index in range(count)]
    for device in found:
        if device["kind"] == "cpu":  # ggml says that all of the machine's memory is free
            device["total_bytes"] = min(device["total_bytes"], memory_bytes())
            device["free_bytes"] = min(device["total_bytes"], system_left())
    return found


def takes_tensor(name: str, nbytes: int) -> bool:
    """Whether a device computes with a tensor of this many bytes; True if there is no such device.

    Some drivers bind only so much at once, and llama.cpp ends the process over a tensor in a buffer
    that its backend cannot use.
    """
    pointer = ggml_h.ggml_backend_dev_by_name(name.encode())
    if not pointer:
        return True
    room = ggml_h.ggml_init_params(mem_size=4096, mem_buffer=None, no_alloc=True)
    context = ggml_h.ggml_init(room)
    try:
        count = max(1, nbytes // 4)
        tensor = ggml_h.ggml_new_tensor_1d(context, ggml_h.GGML_TYPE_F32, count)
        return bool(ggml_h.ggml_backend_dev_supports_op(pointer, tensor))
    finally:
        ggml_h.ggml_free(context)


def _device(pointer: Any) -> dict[str, Any]:
    import ctypes

    kinds = {
        ggml_h.GGML_BACKEND_DEVICE_TYPE_CPU: "cpu",
        ggml_h.GGML_BACKEND_DEVICE_TYPE_GPU: "gpu",
        ggml_h.GGML_BACKEND_DEVICE_TYPE_IGPU: "integrated gpu",
        ggml_h.GGML_BACKEND_DEVICE_TYPE_ACCEL: "accelerator",
    }

    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml_h.ggml_backend_dev_memory(pointer, ctypes.byref(free), ctypes.byref(total))
    return {
        "name": (ggml_h.ggml_backend_dev_name(pointer) or b"").decode(),
        "description": (ggml_h.ggml_backend_dev_description(pointer) or b"").decode(),
        "kind": kinds.get(ggml_h.ggml_backend_dev_type(pointer), "other"),
        "free_bytes": free.value,
        "total_bytes": total.value,
    }
