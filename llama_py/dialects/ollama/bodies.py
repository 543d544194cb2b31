"""The bodies of ``/api/chat`` and ``/api/generate`` to ``WireCall``.

They are brought to the form of OpenAI's chats and completions, which read everything else: so a
conversation has the same prompt, and a field the same meaning, in each dialect.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llama_py.chat.schemas.closing import closed
from llama_py.dialects.context import CallContext
from llama_py.dialects.fields import Fields, missing, wrong_type, wrong_value
from llama_py.dialects.known_fields import Dialect, meaning
from llama_py.dialects.limits import RequestLimits
from llama_py.dialects.ollama.encode import ChatLines, OllamaReply, TextLines
from llama_py.dialects.openai.bodies import chat_call, completion_call
from llama_py.dialects.openai.chat import ChatCall
from llama_py.dialects.openai.completions import CompletionCall
from llama_py.dialects.wire import WireCall, WireReply
from llama_py.engine.request import Record
from llama_py.errors import shown

__all__ = ["Serving", "check_options", "messages_of", "read_chat", "read_generate"]

_log = logging.getLogger("llama_py.server")

#: Options that were mentioned in the log.
_TOLD: set[str] = set()
_MOST_TOLD = 256


@dataclass(frozen=True, slots=True)
class Serving:
    """The model that answers.

    Attributes:
        name: that the reply gives.
        n_ctx: tokens of its context.
        came: when the request came, on the clock of ``time.perf_counter()``.
    """

    name: str
    n_ctx: int
    came: float


def read_chat(
    context: CallContext, body: Mapping[str, Any], limits: RequestLimits, model: Serving
) -> WireCall:
    """The body of ``/api/chat``.

    Raises:
        RequestError, ParameterError, TemplateError, GrammarError: it cannot be answered.
    """
    limits.check_length(body, "messages", limits.max_messages)
    flat = _flat(body, model)
    flat["messages"] = messages_of(Fields(body))
    return _wire(chat_call(context, flat, limits, None), model, text_only=False)


def read_generate(
    context: CallContext, body: Mapping[str, Any], limits: RequestLimits, model: Serving
) -> WireCall:
    """The body of ``/api/generate``: a question, or with ``raw`` or ``suffix`` a text."""
    fields = Fields(body)
    flat = _flat(body, model)
    prompt, suffix = fields.text("prompt") or "", fields.text("suffix")
    system, images = fields.text("system"), _images(fields)
    for name in ("prompt", "raw", "suffix", "system", "images"):
        flat.pop(name, None)
    if suffix or fields.flag("raw"):
        for name, given in (("system", system), ("images", images)):
            if given:
                raise wrong_value(name, "has no place in a prompt without a template; leave it out")
        _without_template(flat)
        flat.update({"prompt": prompt, "suffix": suffix} if suffix else {"prompt": prompt})
        return _wire(completion_call(context, flat, limits, None), model, text_only=True)
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": _content(prompt, images)})
    call = chat_call(context, {**flat, "messages": messages}, limits, None)
    return _wire(call, model, text_only=True)


def _wire(call: ChatCall | CompletionCall, model: Serving, *, text_only: bool) -> WireCall:
    call.head.stream, stream = True, call.stream  # lines and wholes are made of the same chunks
    lines = TextLines if text_only else ChatLines

    def encoder(records: Sequence[Record]) -> WireReply:
        return OllamaReply(call.encoder(records), lines(model.name), model.came)

    return WireCall(call.requests, stream, encoder)


# ---- options ---------------------------------------------------------------------------------


def check_options(body: Mapping[str, Any], n_ctx: int) -> dict[str, Any]:
    """The ``options`` of a body. Those without effect are mentioned in the log.

    Args:
        n_ctx: tokens of the model's context: a request for more is refused.

    Raises:
        RequestError: they are not an object, or ask for a larger context.
    """
    fields = Fields(body).fields("options")
    if fields is None:
        return {}
    wanted = fields.integer("num_ctx", 1)
    if wanted is not None and wanted > n_ctx:
        raise wrong_value(
            "options.num_ctx",
            f"is {wanted}, and the context of this model has {n_ctx} tokens, which is set when it "
            "is loaded (llama-py serve --n-ctx); nothing is ever cut from a conversation: leave "
            "num_ctx out, or ask for less",
        )
    for name in fields.values:
        if name not in ("num_ctx", "stop") and name not in _TOLD and len(_TOLD) < _MOST_TOLD:
            said = meaning(Dialect.CHAT, name)
            if said in ("without effect", "unknown"):
                _TOLD.add(name)
                _log.warning("Ollama's option %s has no effect here (%s)", shown(name, 60), said)
    return {name: value for name, value in fields.values.items() if value is not None}


def _flat(body: Mapping[str, Any], model: Serving) -> dict[str, Any]:
    """The body with its options among its fields, as other dialects have them."""
    flat = {name: value for name, value in body.items() if value is not None and name != "options"}
    if flat.get("think") in (True, False, ""):  # of a text, "max" and the like are efforts
        flat["think"] = bool(flat["think"])
    if isinstance(flat.get("format"), Mapping):  # Pydantic's say nothing of other properties
        flat["format"] = closed(flat["format"])
    if flat.get("logprobs") is False:
        flat.pop("top_logprobs", None)
    return {**flat, **check_options(body, model.n_ctx)}


def _without_template(flat: dict[str, Any]) -> None:
    """Bring what a chat has for log-probabilities to the form of completions."""
    flat.pop("think", None)
    if flat.pop("logprobs", None):
        flat["logprobs"] = flat.pop("top_logprobs", 0)


# ---- messages --------------------------------------------------------------------------------


def messages_of(body: Fields) -> list[dict[str, Any]]:
    """Messages in OpenAI's form: pictures are parts, and results name their calls."""
    given = body.list("messages")
    if not given:
        raise missing("messages", "send at least one")
    found: list[dict[str, Any]] = []
    waiting: list[tuple[str, str]] = []  # calls without a result: id, name
    for index, each in enumerate(given):
        fields = Fields(each, f"messages[{index}]")
        message = {name: value for name, value in fields.values.items() if name not in _OTHERS}
        message["content"] = _content(fields.text("content") or "", _images(fields))
        if thinking := fields.text("thinking"):
            message["reasoning_content"] = thinking
        if calls := fields.list("tool_calls"):
            message["tool_calls"] = [_with_id(call, index, at) for at, call in enumerate(calls)]
            waiting = [(call["id"], _name_of(call)) for call in message["tool_calls"]]
        if message.get("role") == "tool" and message.get("tool_call_id") is None:
            name = fields.text("tool_name") or fields.text("name")
            answered = _answered(waiting, name)
            if answered is not None:
                message["tool_call_id"] = waiting.pop(answered)[0]
        found.append(message)
    return found


