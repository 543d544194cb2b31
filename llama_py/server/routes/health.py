"""Whether the server is there, is well, and what it counts."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from llama_py.dialects.failures import Failure, Kind, RequestError
from llama_py.server.access.keys import ADMIN
from llama_py.server.lifecycle import Phase
from llama_py.server.operations import PUBLIC, Operation, Routes
from llama_py.server.service import Service, service_of

__all__ = ["ROUTES"]

ROUTES = Routes("Operation")

#: With it, llama-server's scrapers notice that counters began anew.
_STARTED = "Process-Start-Time-Unix"


@ROUTES.get("/livez", operation=Operation(PUBLIC, "Is it alive?", reply="Status"))
async def _alive(request: Request) -> Response:
    """The process answers; a supervisor restarts one that does not."""
    return JSONResponse({"status": "ok"})


@ROUTES.get(
    "/readyz",
    operation=Operation(
        PUBLIC,
        "Does it take requests?",
        text="503 while a model is loaded at the start, and while the server is about to stop.",
        reply="Status",
    ),
)
async def _ready(request: Request) -> Response:
    """Whether requests are welcome: a balancer sends none where they are not."""
    service = service_of(request)
    refusal = service.lifecycle.refusal()
    if refusal is None and service.settings.ready_waiting is not None:
        # A model may be in another process, which is asked.
        refusal = await asyncio.to_thread(_overload, service, service.settings.ready_waiting)
    dead = service.models.restarting
    if refusal is None and dead and len(dead) == len(service.models.loaded):
        message = "the model's process died, and is being started again"
        refusal = Failure(Kind.UNAVAILABLE, message, retry_after=1.0)
    if refusal is None:
        return JSONResponse({"status": "ok"})
    # In llama-server's form, whose clients wait for it.
    error = {"code": 503, "message": refusal.message, "type": "unavailable_error"}
    headers = {"Retry-After": f"{refusal.retry_after or 1:.0f}"}
    return JSONResponse({"error": error}, 503, headers)


def _overload(service: Service, most: int) -> Failure | None:
    """Why new requests had better go elsewhere, or None."""
    waiting = service.models.waiting
    for model in service.models.models:
        counted = model.counted
        if counted is not None and counted[1] is not None:
            waiting += counted[1].waiting
    if waiting <= most:
        return None
    return Failure(Kind.UNAVAILABLE, f"{waiting} requests wait for a place", retry_after=1.0)


@ROUTES.get("/health", "/v1/health", operation=Operation(PUBLIC, "Is it there?", reply="Status"))
async def _health(request: Request) -> Response:
    """While draining the process is well, and only new requests are not welcome."""
    service = service_of(request)
    if service.lifecycle.phase is Phase.LOADING:
        return await _ready(request)
    if service.models.loading:  # one of several, which does not keep others from being used
        return JSONResponse({"status": "ok", "loading": True})
    if dead := service.models.restarting:  # this process is well
        return JSONResponse({"status": "ok", "restarting": [model.id for model in dead]})
    return await _alive(request)


@ROUTES.get("/api/hello", operation=Operation(PUBLIC))
@ROUTES.head("/", operation=Operation(PUBLIC))
async def _hello(request: Request) -> Response:
    """What Claude Code asks before anything else."""
    return Response()


@ROUTES.get(
    "/metrics",
    operation=Operation(
        ADMIN,
        "Counters, in the form of Prometheus",
        media_type="text/plain",
        always=True,
        failures=(Kind.FORBIDDEN, Kind.NOT_IMPLEMENTED),
    ),
)
async def _metrics(request: Request) -> Response:
    service = service_of(request)
    if not service.settings.metrics:
        raise RequestError(Kind.NOT_IMPLEMENTED, "metrics are off; start the server with --metrics")
    page, content_type = await asyncio.to_thread(service.metrics.page)
    started = str(service.metrics.since)
    return Response(page, headers={"Content-Type": content_type, _STARTED: started})
