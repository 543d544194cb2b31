"""The bodies of ``/v1/chat/completions`` and ``/v1/completions`` to ``WireCall``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llama_py.dialects.context import CallContext
from llama_py.dialects.failures import Kind, RequestError
from llama_py.dialects.limits import Limits
from llama_py.dialects.openai_chat import ChatCall, parse_chat
from llama_py.dialects.openai_completions import CompletionCall, parse_completion
from llama_py.dialects.wire import WireCall, WireReply
from llama_py.dialects.wire_openai import ChatWireReply, CompletionWireReply
from llama_py.engine.request import Record
from llama_py.options import CHAT, COMPLETION, Table

__all__ = ["read_chat", "read_completion"]

_log = logging.getLogger("llama_py.server")

#: Options that mean something only to who calls in this process.
_IN_PROCESS = frozenset({"logits_processor", "stopping_criteria", "on_progress", "overflow"})
#: Fields that are read here.
_OURS = frozenset({"messages", "prompt", "stream", "return_progress", "return_token_ids"})


def read_chat(
    context: CallContext, body: Mapping[str, Any], limits: Limits, model: str
) -> WireCall:
    """The body of ``/v1/chat/completions``.

    Args:
        model: the name that the response gives.

    Raises:
        RequestError, ParameterError, TemplateError, GrammarError: it cannot be answered.
    """
    options = _options(CHAT, body, limits)
    call = parse_chat(context, _required(body, "messages"), stream=_stream(body), **options)
    return _wire_call(call, ChatWireReply, body, model)


def read_completion(
    context: CallContext, body: Mapping[str, Any], limits: Limits, model: str
) -> WireCall:
    """The body of ``/v1/completions``; see ``read_chat``."""
    options = _options(COMPLETION, body, limits)
    call = parse_completion(context, _required(body, "prompt"), stream=_stream(body), **options)
    return _wire_call(call, CompletionWireReply, body, model)


def _wire_call(
    call: ChatCall | CompletionCall,
    reply: Callable[..., WireReply],
    body: Mapping[str, Any],
    model: str,
) -> WireCall:
    call.head.model = model
    plain = not call.logprobs and not any(getattr(call, "echoes", ()))
    token_ids = bool(body.get("return_token_ids"))

    def encoder(records: Sequence[Record]) -> WireReply:
        return reply(call.encoder(records), plain=plain, token_ids=token_ids)

    return WireCall(call.requests, call.stream, encoder, bool(body.get("return_progress")))


def _stream(body: Mapping[str, Any]) -> bool | None:
    stream: bool | None = body.get("stream")
    return stream


def _required(body: Mapping[str, Any], name: str) -> Any:
    if body.get(name) is None:
        raise RequestError(Kind.MISSING, f"the field {name!r} is missing", name)
    return body[name]


def _options(table: Table[Any], body: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """What the body says of the options of a call."""
    known = table.options.keys() - _IN_PROCESS
    unknown = [name for name in body if name not in known and name not in _OURS]
    if unknown:
        _log.debug("fields that are not known are ignored: %s", ", ".join(map(repr, unknown)))
    return {name: value for name, value in body.items() if name in known}
