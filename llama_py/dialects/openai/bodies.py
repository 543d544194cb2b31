"""The bodies of ``/v1/chat/completions`` and ``/v1/completions`` to ``WireCall``.

A field that nobody knows never fails a request, because clients send what their provider's newest
version takes; ``RequestLimits.strict`` is for those who want to hear of typing errors. What is
known of other servers' fields is in ``known_fields``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from llama_py.dialects.context import CallContext
from llama_py.dialects.failures import Kind, RequestError, failure_of
from llama_py.dialects.fields import whole, wrong_value
from llama_py.dialects.known_fields import NOT_HERE, Dialect, ours
from llama_py.dialects.limits import RequestLimits
from llama_py.dialects.openai.chat import ChatCall, parse_chat
from llama_py.dialects.openai.completions import CompletionCall, parse_completion
from llama_py.dialects.openai.wire import ChatWireReply, CompletionWireReply
from llama_py.dialects.requests import with_biases
from llama_py.dialects.token_texts import as_bool
from llama_py.dialects.wire import WireCall, WireReply
from llama_py.engine.request import Record
from llama_py.errors import GrammarError, MediaError, ParameterError
from llama_py.options import CHAT, COMPLETION, Table

__all__ = ["chat_call", "completion_call", "placed", "read_chat", "read_completion"]

#: The beginning of a message of a ``ParameterError``: the place that it is about.
_PLACE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*|\[\d+\])*")
#: Fields that may have a grammar or a schema, in every dialect that uses ``placed``.
_CONSTRAINTS = (
    *("grammar", "response_format", "json_schema", "text", "format", "guided_json", "ebnf"),
    *("guided_grammar", "guided_choice", "structured_outputs", "tools", "functions"),
)


def read_chat(
    context: CallContext,
    body: Mapping[str, Any],
    limits: RequestLimits,
    model: str,
    session: str | None = None,
) -> WireCall:
    """The body of ``/v1/chat/completions``.

    Args:
        model: the name that the response gives.
        session: the conversation that it belongs to, or None.

    Raises:
        RequestError, ParameterError, TemplateError, GrammarError: it cannot be answered.
    """
    call = chat_call(context, body, limits, session)
    return _wire_call(call, ChatWireReply, body, model)


def chat_call(
    context: CallContext, body: Mapping[str, Any], limits: RequestLimits, session: str | None
) -> ChatCall:
    """The call of a chat's body; see ``read_chat``."""
    limits.check_length(body, "messages", limits.max_messages)
    limits.check_tools(body, "tools")
    limits.check_tools(body, "functions")
    given = ours(Dialect.CHAT, body, limits)
    messages = _required(body, "messages")
    with placed(body), given.named():
        options = _options(CHAT, with_biases(context, given.fields), limits, session)
        _choose_tools(options)
        return parse_chat(
            context,
            messages,
            stream=body.get("stream"),
            lenient_tools=not limits.strict,
            goes_on=True,
            zero_counts=True,
            **options,
        )


def read_completion(
    context: CallContext,
    body: Mapping[str, Any],
    limits: RequestLimits,
    model: str,
    session: str | None = None,
) -> WireCall:
    """The body of ``/v1/completions``; see ``read_chat``."""
    call = completion_call(context, body, limits, session)
    return _wire_call(call, CompletionWireReply, body, model)


