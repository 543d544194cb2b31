"""``parse_chat``: the arguments of ``create_chat_completion`` to engine requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from typing_extensions import Unpack

from llama_py.chat.conversation import Message
from llama_py.chat.enforceable import enforceable, render_leniently
from llama_py.chat.messages import ChatRequest
from llama_py.chat.rendered import RenderedChat
from llama_py.chat.vocab import VocabLike
from llama_py.dialects.chat_requests import (
    chat_requests,
    check_grammar,
    is_opening,
    with_grammar,
)
from llama_py.dialects.context import CallContext
from llama_py.dialects.media_parts import render_results
from llama_py.dialects.openai.encode import ResponseHead
from llama_py.dialects.openai.encode_chat import ChatEncoder
from llama_py.dialects.openai.messages import (
    read_messages,
    read_response_format,
    read_tool_choice,
    read_tools,
)
from llama_py.dialects.part_variables import part_variables
from llama_py.dialects.requests import most_tokens, read_generation, read_request, read_sampling
from llama_py.engine.request import GenerationRequest, Record
from llama_py.errors import ParameterError
from llama_py.options import CHAT, ChatOptions
from llama_py.options.checks import check_number

__all__ = ["ChatCall", "parse_chat"]


@dataclass(slots=True)
class ChatCall:
    """A checked and rendered call of ``create_chat_completion``.

    Attributes:
        requests: one for each choice, ``request.choice`` counting them.
        rendered: the prompt of the conversation.
        stream: whether the caller wants chunks.
    """

    requests: list[GenerationRequest]
    head: ResponseHead
    vocab: VocabLike
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
            self.vocab,
            self.rendered,
            legacy=self.legacy,
            logprobs=self.logprobs,
        )


def parse_chat(
    context: CallContext,
    messages: Any,
    *,
    stream: bool | None = False,
    lenient_tools: bool = False,
    goes_on: bool = False,
    zero_counts: bool = False,
    **given: Unpack[ChatOptions],
) -> ChatCall:
    """Check the arguments of ``create_chat_completion`` and render the conversation.

    ``overflow`` is for who calls: it has shortened the conversation by now.

    Args:
        messages: OpenAI messages.
        lenient_tools: parts of schemas that cannot be enforced are allowed (``enforceable``).
        goes_on: an assistant message at the end is the beginning of the reply, unless
            ``continue_final_message`` says something else.
        zero_counts: a ``max_tokens`` of 0 is a reply without tokens, and not one without a limit.

    Raises:
        ParameterError: an argument is wrong; the message names it and what is allowed.
        TemplateError: the chat template refuses the messages.
    """
    options = CHAT.read(given)
    head = ResponseHead.read(options, stream, context, "chatcmpl")
    request = _chat_request(options, messages, lenient_tools, goes_on)
    check_grammar(options, request, context)
    logprobs = _logprobs(options, context)
    most = most_tokens(options.get("max_tokens"), zero_counts=zero_counts)
    generation = read_generation(options, context, max_tokens=most, logprobs=logprobs)
    sampling = read_sampling(CHAT, options, context)
    render = partial(render_results, render=context.render_chat)
    rendered = render_leniently(request, render) if lenient_tools else render(request)
    sampling = with_grammar(sampling, options, context, rendered)
    wanted = read_request(options, sampling, generation)
    return ChatCall(
        chat_requests(wanted, context.vocab, request, rendered, options.get("n") or 1),
        head,
        context.vocab,
        rendered,
        "functions" in options,
        logprobs is not None,
    )


def _chat_request(
    options: ChatOptions, given: Any, lenient_tools: bool, goes_on: bool
) -> ChatRequest:
    for old, new in (("functions", "tools"), ("function_call", "tool_choice")):
        if old in options and new in options:
            raise ParameterError(f"{old} contradicts {new}: it is the older name of the same thing")
    for choice, names in (("tool_choice", "tools"), ("function_call", "functions")):
        if options.get(choice, "none") not in ("none", "auto") and names not in options:
            raise ParameterError(f"{choice} is given, but there are no {names} to choose from")
    messages = read_messages(given)
    tools = read_tools(options.get("tools"), options.get("functions"))
    budget = options.get("reasoning_budget")
    # A function_call is a single one.
    parallel = False if "functions" in options else options.get("parallel_tool_calls")
    return ChatRequest(
        messages,
        tools=enforceable(tools) if lenient_tools else tools,
        tool_choice=read_tool_choice(options.get("tool_choice", options.get("function_call"))),
        parallel_tool_calls=parallel,
        json_calls=options.get("json_calls"),
        schema=read_response_format(options.get("response_format")),
        template_kwargs={**part_variables(given), **(options.get("chat_template_kwargs") or {})},
        enable_thinking=False if budget == 0 else options.get("enable_thinking"),
        reasoning_effort=options.get("reasoning_effort"),
        reasoning_budget=budget,
        reasoning_format=options.get("reasoning_format") or "auto",
        continue_final_message=_continuation(options, messages, goes_on),
        add_generation_prompt=options.get("add_generation_prompt") is not False,
        special_tokens_in_content=options.get("special_tokens_in_content"),
    )


def _continuation(options: ChatOptions, messages: Sequence[Message], goes_on: bool) -> bool | str:
    """Whether, and where, the last message goes on."""
    asked = options.get("continue_final_message")
    if asked and options.get("add_generation_prompt"):
        raise ParameterError(
            "add_generation_prompt contradicts continue_final_message: a reply that goes on with "
            "the last message has no opening of its own; leave it out"
        )
    if asked is not None or not goes_on or not is_opening(messages):
        return asked or False
    if len(messages) > 1 and messages[-2].role == "assistant":
        raise ParameterError(
            "messages ends with two messages of the assistant: only the last one can be the "
            "beginning of the reply; make them one, or pass continue_final_message=false"
        )
    return True


def _logprobs(options: ChatOptions, context: CallContext) -> int | None:
    wanted, top = options.get("logprobs"), options.get("top_logprobs") or 0
    if top:
        check_number("top_logprobs", top, 0, context.vocab.n_tokens, integer=True)
        if not wanted:
            raise ParameterError(f"top_logprobs={top} needs logprobs=True")
    return top if wanted else None
