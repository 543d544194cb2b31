"""Frames drawn at random: reading one takes no memory that it does not bring, and ends nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: A frame of a megabyte may become so much more: a list of nothing is 56 bytes and a reference.
MOST = 300 << 20


@pytest.mark.parametrize(
    "seconds", [3, pytest.param(600, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_frames_drawn_at_random(seconds: int) -> None:
    command = [sys.executable, "-m", "tests.isolation.frames", str(seconds), "7"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(found)
    assert found["refused"] > found["read"] / 10 > 1
    assert found["memory"] < MOST
    assert found["slowest"] < 15.0  # a machine that does other things, too
