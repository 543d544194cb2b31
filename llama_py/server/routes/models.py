"""Which models there are, in OpenAI's form and in Anthropic's; loading and unloading them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from llama_py.dialects.failures import Kind, RequestError
from llama_py.server.access.keys import ADMIN, CHAT
from llama_py.server.operations import ONE_MODEL, Operation, Parameter, Routes
from llama_py.server.pool.served_model import ModelStatus, ServedModel
from llama_py.server.service import service_of
from llama_py.server.transport.bodies import read_body

__all__ = ["ROUTES"]

ROUTES = Routes("Models")

#: Models on a page of Anthropic's list, unless the client says how many.
_PAGE = 20


@ROUTES.get(
    "/v1/models",
    "/models",
    operation=Operation(
        CHAT,
        "List the models",
        text="In Anthropic's form, if the header `anthropic-version` is there.",
        reply="ModelList",
        parameters=(
            Parameter("limit", "Most models to list, up to 1000.", "integer"),
            Parameter("after_id", "Only those after this one (Anthropic's form)."),
            Parameter("before_id", "Only those before this one (Anthropic's form)."),
        ),
    ),
)
async def _list(request: Request) -> Response:
    models = service_of(request).models.models
    text, limit = request.query_params.get("limit"), None
    if text is not None:
        limit = int(text.lstrip("0")[:9] or 0) if text.isdecimal() else 0
        if not 1 <= limit <= 1000:
            message = f"limit={text[:20]} must be a number from 1 to 1000"
            raise RequestError(Kind.INVALID_VALUE, message, "limit")
    if _is_anthropic(request):
        return JSONResponse(_page(models, limit or _PAGE, request))
    data = [_openai(model) for model in models[:limit]]
    # Codex, which tells its version, asks for its own list here, and complains if it is not there.
    codex = "client_version" in request.query_params
    names = [] if codex else [_native(model) for model in models[:limit]]
    return JSONResponse({"object": "list", "data": data, "models": names})


@ROUTES.get(
    "/v1/models/{id:path}",
    operation=Operation(CHAT, "One model", reply="Model", failures=ONE_MODEL),
)
async def _one(request: Request) -> Response:
    name = request.path_params["id"]
    if not name:  # /v1/models/
        return await _list(request)
    model = service_of(request).models.find(name)
    return JSONResponse(_anthropic(model) if _is_anthropic(request) else _openai(model))


@ROUTES.post(
    "/models/load",
    operation=Operation(
        ADMIN,
        "Load a model now",
        text="Returns when it is loaded. Another one may have to go.",
        body="ModelName",
        reply="ModelChanged",
        failures=(Kind.FORBIDDEN, *ONE_MODEL),
        every_replica=True,
    ),
)
async def _load(request: Request) -> Response:
    service = service_of(request)
    model = await service.models.load(await _named(request), request.receive)
    return JSONResponse({"success": True, "model": _openai(model)})


@ROUTES.post(
    "/models/unload",
    operation=Operation(
        ADMIN,
        "Unload a model",
        text="Returns when the requests that use it have ended, and it is gone.",
        body="ModelName",
        reply="ModelChanged",
        failures=(Kind.FORBIDDEN, *ONE_MODEL),
        every_replica=True,
    ),
)
async def _unload(request: Request) -> Response:
    service = service_of(request)
    model = await service.models.unload(await _named(request), request.receive)
    return JSONResponse({"success": True, "model": _openai(model)})


async def _named(request: Request) -> str:
    """The model that a body names."""
    name = (await read_body(request, service_of(request).settings)).get("model")
    if name is None:
        raise RequestError(Kind.MISSING, "model is missing: name the model", "model")
    if not isinstance(name, str):
        raise RequestError(Kind.INVALID_TYPE, "model must be a string", "model")
    return name


# -- OpenAI's form ---------------------------------------------------------------------------------


def _openai(model: ServedModel) -> dict[str, Any]:
    status: dict[str, Any] = {"value": model.status.value}
    if model.status is ModelStatus.UNLOADED and model.problem is not None:  # in llama-server's form
        status |= {"failed": True, "reason": model.problem}
    sees, hears = model.senses
    reads = ["text", *(["image"] if sees else []), *(["audio"] if hears else [])]
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "llama_py",
        "architecture": {"input_modalities": reads, "output_modalities": ["text"]},
        "aliases": [*model.aliases],
        "meta": model.meta,
        "status": status,
    }


def _native(model: ServedModel) -> dict[str, Any]:
    """llama-server's second list, which has the form of Ollama's: what is not known is empty."""
    details = {
        "parent_model": "",
        "format": "gguf",
        "family": "",
        "families": [""],
        "parameter_size": "",
        "quantization_level": "",
    }
    return {
        "name": model.id,
        "model": model.id,
        "modified_at": "",
        "size": "",
        "digest": "",
        "type": "model",
        "description": "",
        "tags": [""],
        "capabilities": ["completion", *(["multimodal"] if any(model.senses) else [])],
        "parameters": "",
        "details": details,
    }


# -- Anthropic's form ------------------------------------------------------------------------------


def _is_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers


def _page(models: Sequence[ServedModel], limit: int, request: Request) -> dict[str, Any]:
    """A part of the list: the first ones, those after one, or the last ones before one."""
    ids = [model.id for model in models]
    after, before = (request.query_params.get(name) for name in ("after_id", "before_id"))
    if after in ids:
        models = models[ids.index(after) + 1 :]
    elif before in ids:
        models = models[: ids.index(before)]
    page = models[-limit:] if before in ids and after not in ids else models[:limit]
    return {
        "data": [_anthropic(model) for model in page],
        "has_more": len(page) < len(models),
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
    }


def _anthropic(model: ServedModel) -> dict[str, Any]:
    created = datetime.fromtimestamp(model.created, timezone.utc)
    return {
        "type": "model",
        "id": model.id,
        "display_name": model.id,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model.meta["n_ctx"] if model.meta else None,
    }
