"""Anthropic's endpoints for messages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from llama_py.dialects.anthropic_messages import read_call, read_prompt
from llama_py.dialects.context import CallContext
from llama_py.dialects.failures import Kind, RequestError
from llama_py.dialects.wire import WireCall
from llama_py.server.bodies import read_body
from llama_py.server.running import respond

if TYPE_CHECKING:
    from llama_py.server.app import Service

__all__ = ["ROUTES"]


async def _messages(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await read_body(request, service.settings)
    request_id = request.scope["state"].get("request_id")
    async with service.models.lease(_model_of(body), request.receive) as model:
        name = model.id

        def parse(context: CallContext) -> WireCall:
            return read_call(context, body, service.limits, name, request_id=request_id)

        return await respond(request, model, parse)


async def _count_tokens(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await read_body(request, service.settings)
    async with service.models.lease(_model_of(body), request.receive) as model:
        calls = model.llama._calls

        def count() -> int:
            return calls.count(read_prompt(model.context, body, service.limits))

        loop = asyncio.get_running_loop()
        tokens = await loop.run_in_executor(service.workers, count)
    return JSONResponse({"input_tokens": tokens})


def _model_of(body: Mapping[str, Any]) -> str | None:
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise RequestError(Kind.INVALID_TYPE, "model must be a string", "model")
    return model


ROUTES = [
    Route("/v1/messages", _messages, methods=["POST"]),
    Route("/v1/messages/count_tokens", _count_tokens, methods=["POST"]),
]
