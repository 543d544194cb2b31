"""Which devices there are, which of them models use, and why others are not used."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from llama_py._native import ggml_h
from llama_py._native.backends import PACKAGES, plugins
from llama_py._native.loader import build_info
from llama_py.core import backend, rpc
from llama_py.core.host.gpus import BUILD_OPTIONS, GPU, find_gpus, hiding_variables
from llama_py.errors import DeviceUnavailableError
from llama_py.version import __version__

__all__ = ["DeviceReport", "device_report", "gpu_hint", "unused_gpus"]

#: How a backend's library is called, and the backend.
_BACKENDS = {
    "cuda": "CUDA",
    "hip": "HIP",
    "sycl": "SYCL",
    "vulkan": "Vulkan",
    "metal": "Metal",
    "opencl": "OpenCL",
    "rpc": "RPC",
}
#: What ggml calls a backend where it has another name.
_REGISTERED = {"MTL": "Metal", "ROCm": "HIP"}


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """See the module.

    Attributes:
        devices: those of all backends (``core.backend.devices``), each with ``used``: whether
            models are loaded there unless they are told otherwise.
        backends: of GPUs, that this installation was built with, or that plug-ins have added.
        gpus: that this machine has.
        hints: sentences: what is not used, why, and what to do.
    """

    devices: tuple[Mapping[str, Any], ...]
    backends: tuple[str, ...]
    gpus: tuple[GPU, ...]
    hints: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def device_report(built: Sequence[str], servers: Sequence[str] = ()) -> DeviceReport:
    """Look at everything.

    Args:
        built: names of the backends' libraries (``backends`` of ``build_info``).
        servers: RPC servers to look for, as ``host:port``.

    Raises:
        ParameterError: one of them is none.
    """
    lost = []  # servers that cannot be used; the others are added
    for server in servers:
        try:
            rpc.add_server(server)
        except DeviceUnavailableError as error:
            lost.append(str(error))
    devices = backend.devices()
    kinds = {device["kind"] for device in devices}
    wanted = "gpu" if "gpu" in kinds else "integrated gpu"
    for device in devices:
        device["used"] = device["kind"] in (wanted, "cpu", "accelerator")
    added = plugins()
    names = [*built, *(plugin.backend for plugin in added if not plugin.refusal)]
    stems = [name.removeprefix("ggml-").removeprefix("lib") for name in names]
    backends = [*dict.fromkeys(_BACKENDS[stem] for stem in stems if stem in _BACKENDS)]
    gpus = find_gpus()
    registered = map(ggml_h.ggml_backend_reg_get, range(ggml_h.ggml_backend_reg_count()))
    having = [each for each in registered if ggml_h.ggml_backend_reg_dev_count(each)]
    called = [(ggml_h.ggml_backend_reg_name(each) or b"").decode() for each in having]
    hints = [
        *(f"{p.distribution} is installed and not used: {p.refusal}" for p in added if p.refusal),
        *lost,
        *_silent_backends(backends, {_REGISTERED.get(name, name) for name in called}),
        *unused_gpus(gpus, backends, has_device=bool(kinds & {"gpu", "integrated gpu"})),
    ]
    return DeviceReport(tuple(devices), tuple(backends), tuple(gpus), tuple(hints))


def _silent_backends(backends: Sequence[str], found: set[str]) -> list[str]:
    """What to say of backends that are built in and have no device."""
    hints = []
    for name in backends:
        if name in found or name == "RPC":  # whose devices are added by address
            continue
        hidden = hiding_variables(name, os.environ)
        if hidden:
            hints.append(
                f"{name} is built in and sees no device: {', '.join(hidden)} may hide it; unset "
                "the variable, or name the devices that are to be used"
            )
        elif name == "Vulkan":
            hints.append(
                "Vulkan is built in and sees no GPU: install the driver of your GPU "
                "(vulkaninfo --summary lists what there is); devices in software count only if "
                "GGML_VK_VISIBLE_DEVICES names them"
            )
        else:
            hints.append(
                f"{name} is built in and sees no device: its driver or its runtime is missing, or "
                "older than what this was built with"
            )
    return hints


@cache
def gpu_hint() -> str | None:
    """What to say of a GPU that is here and cannot be used by this installation, or None."""
    built = build_info().get("backends", [])
    stems = [name.removeprefix("ggml-").removeprefix("lib") for name in built]
    backends = [_BACKENDS[stem] for stem in stems if stem in _BACKENDS]
    has_device = any("gpu" in device["kind"] for device in backend.local_devices())
    return next(iter(unused_gpus(find_gpus(), backends, has_device=has_device)), None)


def unused_gpus(gpus: Sequence[GPU], backends: Sequence[str], *, has_device: bool) -> list[str]:
    """What to say of GPUs that are there and that no backend of this build is made for.

    Args:
        has_device: some GPU is used.
    """
    hints: dict[str, None] = {}  # once for each sentence
    for gpu in gpus:
        if any(name in backends for name in gpu.backends):
            continue
        best, name = gpu.backends[0], f"the {gpu.vendor} GPU"
        if gpu.vendor == "Intel" and has_device:
            continue  # the one that is in many processors
        if gpu.driver is None:
            hints[f"{name} has no driver that computes; install it, and then build for it"] = None
            continue
        wheels = (
            f"install the wheel {package.replace('_', '-')} {__version__} of this release, or "
            for package, library in PACKAGES.items()
            if _BACKENDS[library.removeprefix("ggml-")] == best
        )
        hints[
            f"{name} is not used: this installation has no backend for it; {next(wheels, '')}"
            f'build one, in a checkout: CMAKE_ARGS="{BUILD_OPTIONS[best]}" pip install '
            "--force-reinstall --no-cache-dir ."
        ] = None
    return [*hints]
