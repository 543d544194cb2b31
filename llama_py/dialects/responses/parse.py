"""``parse_responses``: the body of ``/v1/responses`` to an engine request.

Fields that no server knows are ignored (``known_fields``), and so are kinds of tools and of items
that nothing here can do anything with: clients are ahead of servers. What is known is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, get_args

from llama_py.chat.conversation import Message, Text
from llama_py.chat.enforceable import enforceable, render_leniently
from llama_py.chat.messages import ChatRequest
from llama_py.dialects.chat_requests import chat_requests, check_grammar, with_grammar
from llama_py.dialects.context import CallContext
from llama_py.dialects.failures import Kind, RequestError
from llama_py.dialects.fields import Fields, missing, whole, wrong_type, wrong_value
from llama_py.dialects.known_fields import CHAT_OPTIONS, Dialect, ours
from llama_py.dialects.limits import RequestLimits
from llama_py.dialects.media_parts import render_results
from llama_py.dialects.part_variables import part_variables
from llama_py.dialects.requests import read_generation, read_request, read_sampling, with_biases
from llama_py.dialects.responses.encode import AskedResponse, ResponsesReply
from llama_py.dialects.responses.items import (
    InputHistory,
    Item,
    Senses,
    conversation_of,
    input_items,
)
from llama_py.dialects.responses.output import new_id
from llama_py.dialects.responses.repeated import repeated_fields
from llama_py.dialects.responses.tools import Tools, read_choice
from llama_py.dialects.wire import WireCall, WireReply
from llama_py.engine.request import GenerationRequest, Record
from llama_py.errors import shown
from llama_py.options import CHAT, ChatOptions
from llama_py.options.values import Effort

__all__ = ["History", "Nothing", "parse_responses"]

_EFFORTS = get_args(Effort)
_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"
#: Fields that say what there is no service for, and what to do instead. Without them the reply
#: would be about something else.
_ELSEWHERE = {
    "conversation": "send the items as input, or pass previous_response_id",
    "prompt": "send its text as instructions and input",
}


class History(Protocol):
    """Replies of the same client that were stored."""

    def conversation(self, response_id: str) -> InputHistory | None:
        """Everything that was said up to the end of a reply; None if it is not there."""

    def item(self, item_id: str) -> Item | None:
        """One item of a reply; None if it is not there."""

    def keep(self, earlier: InputHistory, new: Sequence[Item], response: Mapping[str, Any]) -> None:
        """Store a reply, with what it answers: what was stored of it already, and the rest."""


class Nothing:
    """A ``History`` without anything in it."""

    def conversation(self, response_id: str) -> None:
        """Nothing."""

    def item(self, item_id: str) -> None:
        """Nothing."""

    def keep(self, earlier: InputHistory, new: Sequence[Item], response: Mapping[str, Any]) -> None:
        """Forget it."""


def parse_responses(
    context: CallContext,
    body: Mapping[str, Any],
    limits: RequestLimits,
    model: str,
    session: str | None = None,
    history: History | None = None,
    truncate: Callable[[ChatRequest], ChatRequest] | None = None,
) -> WireCall:
    """Check a body and render the conversation.

    Args:
        model: the name that the response gives.
        session: the conversation that it belongs to, or None.
        history: what the client may refer to, and where the reply is stored.
        truncate: leaves out what does not fit, for clients that ask for that.

    Raises:
        RequestError, ParameterError, TemplateError, GrammarError: it cannot be answered.
    """
    given = ours(Dialect.RESPONSES, body, limits)
    with given.named():
        limits.check_biases(given.fields)
        fields = Fields(with_biases(context, given.fields))
        return _call(context, fields, limits, model, session, history, truncate)


def _call(
    context: CallContext,
    fields: Fields,
    limits: RequestLimits,
    model: str,
    session: str | None,
    history: History | None,
    truncate: Callable[[ChatRequest], ChatRequest] | None,
) -> WireCall:
    history = history or Nothing()
    _check_names(fields)
    earlier, new = _input(fields, history)
    tools = _tools(fields, limits)
    items, senses = [*earlier.items, *new], Senses(context.sees, context.hears)
    messages = _messages(fields, items, len(earlier.items), tools, limits, senses)
    options = _options(fields, limits)
    variables = part_variables(items, "input")
    request = _chat_request(fields, options, messages, tools, variables)
    check_grammar(options, request, context)
    wanted = _wanted(fields, options, context, limits, session)
    repeated = repeated_fields(fields, model, wanted.sampling, request.reasoning_effort)
    keep = None if fields.flag("store") is False else partial(history.keep, earlier, new)
    asked = _asked(fields, repeated, tools, wanted.generation.logprobs is not None, keep)
    if truncate is not None and fields.text("truncation") == "auto":
        request = truncate(request)
    render = partial(render_results, render=context.render_chat)
    rendered = render_leniently(request, render)
    sampling = with_grammar(wanted.sampling, options, context, rendered)
    wanted = replace(wanted, sampling=sampling)

    def encoder(records: Sequence[Record]) -> WireReply:
        return ResponsesReply(asked, records, context.vocab, rendered)

    return WireCall(
        chat_requests(wanted, context.vocab, request, rendered),
        asked.stream,
        encoder,
        wants_progress=bool(fields.get("return_progress")),
        overflows_in_stream=True,
        id=asked.id,
    )


def _check_names(fields: Fields) -> None:
    """Refuse fields that say what cannot be done."""
    for name, remedy in _ELSEWHERE.items():
        if name in fields:
            raise wrong_value(name, f"is stored nowhere here; {remedy}")


def _options(fields: Fields, limits: RequestLimits) -> ChatOptions:
    """The options of a chat that are not in OpenAI's API, and those that both have."""
    limits.check_length(fields.values, "stop", limits.max_stops)
    return CHAT.read(
        {name: whole(CHAT[name], fields.get(name)) for name in CHAT_OPTIONS if name in fields}
    )


