"""``llama-py`` with steps that take half a second: a few tokens, and much time between them."""

from __future__ import annotations

import sys

import pytest

from llama_py.cli import main
from tests.slowness import slow_steps

if __name__ == "__main__":
    slow_steps(pytest.MonkeyPatch(), 0.5)
    sys.exit(main(sys.argv[1:]))
