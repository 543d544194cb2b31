"""Steps that take longer: small models complete a reply before a test can do anything meanwhile."""

from __future__ import annotations

import time
from typing import Any

import pytest

from llama_py.engine.runner import Runner

__all__ = ["slow_steps"]


def slow_steps(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.002) -> None:
    """Make each step so much longer: the bundled model writes 1,500 tokens in half a second."""
    decode, decode_steps = Runner._decode, Runner.decode_steps

    def slow_decode(self: Runner) -> int:
        time.sleep(seconds)
        return decode(self)

    def slow_decode_steps(self: Runner, steps: Any, streams: Any, *_: Any) -> list[float]:
        ends = decode_steps(self, steps, streams, 1, 0.0)  # one a call, as where steps are slow
        time.sleep(seconds)
        return ends

    monkeypatch.setattr(Runner, "_decode", slow_decode)
    monkeypatch.setattr(Runner, "decode_steps", slow_decode_steps)
