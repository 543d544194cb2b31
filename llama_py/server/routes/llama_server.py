"""llama-server's own endpoints, and llama-cpp-python's for tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llama_py.api.llama import Llama
from llama_py.chat.formats.builtin import BUILTIN_PREFIX
from llama_py.core.device_report import gpu_hint
from llama_py.dialects.failures import Kind, RequestError
from llama_py.dialects.llama_server.bodies import read_infill, read_native, slot_session
from llama_py.dialects.llama_server.options import described, read_native_sampling
from llama_py.dialects.media_parts import MEDIA_MARKER
from llama_py.dialects.openai.bodies import placed, read_chat
from llama_py.dialects.session_ids import session_of
from llama_py.dialects.token_texts import detokenize, tokenize, tokens_of
from llama_py.dialects.wire import WireCall
from llama_py.errors import TemplateError
from llama_py.options.checks import read_text
from llama_py.params import GenerationParams
from llama_py.server.access.keys import ADMIN, CHAT
from llama_py.server.exchange import respond
from llama_py.server.operations import ANSWERED, MODEL, ONE_MODEL, Operation, Routes
from llama_py.server.pool.pool import ServedModel
from llama_py.server.routes.common import json_response
from llama_py.server.service import in_thread, service_of
from llama_py.server.transport.bodies import model_of, read_body
from llama_py.version import FINGERPRINT

__all__ = ["ROUTES"]

ROUTES = Routes("llama-server")

Body = dict[str, Any]


# ---- generating ------------------------------------------------------------------------------


@ROUTES.post(
    "/completion",
    operation=Operation(
        CHAT,
        "Continue a text",
        body="NativeCompletionRequest",
        reply="NativeCompletion",
        events="`data:` lines with pieces of the reply; the last one has `stop` set.",
        failures=ANSWERED,
    ),
)
async def _completion(request: Request) -> Response:
    def parse(body: Body, model: ServedModel) -> WireCall:
        return read_native(model.context, body, **_options(request, body, model))

    return await respond(request, parse)


@ROUTES.post(
    "/infill",
    operation=Operation(
        CHAT,
        "Fill in a gap in a text",
        text="Needs a model with infill tokens.",
        body="InfillRequest",
        reply="NativeCompletion",
        events="As of `/completion`.",
        failures=(*ANSWERED, Kind.NOT_IMPLEMENTED),
    ),
)
async def _infill(request: Request) -> Response:
    def parse(body: Body, model: ServedModel) -> WireCall:
        room = model.llama.runtime.port.facts.limit
        return read_infill(model.context, body, room=room, **_options(request, body, model))

    return await respond(request, parse)


def _options(request: Request, body: Body, model: ServedModel) -> dict[str, Any]:
    service = service_of(request)
    with placed(body):
        session = session_of(body, request.headers) or slot_session(body)
    return {
        "limits": service.limits,
        "model": model.id,
        "session": session,
        "expose_prompt": service.settings.expose_prompts,
    }


# ---- tokens and prompts ----------------------------------------------------------------------


async def _answer(request: Request, answer: Callable[[ServedModel, Body], Any]) -> Response:
    """The answer to a body, made by a worker thread with a model at hand."""
    service = service_of(request)
    body = await read_body(request, service.settings)
    async with service.models.lease(model_of(body), request.receive) as model:

        def answered() -> Any:
            with placed(body):
                return answer(model, body)

        return json_response(await in_thread(service, answered))


@ROUTES.post(
    "/tokenize",
    operation=Operation(
        CHAT, "The tokens of a text", body="TokenizeRequest", reply="Tokens", failures=ONE_MODEL
    ),
)
async def _tokenize(request: Request) -> Response:
    return await _answer(request, lambda model, body: tokenize(model.llama.vocab, body))


@ROUTES.post(
    "/detokenize",
    operation=Operation(
        CHAT, "The text of tokens", body="DetokenizeRequest", reply="Content", failures=ONE_MODEL
    ),
)
async def _detokenize(request: Request) -> Response:
    return await _answer(request, lambda model, body: detokenize(model.llama.vocab, body))


@ROUTES.post(
    "/extras/tokenize",
    operation=Operation(
        CHAT,
        "The tokens of a text",
        text="As llama-cpp-python's server has it.",
        body="ExtraTokenizeRequest",
        reply="Tokens",
        failures=ONE_MODEL,
    ),
)
async def _extra_tokenize(request: Request) -> Response:
    return await _answer(request, lambda model, body: {"tokens": _input_tokens(model, body)})


@ROUTES.post(
    "/extras/tokenize/count",
    operation=Operation(
        CHAT,
        "How many tokens a text has",
        body="ExtraTokenizeRequest",
        reply="Count",
        failures=ONE_MODEL,
    ),
)
async def _extra_count(request: Request) -> Response:
    return await _answer(request, lambda model, body: {"count": len(_input_tokens(model, body))})


def _input_tokens(model: ServedModel, body: Body) -> list[int]:
    if body.get("input") is None:
        raise RequestError(Kind.MISSING, "the field 'input' is missing", "input")
    text = read_text("input", body["input"], empty=True)
    return model.llama.tokenize(text, special=True)


@ROUTES.post(
    "/extras/detokenize",
    operation=Operation(
        CHAT, "The text of tokens", body="DetokenizeRequest", reply="ExtraText", failures=ONE_MODEL
    ),
)
async def _extra_detokenize(request: Request) -> Response:
    def answer(model: ServedModel, body: Body) -> Body:
        text = model.llama.detokenize(tokens_of(model.llama.vocab, body))
        return {"text": text.decode("utf-8", "replace")}

    return await _answer(request, answer)


@ROUTES.post(
    "/apply-template",
    operation=Operation(
        CHAT,
        "The prompt of a conversation",
        body="ApplyTemplateRequest",
        reply="Prompt",
        failures=ONE_MODEL,
    ),
)
async def _apply_template(request: Request) -> Response:
    limits = service_of(request).limits

    def answer(model: ServedModel, body: Body) -> Body:
        call = read_chat(model.context, {**body, "stream": False}, limits, model.id)
        prompt = call.requests[0].prompt
        # Its text with markers in the places of media, ready for ``prompt_string``.
        text, parts, end = prompt.text or b"", [], 0
        for medium in prompt.media:
            parts += [text[end : medium.start], MEDIA_MARKER.encode()]
            end = medium.end
        marked = b"".join([*parts, text[end:]])
        return {"prompt": marked.decode("utf-8", "surrogatepass")}

    return await _answer(request, answer)


# ---- the server ------------------------------------------------------------------------------


@ROUTES.get(
    "/props",
    operation=Operation(
        CHAT,
        "Facts about a model and its defaults",
        reply="Properties",
        failures=ONE_MODEL,
        parameters=(MODEL,),
    ),
)
async def _props(request: Request) -> Response:
    service = service_of(request)
    name = request.query_params.get("model")
    expose = service.settings.expose_prompts
    async with service.models.probe(name) as model:
        told = service.models.find(name)
        sees, hears = told.senses
        path = told.settings.path if expose else Path(told.settings.path).name
        props = {
            "model_alias": told.id,
            "model_path": str(path),
            "modalities": {"vision": sees, "video": False, "audio": hears},
            "media_marker": MEDIA_MARKER,
            "endpoint_slots": True,
            "endpoint_props": False,
            "endpoint_metrics": service.settings.metrics,
            "build_info": FINGERPRINT,
            "is_sleeping": model is None,
        }
        if name is None and len(service.models.models) > 1:
            props |= {
                "role": "router",
                "max_instances": service.settings.max_loaded,
                "models_autoload": True,
            }
        if model is not None:
            props |= await in_thread(service, lambda: _model_props(model))
    return json_response(props)


def _model_props(model: ServedModel) -> Body:
    llama = model.llama
    facts = llama.runtime.port.facts
    vocab = llama.vocab
    sampling = read_native_sampling(model.context, {})
    return {
        "default_generation_settings": {
            "params": described(
                sampling, GenerationParams(max_tokens=model.context.max_tokens), False
            ),
            "n_ctx": facts.limit,
        },
        "total_slots": facts.n_seq_max,
        **_engine_props(llama),
        "device_hint": gpu_hint(),
        # The description is "llama 1B Q4_K - Medium".
        "model_ftype": llama.runtime.port.model.description.split(" ", 2)[-1],
        **_template_props(llama),
        "bos_token": _text(llama, vocab.bos),
        "eos_token": _text(llama, vocab.eos),
    }


def _engine_props(llama: Llama) -> Body:
    """What the model takes on each device, and the process that it has of its own, if it has one.

    While that is started again there is nothing to be said of devices.
    """
    port = llama.runtime.port
    status = port.own_process
    if status is None:
        return {"devices": [asdict(each) for each in port.report().devices]}
    death = status.last_death
    process = {
        "pid": status.pid,
        "ready": status.ready,
        "restarts": status.restarts,
        "last_death": None if death is None else death.signal or f"exit code {death.exit_code}",
    }
    devices = port.report().devices if status.ready else ()
    return {"devices": [asdict(each) for each in devices], "process": process}


def _template_props(llama: Llama) -> Body:
    if llama.chat_format is not None:  # in place of any template
        named = llama.chat_format.removeprefix(BUILTIN_PREFIX)
        return {"chat_template": named, "chat_template_caps": {}, "tool_form": None}
    try:
        template = llama.chat_template
    except TemplateError:  # it does not parse, and only those who chat need it
        text = llama.runtime.port.model.chat_template() or ""
        return {"chat_template": text, "chat_template_caps": {}, "tool_form": None}
    return {
        "chat_template": template.source,
        "chat_template_caps": dict(template.caps),
        "tool_form": template.tool_form,
    }


def _text(llama: Llama, token: int) -> str:
    return llama.vocab.piece(token).decode("utf-8", "replace") if token >= 0 else ""


@ROUTES.post(
    "/props",
    operation=Operation(
        ADMIN,
        "Change the facts",
        text="They do not change while the server runs.",
        failures=(Kind.FORBIDDEN, Kind.NOT_IMPLEMENTED),
        every_replica=True,
    ),
)
async def _set_props(request: Request) -> Response:
    message = "the properties of this server do not change while it runs"
    raise RequestError(Kind.NOT_IMPLEMENTED, message)


@ROUTES.get(
    "/lora-adapters",
    operation=Operation(
        CHAT, "The adapters of a model", reply="Adapters", failures=ONE_MODEL, parameters=(MODEL,)
    ),
)
async def _adapters(request: Request) -> Response:
    options = service_of(request).models.find(request.query_params.get("model")).settings.options
    path, scale = options.get("lora_path"), options.get("lora_scale", 1.0)
    adapters = [] if path is None else [{"id": 0, "path": Path(path).name, "scale": scale}]
    return json_response(adapters)


@ROUTES.post(
    "/lora-adapters",
    operation=Operation(
        ADMIN,
        "Change the scales of adapters",
        text="They do not change while a model is loaded.",
        failures=(Kind.FORBIDDEN, Kind.NOT_IMPLEMENTED),
        every_replica=True,
    ),
)
async def _set_adapters(request: Request) -> Response:
    message = (
        "the scales of adapters do not change while a model is loaded; offer a second model with "
        "another lora_scale"
    )
    raise RequestError(Kind.NOT_IMPLEMENTED, message)
