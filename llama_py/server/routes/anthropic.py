"""Anthropic's endpoints for messages."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from llama_py.dialects.anthropic.messages import read_call
from llama_py.dialects.session_ids import session_of
from llama_py.dialects.wire import WireCall
from llama_py.server.counting import count_tokens
from llama_py.server.exchange import respond
from llama_py.server.pool.pool import ServedModel
from llama_py.server.routes.common import Routes
from llama_py.server.service import service_of

__all__ = ["ROUTES"]

ROUTES = Routes()


@ROUTES.post("/v1/messages")
async def _messages(request: Request) -> Response:
    return await respond(request, partial(_parse, request))


@ROUTES.post("/v1/messages/count_tokens")
async def _count_tokens(request: Request) -> Response:
    return JSONResponse({"input_tokens": await count_tokens(request, partial(_parse, request))})


def _parse(request: Request, body: dict[str, Any], model: ServedModel) -> WireCall:
    return read_call(
        model.context,
        body,
        service_of(request).limits,
        model.id,
        session=session_of(body, request.headers),
        request_id=request.scope["state"].get("request_id"),
    )
