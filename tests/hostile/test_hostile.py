"""No schema or grammar kills the process, hangs it, or stops the streams beside it.

Each case runs in a child with 2 GiB of address space, beside a stream: within 10 seconds of the
processor it ends in a typed error or in a right reply, and the stream's longest gap is three usual
ones and 50 ms at most.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.child import SECONDS, cases
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
#: Beside three usual gaps, and the time in which other programs had the cores.
MOST_GAP = 0.1
#: A machine that is busy with something else makes gaps of its own: such a case runs again.
TRIES = 3

pytest.importorskip("llguidance")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory")


def run(first: int, step: int = 1) -> list[dict[str, Any]]:
    """The lines of a child that ran every ``step``-th case from ``first`` on."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.hostile.child", str(first), str(step)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "passive"},
        capture_output=True,
        text=True,
        timeout=20 * PATIENCE,
        check=False,
    )
    lines = [json.loads(line) for line in child.stdout.splitlines()]
    assert lines, child.stderr
    if child.returncode:
        pytest.fail(
            f"{lines[-1]}: the process ended with {child.returncode}\n{child.stderr[-3000:]}"
        )
    assert not child.stderr, child.stderr[:2000]  # nothing is printed
    return lines


def problem(line: dict[str, Any]) -> str | None:
    if line["error"] is not None and not line["typed"]:
        return str(line["error"])
    if not line["alive"]:
        return "the stream beside it ended"
    if line["used"] > SECONDS:
        return f"it took {line['used']:.1f} s"
    gap, usual = line["worst"], line["usual"]
    if gap > 3 * usual + MOST_GAP + line["waited"]:
        return f"the stream had a gap of {gap:.3f} s, usually {usual:.4f} s"
    return None


def check(first: int, step: int) -> None:
    count = sum(1 for _ in cases())
    lines = [line for line in run(first, step) if "ends" in line]
    assert len(lines) == len(range(first, count, step))
    for line in lines:
        number, tries = line["number"], 1
        while problem(line) is not None and "gap" in str(problem(line)) and tries < TRIES:
            line = run(number, count)[-1]
            tries += 1
        assert problem(line) is None, (line["ends"], problem(line))
        if line["error"] is not None:
            assert len(line["error"]) < 1000, line["ends"]


def test_the_corpus_is_large() -> None:
    assert sum(1 for _ in cases()) >= 120


@pytest.mark.parametrize("first", range(4))
def test_all_of_them(first: int) -> None:
    check(first, 4)
