"""Which GPUs there are, and what is said of those that are not used."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from llama_py.core import backend, device_memory, device_report
from llama_py.core.host.gpus import GPU, find_gpus, hiding_variables
from llama_py.errors import NotEnoughMemoryError
from llama_py.params import ContextParams, ModelParams
from tests.models import tiny_model

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="looks at files of Linux")


def machine(
    root: Path, *devices: tuple[int, int, int], files: dict[str, str] | None = None
) -> Path:
    """A machine with PCI devices, each with its class, vendor and number."""
    for number, values in enumerate(devices):
        folder = root / f"sys/bus/pci/devices/0000:{number:02x}:00.0"
        folder.mkdir(parents=True)
        for name, value in zip(("class", "vendor", "device"), values, strict=True):
            (folder / name).write_text(f"0x{value:x}\n")
    for name, text in (files or {}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


NVIDIA, AMD, INTEL = (
    (0x030000, 0x10DE, 0x2684),
    (0x038000, 0x1002, 0x744C),
    (0x030000, 0x8086, 0x9A49),
)
VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\nGCC version: 12\n"


def test_gpus_of_the_bus(tmp_path: Path) -> None:
    network = (0x020000, 0x10DE, 1)
    screen = (0x030000, 0x1A03, 2)  # a server's, which does not compute
    root = machine(
        tmp_path,
        INTEL,
        network,
        NVIDIA,
        screen,
        AMD,
        (0x120000, 0x10DE, 0x20B0),
        files={"proc/driver/nvidia/version": VERSION, "dev/kfd": ""},
    )
    found = find_gpus(root)
    assert [gpu.id for gpu in found] == ["8086:9a49", "10de:2684", "1002:744c", "10de:20b0"]
    assert [gpu.driver for gpu in found] == [None, "550.54.15", "amdgpu", "550.54.15"]
    assert [gpu.backends[0] for gpu in found] == ["SYCL", "CUDA", "HIP", "CUDA"]


def test_a_container_without_the_bus(tmp_path: Path) -> None:
    assert find_gpus(tmp_path) == []
    root = machine(tmp_path, files={"proc/driver/nvidia/version": VERSION})
    assert [(gpu.vendor, gpu.driver) for gpu in find_gpus(root)] == [("NVIDIA", "550.54.15")]


def test_wsl(tmp_path: Path) -> None:
    root = machine(tmp_path, files={"dev/dxg": "", "usr/lib/wsl/lib/libcuda.so.1": ""})
    assert [(gpu.vendor, gpu.driver) for gpu in find_gpus(root)] == [("NVIDIA", "WSL")]


def test_what_is_said_of_a_gpu_that_is_not_used() -> None:
    nvidia = GPU("NVIDIA", "10de:2684", ("CUDA", "Vulkan"), "550.54.15")
    blind = GPU("AMD", "1002:744c", ("HIP", "Vulkan"), None)
    intel = GPU("Intel", "8086:9a49", ("SYCL", "Vulkan"), "render nodes")
    say = device_report.unused_gpus
    (hint,) = say([nvidia, nvidia], [], has_device=False)
    assert 'CMAKE_ARGS="-DGGML_CUDA=on" pip install' in hint
    assert say([nvidia], ["CUDA"], has_device=True) == []
    assert say([nvidia], ["Vulkan"], has_device=True) == []
    assert "no driver" in say([blind], [], has_device=False)[0]
    assert say([intel], ["CUDA"], has_device=True) == [], "it is in the processor"
    assert "-DGGML_SYCL=on" in say([intel], [], has_device=False)[0]


def test_what_is_said_of_a_backend_without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    silent = device_report._silent_backends
    assert silent(["CUDA"], {"CUDA"}) == []
    assert silent(["RPC"], set()) == []
    assert "driver" in silent(["CUDA"], set())[0]
    assert "GGML_VK_VISIBLE_DEVICES" in silent(["Vulkan"], set())[0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert "CUDA_VISIBLE_DEVICES=-1 may hide it" in silent(["CUDA"], set())[0]
    assert hiding_variables("CUDA", {"CUDA_VISIBLE_DEVICES": ""}) == ["CUDA_VISIBLE_DEVICES="]


def test_the_report_of_this_machine() -> None:
    report = device_report.device_report(["ggml-cpu"])
    assert [device["name"] for device in report.devices if device["kind"] == "cpu"] == ["CPU"]
    assert all("used" in device for device in report.devices)
    assert set(report.as_dict()) == {"devices", "backends", "gpus", "hints"}


# ---- what does not fit -----------------------------------------------------------------------


def gpu_of(monkeypatch: pytest.MonkeyPatch, free: int, total: int = 1 << 40) -> None:
    """As if there were a GPU; nothing is computed on it."""
    device: dict[str, Any] = {"name": "GPU0", "kind": "gpu", "description": "a GPU"}
    device |= {"free_bytes": free, "total_bytes": total}
    monkeypatch.setattr(backend, "local_devices", lambda: [device])


def check(params: ModelParams | None = None, kind: Any = "full", **options: Any) -> ModelParams:
    context = ContextParams(**{"n_ctx": 1 << 20, **options})
    return device_memory.fitted(tiny_model(kind), params or ModelParams(n_gpu_layers=99), context)


def test_a_gpu_without_a_backend_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the page of the server, and in ``/props``."""
    amd = GPU("AMD", "1002:744c", ("HIP", "Vulkan"), "amdgpu")
    for found, words in (([amd], "-DGGML_HIP=on"), ([], None)):
        device_report.gpu_hint.cache_clear()
        monkeypatch.setattr(device_report, "find_gpus", lambda found=found: found)
        monkeypatch.setattr(device_report, "build_info", lambda: {"backends": ["ggml-cpu"]})
        hint = device_report.gpu_hint()
        assert hint is None if words is None else words in str(hint)
    device_report.gpu_hint.cache_clear()


