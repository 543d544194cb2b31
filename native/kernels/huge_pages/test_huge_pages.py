"""Memory in huge pages (``huge_pages.h``)."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llama_py._native.loader import build_info

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

BUFFER = """
import re
from llama_py._native import ggml_h as G

def asked():
    "Bytes for which huge pages were asked for."
    text = open("/proc/self/smaps").read()
    areas = re.findall(r"^Size: +([0-9]+) kB$|^VmFlags: (.*)$", text, re.M)
    sizes = [int(size) for size, _ in areas if size]
    flags = [flags.split() for size, flags in areas if not size]
    return sum(size << 10 for size, names in zip(sizes, flags, strict=True) if "hg" in names)

before = asked()
buffer = G.ggml_backend_buft_alloc_buffer(G.ggml_backend_cpu_buffer_type(), 64 << 20)
print(asked() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are asked for on Linux only")
def test_buffers_are_in_huge_pages(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    if build_info()["rules"]["LLAMA_PY_HUGE_PAGES"] != "applied":
        pytest.skip("this build does not ask for huge pages")
    if not HUGE_PAGES.is_file() or "[never]" in HUGE_PAGES.read_text():
        pytest.skip("this system has no transparent huge pages")
    done = run_python(BUFFER)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 0.9 * (64 << 20)


def test_without_the_rule_nobody_asks(llama_cpp: Path) -> None:
    """When this fails, ggml takes its memory otherwise, and the rule may have done its work."""
    text = (llama_cpp / "ggml" / "src" / "ggml.c").read_text(encoding="utf-8")
    (body,) = re.findall(r"^void \* ggml_aligned_malloc\(.*?^}", text, re.DOTALL | re.MULTILINE)
    assert body.count("int result = posix_memalign(&aligned_memory, alignment, size);") == 1
    assert not re.search(r"\bmadvise\(|MADV_HUGEPAGE", text)
