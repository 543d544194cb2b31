"""Memory in huge pages (``huge_pages.h``)."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llama_py.core.host.profiles import build_info
from tests.models import tiny_model

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

CELLS = """
import re
from llama_py import Llama

def asked():
    "Bytes for which huge pages were asked for."
    text = open("/proc/self/smaps").read()
    areas = re.findall(r"^Size: +([0-9]+) kB$|^VmFlags: (.*)$", text, re.M)
    sizes = [int(size) for size, _ in areas if size]
    flags = [flags.split() for size, flags in areas if not size]
    return sum(size << 10 for size, names in zip(sizes, flags, strict=True) if "hg" in names)

before = asked()
llm = Llama({path!r}, n_ctx=4096, n_threads=1, flash_attn=False)
print(asked() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are asked for on Linux only")
def test_cells_are_in_huge_pages(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    if build_info()["rules"]["LLAMA_PY_HUGE_PAGES"] != "applied":
        pytest.skip("this build does not ask for huge pages")
    if not HUGE_PAGES.is_file() or "[never]" in HUGE_PAGES.read_text():
        pytest.skip("this system has no transparent huge pages")
    path = str(tiny_model("full", n_embd=512, n_head=8, n_head_kv=8, n_layer=4))
    done = run_python(CELLS.format(path=path))
    assert done.returncode == 0, done.stderr
    cells = 4 * 4096 * 2 * 512 * 2  # layers, cells, keys and values, of 512 numbers in F16
    assert int(done.stdout) >= 0.9 * cells


COLD = """
import ctypes, re
from llama_py._native import ggml_h as G
from llama_py._native.loader import library

long = ctypes.c_double.in_dll(library("ggml-base"), "llama_py_long_for_a_page")
kinds = {}
for size in (1, 4096, (8 << 20) - 64, 8 << 20, (8 << 20) + 64, (21 << 20) + 4160):
    for long.value in (-1.0, 1e9):  # each page takes long, and none does
        buffer = G.ggml_backend_buft_alloc_buffer(G.ggml_backend_cpu_buffer_type(), size)
        base, real = G.ggml_backend_buffer_get_base(buffer), G.ggml_backend_buffer_get_size(buffer)
        for value in (7, 0):
            G.ggml_backend_buffer_clear(buffer, value)
            assert ctypes.string_at(base, real) == bytes([value]) * real, (size, long.value)
            text = open("/proc/self/smaps").read()
        area = r"^([0-9a-f]+)-([0-9a-f]+) .*?^AnonHugePages: +([0-9]+) kB"
        areas = re.findall(area, text, re.M | re.S)
        inside = [int(kb) for begin, end, kb in areas
                  if int(begin, 16) < base + real and base < int(end, 16)]
        kinds[size, long.value] = sum(inside) >> 10
        G.ggml_backend_buffer_free(buffer)
print(kinds[(21 << 20) + 4160, -1.0], kinds[(21 << 20) + 4160, 1e9])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are asked for on Linux only")
def test_cells_are_cleared_in_small_pages_where_huge_ones_take_long(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    if build_info()["rules"]["LLAMA_PY_HUGE_PAGES"] != "applied":
        pytest.skip("this build does not ask for huge pages")
    done = run_python(COLD)
    assert done.returncode == 0, done.stderr
    cold, warm = map(int, done.stdout.split())
    if "[never]" in HUGE_PAGES.read_text() or warm == 0:
        pytest.skip("this system has no huge pages to give")
    assert cold <= 6 < warm  # MiB: two pages, and what may lie before them


def test_without_the_rule_nobody_asks(llama_cpp: Path) -> None:
    """When this fails, ggml takes its memory otherwise, and the rule may have done its work."""
    text = (llama_cpp / "ggml" / "src" / "ggml.c").read_text(encoding="utf-8")
    (body,) = re.findall(r"^void \* ggml_aligned_malloc\(.*?^}", text, re.DOTALL | re.MULTILINE)
    assert body.count("int result = posix_memalign(&aligned_memory, alignment, size);") == 1
    assert not re.search(r"\bmadvise\(|MADV_HUGEPAGE", text)