def test_a_context_that_a_gpu_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_of(monkeypatch, 64 << 20)
    with pytest.raises(NotEnoughMemoryError, match=r"on GPU0 .*n_ctx=1048576.*smaller n_ctx"):
        check()
    check(n_ctx=512)
    check(ModelParams(n_gpu_layers=0))
    check(offload_kqv=False)
    check(ModelParams(vocab_only=True))


def test_what_models_of_this_process_have_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_of(monkeypatch, 5 << 30, 6 << 30)
    assert device_memory.free_by_device(ModelParams()) == {"GPU0": 5 << 30}
    mine = device_memory.DeviceMemory("GPU0", 2 << 30, 1 << 30, 0)

    class Held:
        closed = False

    held: Any = Held()
    device_memory._loaded[held] = (mine,)
    assert device_memory.free_by_device(ModelParams()) == {"GPU0": 3 << 30}
    held.closed = True
    assert device_memory.free_by_device(ModelParams()) == {"GPU0": 5 << 30}


def test_as_many_layers_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured is the machine's: as if its memory were the GPU's, layer by layer."""
    gpu_of(monkeypatch, 1 << 40)
    assert check(ModelParams()).n_gpu_layers == -1, "there is room for all"
    real = device_memory.measured

    def measured(path: Any, params: ModelParams, context: ContextParams) -> Any:
        found = real(path, ModelParams(n_gpu_layers=0), context)
        (cpu,) = found.devices
        there = 5 if params.n_gpu_layers < 0 else params.n_gpu_layers
        part = device_memory.DeviceMemory("GPU0", there << 20, 0, 0)
        return device_memory.Measured(found.n_ctx, (part, cpu))

    monkeypatch.setattr(device_memory, "measured", measured)
    for free, layers in ((9.0, -1), (3.5, 3), (1.2, 1), (0.2, 0)):
        gpu_of(monkeypatch, int(free * (1 << 20)))
        chosen = check(ModelParams(), n_ctx=512)
        assert chosen.n_gpu_layers == layers, free
    gpu_of(monkeypatch, 3 << 20)
    with pytest.raises(NotEnoughMemoryError):
        check(ModelParams(n_gpu_layers=4), n_ctx=512)
