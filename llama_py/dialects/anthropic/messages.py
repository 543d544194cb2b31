"""``read_call``: the body of ``/v1/messages`` to a ``WireCall``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from llama_py.dialects.chat_requests import (
    chat_requests,
    check_grammar,
    is_opening,
    with_grammar,
)
from llama_py.dialects.context import CallContext
from llama_py.dialects.failures import Kind, RequestError
from llama_py.dialects.fields import whole, whole_number
from llama_py.dialects.known_fields import CHAT_OPTIONS, Dialect, ours
from llama_py.dialects.limits import RequestLimits
from llama_py.dialects.media_parts import render_results
from llama_py.dialects.part_variables import part_variables
from llama_py.dialects.requests import read_generation, read_request, read_sampling, with_biases
from llama_py.dialects.token_texts import as_bool
from llama_py.dialects.wire import WireCall, WireReply
from llama_py.engine.request import GenerationRequest, Record
from llama_py.errors import ParameterError, ParameterTypeError, TemplateError, shown
from llama_py.options import CHAT, ChatOptions
from llama_py.options.checks import check_number
from llama_py.options.values import read_stops

__all__ = ["read_call"]

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
    """The body of ``/v1/messages``. Fields that no server knows are ignored (``known_fields``).

    Args:
        model: the name that the reply gives.
        session: the conversation that it belongs to, if it has a name.

    Raises:
        RequestError, ParameterError, TemplateError, GrammarError: it cannot be answered.
    """
    given = ours(Dialect.MESSAGES, body, limits)
    with given.named():
        limits.check_biases(given.fields)
        body = with_biases(context, given.fields)
        return _call(context, body, limits, model, session, request_id)


def _call(
    context: CallContext,
    body: Mapping[str, Any],
    limits: RequestLimits,
    model: str,
    session: str | None,
    request_id: str | None,
) -> WireCall:
    if body.get("thread") is not None:
        # Clients of Anthropic's understand this, and send all messages then: no loss here.
        message = "thread is not supported: this server holds no conversations; send all messages"
        code = "thread_unsupported_request"
        raise RequestError(Kind.INVALID_VALUE, message, "thread", code=code)
    stream = _flag(body, "stream")
    thinking = _thinking(body)
    options = _options(body, limits)
    wanted = _wanted(context, body, options, session)
    request = _chat_request(body, options, limits, thinking, sees=context.sees)
    check_grammar(options, request, context)
    rendered = _rendered(context, request)
    wanted = replace(wanted, sampling=with_grammar(wanted.sampling, options, context, rendered))
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
    body: Mapping[str, Any],
    options: ChatOptions,
    limits: RequestLimits,
    thinking: _Thinking,
    *,
    sees: bool,
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
    if parallel is None:
        parallel = options.get("parallel_tool_calls")
    variables = part_variables(body.get("messages"))
    effort = _output_config(body).get("effort")
    budget = options.get("reasoning_budget") if thinking.budget is None else thinking.budget
    enabled = options.get("enable_thinking") if thinking.enabled is None else thinking.enabled
    return ChatRequest(
        (*system, *messages),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        json_calls=options.get("json_calls"),
        schema=_schema(body),
        template_kwargs={**variables, **(options.get("chat_template_kwargs") or {})},
        enable_thinking=False if budget == 0 else enabled,
        reasoning_effort=_EFFORTS.get(effort)
        if isinstance(effort, str)
        else (options.get("reasoning_effort")),
        reasoning_budget=budget,
        continue_final_message=is_opening(messages),
        special_tokens_in_content=options.get("special_tokens_in_content"),
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
    found = {"json_schema": body.get("json_schema")}
    for name, given in (
        ("output_config.format", _output_config(body).get("format")),
        ("output_format", body.get("output_format")),
    ):
        if given is not None:
            found[name] = _schema_of(given, name)
    asked = {name: schema for name, schema in found.items() if schema is not None}
    first, *others = asked or [""]
    for name in others:
        if asked[name] != asked[first]:
            raise ParameterError(f"{name} contradicts {first}: both say what a reply may be")
    return asked.get(first)


def _schema_of(given: Any, where: str) -> Any:
    wanted = check_object(given, where)
    if wanted.get("type") != "json_schema":
        raise ParameterError(f"{where}.type is {shown(wanted.get('type'))}; expected json_schema")
    return check_object(wanted.get("schema"), f"{where}.schema") or {"type": "object"}


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ParameterTypeError(f"{name} must be true or false, not {shown(value)}")
    return bool(value)


def _options(body: Mapping[str, Any], limits: RequestLimits) -> ChatOptions:
    """The options of a chat, by our names; of these, Anthropic's API has a few."""
    stops: tuple[str, ...] = ()
    if body.get("stop_sequences") is not None:
        stops = read_stops("stop_sequences", body["stop_sequences"])
    if len(stops) > limits.max_stops:
        raise ParameterError(
            f"stop_sequences has {len(stops)} entries, and {limits.max_stops} is the most"
        )
    names = [name for name in CHAT_OPTIONS if body.get(name) is not None]
    return CHAT.read({**{name: whole(CHAT[name], body[name]) for name in names}, "stop": stops})


def _wanted(
    context: CallContext, body: Mapping[str, Any], options: ChatOptions, session: str | None
) -> GenerationRequest:
    """How the engine is to sample, and until when. Where there is less room, that is the limit."""
    most = whole_number(body.get("max_tokens"))
    if most is not None:
        check_number("max_tokens", most, 0, integer=True)
    generation = read_generation(options, context, max_tokens=most, logprobs=None)
    request = read_request(options, read_sampling(CHAT, options, context), generation)
    reuse = request.reuse and as_bool(body, "cache_prompt", True)
    return replace(request, session=session, reuse=reuse)
