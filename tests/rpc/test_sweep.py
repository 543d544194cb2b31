"""Models of many sizes on devices with little memory: none fails to load, and what was predicted is
what is taken.

The server counts what it gave away; so what is predicted is compared with two accounts, llama.cpp's
in this process and that one. The server's device is its GPU, if it has one.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llama_py import Llama, demo_model_path, rpc
from llama_py.core.device_memory import fitted, free_by_device, measured, memory_by_device
from llama_py.gguf.check import check_model_file
from llama_py.params import ContextParams, ModelParams
from tests.models import tiny_model
from tests.rpc.servers import Server, running

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

MIB = 1 << 20
#: Real models are used if they are there.
REAL = Path(os.environ.get("LLAMA_PY_REAL_MODELS", Path.home() / ".cache/llama_py/real"))
NAMES = ("smollm2-135m-instruct-q4_1.gguf", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf")
#: Memory of the device, in parts of the file with some room for steps.
SHARES = (0.2, 0.6, 1.0, 3.0)
CONTEXTS = (512, 8192)


def models() -> Iterator[tuple[str, str]]:
    yield "demo", demo_model_path()
    for kind in ("iswa", "hybrid", "moe"):
        yield kind, str(tiny_model(kind, n_embd=256, n_ff=1024, n_layer=8))
    for name in NAMES:
        if (REAL / name).is_file():
            yield name.partition("-")[0], str(REAL / name)


CASES = [
    pytest.param(path, share, id=f"{name}-{share}")
    for (name, path), share in itertools.product(models(), SHARES)
]


@pytest.mark.parametrize(("path", "share"), CASES)
def test_whatever_there_is_it_loads(path: str, share: float) -> None:
    size = check_model_file(path).n_bytes
    memory = int(share * (size + 24 * MIB))
    with running("--memory", str(memory)) as server:
        for n_ctx in CONTEXTS:
            one(path, server, n_ctx, memory)


def one(path: str, server: Server, n_ctx: int, memory: int) -> None:
    options: dict[str, Any] = {"n_ctx": n_ctx, "n_threads": 1}
    names = rpc.add_server(server.endpoint, share=False).devices
    params = ModelParams(devices=names)
    ((name, before),) = free_by_device(params).items()
    assert before == memory
    context = ContextParams(**options)
    placed = fitted(path, params, context)
    predicted = {each.device: each.total for each in measured(path, placed, context).devices}
    with Llama(path, devices=names, **options) as llm:
        found = {each.device: each.total for each in memory_by_device(llm.runtime.loaded.context)}
        given = before - free_by_device(params)[name]
        llm.create_completion("word " * 100, max_tokens=4)
        layers = llm.runtime.loaded.model.params
    print(
        f"\n{Path(path).name} n_ctx={n_ctx} of {memory / MIB:.0f} MiB: "
        f"n_gpu_layers={layers.n_gpu_layers} n_cpu_moe={layers.n_cpu_moe} "
        f"predicted {predicted.get(name, 0) / MIB:.1f}, llama.cpp {found.get(name, 0) / MIB:.1f}, "
        f"server {given / MIB:.1f} MiB"
    )
    assert replace(layers, load_mtp=False) == placed
    for each in {*predicted, *found} & {name}:
        assert predicted[each] == pytest.approx(found[each], rel=0.05)
        assert predicted[each] == pytest.approx(given, rel=0.05, abs=MIB)
