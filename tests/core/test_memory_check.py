"""Models for which a process has too little memory: refused, with what is loaded kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from llama_py import Llama, demo_model_path
from llama_py.core.host import memory_check
from llama_py.core.host.machine import addresses_left, memory_left
from llama_py.core.host.memory_check import check_memory, needs
from llama_py.errors import NotEnoughMemoryError
from llama_py.gguf.check import check_model_file
from llama_py.params import ContextParams, ModelParams
from tests.models import tiny_model
from tests.two_models import survives

_MIB = 1 << 20
_PLAIN = ContextParams(n_ctx=1000)

#: One model is loaded; then there is a limit, and a second one with a large cache.
_CHILD = """
import re, resource, sys
from llama_py import demo_model_path
from tests.two_models import served

async def main():
    models = ("first", demo_model_path()), ("second", sys.argv[1])
    async with served(*models, second={"n_ctx": int(sys.argv[2])}) as client:
        async def ask(model):
            body = {"model": model, "prompt": "Hello", "max_tokens": 2}
            return await client.post("completions", json=body)
        assert (await ask("first")).status_code == 200
        taken = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
        most = taken + (int(sys.argv[3]) << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        reply = await ask("second")
        print(reply.status_code, reply.text)
        print((await ask("first")).status_code)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -v is of Linux")
@pytest.mark.parametrize("left", [100, 200])
def test_a_server_goes_on_with_its_first_model(left: int) -> None:
    second, first = survives(_CHILD, str(tiny_model("full")), "262144", str(left))
    assert second.startswith("503 ")
    assert all(part in second for part in ("MiB of addresses", "ulimit -v", "n_ctx"))
    assert first == "200"


def test_both_numbers_and_the_remedy_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_model("full")
    monkeypatch.setattr(memory_check, "addresses_left", lambda: 100 * _MIB)
    needed = needs(check_model_file(path), ModelParams(), _PLAIN).addresses // _MIB
    expected = rf"full.*needs about {needed} MiB of addresses.*has 100 MiB left; raise the limit"
    with pytest.raises(NotEnoughMemoryError, match=expected) as caught:
        Llama(str(path), n_ctx=1000)
    assert isinstance(caught.value, MemoryError)


def test_a_cache_that_is_larger_than_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_check, "memory_left", lambda: 10 * _MIB)
    with pytest.raises(NotEnoughMemoryError, match=r"of memory, but .* 10 MiB left; .*n_ctx"):
        Llama(demo_model_path(), n_ctx=1 << 20)


@pytest.mark.parametrize("kind", ["full", "iswa", "hybrid", "hybrid_swa", "recurrent"])
def test_mapped_weights_and_odd_layers_are_not_refused_for_memory(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_model(kind)
    info = check_model_file(path)
    cells = needs(info, ModelParams(), _PLAIN).memory
    assert cells == (1000 * 1024 if kind == "full" else 0)
    read = needs(info, ModelParams(use_mmap=False), _PLAIN).memory
    assert read == cells + info.n_bytes
    monkeypatch.setattr(memory_check, "memory_left", lambda: cells)
    check_memory(info, ModelParams(), _PLAIN)


def test_a_vocabulary_needs_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_check, "memory_left", lambda: 0)
    monkeypatch.setattr(memory_check, "addresses_left", lambda: 0)
    Llama(demo_model_path(), vocab_only=True).close()


def test_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text("VmSize:\t  2048 kB\nRssFile:\t  512 kB\n")
    (tmp_path / "proc/meminfo").write_text("MemAvailable:  4096 kB\nSwapFree:  1024 kB\n")
    assert memory_left(tmp_path) == 5 * _MIB
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (3 * _MIB, 9 * _MIB))
    if sys.platform == "linux":
        assert addresses_left(tmp_path) == _MIB
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda which: unlimited)
    assert addresses_left(tmp_path) is None
