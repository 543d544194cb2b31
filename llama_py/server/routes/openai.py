"""OpenAI's endpoints for completions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from llama_py.dialects.failures import Kind, RequestError
from llama_py.dialects.openai.bodies import placed, read_chat, read_completion
from llama_py.dialects.openai.transcriptions import read_transcription
from llama_py.dialects.session_ids import session_of
from llama_py.dialects.wire import WireCall
from llama_py.errors import shown
from llama_py.server.access.keys import CHAT
from llama_py.server.exchange import count_tokens, respond, respond_to_form
from llama_py.server.operations import ANSWERED, ONE_MODEL, Operation, Routes
from llama_py.server.pool.pool import ServedModel
from llama_py.server.routes.common import cancel_reply
from llama_py.server.service import service_of
from llama_py.server.transport.bodies import read_body

__all__ = ["ROUTES"]

ROUTES = Routes("OpenAI")


@ROUTES.post(
    "/v1/chat/completions",
    "/chat/completions",
    operation=Operation(
        CHAT,
        "Answer a conversation",
        text="The beginning that a conversation shares with one in memory is not evaluated again; "
        "`usage.prompt_tokens_details.cached_tokens` says how much that was. Fields that are not "
        "known are ignored.",
        body="ChatCompletionRequest",
        reply="ChatCompletion",
        events="`data:` lines with chunks of the reply (`ChatCompletionChunk`), then `data: "
        "[DONE]`. An error in the middle is a line with `error`.",
        failures=ANSWERED,
    ),
)
async def _chat(request: Request) -> Response:
    return await respond(request, partial(_parse, request, read_chat))


@ROUTES.post(
    "/v1/completions",
    "/completions",
    operation=Operation(
        CHAT,
        "Continue a text",
        body="CompletionRequest",
        reply="Completion",
        events="`data:` lines with `CompletionChunk`s, then `data: [DONE]`.",
        failures=ANSWERED,
    ),
)
async def _completion(request: Request) -> Response:
    return await respond(request, partial(_parse, request, read_completion))


@ROUTES.post(
    "/v1/audio/transcriptions",
    "/audio/transcriptions",
    operation=Operation(
        CHAT,
        "Write down a recording",
        text="For models that hear: `audio` is among their `input_modalities`.",
        body="TranscriptionRequest",
        reply="Transcription",
        events="`data:` lines with `transcript.text.delta`, then `transcript.text.done` and "
        "`data: [DONE]`.",
        body_type="multipart/form-data",
        failures=ANSWERED,
    ),
)
async def _transcription(request: Request) -> Response:
    def parse(form: dict[str, Any], model: ServedModel) -> WireCall:
        with placed(form):
            session = session_of({}, request.headers)
            return read_transcription(model.context, form, model.id, session)

    return await respond_to_form(request, parse)


@ROUTES.post(
    "/v1/chat/completions/input_tokens",
    "/chat/completions/input_tokens",
    operation=Operation(
        CHAT,
        "Count the tokens of a conversation",
        body="ChatCompletionRequest",
        reply="InputTokens",
        failures=ONE_MODEL,
    ),
)
async def _count(request: Request) -> Response:
    count = await count_tokens(request, partial(_parse, request, read_chat))
    return JSONResponse({"object": "response.input_tokens", "input_tokens": count})


def _parse(
    request: Request, read: Callable[..., WireCall], body: dict[str, Any], model: ServedModel
) -> WireCall:
    with placed(body):
        session = session_of(body, request.headers)
    return read(model.context, body, service_of(request).limits, model.id, session)


@ROUTES.post(
    "/v1/chat/completions/control",
    operation=Operation(
        CHAT,
        "End a reply that is being generated",
        text="It ends as if its client had left.",
        body="Control",
        reply="Done",
        failures=(Kind.NOT_FOUND,),
    ),
)
async def _control(request: Request) -> Response:
    """End a reply that is being generated: ``{"id": ..., "action": "cancel"}``."""
    body = await read_body(request, service_of(request).settings)
    action, wanted = body.get("action"), body.get("id")
    for name in ("action", "id"):
        if body.get(name) is None:
            raise RequestError(Kind.MISSING, f"the field {name!r} is missing", name)
    if action != "cancel":
        message = f"action is {shown(action)}; expected 'cancel'"
        raise RequestError(Kind.INVALID_VALUE, message, "action")
    if cancel_reply(request, wanted):
        return JSONResponse({"success": True})
    message = f"no reply with the id {shown(wanted)} is being generated"
    raise RequestError(Kind.NOT_FOUND, message, "id")
