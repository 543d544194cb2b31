"""``scoring_job``: a call of ``score``, wherever the model is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_py.api.runtime import Runtime
from llama_py.api.scoring.scoring import ScoringJob

__all__ = ["scoring_job"]


def scoring_job(
    runtime: Runtime,
    prefix: Any,
    continuations: Any,
    timeout: float | None,
    options: Mapping[str, Any],
) -> ScoringJob:
    """One call of ``score``; the arguments are those of ``ScoringJob``."""
    if not runtime.loaded.isolated:
        return ScoringJob(runtime, prefix, continuations, timeout, options)
    from llama_py.api.isolation.remote import IsolatedScoring

    return IsolatedScoring(runtime, prefix, continuations, timeout, options)