#: Fields of a message that have another form, or another name.
_OTHERS = frozenset({"content", "images", "thinking", "tool_calls", "tool_name"})


def _with_id(call: Any, index: int, at: int) -> dict[str, Any]:
    fields = Fields(call, f"messages[{index}].tool_calls[{at}]")
    return {**fields.values, "id": fields.text("id") or f"call_{index}_{at}"}


def _name_of(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    return str(function.get("name")) if isinstance(function, Mapping) else ""


def _answered(waiting: Sequence[tuple[str, str]], name: str | None) -> int | None:
    """Which of the calls a result is of: the first one of its name, or without a name the first."""
    fitting = (at for at, (_, each) in enumerate(waiting) if name is None or each == name)
    return next(fitting, 0 if waiting else None)


def _images(fields: Fields) -> list[dict[str, Any]]:
    """Pictures and sounds, in base64, as parts."""
    parts = []
    for index, each in enumerate(fields.list("images")):
        if not isinstance(each, str):
            raise wrong_type(f"{fields.place('images')}[{index}]", "base64", each)
        url = each if each[:5].lower() == "data:" else f"data:image/png;base64,{each}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts


def _content(text: str, images: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """A text behind its pictures."""
    return [*images, *([{"type": "text", "text": text}] if text else [])] if images else text
