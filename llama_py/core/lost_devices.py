"""Devices that are lost while a model is on them.

A backend whose devices can be lost counts how often that was, in a function that it offers by name
(``native/kernels/lost_devices``: Vulkan's). Servers of other machines: ``rpc.Watch``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, Final, Protocol

from llama_py._native import ggml_h
from llama_py.core import rpc
from llama_py.core.loss_counts import LossWatch

__all__ = ["DeviceWatch", "LocalWatch", "watching"]

_COUNT: Final = b"llama_py_count_losses"


class DeviceWatch(Protocol):
    """Tells whether a device was lost since a model began to be loaded on it."""

    @property
    def lost(self) -> str:
        """The name of the one that was; empty as long as none was found out to be."""

    def check(self) -> None:
        """Raise ``DeviceLostError`` if one was."""


class LocalWatch(LossWatch):
    """Watches devices of one backend of this machine. See ``DeviceWatch``."""

    def _reason(self, name: str) -> str:
        return (
            f"the device {name} is lost: its driver gave it up, or failed. A step that takes "
            "longer than the driver allows is one reason: try a smaller n_ubatch. The model cannot "
            "go on; load it again, or without the device (n_gpu_layers=0)"
        )


class _Several:
    """Watches of several kinds as one. See ``DeviceWatch``."""

    def __init__(self, watches: list[DeviceWatch]) -> None:
        self._watches = watches

    @property
    def lost(self) -> str:
        """The first one that was lost."""
        return next((each.lost for each in self._watches if each.lost), "")

    def check(self) -> None:
        """Raise ``DeviceLostError`` if one was lost."""
        for each in self._watches:
            each.check()


def watching(names: Iterable[str]) -> DeviceWatch | None:
    """A watch of those of these devices that can be lost; None if there are none."""
    wanted = {*names}
    endpoints = {each.endpoint for each in rpc.known() if wanted & {*each.devices}}
    watches: list[DeviceWatch] = [rpc.Watch(endpoints)] if endpoints else []
    function = ctypes.CFUNCTYPE(ctypes.c_uint64, ggml_h.ggml_backend_dev_t)
    #: Where a backend of this machine counts its losses -> its devices.
    counted: dict[int, dict[str, Any]] = {}
    for name in sorted(wanted):
        device = ggml_h.ggml_backend_dev_by_name(name.encode())
        if not device:
            continue
        backend = ggml_h.ggml_backend_dev_backend_reg(device)
        address = ggml_h.ggml_backend_reg_get_proc_address(backend, _COUNT)
        if address:
            counted.setdefault(int(address), {})[name] = device
    watches += [LocalWatch(function(address), pointers) for address, pointers in counted.items()]
    if len(watches) > 1:
        return _Several(watches)
    return watches[0] if watches else None
