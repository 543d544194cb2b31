"""Where the parts of a model go: which devices it uses, and which tensors are on which of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from llama_py._native import ggml_h
from llama_py._native import llama_h as C
from llama_py.core import backend, rpc
from llama_py.core.lost_devices import DeviceWatch, watching
from llama_py.errors import ParameterError
from llama_py.params import ModelParams

__all__ = ["Placement", "gpus", "named_gpus", "placement"]

#: The end of the names of the tensors with the experts of a layer, as llama.cpp's --cpu-moe has it.
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_GPUS = ("gpu", "integrated gpu")


@dataclass(frozen=True, slots=True)
class Placement:
    """The devices of a model.

    Attributes:
        devices: their names, without the CPU.
        pointers: for C, ending with NULL; None: it chooses the same.
        watch: of those among them that can be lost; None: there are none.
    """

    devices: tuple[str, ...]
    pointers: Any
    watch: DeviceWatch | None

    def overrides(self, params: ModelParams, kept: list[Any]) -> Any:
        """Where tensors go that do not stay with their layer: an array for C, or None.

        Raises:
            ParameterError: a device is not one of the model's.
        """
        wanted: list[tuple[str, Any]] = []
        for pattern, device in (params.override_tensors or {}).items():
            if device == "CPU":
                wanted.append((pattern, ggml_h.ggml_backend_cpu_buffer_type()))
                continue
            if device not in self.devices:
                raise ParameterError(
                    f"override_tensors: {device!r} is not a device of this model; it has "
                    f"{', '.join([*self.devices, 'CPU'])}"
                )
            wanted.append((pattern, ggml_h.ggml_backend_dev_buffer_type(_pointer(device))))
        if params.n_cpu_moe:
            layers = params.n_cpu_moe
            which = r"\d+" if layers < 0 else "|".join(map(str, range(layers)))
            experts = rf"blk\.({which}){_EXPERTS}"
            wanted.append((experts, ggml_h.ggml_backend_cpu_buffer_type()))
        if not wanted:
            return None
        array = (C.llama_model_tensor_buft_override * (len(wanted) + 1))()
        for entry, (pattern, buffer_type) in zip(array, wanted, strict=False):
            entry.pattern, entry.buft = pattern.encode(), buffer_type
        kept.append(array)
        return array


def placement(params: ModelParams) -> Placement:
    """The devices that a model is to use.

    Raises:
        ParameterError: there is no such device.
        DeviceUnavailableError: an RPC server does not answer.
    """
    named = [rpc.add_server(each, share=False) for each in params.rpc_servers or ()]
    if params.devices is not None:
        wanted = [name for name in dict.fromkeys(params.devices) if name not in ("CPU", "none")]
        there = {each["name"] for each in backend.devices(wanted)}
        for name in wanted:
            if name not in there:
                known = dict.fromkeys(each["name"] for each in backend.devices())
                raise ParameterError(
                    f"there is no device {name!r}; available: {', '.join(known)} (llama-py devices)"
                )
        return _of(wanted)
    local = backend.local_devices()
    gpus = tuple(each["name"] for each in local if each["kind"] in _GPUS)
    remote: list[rpc.RpcServer] = []
    if params.n_gpu_layers and not params.vocab_only:
        remote = named or rpc.reachable()
    if not remote:
        return Placement(gpus, None, watching(gpus))
    own = [each["name"] for each in local if each["kind"] == "gpu"] or list(gpus)
    return _of([name for each in remote for name in each.devices] + own)


def gpus(params: ModelParams) -> list[dict[str, Any]]:
    """The GPUs that a model is to use, also those of other machines: rows of ``backend.devices``.

    Raises:
        ParameterError, DeviceUnavailableError: see ``placement``.
    """
    return named_gpus(placement(params).devices)


def named_gpus(names: Collection[str]) -> list[dict[str, Any]]:
    """The GPUs with these names."""
    return [
        each for each in backend.devices(names) if each["kind"] in _GPUS and each["name"] in names
    ]


def _of(names: list[str]) -> Placement:
    pointers = (ggml_h.ggml_backend_dev_t * (len(names) + 1))()
    for index, name in enumerate(names):
        pointers[index] = _pointer(name)
    return Placement(tuple(names), pointers, watching(names))


def _pointer(name: str) -> Any:
    return rpc.find(name) or ggml_h.ggml_backend_dev_by_name(name.encode())
