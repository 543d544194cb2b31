"""What several modules of routes need."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llama_py.dialects.wire_json import json_bytes
from llama_py.server.service import service_of, tenant_of

__all__ = ["Routes", "cancel_reply", "json_response"]

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


class Routes(list[Route]):
    """The routes of a module, in the order in which it defines their handlers: ``@ROUTES.get``."""

    def get(self, *paths: str) -> Callable[[Handler], Handler]:
        """Answers GET, and HEAD, at these paths."""
        return self._at("GET", paths)

    def post(self, *paths: str) -> Callable[[Handler], Handler]:
        """Answers POST at these paths."""
        return self._at("POST", paths)

    def delete(self, *paths: str) -> Callable[[Handler], Handler]:
        """Answers DELETE at these paths."""
        return self._at("DELETE", paths)

    def head(self, *paths: str) -> Callable[[Handler], Handler]:
        """Answers HEAD alone at these paths."""
        return self._at("HEAD", paths)

    def _at(self, method: str, paths: tuple[str, ...]) -> Callable[[Handler], Handler]:
        def note(handler: Handler) -> Handler:
            self.extend(Route(path, handler, methods=[method]) for path in paths)
            return handler

        return note


def json_response(value: Any, status: int = 200) -> Response:
    """A value as JSON, also one with halves of surrogate pairs."""
    return Response(json_bytes(value), status, media_type="application/json")


def cancel_reply(request: Request, wanted: Any) -> bool:
    """End the reply with this id, as if its client had left; False if there is none of the caller.

    Only replies that are being generated, or wait for that.
    """
    tenant = tenant_of(request)
    for exchange in service_of(request).exchanges:
        if exchange.id and exchange.id == wanted and exchange.tenant == tenant:
            exchange.cancel()
            return True
    return False
