"""``truncated``: a conversation without its oldest turns, for clients that ask for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from llama_py.api.llama import Llama
from llama_py.api.overflow import MessageSizes, TrimMessages, fit
from llama_py.chat.conversation import Message, ToolCall, ToolResult
from llama_py.chat.enforceable import render_leniently
from llama_py.chat.media import media_of
from llama_py.chat.messages import ChatRequest
from llama_py.chat.templates.inputs import tool_values
from llama_py.dialects.chat_requests import chat_prompt
from llama_py.dialects.media_parts import render_results
from llama_py.errors import ContextOverflowError

__all__ = ["truncated"]

#: Tokens to keep free for the reply, and the most of the context that this may be.
_RESERVE, _SHARE = 256, 0.25

#: What stands for a message while it is decided which ones go.
Stand = Mapping[str, Any]


def truncated(llama: Llama, request: ChatRequest) -> ChatRequest:
    """The conversation as it fits into the context.

    The oldest turns go, several at once, so that the next requests find what is left in memory.
    What does not fit even so is returned as it is, and refused by the engine.
    """
    vocab, limit = llama.vocab, llama.runtime.port.facts.limit
    sizes = MessageSizes(lambda text: len(vocab.tokenize(text, add_special=False)))

    context = llama.runtime.rendering.call_context()
    render = partial(render_results, render=context.render_chat)

    def kept(stands: Sequence[Stand]) -> ChatRequest:
        return replace(request, messages=tuple(request.messages[each["place"]] for each in stands))

    def count(stands: Sequence[Stand]) -> int:
        rendered = render_leniently(kept(stands), render)
        return len(llama.runtime.calls.tokens_of(chat_prompt(rendered)))

    def cells(message: Message) -> int:
        media = media_of([message])
        return sum(len(context.medium(part, where).tokens) for where, part in media)

    def size(stand: Stand) -> int:
        return sizes.of(stand) + int(stand["cells"])

    stands = [_stand(each, place, cells(each)) for place, each in enumerate(request.messages)]
    fixed = sizes.of_json(tool_values(request.shown_tools)) if request.tools else 0
    policy = TrimMessages(reserve=min(_RESERVE, int(limit * _SHARE)))
    try:
        left, dropped = fit(count, limit, policy, stands, size=size, fixed=fixed)
    except ContextOverflowError:
        return request
    return request if dropped is None else kept(left)


def _stand(message: Message, place: int, cells: int) -> Stand:
    words = [message.text]
    for part in message.parts:
        if isinstance(part, ToolCall):
            words += [part.name, part.arguments]
        elif isinstance(part, ToolResult):
            words += [each.text for each in part.content if hasattr(each, "text")]
    return {"role": message.role, "content": "\n".join(words), "place": place, "cells": cells}
