"""What the rules of the build correct is still as it was in llama.cpp's source.

``python -m tools.move_pin`` runs these, and their like beside some of the rules. A test that fails
says that llama.cpp may have corrected it: measure without the rule, and remove its folder if so.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.native.builds import ROOT
from tools.move_pin.touched import functions

pytestmark = pytest.mark.skipif(
    not (ROOT / "native" / "kernels").is_dir(), reason="a tree without rules"
)


def defined(llama_cpp: Path, name: str) -> dict[str, str]:
    return functions((llama_cpp / name).read_text(encoding="utf-8"))


def test_gelu_is_still_looked_up_in_a_table(llama_cpp: Path) -> None:
    text = (llama_cpp / "ggml/src/ggml-cpu/vec.h").read_text(encoding="utf-8")
    body = text.partition("void ggml_vec_gelu_f32(const int n,")[2].partition("\n}")[0]
    assert "ggml_table_gelu_f16[" in body


def test_products_of_two_columns_still_have_no_prefetches(llama_cpp: Path) -> None:
    found = defined(llama_cpp, "ggml/src/ggml-cpu/llamafile/sgemm.cpp")
    kernels = {n: body for n, body in found.items() if n.startswith("tinyBLAS_Q0_AVX::gemm")}
    assert kernels
    assert not [name for name, body in kernels.items() if "prefetch" in body]


def test_memory_is_still_taken_without_asking_for_huge_pages(llama_cpp: Path) -> None:
    found = defined(llama_cpp, "ggml/src/ggml.c")
    assert "posix_memalign(" in found["ggml_aligned_malloc"]
    assert "madvise" not in found["ggml_aligned_malloc"]


def test_errors_are_still_printed(llama_cpp: Path) -> None:
    """In each of the files whose prints go to the log."""
    rule = ROOT / "native" / "kernels" / "prints_to_log" / "rule.cmake"
    files = re.findall(r"\b[\w/-]+/[\w-]+\.(?:cpp|c)\b", rule.read_text(encoding="utf-8"))
    assert len(files) > 5
    silent = [
        name
        for name in files
        if "fprintf(stderr" not in (llama_cpp / name).read_text(encoding="utf-8")
    ]
    assert silent == []


def test_cells_of_a_window_are_still_removed_on_trial(llama_cpp: Path) -> None:
    found = defined(llama_cpp, "src/llama-kv-cache.cpp")
    assert "apply_ubatch(" in found["llama_kv_cache::prepare"]
    placed = found["llama_kv_cache::apply_ubatch"]
    assert "seq_pos_max_rm[s]" in placed
    assert "seq_rm(s," in placed
