"""OpenAI's Responses API."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llama_py.dialects.failures import Kind, RequestError
from llama_py.dialects.openai.bodies import placed
from llama_py.dialects.responses.listing import input_list
from llama_py.dialects.responses.parse import parse_responses
from llama_py.dialects.session_ids import session_of
from llama_py.dialects.wire import WireCall
from llama_py.dialects.wire_json import json_bytes
from llama_py.errors import shown
from llama_py.server.access.keys import CHAT
from llama_py.server.exchange import count_tokens, respond
from llama_py.server.kept.response_store import Responses
from llama_py.server.operations import ANSWERED, ONE_MODEL, Operation, Parameter, Routes
from llama_py.server.pool.served_model import ServedModel
from llama_py.server.routes.common import cancel_reply
from llama_py.server.service import caller_of, service_of
from llama_py.server.truncating import truncated

__all__ = ["ROUTES"]

ROUTES = Routes("OpenAI")


@ROUTES.post(
    "/v1/responses",
    "/responses",
    operation=Operation(
        CHAT,
        "Create a response",
        text="With `store`, it can be continued by `previous_response_id`, for some time.",
        body="ResponsesRequest",
        reply="Response",
        events="Named events, from `response.created` to `response.completed`, "
        "`response.incomplete` or `response.failed`, then `data: [DONE]`.",
        failures=ANSWERED,
    ),
)
async def _create(request: Request) -> Response:
    return await respond(request, partial(_parse, request))


@ROUTES.post(
    "/v1/responses/input_tokens",
    "/responses/input_tokens",
    operation=Operation(
        CHAT,
        "Count the tokens of a response's prompt",
        body="ResponsesCountRequest",
        reply="InputTokens",
        failures=ONE_MODEL,
    ),
)
async def _count(request: Request) -> Response:
    """How many tokens a request has: rendered as if it was to be answered, and not queued."""
    count = await count_tokens(request, partial(_parse, request))
    return _json({"object": "response.input_tokens", "input_tokens": count})


def _parse(request: Request, body: dict[str, Any], model: ServedModel) -> WireCall:
    with placed(body):
        return parse_responses(
            model.context,
            body,
            service_of(request).limits,
            model.id,
            session_of(body, request.headers),
            _stored(request),
            partial(truncated, model.llama),
        )


@ROUTES.get(
    "/v1/responses/{response_id}",
    "/responses/{response_id}",
    operation=Operation(CHAT, "A stored response", reply="Response", failures=(Kind.NOT_FOUND,)),
)
async def _get(request: Request) -> Response:
    response_id = request.path_params["response_id"]
    if request.query_params.get("stream") == "true":
        message = "stream: a stored response cannot be streamed again; leave it out"
        raise RequestError(Kind.INVALID_VALUE, message, "stream")
    response = _stored(request).response(response_id)
    if response is None:
        raise _not_found(response_id)
    return _json(response)


@ROUTES.get(
    "/v1/responses/{response_id}/input_items",
    "/responses/{response_id}/input_items",
    operation=Operation(
        CHAT,
        "What a stored response answers",
        text="The items of its input, and those of the turns that it goes on from.",
        reply="ResponseItems",
        failures=(Kind.NOT_FOUND,),
        parameters=(
            Parameter("limit", "Most items to list, up to 100 (20).", "integer"),
            Parameter("order", "`desc`, the newest first, or `asc` (`desc`)."),
            Parameter("after", "Only those after the item with this id."),
        ),
    ),
)
async def _input_items(request: Request) -> Response:
    response_id = request.path_params["response_id"]
    items = _stored(request).input_items(response_id)
    if items is None:
        raise _not_found(response_id)
    return _json(input_list(items, response_id, request.query_params))


@ROUTES.delete(
    "/v1/responses/{response_id}",
    "/responses/{response_id}",
    operation=Operation(
        CHAT, "Forget a stored response", reply="DeletedResponse", failures=(Kind.NOT_FOUND,)
    ),
)
async def _delete(request: Request) -> Response:
    response_id = request.path_params["response_id"]
    if not _stored(request).delete(response_id):
        raise _not_found(response_id)
    return _json({"id": response_id, "object": "response", "deleted": True})


@ROUTES.post(
    "/v1/responses/{response_id}/cancel",
    "/responses/{response_id}/cancel",
    operation=Operation(
        CHAT,
        "End a response that is being generated",
        text="It ends as if its client had left. A stored response that has ended is returned as "
        "it is.",
        reply="CancelledResponse",
        failures=(Kind.NOT_FOUND,),
    ),
)
async def _cancel(request: Request) -> Response:
    """End a response that is being generated; one that has ended already is what it is."""
    response_id = request.path_params["response_id"]
    if cancel_reply(request, response_id):
        ended = {"id": response_id, "object": "response", "status": "cancelled"}
        return _json({**ended, "output": [], "error": None, "incomplete_details": None})
    response = _stored(request).response(response_id)
    if response is None:
        raise _not_found(response_id)
    return _json(response)


@ROUTES.post(
    "/v1/responses/compact",
    "/responses/compact",
    operation=Operation(
        CHAT,
        "Compact a conversation",
        text="Not there: `truncation` leaves out what does not fit.",
        body="ResponsesCountRequest",
        reply="Response",
        failures=(Kind.NOT_IMPLEMENTED,),
    ),
)
async def _compact(request: Request) -> Response:
    raise RequestError(
        Kind.NOT_IMPLEMENTED,
        'conversations are not compacted here; pass truncation="auto", or ask for a summary of the '
        "conversation and go on from that",
    )


def _stored(request: Request) -> Responses:
    """The replies that belong to the key of a request."""
    return service_of(request).responses.of(caller_of(request).name)


def _not_found(response_id: str) -> RequestError:
    message = f"there is no stored response {shown(response_id)} (any more)"
    return RequestError(Kind.NOT_FOUND, message, "response_id")


def _json(value: Any) -> Response:
    return Response(json_bytes(value), media_type="application/json")
