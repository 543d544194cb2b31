"""Anthropic's endpoints for messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from llama_py.dialects.anthropic.messages import read_call
from llama_py.dialects.context import CallContext
from llama_py.dialects.session_ids import session_of
from llama_py.dialects.wire import WireCall
from llama_py.server.counting import count_tokens
from llama_py.server.exchange import respond
from llama_py.server.opening import leased
from llama_py.server.pool.pool import ServedModel
from llama_py.server.service import service_of
from llama_py.server.transport.bodies import model_of, read_body

__all__ = ["ROUTES"]


async def _messages(request: Request) -> Response:
    body = await read_body(request, service_of(request).settings)
    async with leased(request, body) as model:
        return await respond(request, model, _parse(request, body, model))


async def _count_tokens(request: Request) -> Response:
    service = service_of(request)
    body = await read_body(request, service.settings)
    async with service.models.lease(model_of(body), request.receive) as model:
        count = await count_tokens(request, model, _parse(request, body, model))
    return JSONResponse({"input_tokens": count})


def _parse(
    request: Request, body: Mapping[str, Any], model: ServedModel
) -> Callable[[CallContext], WireCall]:
    service = service_of(request)
    return partial(
        read_call,
        body=body,
        limits=service.limits,
        model=model.id,
        session=session_of(body, request.headers),
        request_id=request.scope["state"].get("request_id"),
    )


ROUTES = [
    Route("/v1/messages", _messages, methods=["POST"]),
    Route("/v1/messages/count_tokens", _count_tokens, methods=["POST"]),
]
