"""``Service``: what the handlers of routes work with, made once for an application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Protocol, TypeVar

from starlette.requests import Request

from llama_py.dialects.failures import Failure
from llama_py.dialects.limits import RequestLimits
from llama_py.engine.request import Record
from llama_py.server.access.keys import Caller
from llama_py.server.config.settings import Settings
from llama_py.server.kept.response_store import ResponseStore
from llama_py.server.kept.sessions import Sessions
from llama_py.server.kept.slot_files import SlotFiles
from llama_py.server.lifecycle import Lifecycle
from llama_py.server.metrics import ServerMetrics
from llama_py.server.pool.pool import ModelPool
from llama_py.server.workers import FairWorkers
from llama_py.states.named import NamedStates

__all__ = ["Answering", "Service", "caller_of", "in_thread", "service_of", "tenant_of"]

T = TypeVar("T")

#: Threads that check, render and tokenize. More would only wait for each other.
_WORKERS = 4
_SIDE_WORKERS = 2


class Answering(Protocol):
    """A request that a model answers, as others see it: ``exchange.Exchange``."""

    id: str
    tenant: str
    records: Sequence[Record]

    def cancel(self) -> None:
        """End it, as its client asked."""

    def stop(self, failure: Failure) -> None:
        """End it with an error."""


class Service:
    """The state that the handlers of routes share: ``request.app.state.service``.

    Attributes:
        workers: threads that make requests to the engine of calls, and replies of its events.
        side_workers: threads for what else takes longer than the event loop may wait: disks,
            tokenizing, looking into the engine. Calls do not wait for them.
        embedding_workers: threads that make tokens of what is to be embedded, which may be
            megabytes. Replies do not wait for them, nor they for disks.
        limits: the settings that dialects check requests against.
        exchanges: requests that a model is answering.
        responses: replies that clients may refer to.
        sessions: the conversations of the clients, by name.
        slots: where slots are saved, or None.
        snapshots: copies of sessions under names.
        lifecycle: whether requests are let in.
        metrics: what is counted.
    """

    def __init__(self, settings: Settings, models: ModelPool) -> None:
        self.settings = settings
        self.models = models
        self.workers = FairWorkers(_WORKERS, "llama_py-server")
        self.side_workers = FairWorkers(_SIDE_WORKERS, "llama_py-side")
        self.embedding_workers = FairWorkers(_SIDE_WORKERS, "llama_py-embeds")
        values = {each.name: getattr(settings, each.name) for each in fields(RequestLimits)}
        self.limits = RequestLimits(
            **{**values, "template_kwargs": frozenset(settings.template_kwargs)}
        )
        self.exchanges: set[Answering] = set()
        self.responses = ResponseStore(
            settings.max_stored_responses, settings.max_stored_bytes, settings.stored_seconds
        )
        self.sessions = Sessions(settings.session_dir, capacity_bytes=settings.session_bytes)
        directory = settings.slot_dir
        self.slots = None if directory is None else SlotFiles(directory, settings.slot_bytes)
        self.snapshots = NamedStates(settings.prefix_cache_slots, settings.snapshot_bytes)
        self.lifecycle = Lifecycle()
        self.metrics = ServerMetrics(self.lifecycle, models)

    async def prepare(self, model: str, function: Callable[[], T]) -> T:
        """Call a function in a worker, which may wait for this model and leaves one to others."""
        lane = model if len(self.models.models) > 1 else ""
        return await asyncio.wrap_future(self.workers.submit_for(lane, function))


def service_of(request: Request) -> Service:
    """The service of the application that a request came to."""
    service: Service = request.app.state.service
    return service


def caller_of(request: Request) -> Caller:
    """The sender of a request."""
    caller: Caller = request.scope["state"].get("caller") or Caller()
    return caller


def tenant_of(request: Request) -> str:
    """The owner of the sessions and prefixes that a request works with; "" is everybody."""
    return caller_of(request).tenant


async def in_thread(service: Service, function: Callable[[], T]) -> T:
    """Call a function that takes longer than the event loop may wait."""
    return await asyncio.get_running_loop().run_in_executor(service.side_workers, function)
