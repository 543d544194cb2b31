"""Whatever was reused, the logits behind pictures are those of libmtmd's own helper.

The machine of ``tests.memory.test_invariant``, with pictures among the words of its messages.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.media.driver import MediaDriver
from tests.memory.test_invariant import run

RUNS = 4
#: The long run: so many times 50 operations for each.
LONG_RUNS = int(os.environ.get("LLAMA_PY_LONG_RUNS", "160"))

#: Kind of memory, projector, window with all its cells.
VARIANTS = [
    ("full", "mlp", False),
    ("full", "mlp_tiles", False),
    ("iswa", "gemma3", False),
    ("iswa", "gemma3", True),
    ("mrope", "qwen2vl_merger", False),
    ("recurrent", "mlp", False),
    ("hybrid", "mlp", False),
    ("hybrid_swa", "mlp", False),
]


def drive(
    kind: str, projector: str, swa_full: bool, runs: int, *, flash: bool = False, **settings: Any
) -> MediaDriver:
    def make(_path: Path, directory: Path, **given: Any) -> MediaDriver:
        return MediaDriver(kind, projector, directory, **given)

    driver = run("full", swa_full, flash, runs, make=partial(make), **settings)
    assert isinstance(driver, MediaDriver)
    return driver


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kind", "projector", "swa_full"), VARIANTS)
def test_reuse_behind_pictures_equals_a_fresh_context(
    kind: str, projector: str, swa_full: bool
) -> None:
    driver = drive(kind, projector, swa_full, RUNS)
    assert driver.operations >= 100


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kind", "projector"), [("full", "mlp"), ("mrope", "qwen2vl_merger")])
def test_reuse_behind_pictures_with_separate_buffers(kind: str, projector: str) -> None:
    driver = drive(kind, projector, False, RUNS, kv_unified=False)
    assert driver.operations >= 100


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("kind", "projector", "swa_full"), VARIANTS)
def test_reuse_behind_pictures_for_long(kind: str, projector: str, swa_full: bool) -> None:
    driver = drive(kind, projector, swa_full, LONG_RUNS, random=True)
    print(f"\n{kind} {projector} swa_full={swa_full}: {driver.operations} operations, ", end="")
    print(f"worst {driver.worst:.1e}")
    assert driver.operations >= 5_000