def completion_call(
    context: CallContext, body: Mapping[str, Any], limits: RequestLimits, session: str | None
) -> CompletionCall:
    """The call of a completion's body; see ``read_chat``."""
    given = ours(Dialect.COMPLETION, body, limits)
    prompt = _required(body, "prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        limits.check_length(body, "prompt", limits.max_prompts)
    with placed(body), given.named():
        options = _options(COMPLETION, with_biases(context, given.fields), limits, session)
        _choose_schema(options, given.fields.get("json_schema"))
        return parse_completion(
            context, prompt, stream=body.get("stream"), zero_counts=True, **options
        )


def _wire_call(
    call: ChatCall | CompletionCall,
    reply: Callable[..., WireReply],
    body: Mapping[str, Any],
    model: str,
) -> WireCall:
    call.head.model = model
    plain = not call.logprobs and not any(getattr(call, "echoes", ()))
    token_ids = bool(body.get("return_token_ids"))
    timings = bool(body.get("timings_per_token"))

    def encoder(records: Sequence[Record]) -> WireReply:
        return reply(call.encoder(records), plain=plain, token_ids=token_ids, timings=timings)

    return WireCall(
        call.requests,
        call.stream,
        encoder,
        wants_progress=bool(body.get("return_progress")),
        id=call.head.id,
    )


def _required(body: Mapping[str, Any], name: str) -> Any:
    if body.get(name) is None:
        raise RequestError(Kind.MISSING, f"the field {name!r} is missing", name)
    return body[name]


# ---- options ---------------------------------------------------------------------------------


def _options(
    table: Table[Any], body: Mapping[str, Any], limits: RequestLimits, session: str | None
) -> dict[str, Any]:
    """The options of a call that a body has."""
    known = table.options.keys() - NOT_HERE
    for name in ("n", "best_of"):
        limits.check_number(body, name, limits.max_choices)
    for name in ("logprobs", "top_logprobs"):
        limits.check_number(body, name, limits.max_top_logprobs)
    limits.check_length(body, "stop", limits.max_stops)
    limits.check_biases(body)
    options = {name: whole(table[name], body[name]) for name in body if name in known}
    # A grammar or a stop string without a text is none: so clients of llama-server mean it.
    if options.get("grammar") == "":
        del options["grammar"]
    stop = options.get("stop")
    if stop == "":
        del options["stop"]
    elif isinstance(stop, list):
        options["stop"] = [text for text in stop if text != ""]
    of_stream = options.get("stream_options")
    if not body.get("stream"):
        options.pop("stream_options", None)
    elif isinstance(of_stream, dict):  # its other members are not known
        usage = of_stream.get("include_usage")
        options["stream_options"] = {} if usage is None else {"include_usage": usage}
    if not as_bool(body, "cache_prompt", True):  # llama-server's name
        options["reuse"] = False
    if session is not None:
        options["session_id"] = session
    return options


def _choose_schema(options: dict[str, Any], schema: Any) -> None:
    """A schema of a completion is a grammar that its text follows."""
    if schema is None:
        return
    if options.get("grammar") is not None:
        raise wrong_value("json_schema", "contradicts grammar: both say what a reply may be")
    from llama_py.chat.constraints import LlamaGrammar  # rare, and much

    options["grammar"] = LlamaGrammar.from_json_schema(
        {"type": "object"} if schema == {} else schema
    )


def _choose_tools(options: dict[str, Any]) -> None:
    """Leave out tools that are not functions, and their choice: a provider runs them itself."""
    tools = options.get("tools")
    choice: Any = options.get("tool_choice")
    if isinstance(tools, list):
        _refuse_custom(tools)
        options["tools"] = [tool for tool in tools if _is_function(tool)]
        if tools and not options["tools"] and isinstance(choice, str):
            del options["tool_choice"]
    if not isinstance(choice, dict):
        return
    kind = choice.get("type", "function")
    if isinstance(kind, str) and kind not in ("function", "allowed_tools"):
        del options["tool_choice"]
        return
    allowed = choice.get("allowed_tools")
    if isinstance(allowed, dict) and isinstance(allowed.get("tools"), list):
        functions = [tool for tool in allowed["tools"] if _is_function(tool)]
        options["tool_choice"] = {**choice, "allowed_tools": {**allowed, "tools": functions}}


def _refuse_custom(tools: Sequence[Any]) -> None:
    """Those that the client runs, and whose input is free text: there is no form for that here."""
    for i, tool in enumerate(tools):
        if isinstance(tool, dict) and tool.get("type") == "custom":
            message = (
                f"tools[{i}] is a custom tool, which only /v1/responses has; make it a function "
                "with one parameter that is a string"
            )
            raise RequestError(Kind.NOT_IMPLEMENTED, message, f"tools[{i}]")


def _is_function(tool: Any) -> bool:
    """True also for values that are not tools: their reader reports them."""
    return not isinstance(tool, dict) or tool.get("type") in (None, "function")


@contextlib.contextmanager
def placed(body: Mapping[str, Any]) -> Iterator[None]:
    """Let errors say which field they are about: their messages begin with its place."""
    try:
        yield
    except ParameterError as error:
        place = _PLACE.match(str(error))
        if place is not None and re.split(r"[.\[]", place[0])[0] in body:
            error.param = place[0]
            if _is_missing(body, place[0]):
                failure = replace(failure_of(error), kind=Kind.MISSING)
                raise RequestError.of(failure) from None
        raise
    except MediaError as error:
        place = _PLACE.match(str(error))
        if place is not None and re.split(r"[.\[]", place[0])[0] in body:
            raise RequestError.of(replace(failure_of(error), param=place[0])) from None
        raise
    except GrammarError as error:
        error.param = next((name for name in _CONSTRAINTS if body.get(name)), None)
        raise


def _is_missing(body: Mapping[str, Any], place: str) -> bool:
    """Whether a place is that of a member which is not there, of an object which is."""
    *path, last = re.findall(r"[^.\[\]]+", place)
    value: Any = body
    for name in path:
        if isinstance(value, list):
            index = int(name) if name.isdecimal() else len(value)
            value = value[index] if index < len(value) else None
        else:
            value = value.get(name) if isinstance(value, Mapping) else None
    return isinstance(value, Mapping) and value.get(last) is None
