"""Conversations that were rendered to engine requests, in every dialect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llama_py.chat.conversation import Message, ToolCall
from llama_py.chat.messages import ChatRequest
from llama_py.chat.reasoning import reasoning_of
from llama_py.chat.rendered import RenderedChat
from llama_py.chat.vocab import VocabLike
from llama_py.dialects.budget import budget_for
from llama_py.dialects.context import CallContext
from llama_py.dialects.requests import read_grammar, requests_of
from llama_py.engine.media import PlacedMedium
from llama_py.engine.request import GenerationRequest, Prompt
from llama_py.errors import ParameterError
from llama_py.options import ChatOptions
from llama_py.params import SamplingParams

__all__ = [
    "byte_ranges",
    "chat_prompt",
    "chat_requests",
    "check_grammar",
    "is_opening",
    "with_grammar",
]


def is_opening(messages: Sequence[Message]) -> bool:
    """Whether the last message is the beginning of the reply: said by the assistant, no call."""
    last = messages[-1] if messages else Message("user", ())
    return last.role == "assistant" and not any(isinstance(part, ToolCall) for part in last.parts)


def check_grammar(options: ChatOptions, request: ChatRequest, context: CallContext) -> None:
    """Raise if the grammar of a call is none, or something else says what a reply may be as well.

    Before the conversation is rendered, which may take time.
    """
    if read_grammar(options, context) is None:
        return
    if request.schema is not None:
        raise ParameterError("grammar contradicts response_format: both say what a reply may be")
    if request.uses_tools:
        raise ParameterError(
            'grammar contradicts tools: calls have a form of their own; pass tool_choice="none"'
        )


def with_grammar(
    sampling: SamplingParams, options: ChatOptions, context: CallContext, rendered: RenderedChat
) -> SamplingParams:
    """The sampling parameters with the grammar of a call, which is for what follows reasoning."""
    reasoning = reasoning_of(rendered)
    grammar = read_grammar(options, context, reasoning if reasoning.possible else None)
    if grammar is None:
        return sampling
    return replace(sampling, grammar=grammar.grammar, constraint=grammar.constraint)


def chat_requests(
    wanted: GenerationRequest,
    vocab: VocabLike,
    asked: ChatRequest,
    rendered: RenderedChat,
    count: int = 1,
) -> list[GenerationRequest]:
    """The requests for ``count`` replies to a conversation, with what its format wants.

    Args:
        wanted: how to continue it, and until when; without the prompt.
    """
    sampling, generation = wanted.sampling, wanted.generation
    stops = tuple(dict.fromkeys([*generation.stop, *rendered.stops]))
    if stops != generation.stop:
        generation = replace(generation, stop=stops)
    grammar = sampling.grammar or rendered.grammar
    constraint = sampling.constraint or rendered.constraint
    if asked.reasoning_budget is not None:
        constraint = budget_for(vocab, rendered, asked.reasoning_budget, constraint)
    if grammar is not sampling.grammar or constraint is not sampling.constraint:
        sampling = replace(sampling, grammar=grammar, constraint=constraint)
    # The special tokens that the parser of the reply has to see as text.
    preserved = map(vocab.special_token, rendered.preserved_tokens)
    visible = frozenset([token for token in preserved if token is not None])
    fitting = replace(wanted, sampling=sampling, generation=generation, visible=visible)
    return requests_of(fitting, [chat_prompt(rendered)], count)


def chat_prompt(rendered: RenderedChat) -> Prompt:
    """The prompt that the engine evaluates."""
    text = rendered.prompt
    places = byte_ranges(text, [(start, end) for start, end, _ in rendered.media])
    media = zip(places, rendered.media, strict=True)
    return Prompt(
        text=text.encode("utf-8", "surrogatepass"),
        boundaries=_byte_offsets(text, rendered.message_starts),
        plain=byte_ranges(text, rendered.plain_ranges),
        media=tuple(PlacedMedium(*place, medium) for place, (_, _, medium) in media),
    )


def byte_ranges(text: str, ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ranges of characters (ascending) as ranges of bytes of the UTF-8 text."""
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
