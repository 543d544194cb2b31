"""Ollama's endpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from llama_py.dialects.durations import seconds_of
from llama_py.dialects.failures import Kind, RequestError
from llama_py.dialects.ollama.bodies import (
    Serving,
    check_options,
    read_chat,
    read_generate,
)
from llama_py.dialects.ollama.encode import instant
from llama_py.dialects.wire import WireCall
from llama_py.dialects.wire_json import json_bytes, vector_bytes
from llama_py.server.access.keys import ADMIN, CHAT
from llama_py.server.exchange import keep, respond_to
from llama_py.server.model_cards import in_list, names_of, on_gpus, shown_of
from llama_py.server.operations import ANSWERED, EMBEDDED, ONE_MODEL, PUBLIC, Operation, Routes
from llama_py.server.pool.pool import ServedModel
from llama_py.server.routes.embeddings import Embedded, embedded
from llama_py.server.service import caller_of, in_thread, service_of
from llama_py.server.transport.bodies import model_of, read_body

__all__ = ["ROUTES"]

ROUTES = Routes("Ollama")

#: The version of Ollama whose API this is: clients ask before they use what came with one.
_VERSION = "0.12.6"
#: ``expires_at`` of a model that stays.
_NEVER = "9999-12-31T23:59:59.000000Z"
Read = Callable[..., WireCall]
Body = dict[str, Any]


# ---- generating ------------------------------------------------------------------------------


@ROUTES.post(
    "/api/chat",
    operation=Operation(
        CHAT,
        "Answer a conversation",
        text="A stream of lines, unless `stream` is false. Without messages, the model is loaded.",
        body="OllamaChatRequest",
        reply="OllamaChat",
        events="Lines of JSON (`application/x-ndjson`); the last one has `done` set.",
        failures=ANSWERED,
        any_type=True,
    ),
)
async def _chat(request: Request) -> Response:
    body = await _body(request)
    if not body.get("messages"):
        return await _moved(request, body, {"message": {"role": "assistant", "content": ""}})
    return await _answer(request, body, read_chat)


@ROUTES.post(
    "/api/generate",
    operation=Operation(
        CHAT,
        "Answer a prompt, or continue a text",
        text="A stream of lines, unless `stream` is false. Without a prompt, the model is loaded.",
        body="OllamaGenerateRequest",
        reply="OllamaReply",
        events="Lines of JSON (`application/x-ndjson`); the last one has `done` set.",
        failures=ANSWERED,
        any_type=True,
    ),
)
async def _generate(request: Request) -> Response:
    body = await _body(request)
    if not (body.get("prompt") or body.get("suffix") or body.get("images")):
        return await _moved(request, body, {"response": ""})
    return await _answer(request, body, read_generate)


async def _body(request: Request) -> Body:
    body = await read_body(request, service_of(request).settings)
    if body.get("model") is None and body.get("name") is not None:  # its older name
        body["model"] = body["name"]
    if model_of(body) is None:
        raise RequestError(Kind.MISSING, "model is missing: name the model", "model")
    keep(request, body)
    return body


async def _answer(request: Request, body: Body, read: Read) -> Response:
    body["stream"] = True if body.get("stream") is None else body["stream"]
    came = request.scope["state"]["record"].began

    def parse(body: Body, model: ServedModel) -> WireCall:
        serving = Serving(str(body["model"]), _context(model), came)
        return read(model.context, body, service_of(request).limits, serving)

    return await respond_to(request, body, parse)


def _context(model: ServedModel) -> int:
    return model.meta["n_ctx"] if model.meta else 0


async def _moved(request: Request, body: Body, said: Body) -> Response:
    """Load a model, or with ``keep_alive: 0`` unload it."""
    models, began = service_of(request).models, time.perf_counter()
    name, reason = model_of(body), "load"
    if body.get("keep_alive") is not None and seconds_of(body["keep_alive"]) == 0:
        if ADMIN not in caller_of(request).scopes:
            message = "unloading a model needs an API key with the scope 'admin'"
            raise RequestError(Kind.FORBIDDEN, message)
        reason = "unload"
        await models.unload(name, request.receive)
    else:
        check_options(body, _context(await models.load(name, request.receive)))
    took = round((time.perf_counter() - began) * 1e9)
    head = {"model": name, "created_at": instant(), **said, "done": True, "done_reason": reason}
    return JSONResponse({**head, "total_duration": took, "load_duration": took})


# ---- embedding -------------------------------------------------------------------------------


@ROUTES.post(
    "/api/embed",
    operation=Operation(
        CHAT,
        "Embed texts",
        text="What is too long is cut, unless `truncate` is false.",
        body="OllamaEmbedRequest",
        reply="OllamaEmbeddings",
        failures=EMBEDDED,
        any_type=True,
    ),
)
async def _embed(request: Request) -> Response:
    body, began = await _body(request), time.perf_counter()
    name, given = body["model"], body.get("input")
    head = {"model": name}
    if given in (None, "", []):
        await service_of(request).models.load(name, request.receive)
        return JSONResponse({**head, "embeddings": []})
    truncate = True if body.get("truncate") is None else body["truncate"]
    wanted = {"model": name, "input": given, "truncate": truncate}
    wanted["dimensions"] = body.get("dimensions")

    def encode(done: Embedded) -> bytes:
        rows = b",".join(map(vector_bytes, done.vectors))
        took = round((time.perf_counter() - began) * 1e9)
        rest = {"total_duration": took, "load_duration": 0, "prompt_eval_count": done.n_tokens}
        return json_bytes({**head, **rest})[:-1] + b',"embeddings":[' + rows + b"]}"

    return await embedded(request, wanted, encode)


@ROUTES.post(
    "/api/embeddings",
    operation=Operation(
        CHAT,
        "Embed a text",
        text="The older form of `/api/embed`: one vector, which is not brought to the length 1.",
        body="OllamaEmbeddingsRequest",
        reply="OllamaEmbedding",
        failures=EMBEDDED,
        any_type=True,
    ),
)
async def _embeddings(request: Request) -> Response:
    body = await _body(request)
    if not body.get("prompt"):
        await service_of(request).models.load(body["model"], request.receive)
        return JSONResponse({"embedding": []})
    wanted = {"model": body["model"], "input": body["prompt"], "normalize": False}
    wanted["truncate"] = True

    def encode(done: Embedded) -> bytes:
        return b'{"embedding":' + vector_bytes(done.vectors[0]) + b"}"

    return await embedded(request, wanted, encode)


# ---- models ----------------------------------------------------------------------------------


@ROUTES.get("/api/version", operation=Operation(PUBLIC, "Its version", reply="OllamaVersion"))
async def _version(request: Request) -> Response:
    return JSONResponse({"version": _VERSION})


@ROUTES.get("/api/tags", operation=Operation(CHAT, "List the models", reply="OllamaModels"))
async def _tags(request: Request) -> Response:
    service = service_of(request)
    models = service.models.models
    listed = await in_thread(
        service, lambda: [in_list(model, name) for model in models for name in names_of(model)]
    )
    return JSONResponse({"models": listed})


@ROUTES.post(
    "/api/show",
    operation=Operation(
        CHAT,
        "One model",
        text="Its template, metadata and capabilities.",
        body="ModelName",
        reply="OllamaModel",
        failures=ONE_MODEL,
        any_type=True,
    ),
)
async def _show(request: Request) -> Response:
    service = service_of(request)
    model = service.models.find(model_of(await _body(request)))
    return JSONResponse(await in_thread(service, partial(shown_of, model)))


@ROUTES.get("/api/ps", operation=Operation(CHAT, "Models in memory", reply="OllamaModels"))
async def _ps(request: Request) -> Response:
    service = service_of(request)
    models, loaded = service.models, service.models.loaded
    entries = await in_thread(
        service,
        lambda: [{**in_list(each, each.id), "size_vram": on_gpus(each)} for each in loaded],
    )
    for model, entry in zip(loaded, entries, strict=True):
        left = models.left(model.id)
        entry["expires_at"] = _NEVER if left is None else instant(time.time() + left)
        entry["context_length"] = _context(model)
    return JSONResponse({"models": entries})
