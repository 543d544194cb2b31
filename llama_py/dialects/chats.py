"""``parse_chat``: the arguments of ``create_chat_completion`` to engine requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from llama_py.chat.grammar import CompiledGrammar
from llama_py.chat.messages import ChatRequest
from llama_py.chat.template import RenderedChat
from llama_py.dialects.arguments import Arguments
from llama_py.dialects.budget import budget_for
from llama_py.dialects.context import CallContext
from llama_py.dialects.encode import ResponseHead
from llama_py.dialects.encode_chat import ChatEncoder
from llama_py.dialects.sampling import read_generation, read_sampling
from llama_py.dialects.shared import (
    SHARED_PARAMETERS,
    Plan,
    make_plan,
    read_choices,
    read_grammar,
    read_head,
    read_max_tokens,
)
from llama_py.engine.request import GenerationRequest, Prompt, Record
from llama_py.errors import ParameterError

__all__ = ["CHAT_PARAMETERS", "ChatCall", "parse_chat"]

#: Keyword arguments of ``create_chat_completion``, beside the messages.
CHAT_PARAMETERS = SHARED_PARAMETERS | {
    "add_generation_prompt",
    "chat_template_kwargs",
    "continue_final_message",
    "enable_thinking",
    "function_call",
    "functions",
    "max_completion_tokens",
    "parallel_tool_calls",
    "reasoning_budget",
    "reasoning_effort",
    "reasoning_format",
    "response_format",
    "special_tokens_in_content",
    "tool_choice",
    "tools",
    "top_logprobs",
}


#: The default of llama-cpp-python.
_TEMPERATURE = 0.2
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


@dataclass(slots=True)
class ChatCall:
    """A checked and rendered call of ``create_chat_completion``.

    Attributes:
        requests: one for each choice, ``request.choice`` counting them.
        request: the conversation, normalised.
        rendered: its prompt.
        stream: whether the caller wants chunks.
    """

    requests: list[GenerationRequest]
    head: ResponseHead
    context: CallContext
    request: ChatRequest
    rendered: RenderedChat
    legacy: bool = False
    logprobs: bool = False

    @property
    def stream(self) -> bool:
        return self.head.stream

    def encoder(self, records: Sequence[Record]) -> ChatEncoder:
        """A new encoder for this call.

        Args:
            records: what is known of each of its requests.
        """
        return ChatEncoder(
            self.head,
            records,
            self.context.vocab,
            self.rendered,
            legacy=self.legacy,
            logprobs=self.logprobs,
        )


def parse_chat(context: CallContext, messages: Any, **kwargs: Any) -> ChatCall:
    """Check the arguments of ``create_chat_completion`` and render the conversation.

    Args:
        messages: OpenAI messages.
        kwargs: any of ``CHAT_PARAMETERS``.

    Raises:
        ParameterError: an argument is wrong; the message names it and what is allowed.
        TemplateError: the chat template refuses the messages.
    """
    arguments = Arguments("create_chat_completion", kwargs, CHAT_PARAMETERS)
    head = read_head(arguments, context, "chatcmpl")
    request = _chat_request(arguments, messages)
    grammar = _grammar(arguments, context, request)
    logprobs = _chat_logprobs(arguments, context)
    n = read_choices(arguments)
    generation = read_generation(
        arguments, context, max_tokens=_chat_max_tokens(arguments), logprobs=logprobs
    )
    sampling = read_sampling(
        arguments,
        context,
        _TEMPERATURE,
        grammar=grammar.grammar,
        constraint=grammar.constraint,
    )
    plan = make_plan(arguments, sampling, generation)
    rendered = context.render_chat(request)
    _adapt(plan, context, request, rendered)
    return ChatCall(
        plan.requests([_chat_prompt(rendered)], n),
        head,
        context,
        request,
        rendered,
        "functions" in arguments,
        logprobs is not None,
    )


def _adapt(plan: Plan, context: CallContext, request: ChatRequest, rendered: RenderedChat) -> None:
    """Give the plan what the chat format wants."""
    stops = dict.fromkeys([*plan.generation.stop, *rendered.stops])
    plan.generation = replace(plan.generation, stop=tuple(stops))
    own = plan.sampling
    constraint = own.constraint or rendered.constraint
    plan.sampling = replace(
        own,
        grammar=own.grammar or rendered.grammar,
        constraint=budget_for(context.vocab, rendered, request.reasoning_budget, constraint),
    )
    plan.visible = _visible(context, rendered)


def _chat_request(arguments: Arguments, messages: Any) -> ChatRequest:
    _check_tools(arguments)
    budget = arguments.integer("reasoning_budget", None, -1)
    parallel = arguments.optional_flag("parallel_tool_calls")
    if "functions" in arguments:
        parallel = False  # a function_call is a single one
    return ChatRequest(
        messages,
        tools=arguments.get("tools"),
        tool_choice=arguments.get("tool_choice"),
        parallel_tool_calls=parallel,
        response_format=arguments.get("response_format"),
        template_kwargs=arguments.mapping("chat_template_kwargs") or {},
        enable_thinking=False if budget == 0 else arguments.optional_flag("enable_thinking"),
        reasoning_effort=arguments.choice("reasoning_effort", _EFFORTS),
        reasoning_budget=budget,
        reasoning_format=arguments.get("reasoning_format", "auto"),
        continue_final_message=arguments.get("continue_final_message", False),
        add_generation_prompt=arguments.flag("add_generation_prompt", True),
        functions=arguments.get("functions"),
        function_call=arguments.get("function_call"),
        special_tokens_in_content=arguments.get("special_tokens_in_content"),
    )


def _check_tools(arguments: Arguments) -> None:
    for old, new in (("functions", "tools"), ("function_call", "tool_choice")):
        if old in arguments and new in arguments:
            raise ParameterError(f"{old} contradicts {new}: it is the older name of the same thing")
    for choice, tools in (("tool_choice", "tools"), ("function_call", "functions")):
        if arguments.get(choice, "none") not in ("none", "auto") and tools not in arguments:
            raise ParameterError(f"{choice} is given, but there are no {tools} to choose from")


def _grammar(arguments: Arguments, context: CallContext, request: ChatRequest) -> CompiledGrammar:
    if "grammar" not in arguments:
        return CompiledGrammar()
    if request.schema is not None:
        raise ParameterError("grammar contradicts response_format: both say what a reply may be")
    if request.uses_tools:
        raise ParameterError(
            'grammar contradicts tools: calls have a form of their own; pass tool_choice="none"'
        )
    return read_grammar(arguments, context)


def _chat_logprobs(arguments: Arguments, context: CallContext) -> int | None:
    wanted = arguments.flag("logprobs")
    top = arguments.integer("top_logprobs", None, 0, context.vocab.n_tokens)
    if top and not wanted:
        raise ParameterError(f"top_logprobs={top} needs logprobs=True")
    return (top or 0) if wanted else None


def _chat_max_tokens(arguments: Arguments) -> int | None:
    old = read_max_tokens(arguments, "max_tokens", None)
    new = read_max_tokens(arguments, "max_completion_tokens", None)
    if old is not None and new is not None and old != new:
        raise ParameterError(f"max_tokens={old} contradicts max_completion_tokens={new}")
    return old if new is None else new


def _visible(context: CallContext, rendered: RenderedChat) -> frozenset[int]:
    """The special tokens that the parser of the reply has to see as text."""
    tokens = (
        context.vocab.tokenize(text, add_special=False, parse_special=True)
        for text in rendered.preserved_tokens
    )
    return frozenset(each[0] for each in tokens if len(each) == 1)


def _chat_prompt(rendered: RenderedChat) -> Prompt:
    text = rendered.prompt
    return Prompt(
        text=text.encode("utf-8", "surrogatepass"),
        boundaries=_byte_offsets(text, rendered.message_starts),
        plain=_byte_ranges(text, rendered.plain_ranges),
    )


def _byte_ranges(text: str, ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    ends = iter(_byte_offsets(text, [offset for each in ranges for offset in each]))
    return tuple(zip(ends, ends, strict=True))


def _byte_offsets(text: str, offsets: Sequence[int]) -> tuple[int, ...]:
    """Character offsets (ascending) as offsets in the UTF-8 text."""
    if text.isascii():
        return tuple(offsets)
    out, last, position = [], 0, 0
    for offset in offsets:
        position += len(text[last:offset].encode("utf-8", "surrogatepass"))
        out.append(position)
        last = offset
    return tuple(out)
