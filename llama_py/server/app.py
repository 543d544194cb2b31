"""``create_app``: the ASGI application, made of the modules of ``routes``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from llama_py.dialects.failures import Failure, Kind, failure_of
from llama_py.server.access.guard import Guard
from llama_py.server.config.settings import Settings
from llama_py.server.errors import failure_answer, route_path
from llama_py.server.logs import log_request
from llama_py.server.operations import Operations
from llama_py.server.pool.pool import ModelPool
from llama_py.server.routes import (
    anthropic,
    embeddings,
    health,
    llama_server,
    ollama,
    openai,
    openapi,
    page,
    responses,
    sessions,
    slots,
    snapshots,
)
from llama_py.server.routes import models as model_routes
from llama_py.server.service import Service

__all__ = ["create_app", "error_response", "routes_of"]

#: They are tried in this order; those of the page come last.
_ROUTES = [
    *openai.ROUTES,
    *anthropic.ROUTES,
    *ollama.ROUTES,
    *responses.ROUTES,
    *health.ROUTES,
    *model_routes.ROUTES,
    *embeddings.ROUTES,
    *llama_server.ROUTES,
    *slots.ROUTES,
    *snapshots.ROUTES,
    *sessions.ROUTES,
    *openapi.ROUTES,
]


def routes_of(settings: Settings) -> list[BaseRoute]:
    """The routes of a server, in the order in which they are tried."""
    return [*_ROUTES, *(page.ROUTES if settings.ui else page.NO_ROUTES)]


def create_app(
    settings: Settings, models: ModelPool | None = None, *, load: bool = True
) -> ASGIApp:
    """The application.

    Args:
        models: who serves the models; by default made from the settings, and closed at the end.
        load: begin with the models of the settings loaded. Otherwise the caller starts them.

    Raises:
        TypeError: a route does not say who may use it.
    """
    pool = models if models is not None else ModelPool(settings)
    service = Service(settings, pool)
    routes = routes_of(settings)
    operations = Operations(routes)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            if models is None and load:
                await pool.start()
            yield
        finally:
            if models is None:
                await pool.close()
            await asyncio.to_thread(service.workers.shutdown)
            await asyncio.to_thread(service.side_workers.shutdown)
            await asyncio.to_thread(service.embedding_workers.shutdown)
            await asyncio.to_thread(service.sessions.close)

    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[
            Middleware(
                Guard,
                settings=settings,
                lifecycle=service.lifecycle,
                operations=operations,
                finished=(log_request, service.metrics.count),
            ),
            Middleware(_Failures),
        ],
        exception_handlers={HTTPException: _refuse},
    )
    app.router.redirect_slashes = False
    app.state.service = service
    app.state.operations = operations
    return app


# ---- errors ----------------------------------------------------------------------------------


def error_response(scope: Scope, failure: Failure) -> Response:
    """The response that reports a failure, in the dialect of the path."""
    scope["state"]["record"].error = failure.kind.value
    settings = scope["app"].state.service.settings
    status, headers, body = failure_answer(scope, failure, settings.overflow_status)
    return Response(body, status, headers)


async def _refuse(request: Request, error: Exception) -> Response:
    """A path that does not exist, or not with this method."""
    path, method = _cut(route_path(request.scope), 256), _cut(request.method, 32)
    if not isinstance(error, HTTPException) or error.status_code != 405:
        failure = Failure(Kind.NOT_FOUND, f"there is no {method} {path} here")
        return error_response(request.scope, failure)
    routes = [each for each in request.app.routes if isinstance(each, Route)]
    fitting = [each for each in routes if each.path_regex.match(route_path(request.scope))]
    allowed = ", ".join(sorted({method for each in fitting for method in each.methods or ()}))
    failure = Failure(Kind.METHOD, f"{path} takes {allowed}, not {method}")
    response = error_response(request.scope, failure)
    response.headers["Allow"] = allowed
    return response


def _cut(text: str, most: int) -> str:
    """A client's text, shortened for a message to it."""
    return text if len(text) <= most else f"{text[:most]}…"


class _Failures:
    """Tells the client what went wrong, whatever a handler raised before it sent anything."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        except ClientDisconnect:
            raise  # for ``Guard``: nobody is there to be told
        except Exception as error:  # where the headers are out already, the server closes
            await error_response(scope, failure_of(error))(scope, receive, send)
