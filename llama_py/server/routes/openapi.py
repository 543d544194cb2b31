"""``/openapi.json``, and the same for people at ``/docs``."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llama_py.dialects.wire_json import json_bytes
from llama_py.server.openapi.document import document
from llama_py.server.openapi.page import page
from llama_py.server.operations import PUBLIC, Operation, Routes
from llama_py.server.service import Service

__all__ = ["ROUTES"]

ROUTES = Routes("Operation")

#: Nothing from elsewhere, and no scripts at all.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@ROUTES.get(
    "/openapi.json",
    operation=Operation(PUBLIC, "This description, in the form of OpenAPI", reply="Description"),
)
async def _json(request: Request) -> Response:
    return Response(json_bytes(_document(request)), media_type="application/json")


@ROUTES.get("/docs", operation=Operation(PUBLIC))
async def _page(request: Request) -> Response:
    return Response(
        page(_document(request), request.app.state.operations),
        headers=_HEADERS,
        media_type="text/html",
    )


@ROUTES.get("/docs.css", operation=Operation(PUBLIC))
async def _style(request: Request) -> Response:
    style = files("llama_py.server.openapi") / "docs.css"
    return Response(style.read_bytes(), headers=_HEADERS, media_type="text/css")


def _document(request: Request) -> dict[str, Any]:
    """The description of this server, which is made once."""
    state = request.app.state
    if not hasattr(state, "description"):
        service: Service = state.service
        state.description = document(service.settings, state.operations)
    described: dict[str, Any] = state.description
    return described
