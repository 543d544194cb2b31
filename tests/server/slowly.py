"""``llama-py`` with steps that take longer: for servers in processes of their own."""

from __future__ import annotations

import sys

import pytest

from llama_py.cli import main
from tests.slowness import slow_steps

if __name__ == "__main__":
    slow_steps(pytest.MonkeyPatch(), 0.01)
    sys.exit(main(sys.argv[1:]))
