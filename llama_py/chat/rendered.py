"""``RenderedChat``: a conversation as a prompt, and how the reply to it is constrained and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llama_py.chat.calls.plain_calls import PlainCalls
from llama_py.params import GrammarSpec, TokenConstraint

__all__ = ["RenderedChat"]


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A rendered conversation.

    Attributes:
        prompt: to be tokenized with special tokens parsed, and with BOS as the vocabulary adds it.
        generation_prompt: the end of the prompt, which opens the reply; it includes the beginning
            of the reply if the request contained one.
        stops: texts that end the reply, besides the vocabulary's end-of-generation tokens.
        grammar: what the sampler has to enforce, or None.
        grammar_prefill: text whose tokens a new grammar sampler accepts before the first generated
            one; "" if it starts at the reply.
        preserved_tokens: texts of special tokens that the parser needs: the detokenizer writes them
            instead of omitting them.
        parser: llama.cpp's description of the reply's format, for ``ChatStream``.
        plain: the reply is content and nothing else.
        delimiters: (role, text) pairs: the text that starts a message of that role.
        message_starts: character offsets in the prompt at which a message starts, the reply
            included; ascending, without 0.
        schema: the JSON schema that the reply's content has to follow, or None.
        supports_thinking: the model's family reasons in a marked block.
        thinking_start, thinking_ends: the marks of that block, "" and () where there are none.
        calls_tools: the reply may contain tool calls.
        call_marks: texts that begin a tool call; () if no fixed text does.
        constraint: makes the object that enforces the schema, if the grammar does not.
        plain_calls: what calls the reply may consist of in plain JSON, or None if none count.
        plain_ranges: (start, end) in characters of the prompt, ascending and disjoint: content of
            users and tools that looks like special tokens and is read as plain text.
        media: (start, end, what) in characters of the prompt, ascending: markers, and what the
            prompt gets in their places.
        inline_reasoning: the reasoning that is found in the reply is told as content, in its marks.
    """

    prompt: str
    generation_prompt: str = ""
    stops: tuple[str, ...] = ()
    grammar: GrammarSpec | None = None
    grammar_prefill: str = ""
    preserved_tokens: tuple[str, ...] = ()
    parser: Mapping[str, Any] | None = None
    plain: bool = True
    delimiters: tuple[tuple[str, str], ...] = ()
    message_starts: tuple[int, ...] = ()
    schema: Any = None
    supports_thinking: bool = False
    thinking_start: str = ""
    thinking_ends: tuple[str, ...] = ()
    calls_tools: bool = False
    call_marks: tuple[str, ...] = ()
    constraint: Callable[[], TokenConstraint] | None = None
    plain_calls: PlainCalls | None = None
    plain_ranges: tuple[tuple[int, int], ...] = ()
    media: tuple[tuple[int, int, Any], ...] = ()
    inline_reasoning: bool = False
