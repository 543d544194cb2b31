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
        ("x86-64", (), "without effect"),
    ],
)
def test_kernels_prefetch_where_that_pays(
    gcc: str, tmp_path: Path, cpu: str, more: tuple[str, ...], state: str
) -> None:
    (command,), rules = configured(tmp_path, gcc, KERNELS, *for_cpu(cpu), *more)
    assert rules["LLAMA_PY_LLAMAFILE_PREFETCH"] == state
    assert (PREFETCH in command.split()) == (state == "applied")
