"""Where tensors lie in RAM: at cache lines, in huge pages (``cmake/IncludedFirst.cmake``)."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from llama_py import Llama
from llama_py._native import ggml_h as G
from llama_py.core.host.profiles import build_info
from tests.models import tiny_model

#: Bytes of a cache line, and of the widest loads of a processor.
LINE = 64
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def applied(rule: str) -> bool:
    return bool(build_info()["rules"][rule] == "applied")


def buffer_types() -> Iterator[G.ggml_backend_buffer_type_t]:
    """The CPU's: of cells and graphs, and of weights that its kernels lay out anew."""
    yield G.ggml_backend_cpu_buffer_type()
    device = G.ggml_backend_dev_by_type(G.GGML_BACKEND_DEVICE_TYPE_CPU)
    registry = G.ggml_backend_dev_backend_reg(device)
    address = G.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
    if not address:
        return
    array = G.ggml_backend_dev_get_extra_bufts_t(address)(device)
    size = ctypes.sizeof(ctypes.c_void_p)
    while array and (pointer := ctypes.c_void_p.from_address(array).value):
        yield G.ggml_backend_buffer_type_t(pointer)
        array += size


def test_tensors_lie_at_cache_lines() -> None:
    if not applied("LLAMA_PY_TENSOR_ALIGNMENT"):
        pytest.skip("this build leaves the alignment as it is")
    found = [G.ggml_backend_buft_get_alignment(each) for each in buffer_types()]
    assert found
    assert set(found) == {LINE}


def test_without_the_rule_they_do_not(llama_cpp: Path) -> None:
    """When this fails, ggml's own alignment is another one, and the rule may have done its work."""
    text = (llama_cpp / "ggml" / "src" / "ggml-impl.h").read_text(encoding="utf-8")
    found = re.findall(r"^#define TENSOR_ALIGNMENT (\d+)$", text, re.MULTILINE)
    assert [int(each) for each in found] == [LINE // 2]


def test_mapped_weights_stay_where_they_are() -> None:
    """A file promises multiples of 32 only; weights that are read in place are used as they lie."""
    path = tiny_model("full", n_embd=72, n_head=2, n_head_kv=2)
    reader = gguf.GGUFReader(path)
    assert any(tensor.data_offset % LINE for tensor in reader.tensors), "the file proves nothing"
    rows = []
    for use_mmap in (True, False):
        with Llama(path, n_ctx=64, use_mmap=use_mmap, n_threads=1) as llm:
            llm.eval(list(range(1, 33)))
            rows.append(np.array(llm.last_logits))
    assert np.abs(rows[0]).max() > 0.1
    np.testing.assert_allclose(rows[0], rows[1], rtol=0, atol=1e-5)


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
    if not applied("LLAMA_PY_HUGE_PAGES"):
        pytest.skip("this build does not ask for huge pages")
    if not HUGE_PAGES.is_file() or "[never]" in HUGE_PAGES.read_text():
        pytest.skip("this system has no transparent huge pages")
    path = str(tiny_model("full", n_embd=512, n_head=8, n_head_kv=8, n_layer=4))
    done = run_python(CELLS.format(path=path))
    assert done.returncode == 0, done.stderr
    cells = 4 * 4096 * 2 * 512 * 2  # layers, cells, keys and values, of 512 numbers in F16
    assert int(done.stdout) >= 0.9 * cells
