"""Cells that take memory when something is written to them (``cells_on_demand.h``)."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llama_py._native.loader import build_info
from tests.models import tiny_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it is Linux that has the zeros")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def applied() -> None:
    if build_info()["rules"]["LLAMA_PY_CELLS_ON_DEMAND"] != "applied":
        pytest.skip("this build clears cells as llama.cpp does")


CLEARED = """
import ctypes, re
from llama_py._native import ggml_h as G

def resident(base, size):
    "Bytes of an area that are in memory; rather too many, with what lies around it."
    area = r"^([0-9a-f]+)-([0-9a-f]+) .*?^Rss: +([0-9]+) kB"
    areas = re.findall(area, open("/proc/self/smaps").read(), re.M | re.S)
    return sum(int(kb) << 10 for begin, end, kb in areas
               if int(begin, 16) < base + size and base < int(end, 16))

for size in (1, 4096, (1 << 20) - 64, 1 << 20, (1 << 20) + 64, (21 << 20) + 4160):
    buffer = G.ggml_backend_buft_alloc_buffer(G.ggml_backend_cpu_buffer_type(), size)
    base, real = G.ggml_backend_buffer_get_base(buffer), G.ggml_backend_buffer_get_size(buffer)
    for value in (7, 0, 7, 255, 0):
        G.ggml_backend_buffer_clear(buffer, value)
        if value == 0 and size > 20 << 20:
            print(resident(base, real))
        assert ctypes.string_at(base, real) == bytes([value]) * real, (size, value)
    G.ggml_backend_buffer_free(buffer)
"""


@pytest.mark.usefixtures("applied")
def test_what_was_written_before_is_zeros_and_takes_no_memory(run_python: Run) -> None:
    done = run_python(CLEARED)
    assert done.returncode == 0, done.stderr
    assert all(int(line) < 5 << 20 for line in done.stdout.split()), done.stdout


SHARED = """
import ctypes, mmap, tempfile
from llama_py._native import ggml_h as G

with tempfile.TemporaryFile() as file:
    file.write(b"1" * (4 << 20))
    file.flush()
    for kind in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
        with mmap.mmap(file.fileno(), 0, flags=kind) as area:
            memory = (ctypes.c_char * len(area)).from_buffer(area)
            buffer = G.ggml_backend_cpu_buffer_from_ptr(ctypes.addressof(memory), len(area))
            G.ggml_backend_buffer_clear(buffer, 0)
            assert memory.raw == bytes(len(area)), kind
            G.ggml_backend_buffer_free(buffer)
            del memory
"""


@pytest.mark.usefixtures("applied")
def test_memory_of_a_file_is_cleared_as_well(run_python: Run) -> None:
    done = run_python(SHARED)
    assert done.returncode == 0, done.stderr


LOADED = """
from pathlib import Path
from llama_py import Llama

def own():
    "Bytes of this process that are not pages of files."
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) << 10

def sizes(n_ctx):
    with Llama({path!r}, n_ctx=n_ctx, n_threads=1, flash_attn={flash_attn!r}) as llm:
        loaded = own()
        logits = llm.create_completion([1, 2, 3], max_tokens=4, temperature=0)["choices"]
        return loaded, own(), logits

sizes(512)  # imports
small, large = sizes(512), sizes(16384)
assert small[2] == large[2]
print(large[0] - small[0], large[1] - small[1])
"""


@pytest.mark.usefixtures("applied")
@pytest.mark.parametrize("flash_attn", [True, False])
def test_a_large_context_takes_memory_for_what_is_in_it(run_python: Run, flash_attn: bool) -> None:
    path = str(tiny_model("full", n_embd=512, n_head=8, n_head_kv=8, n_layer=4))
    done = run_python(LOADED.format(path=path, flash_attn=flash_attn))
    assert done.returncode == 0, done.stderr
    loaded, replied = map(int, done.stdout.split())
    cells = 4 * 16384 * 2 * 512 * 2  # layers, cells, keys and values, of 512 numbers in F16
    assert loaded < cells / 4
    # Without flash attention, a layer's values lie by channels: one token is in pages of each.
    assert replied < cells / (4 if flash_attn else 2)


RESET = """
from pathlib import Path
from llama_py import Llama

def own():
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) << 10

with Llama({path!r}, n_ctx=8192, n_threads=1, flash_attn=True) as llm:
    llm.create_completion([1, *range(3, 63)] * 64, max_tokens=1)
    before = own()
    llm.reset()
    print(before - own())
"""


@pytest.mark.usefixtures("applied")
def test_a_reset_gives_the_memory_back(run_python: Run) -> None:
    path = str(tiny_model("full", n_embd=512, n_head=8, n_head_kv=8, n_layer=4))
    done = run_python(RESET.format(path=path))
    assert done.returncode == 0, done.stderr
    written = 4 * 3904 * 2 * 512 * 2  # layers, tokens, keys and values, of 512 numbers in F16
    assert int(done.stdout) > 0.8 * written


def test_without_the_rule_all_of_it_is_written(llama_cpp: Path) -> None:
    """When this fails, ggml clears buffers otherwise, and the rule may have done its work."""
    text = (llama_cpp / "ggml" / "src" / "ggml-backend.cpp").read_text(encoding="utf-8")
    (body,) = re.findall(r"^static void ggml_backend_cpu_buffer_clear\(.*?^}", text, re.S | re.M)
    assert body.count("memset(buffer->context, value, buffer->size);") == 1
    assert "madvise" not in text
