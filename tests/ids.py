"""Names of parametrized tests."""

from __future__ import annotations

import re

__all__ = ["spelled_out"]


def spelled_out(value: object) -> str:
    """A value as text, the same in every process: without the addresses of objects.

    Processes that share a run compare the names of the tests that each of them has found.
    """
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
