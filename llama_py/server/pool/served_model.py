"""``ServedModel``: a model that the server offers, and whether it is in memory just now."""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING

from llama_py.engine.metrics import Metrics
from llama_py.errors import ClosedError, EngineDeadError
from llama_py.server.defaults import sampling_of, served
from llama_py.server.pool.modalities import senses_of

if TYPE_CHECKING:
    from llama_py.api.facts import EngineReport, ProcessStatus
    from llama_py.api.llama import Llama
    from llama_py.api.port import ModelPort
    from llama_py.dialects.context import CallContext
    from llama_py.server.config.settings import ModelSettings, Settings

__all__ = ["ModelStatus", "ServedModel"]


class ModelStatus(Enum):
    """Where a model is in its life."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"


class ServedModel:
    """One model of the configuration.

    Only its pool changes it, in the thread of the event loop.

    Attributes:
        id: its name for clients.
        aliases: further names.
        settings: where its file is, and how it is loaded.
        created: when the server began to offer it, in seconds since 1970.
        status: whether it is in memory.
        meta: its sizes, known from the first time that it was loaded.
        problem: why it could not be loaded when that was last tried.
    """

    def __init__(self, settings: ModelSettings, defaults: Settings) -> None:
        self.id = settings.id
        self.aliases = settings.aliases
        self.settings = settings
        self._defaults, self._sampling = defaults, sampling_of(defaults)
        self.created = int(time.time())
        self.status = ModelStatus.UNLOADED
        self.meta: Mapping[str, int] | None = None
        self.problem: str | None = None
        self._senses: tuple[bool, bool] | None = None
        self._llama: Llama | None = None
        self._restarts = 0
        #: What was counted until it was loaded last, and what has counted since: its engine, or the
        #: metrics that this has left. One value, which threads see as a whole.
        self._counted: tuple[Metrics, ModelPort | Metrics | None] = (Metrics(), None)

    @property
    def llama(self) -> Llama:
        """The model itself; within a lease only.

        Raises:
            ClosedError: it is not in memory.
        """
        if self._llama is None:
            raise ClosedError(f"the model {self.id} is not loaded; use it within a lease")
        return self._llama

    @property
    def lost(self) -> bool:
        """Whether a device that it is on was lost: it cannot compute any more."""
        return self._llama is not None and self._llama.runtime.port.lost

    @property
    def counted(self) -> tuple[Metrics, EngineReport | None] | None:
        """What its engines did since the server began, and how the one is that it has now; for any
        thread but that of the event loop: it may wait for another process.

        None if it never had one.
        """
        before, last = self._counted
        if last is None:
            return None
        if isinstance(last, Metrics):
            return before + last, None
        status = last.own_process
        if status is not None and not status.ready:  # nobody waits until it is
            return before + last.metrics_so_far, None
        try:
            report = last.report()
        except (ClosedError, EngineDeadError):  # it goes just now, or is started again
            return before + last.metrics_so_far, None
        return before + report.metrics, report

    @property
    def own_process(self) -> ProcessStatus | None:
        """How the process is that it has of its own, if it is loaded and has one."""
        return None if self._llama is None else self._llama.runtime.port.own_process

    @property
    def is_restarting(self) -> bool:
        """Whether its own process died, and is not there again yet."""
        status = self.own_process
        return status is not None and not status.ready

    @property
    def restarts(self) -> int:
        """How often its own processes were started again since the server began."""
        status = self.own_process
        return self._restarts + (0 if status is None else status.restarts)

    @property
    def senses(self) -> tuple[bool, bool]:
        """Whether it sees, and whether it hears; also while it is not loaded."""
        if self._senses is None:
            self._senses = senses_of(self.settings)
        return self._senses

    @property
    def context(self) -> CallContext:
        """The facts that parsing a request needs; within a lease only."""
        defaults = self._defaults
        own = self.llama.runtime.rendering.call_context()
        return served(own, self._sampling, defaults.max_tokens, defaults.reasoning)

    def enter(self, llama: Llama) -> None:
        """It is in memory now."""
        self._llama, self.status, self.problem = llama, ModelStatus.LOADED, None
        model = llama.runtime.port.model
        self.meta = {
            "n_ctx": llama.n_ctx() if llama.runtime.port.generates else model.n_ctx_train,
            "n_ctx_train": model.n_ctx_train,
            "n_embd": model.n_embd,
            "n_params": model.n_params,
            "n_vocab": model.vocab.n_tokens,
            "size": model.size_bytes,
        }
        self._senses = llama.runtime.rendering.senses
        if llama.runtime.port.generates:
            before, last = self._counted
            self._counted = (
                before + last if isinstance(last, Metrics) else before,
                llama.runtime.port,
            )

    def leave(self) -> Llama:
        """It is on its way out of memory; the caller closes what this returns."""
        self._restarts = self.restarts
        llama, self._llama, self.status = self.llama, None, ModelStatus.UNLOADING
        before, last = self._counted
        if last is not None and not isinstance(last, Metrics):
            self._counted = before, last.metrics_so_far
        return llama

    def __repr__(self) -> str:
        return f"ServedModel({self.id!r}, {self.status.value})"
