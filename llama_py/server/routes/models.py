"""``/v1/models``: which models there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from llama_py.server.app import Service

__all__ = ["ROUTES"]


async def _list(request: Request) -> Response:
    service: Service = request.app.state.service
    data = [{"object": "model", "owned_by": "llama_py", **each} for each in service.models.list()]
    return JSONResponse({"object": "list", "data": data})


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


ROUTES = [
    Route("/v1/models", _list, methods=["GET"]),
    Route("/health", _health, methods=["GET"]),
]
