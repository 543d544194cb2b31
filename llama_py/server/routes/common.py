"""What several modules of routes need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from llama_py.dialects.wire_json import json_bytes

if TYPE_CHECKING:
    from llama_py.server.app import Service

__all__ = ["in_thread", "json_response", "service_of"]

T = TypeVar("T")


def service_of(request: Request) -> Service:
    """What the handlers of routes work with."""
    service: Service = request.app.state.service
    return service


async def in_thread(service: Service, function: Callable[[], T]) -> T:
    """What a function returns that takes longer than the event loop may wait."""
    return await asyncio.get_running_loop().run_in_executor(service.side_workers, function)


def json_response(value: Any, status: int = 200) -> Response:
    """A value as JSON, also one with halves of surrogate pairs."""
    return Response(json_bytes(value), status, media_type="application/json")
