"""Prefetches in llamafile's kernels (``rule.cmake``). Builds are configured only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native.builds import configured, for_cpu

pytestmark = pytest.mark.slow

KERNELS = ("/llamafile/sgemm.cpp",)
PREFETCH = "-fprefetch-loop-arrays"


@pytest.mark.parametrize(
    ("cpu", "more", "state"),
    [
        ("znver3", (), "applied"),
        ("znver3", ("-DLLAMA_PY_LLAMAFILE_PREFETCH=OFF",), "off"),
        ("sapphirerapids", (), "without effect"),
        ("x86-64", (), "applied"),  # ggml adds AVX2
        ("x86-64", ("-DGGML_AVX2=OFF",), "without effect"),
    ],
)
def test_kernels_prefetch_where_that_pays(
    gcc: str, tmp_path: Path, cpu: str, more: tuple[str, ...], state: str
) -> None:
    (command,), rules = configured(tmp_path, gcc, KERNELS, *for_cpu(cpu), *more)
    assert rules["LLAMA_PY_LLAMAFILE_PREFETCH"] == state
    assert (PREFETCH in command.split()) == (state == "applied")


def test_a_build_for_many_cpus_prefetches_where_that_pays(gcc: str, tmp_path: Path) -> None:
    commands, rules = configured(tmp_path, gcc, KERNELS, "-DLLAMA_PY_PORTABLE=ON")
    assert rules["LLAMA_PY_LLAMAFILE_PREFETCH"] == "applied"
    assert len(commands) > 10
    for command in commands:
        wanted = "-mavx2" in command and "-mavx512f" not in command
        assert (PREFETCH in command.split()) == wanted, command


def test_without_the_rule_kernels_do_not_prefetch(llama_cpp: Path) -> None:
    """When this fails, llamafile's kernels may prefetch themselves: is the rule still needed?"""
    path = llama_cpp / "ggml" / "src" / "ggml-cpu" / "llamafile" / "sgemm.cpp"
    _, found, rest = path.read_text(encoding="utf-8").partition("class tinyBLAS_Q0_AVX {")
    assert found
    kernels = rest.partition("\nclass ")[0]
    assert "void gemm4xN(" in kernels
    assert "prefetch" not in kernels
