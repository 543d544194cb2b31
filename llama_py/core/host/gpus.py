"""GPUs of this machine, whether or not a backend of this installation can use them.

On Linux the PCI devices are looked at, and the files of the drivers; in containers and in WSL, the
latter only.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["BUILD_OPTIONS", "GPU", "find_gpus", "hiding_variables"]

#: Vendors of PCI devices that compute, and the backends of ggml that are made for them: the first
#: one is that which is usually fastest.
_VENDORS: Final = {
    0x10DE: ("NVIDIA", ("CUDA", "Vulkan")),
    0x1002: ("AMD", ("HIP", "Vulkan")),
    0x8086: ("Intel", ("SYCL", "Vulkan")),
}
#: Options of llama.cpp's build by backend.
BUILD_OPTIONS: Final = {
    "CUDA": "-DGGML_CUDA=on",
    "HIP": "-DGGML_HIP=on",
    "SYCL": "-DGGML_SYCL=on",
    "Vulkan": "-DGGML_VULKAN=on",
    "Metal": "-DGGML_METAL=on",
    "OpenCL": "-DGGML_OPENCL=on",
}
#: Variables of the environment that hide devices from a backend.
_HIDING: Final = {
    "CUDA": ("CUDA_VISIBLE_DEVICES",),
    "HIP": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "SYCL": ("ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK"),
    "Vulkan": ("GGML_VK_VISIBLE_DEVICES",),
}
#: PCI classes: displays (0x03), and accelerators without one (0x12).
_DISPLAY, _ACCELERATOR = 0x03, 0x12


@dataclass(frozen=True, slots=True)
class GPU:
    """One that is there.

    Attributes:
        vendor: NVIDIA, AMD, Intel, Apple.
        id: the PCI ids of vendor and device, such as ``10de:2684``; empty if they are not known.
        backends: those of ggml that are made for it, the best one first.
        driver: what its driver says of itself; None: there is none that computes.
    """

    vendor: str
    id: str
    backends: tuple[str, ...]
    driver: str | None


def find_gpus(root: Path = Path("/")) -> list[GPU]:
    """The GPUs of this machine, in the order of the bus.

    Args:
        root: where ``/proc``, ``/sys`` and ``/dev`` are.
    """
    if sys.platform == "darwin":
        return [GPU("Apple", "", ("Metal",), "Metal")] if platform.machine() == "arm64" else []
    drivers = {vendor: _driver(root, vendor) for vendor, _ in _VENDORS.values()}
    found = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        numbers = [_number(device / name) for name in ("class", "vendor", "device")]
        known = _VENDORS.get(numbers[1])
        if known is not None and numbers[0] >> 16 in (_DISPLAY, _ACCELERATOR):
            vendor, backends = known
            found.append(
                GPU(vendor, f"{numbers[1]:04x}:{numbers[2]:04x}", backends, drivers[vendor])
            )
    # A container may have the driver's files without the bus.
    if not any(gpu.vendor == "NVIDIA" for gpu in found) and drivers["NVIDIA"] is not None:
        found.append(GPU("NVIDIA", "", _VENDORS[0x10DE][1], drivers["NVIDIA"]))
    return found


def _number(path: Path) -> int:
    try:
        return int(path.read_text(), 16)
    except (OSError, ValueError):
        return 0


def _driver(root: Path, vendor: str) -> str | None:
    if vendor == "NVIDIA":
        try:
            text = (root / "proc/driver/nvidia/version").read_text()
        except OSError:
            wsl = (root / "dev/dxg").exists() and (root / "usr/lib/wsl/lib/libcuda.so.1").exists()
            return "WSL" if wsl else None
        words = text.partition("Kernel Module")[2].split()
        return next((word for word in words if word[:1].isdigit()), "unknown version")
    if vendor == "AMD" and (root / "dev/kfd").exists():
        return "amdgpu"
    return "render nodes" if any((root / "dev/dri").glob("renderD*")) else None


def hiding_variables(backend: str, environment: Mapping[str, str]) -> list[str]:
    """Variables that are set and may hide devices from a backend, as ``NAME=value``."""
    return [
        f"{name}={environment[name]}" for name in _HIDING.get(backend, ()) if name in environment
    ]
