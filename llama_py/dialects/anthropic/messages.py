"""``read_call``: the body of ``/v1/messages`` to a ``WireCall``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from llama_py.chat.enforceable import enforceable, render_leniently
from llama_py.chat.messages import ChatRequest
from llama_py.chat.rendered import RenderedChat
from llama_py.dialects.anthropic.blocks import (
    check_object,
    read_messages,
    read_system,
    with_texts_in_results,
)
from llama_py.dialects.anthropic.encode import MessageHead, MessageReply
from llama_py.dialects.anthropic.tools import read_tool_choice, read_tools
from llama_py.dialects.chat_requests import chat_requests, is_opening
from llama_py.dialects.context import CallContext
from llama_py.dialects.failures import Kind, RequestError
from llama_py.dialects.fields import whole, whole_number
from llama_py.dialects.limits import RequestLimits
from llama_py.dialects.media_parts import render_results
from llama_py.dialects.requests import NO_PROMPT
from llama_py.dialects.sampling import read_generation, read_sampling
from llama_py.dialects.token_texts import as_bool
from llama_py.dialects.wire import WireCall, WireReply
from llama_py.engine.request import GenerationRequest, Record
from llama_py.errors import ParameterError, ParameterTypeError, TemplateError, shown
from llama_py.options import CHAT, ChatOptions
from llama_py.options.checks import check_number
from llama_py.options.values import read_stops
from llama_py.quick_dataclass import dataclass

__all__ = ["read_call"]

_log = logging.getLogger("llama_py.server")

#: Fields that have an effect.
_KNOWN = frozenset(
    {"max_tokens", "messages", "metadata", "model", "output_config", "output_format", "stream"}
    | {"stop_sequences", "system", "temperature", "thinking", "thread", "tool_choice", "tools"}
    | {"cache_prompt", "json_calls", "top_k", "top_p"}
)
#: Numbers that are passed on under the same name.
_NUMBERS = ("temperature", "top_p", "top_k")
#: The nearest words that templates know.
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}


def read_call(
    context: CallContext,
    body: Mapping[str, Any],
    limits: RequestLimits,
    model: str,
    *,
    session: str | None = None,
    request_id: str | None = None,
) -> WireCall:
    """The body of ``/v1/messages``. Fields that are not known are ignored.

    Args:
        model: the name that the reply gives.
        session: the conversation that it belongs to, if it has a name.

    Raises:
        RequestError, ParameterError, TemplateError, GrammarError: it cannot be answered.
    """
    unknown = body.keys() - _KNOWN
    if unknown and _log.isEnabledFor(logging.DEBUG):
        _log.debug("fields that are not known are ignored: %s", ", ".join(map(repr, unknown)))
    if body.get("thread") is not None:
        # Clients of Anthropic's understand this, and send all messages then: no loss here.
        message = "thread is not supported: this server holds no conversations; send all messages"
        code = "thread_unsupported_request"
        raise RequestError(Kind.INVALID_VALUE, message, "thread", code=code)
    stream = _flag(body, "stream")
    thinking = _thinking(body)
    wanted = _wanted(context, body, limits, session)
    request = _chat_request(body, limits, thinking, sees=context.sees)
    rendered = _rendered(context, request)
    head = MessageHead(model, wanted.generation.stop, thinking.shown, request_id)

    def encoder(records: Sequence[Record]) -> WireReply:
        return MessageReply(head, records[0], rendered)

    return WireCall(chat_requests(wanted, context.vocab, request, rendered), stream, encoder)


def _rendered(context: CallContext, request: ChatRequest) -> RenderedChat:
    def render(request: ChatRequest) -> RenderedChat:
        return render_results(request, context.render_chat)

    try:
        return render_leniently(request, render)
    except TemplateError:
        messages = with_texts_in_results(request.messages)
        if messages == request.messages:
            raise
        # A template that refuses this refuses it in every turn, so that prompts still begin alike.
        return render_leniently(replace(request, messages=messages), render)


# ---- the conversation --------------------------------------------------------------------------


def _chat_request(
    body: Mapping[str, Any], limits: RequestLimits, thinking: _Thinking, *, sees: bool
) -> ChatRequest:
    for name, most in (("messages", limits.max_messages), ("tools", limits.max_tools)):
        value = body.get(name)
        if isinstance(value, list) and len(value) > most:
            raise ParameterError(f"{name} has {len(value)} entries, and {most} is the most")
    limits.check_tools(body, "tools")
    messages = read_messages(body.get("messages"), sees=sees)
    tools = enforceable(read_tools(body.get("tools")))
    given = body.get("tools") or ()
    choice, parallel = read_tool_choice(body.get("tool_choice"), tools, given)
    system = read_system(body.get("system"))
    json_calls = None if body.get("json_calls") is None else _flag(body, "json_calls")
    schema = _schema(body)
    effort = _output_config(body).get("effort")
    return ChatRequest(
        (*system, *messages),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        json_calls=json_calls,
        schema=schema,
        enable_thinking=thinking.enabled,
        reasoning_effort=_EFFORTS.get(effort) if isinstance(effort, str) else None,
        reasoning_budget=thinking.budget,
        continue_final_message=is_opening(messages),
    )


# ---- what the reply is to be like --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Thinking:
    """How much the model reasons before it answers.

    Attributes:
        enabled: None leaves it to the template.
        budget: most tokens of it, or None.
        shown: the client wants to see it.
    """

    enabled: bool | None = None
    budget: int | None = None
    shown: bool = True


def _thinking(body: Mapping[str, Any]) -> _Thinking:
    if body.get("thinking") is None:
        return _Thinking()
    value = check_object(body["thinking"], "thinking")
    kind, budget = value.get("type"), whole_number(value.get("budget_tokens"))
    if not isinstance(kind, str):
        raise ParameterError(
            f"thinking.type is {shown(kind)}; expected adaptive, enabled or disabled"
        )
    if budget is not None:
        check_number("thinking.budget_tokens", budget, 0, integer=True)
    if kind == "disabled" or budget == 0:
        return _Thinking(enabled=False)
    return _Thinking(True, budget, value.get("display") != "omitted")


def _output_config(body: Mapping[str, Any]) -> Mapping[str, Any]:
    value = body.get("output_config")
    return {} if value is None else check_object(value, "output_config")


def _schema(body: Mapping[str, Any]) -> Any:
    """The JSON schema that the text has to follow, or None."""
    wanted, where = _output_config(body).get("format"), "output_config.format"
    if wanted is None:
        wanted, where = body.get("output_format"), "output_format"
    if not isinstance(wanted, Mapping) or wanted.get("type") != "json_schema":
        if wanted is not None:
            _log.debug("%s is not known, and ignored: %s", where, shown(wanted))
        return None
    return check_object(wanted.get("schema"), f"{where}.schema") or {"type": "object"}


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ParameterTypeError(f"{name} must be true or false, not {shown(value)}")
    return bool(value)


def _wanted(
    context: CallContext, body: Mapping[str, Any], limits: RequestLimits, session: str | None
) -> GenerationRequest:
    """How the engine is to sample, and until when. Where there is less room, that is the limit."""
    stops: tuple[str, ...] = ()
    if body.get("stop_sequences") is not None:
        stops = read_stops("stop_sequences", body["stop_sequences"])
    if len(stops) > limits.max_stops:
        raise ParameterError(
            f"stop_sequences has {len(stops)} entries, and {limits.max_stops} is the most"
        )
    numbers = {name: body[name] for name in _NUMBERS if body.get(name) is not None}
    given = {name: whole(CHAT[name], number) for name, number in numbers.items()}
    options: ChatOptions = CHAT.read({**given, "stop": stops})
    most = whole_number(body.get("max_tokens"))
    if most is not None:
        check_number("max_tokens", most, 0, integer=True)
    generation = read_generation(options, context, max_tokens=most, logprobs=None)
    sampling = read_sampling(CHAT, options, context)
    reuse = as_bool(body, "cache_prompt", True)
    return GenerationRequest(NO_PROMPT, sampling, generation, session=session, reuse=reuse)
