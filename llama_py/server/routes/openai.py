"""OpenAI's endpoints for completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llama_py.dialects.context import CallContext
from llama_py.dialects.limits import Limits
from llama_py.dialects.openai_bodies import read_chat, read_completion
from llama_py.dialects.wire import WireCall
from llama_py.server.bodies import model_of, read_body
from llama_py.server.running import respond

if TYPE_CHECKING:
    from llama_py.server.app import Service

__all__ = ["ROUTES"]

Reader = Callable[[CallContext, Mapping[str, Any], Limits, str], WireCall]


async def _chat(request: Request) -> Response:
    return await _generate(request, read_chat)


async def _completion(request: Request) -> Response:
    return await _generate(request, read_completion)


async def _generate(request: Request, read: Reader) -> Response:
    service: Service = request.app.state.service
    body = await read_body(request, service.settings)
    async with service.models.lease(model_of(body), request.receive) as model:
        name = model.id
        return await respond(request, model, lambda m: read(m, body, service.limits, name))


ROUTES = [
    Route("/v1/chat/completions", _chat, methods=["POST"]),
    Route("/chat/completions", _chat, methods=["POST"]),
    Route("/v1/completions", _completion, methods=["POST"]),
    Route("/completions", _completion, methods=["POST"]),
]
