"""``/openapi.json``, and the same for people at ``/docs``."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llama_py.dialects.wire_json import json_bytes
from llama_py.server.openapi.document import document
from llama_py.server.openapi.page import page
from llama_py.server.routes.common import Routes
from llama_py.server.service import Service

__all__ = ["ROUTES", "offered"]

ROUTES = Routes()

#: Nothing from elsewhere, and no scripts at all.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_CONVERTER = re.compile(r":\w+}")


def offered(app: Any) -> set[tuple[str, str]]:
    """Method and path of each route of an application, the path as OpenAPI spells it."""
    return {
        (method, _CONVERTER.sub("}", route.path))
        for route in app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
    }


@ROUTES.get("/openapi.json")
async def _json(request: Request) -> Response:
    return Response(json_bytes(_document(request)), media_type="application/json")


@ROUTES.get("/docs")
async def _page(request: Request) -> Response:
    return Response(page(_document(request)), headers=_HEADERS, media_type="text/html")


@ROUTES.get("/docs.css")
async def _style(request: Request) -> Response:
    style = files("llama_py.server.openapi") / "docs.css"
    return Response(style.read_bytes(), headers=_HEADERS, media_type="text/css")


def _document(request: Request) -> dict[str, Any]:
    """The description of this server, which is made once."""
    state = request.app.state
    if not hasattr(state, "description"):
        service: Service = state.service
        state.description = document(service.settings, offered(request.app))
    described: dict[str, Any] = state.description
    return described
