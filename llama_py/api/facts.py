"""What is known of a model wherever it is: its context, its engine, its process."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from llama_py.core.device_memory import DeviceMemory
from llama_py.engine.metrics import Metrics
from llama_py.errors import EngineDeadError

__all__ = ["ContextFacts", "EngineReport", "ProcessStatus"]


@dataclass(frozen=True, slots=True)
class ContextFacts:
    """What does not change as long as a context is there.

    Attributes:
        n_ctx, n_ctx_seq, n_seq_max: see ``core.context.Context``.
        limit: tokens that one sequence can hold.
        adapters: the LoRA adapters that are applied.
        namespace: that of requests which name none.
    """

    n_ctx: int
    n_ctx_seq: int
    n_seq_max: int
    limit: int
    adapters: tuple[tuple[str, float], ...]
    namespace: Hashable


@dataclass(frozen=True, slots=True)
class EngineReport:
    """How an engine is doing now.

    Attributes:
        metrics: what it has counted.
        running, waiting: its requests, with a sequence and without.
        cells_used, cells: of the context.
        devices: what the model takes on each.
        media_bytes: kept of pictures and sounds.
    """

    metrics: Metrics
    running: int
    waiting: int
    cells_used: int
    cells: int
    devices: tuple[DeviceMemory, ...]
    media_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """How the process of a model is (``isolate=True``).

    Attributes:
        pid: of the one that runs now, or ran last.
        ready: it answers; False while it is started again.
        pause: seconds for which it is left alone, because it died again and again; 0.0 if it is
            not.
        restarts: how often it was started again.
        last_death: why, the last time; None if it never died.
    """

    pid: int
    ready: bool
    pause: float
    restarts: int
    last_death: EngineDeadError | None
