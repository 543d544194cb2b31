"""Anthropic's endpoints for messages."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from llama_py.dialects.anthropic.messages import read_call
from llama_py.dialects.session_ids import session_of
from llama_py.dialects.wire import WireCall
from llama_py.server.access.keys import CHAT
from llama_py.server.exchange import count_tokens, respond
from llama_py.server.operations import ANSWERED, ONE_MODEL, Operation, Routes
from llama_py.server.pool.pool import ServedModel
from llama_py.server.service import service_of

__all__ = ["ROUTES"]

ROUTES = Routes("Anthropic")


@ROUTES.post(
    "/v1/messages",
    operation=Operation(
        CHAT,
        "Answer a conversation",
        text="`cache_control` is not needed: whatever is in memory is reused.",
        body="MessagesRequest",
        reply="Message",
        events="Named events: `message_start`, for each block `content_block_start`, "
        "`content_block_delta` and `content_block_stop`, then `message_delta` and `message_stop`; "
        "`ping` in between, and `error`.",
        failures=ANSWERED,
    ),
)
async def _messages(request: Request) -> Response:
    return await respond(request, partial(_parse, request))


@ROUTES.post(
    "/v1/messages/count_tokens",
    operation=Operation(
        CHAT,
        "Count the tokens of a conversation",
        text="The number is exact: the conversation is rendered, tools included, and tokenized.",
        body="CountTokensRequest",
        reply="InputTokens",
        failures=ONE_MODEL,
    ),
)
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
