"""The steps that all dialects of chats share: from a conversation to requests
for the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llama_py.chat.conversation import Message, ToolCall
from llama_py.chat.messages import ChatRequest
from llama_py.chat.rendered import RenderedChat
from llama_py.dialects.budget import budget_for
from llama_py.dialects.context import CallContext
from llama_py.dialects.requests import RequestSettings
from llama_py.engine.request import Prompt

__all__ = ["adapt", "chat_prompt", "is_opening"]


def is_opening(messages: Sequence[Message]) -> bool:
    """Whether the last message is the beginning of the reply: said by the assistant, no call."""
    last = messages[-1] if messages else Message("user", ())
    return last.role == "assistant" and not any(isinstance(part, ToolCall) for part in last.parts)


def adapt(
    settings: RequestSettings, context: CallContext, request: ChatRequest, rendered: RenderedChat
) -> None:
    """Add what the chat format wants."""
    stops = dict.fromkeys([*settings.generation.stop, *rendered.stops])
    settings.generation = replace(settings.generation, stop=tuple(stops))
    own = settings.sampling
    constraint = own.constraint or rendered.constraint
    settings.sampling = replace(
        own,
        grammar=own.grammar or rendered.grammar,
        constraint=budget_for(context.vocab, rendered, request.reasoning_budget, constraint),
    )
    settings.visible = _visible(context, rendered)


def _visible(context: CallContext, rendered: RenderedChat) -> frozenset[int]:
    """The special tokens that the parser of the reply has to see as text."""
    tokens = (
        context.vocab.tokenize(text, add_special=False, parse_special=True)
        for text in rendered.preserved_tokens
    )
    return frozenset(each[0] for each in tokens if len(each) == 1)


def chat_prompt(rendered: RenderedChat) -> Prompt:
    """The prompt that the engine evaluates."""
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
