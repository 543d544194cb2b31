"""``Limits``: how much one request may ask for. A server sets them; calls in Python have none."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Checked before anything is rendered, tokenized or compiled.

    Attributes:
        max_choices: replies to one prompt: ``n`` and ``best_of``.
        max_top_logprobs: alternatives for each token.
        max_stops: stop strings.
        max_tools: tools, or functions.
        max_prompts: prompts of one request.
        max_messages: messages of one conversation.
        template_kwargs: names that ``chat_template_kwargs`` may have.
        strict: a field that is not known is an error, and not ignored.
    """

    max_choices: int = 8
    max_top_logprobs: int = 20
    max_stops: int = 16
    max_tools: int = 512
    max_prompts: int = 64
    max_messages: int = 10_000
    template_kwargs: frozenset[str] = frozenset(
        {"enable_thinking", "thinking", "reasoning_effort", "preserve_thinking"}
    )
    strict: bool = False
