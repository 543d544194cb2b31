"""Steps that take longer: small models complete a reply before a test can do anything meanwhile."""

from __future__ import annotations

import time

import pytest

from llama_py.core.steps import Steps
from llama_py.engine.generation import Generation
from llama_py.engine.runner import Runner, StepOutcome
from llama_py.engine.scheduler import StepPlan

__all__ = ["slow_steps"]


def slow_steps(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.002) -> None:
    """Make each step so much longer: the bundled model writes 1,500 tokens in half a second."""
    decode, run_steps = Runner._decode, Runner._run_steps

    def slow_decode(self: Runner) -> int:
        time.sleep(seconds)
        return decode(self)

    def slow_run_steps(self: Runner, plan: StepPlan[Generation], steps: Steps) -> StepOutcome:
        plan.steps, plan.seconds = 1, 0.0  # one a call, as where steps are slow
        outcome = run_steps(self, plan, steps)
        time.sleep(seconds)
        return outcome

    monkeypatch.setattr(Runner, "_decode", slow_decode)
    monkeypatch.setattr(Runner, "_run_steps", slow_run_steps)
