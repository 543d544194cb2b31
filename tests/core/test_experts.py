"""Experts that stay in the machine's memory, and the cache for them on a GPU."""

from __future__ import annotations

import dataclasses
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_py import Llama
from llama_py.core import backend
from llama_py.core.host.footprint import room_for_model
from llama_py.core.model import Model
from llama_py.errors import ContextCreationError, ParameterError, ParameterTypeError
from llama_py.params import ModelParams
from tests.models import TinySpec, _ModelWriter, tiny_model

EXPERTS = 4
#: What is refused where there is no GPU.
without_gpu = pytest.mark.skipif(
    any("gpu" in device["kind"] for device in backend.devices()), reason="there is a GPU"
)


class _Mixture(_ModelWriter):
    """A llama whose layers have four experts each, two of which compute a token."""

    def _llama(self) -> None:
        self.gguf.add_expert_count(EXPERTS)
        self.gguf.add_expert_used_count(2)
        super()._llama()

    def _ffn(self, block: str, *, norm: bool = True, gain: float = 1.0) -> None:
        spec = self.spec
        self._norm(f"{block}.ffn_norm", spec.n_embd)
        self._matrix(f"{block}.ffn_gate_inp", EXPERTS, spec.n_embd)
        for name in ("gate", "up", "down"):
            shape = (spec.n_embd, spec.n_ff) if name == "down" else (spec.n_ff, spec.n_embd)
            data = self.random.standard_normal((EXPERTS, *shape), dtype=np.float32)
            self._add(f"{block}.ffn_{name}_exps.weight", data / np.float32(np.sqrt(shape[1])))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("experts") / "mixture.gguf"
    _Mixture(dataclasses.replace(TinySpec("full"), n_layer=12), path).write()
    return path


def kept(path: Path, caplog: pytest.LogCaptureFixture, **params: Any) -> list[str]:
    """The tensors that llama.cpp says it keeps off the GPU."""
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "llama_py"):
        Model(path, ModelParams(**params)).close()
    said = "\n".join(record.getMessage() for record in caplog.records)
    return re.findall(r"tensor (\S+) .* buffer type overridden to CPU", said)


def names(layers: int) -> list[str]:
    return [
        f"blk.{layer}.ffn_{name}_exps.weight"
        for layer in range(layers)
        for name in ("gate", "up", "down")
    ]


@pytest.mark.parametrize(
    ("params", "layers"),
    [
        ({}, 0),
        ({"n_cpu_moe": -1}, 12),
        ({"n_cpu_moe": 1}, 1),
        ({"n_cpu_moe": 2}, 2),
        ({"n_cpu_moe": 512}, 12),
        ({"n_cpu_moe": 10}, 10),
    ],
)
def test_llama_cpp_keeps_these_experts_off_the_gpu(
    mixture: Path, caplog: pytest.LogCaptureFixture, params: dict[str, Any], layers: int
) -> None:
    assert sorted(kept(mixture, caplog, **params)) == sorted(names(layers))


def test_a_model_without_experts_is_loaded_as_ever(caplog: pytest.LogCaptureFixture) -> None:
    assert kept(tiny_model("full"), caplog, n_cpu_moe=-1) == []


def test_where_experts_are_does_not_change_the_text(mixture: Path) -> None:
    texts = set()
    for options in ({}, {"n_cpu_moe": -1}, {"n_cpu_moe": 3}):
        with Llama(str(mixture), n_ctx=128, n_threads=1, **options) as llm:  # type: ignore[arg-type]
            reply = llm.create_completion("the", max_tokens=16, temperature=0, ignore_eos=True)
            texts.add(reply["choices"][0]["text"])
    assert len(texts) == 1


@without_gpu
def test_a_cache_of_experts_needs_a_gpu(mixture: Path) -> None:
    with pytest.raises(ParameterError, match=r"moe_cache_size: .*GPU.*leave it out"):
        Llama(str(mixture), n_ctx=128, n_cpu_moe=-1, moe_cache_size=1 << 20)


def test_a_cache_of_experts_needs_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "local_devices", lambda: [_GPU])
    with pytest.raises(ParameterError, match=r"moe_cache_size: .*has no experts"):
        Llama(str(tiny_model("full")), n_ctx=128, moe_cache_size=1 << 20)


@without_gpu
def test_the_size_of_the_cache_reaches_llama_cpp(
    mixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses it, because in truth there is no GPU."""
    monkeypatch.setattr(backend, "local_devices", lambda: [_GPU])
    with pytest.raises(ContextCreationError, match="MoE cache requires a GPU backend"):
        Llama(str(mixture), n_ctx=128, n_cpu_moe=-1, moe_cache_size=1 << 20)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"n_cpu_moe": True}, ParameterTypeError),
        ({"n_cpu_moe": -2}, ParameterError),
        ({"n_cpu_moe": 513}, ParameterError),
        ({"moe_cache_size": 1.5}, ParameterTypeError),
        ({"moe_cache_size": -1}, ParameterError),
    ],
)
def test_a_wrong_value_is_named(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        Llama(str(tiny_model("full")), **options)


def test_a_model_whose_experts_stay_has_the_room_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend, "local_devices", lambda: [_GPU])
    assert room_for_model(ModelParams()) == _GPU["free_bytes"]
    assert room_for_model(ModelParams(n_cpu_moe=-1)) > _GPU["free_bytes"]


_GPU = {
    "name": "GPU0",
    "description": "",
    "kind": "gpu",
    "free_bytes": 1 << 20,
    "total_bytes": 1 << 21,
}
