"""``make test`` and ``make test-rest``: together all tests, each of them in one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import tiers


@pytest.fixture(scope="module")
def collected() -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "long or not long"]
    done = subprocess.run(command, cwd=tiers.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_what_the_lists_name_is_there(collected: list[str]) -> None:
    """A test that was renamed would move to the other command, and nobody would notice."""
    for beginning in (*tiers.EVERYDAY, *tiers.FOLDERS):
        assert any(name.startswith(beginning) for name in collected), beginning
    # Which cases there are depends on the CPU, so the functions are compared.
    functions = {name.partition("[")[0] for name in collected}
    recorded = {name.partition("[")[0] for name in tiers.recorded()}
    assert recorded <= functions, f"run with --record-durations: {sorted(recorded - functions)}"