def _wanted(
    fields: Fields,
    options: ChatOptions,
    context: CallContext,
    limits: RequestLimits,
    session: str | None,
) -> GenerationRequest:
    most = fields.integer("max_output_tokens", 1)
    top = fields.integer("top_logprobs", 0, limits.max_top_logprobs)
    logprobs = top or 0 if top or _LOGPROBS in fields.list("include") else None
    generation = read_generation(options, context, max_tokens=most, logprobs=logprobs)
    request = read_request(options, read_sampling(CHAT, options, context), generation)
    reuse = request.reuse and fields.flag("cache_prompt") is not False
    return replace(request, session=session, reuse=reuse)


def _asked(
    fields: Fields,
    repeated: Mapping[str, Any],
    tools: Tools,
    logprobs: bool,
    keep: Callable[[Mapping[str, Any]], None] | None,
) -> AskedResponse:
    stream = fields.flag("stream") or False
    reasoning = fields.fields("reasoning")
    summary = None
    if reasoning is not None:
        summary = reasoning.text("summary") or reasoning.text("generate_summary")
    return AskedResponse(
        new_id("resp"),
        repeated,
        tools,
        stream=stream,
        logprobs=logprobs,
        summary=(summary or "none") != "none",
        seal=_ENCRYPTED in fields.list("include"),
        timings=bool(fields.get("timings_per_token")),
        keep=keep,
    )


# ---- the conversation ------------------------------------------------------------------------


def _input(fields: Fields, history: History) -> tuple[InputHistory, list[Item]]:
    """What was said up to an earlier reply, and the items that the request adds."""
    previous = fields.text("previous_response_id")
    if previous is None:
        return InputHistory(), input_items(fields.get("input"), history.item)
    earlier = history.conversation(previous)
    if earlier is None:
        raise RequestError(
            Kind.INVALID_VALUE,
            f"previous_response_id: there is no stored response {shown(previous)} (any more); send "
            "the whole conversation as input",
            "previous_response_id",
            code="previous_response_not_found",
        )
    given = fields.get("input")
    return earlier, [] if given is None else input_items(given, history.item)


def _tools(fields: Fields, limits: RequestLimits) -> Tools:
    declared = fields.list("tools")
    limits.check_tools({"tools": declared}, "tools")
    tools = Tools(declared)
    count = max(len(declared), len(tools.offered))
    if count > limits.max_tools:
        raise wrong_value("tools", f"has {count} entries; at most {limits.max_tools} are allowed")
    return tools


def _messages(
    fields: Fields,
    items: Sequence[Item],
    known: int,
    tools: Tools,
    limits: RequestLimits,
    senses: Senses,
) -> list[Message]:
    if len(items) > limits.max_messages:
        raise wrong_value("input", f"has {len(items)} items; at most {limits.max_messages} go")
    messages = conversation_of(items, tools, known, senses)
    if not messages:
        raise wrong_value("input", "contains nothing that a model could answer")
    instructions = fields.text("instructions")
    if instructions:
        messages.insert(0, Message("system", (Text(instructions),)))
    return messages


def _chat_request(
    fields: Fields,
    options: ChatOptions,
    messages: Sequence[Message],
    tools: Tools,
    variables: Mapping[str, Any],
) -> ChatRequest:
    budget = options.get("reasoning_budget")
    return ChatRequest(
        tuple(messages),
        tools=enforceable(tools.offered),
        tool_choice=read_choice(fields.get("tool_choice"), tools),
        parallel_tool_calls=options.get("parallel_tool_calls"),
        json_calls=options.get("json_calls"),
        schema=_schema(fields),
        template_kwargs={**variables, **(options.get("chat_template_kwargs") or {})},
        enable_thinking=False if budget == 0 else options.get("enable_thinking"),
        reasoning_effort=_effort(fields) or options.get("reasoning_effort"),
        reasoning_budget=budget,
        special_tokens_in_content=options.get("special_tokens_in_content"),
    )


# ---- options ---------------------------------------------------------------------------------


def _schema(fields: Fields) -> Any:
    """The JSON schema that the reply has to follow, or None."""
    schema, other = _schema_of_text(fields), fields.json("json_schema")
    if schema is not None and other is not None and schema != other:
        raise wrong_value("json_schema", "contradicts text.format: both say what a reply may be")
    return other if schema is None else schema


def _schema_of_text(fields: Fields) -> Any:
    """The format that ``text.format`` asks for, or None."""
    text = fields.fields("text")
    form = None if text is None else text.fields("format")
    kind = "text" if form is None else form.get("type")
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        expected = "text, json_object or json_schema"
        raise wrong_value(form.place("type"), f"is {shown(kind)}; expected {expected}")
    schema = form.json("schema")
    if schema is None:
        raise missing(form.place("schema"), "it is the JSON schema of the reply")
    if not isinstance(schema, Mapping):
        raise wrong_type(form.place("schema"), "a JSON schema (an object)", schema)
    return schema or {"type": "object"}


def _effort(fields: Fields) -> str | None:
    reasoning = fields.fields("reasoning")
    effort = None if reasoning is None else reasoning.text("effort")
    if effort is not None and effort not in _EFFORTS:
        expected = ", ".join(_EFFORTS)
        raise wrong_value("reasoning.effort", f"is {shown(effort)}; expected one of {expected}")
    return effort
