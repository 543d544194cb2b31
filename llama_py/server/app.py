"""``create_app``: the ASGI application, made of the modules of ``routes``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llama_py.dialects.failures import (
    Failure,
    Kind,
    anthropic_error,
    failure_of,
    openai_error,
)
from llama_py.dialects.limits import Limits
from llama_py.dialects.wire_json import json_bytes
from llama_py.server.models import ModelPool
from llama_py.server.response_store import ResponseStore
from llama_py.server.routes import openai, responses
from llama_py.server.running import Exchange
from llama_py.server.settings import Settings

__all__ = ["Service", "create_app", "dialect_of", "error_response"]

#: Threads that check, render and tokenize. More would only wait for each other.
_WORKERS = 4


class Service:
    """What the handlers of routes work with: ``request.app.state.service``.

    Attributes:
        workers: threads for what takes longer than the event loop may wait.
        limits: the settings that dialects check requests against.
        exchanges: requests that a model is answering.
        responses: replies that clients may refer to.
    """

    def __init__(self, settings: Settings, models: ModelPool) -> None:
        self.settings = settings
        self.models = models
        self.workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="llama_py-server")
        self.limits = _limits(settings)
        self.exchanges: set[Exchange] = set()
        self.responses = ResponseStore()


def _limits(settings: Settings) -> Limits:
    names = [each.name for each in fields(Limits) if hasattr(settings, each.name)]
    return Limits(**{name: getattr(settings, name) for name in names})


def create_app(settings: Settings, models: ModelPool | None = None) -> ASGIApp:
    """The application.

    Args:
        models: who serves the models; by default made from the settings, and closed at the end.
    """
    pool = models if models is not None else ModelPool(settings)
    service = Service(settings, pool)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            if models is None:
                await pool.start()
            yield
        finally:
            if models is None:
                await pool.close()
            await asyncio.to_thread(service.workers.shutdown)

    app = Starlette(
        routes=[*openai.ROUTES, *responses.ROUTES],
        lifespan=lifespan,
        middleware=[Middleware(_Failures)],
        exception_handlers={HTTPException: _refuse},
    )
    app.router.redirect_slashes = False
    app.state.service = service
    return app


# ---- errors ----------------------------------------------------------------------------------


def dialect_of(path: str) -> str:
    """``"anthropic"`` or ``"openai"``: in whose form a path reports errors."""
    return "anthropic" if path == "/v1/messages" or path.startswith("/v1/messages/") else "openai"


def error_response(scope: Scope, failure: Failure) -> Response:
    """The response that reports a failure, in the dialect of the path."""
    if dialect_of(scope["path"]) == "anthropic":
        status, body, headers = anthropic_error(failure, scope["state"].get("request_id"))
    else:
        settings = scope["app"].state.service.settings
        status, body, headers = openai_error(failure, settings.overflow_status)
    return Response(json_bytes(body), status, headers, "application/json")


async def _refuse(request: Request, error: Exception) -> Response:
    """A path that does not exist, or not with this method."""
    path, method = request.url.path, request.method
    if not isinstance(error, HTTPException) or error.status_code != 405:
        failure = Failure(Kind.NOT_FOUND, f"there is no {method} {path} here")
        return error_response(request.scope, failure)
    allowed = ", ".join(_methods_of(request))
    failure = Failure(Kind.METHOD, f"{path} takes {allowed}, not {method}")
    response = error_response(request.scope, failure)
    response.headers["Allow"] = allowed
    return response


def _methods_of(request: Request) -> list[str]:
    routes = [each for each in request.app.routes if isinstance(each, Route)]
    fitting = [each for each in routes if each.path_regex.match(request.scope["path"])]
    return sorted({method for each in fitting for method in each.methods or ()})


class _Failures:
    """Tells the client what went wrong, whatever a handler raised before it sent anything."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except ClientDisconnect:
            pass
        except Exception as error:
            failure = failure_of(error)
            if begun:
                raise
            await error_response(scope, failure)(scope, receive, send)
