"""``Limits``: how much one request may ask for. A server sets them; calls in Python have none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llama_py.dialects.failures import Kind, RequestError
from llama_py.errors import shown

__all__ = ["TEMPLATE_KWARGS", "Limits"]

#: What templates are known to read beside messages and tools. Other names are not passed on: a
#: template may use any variable for anything.
TEMPLATE_KWARGS = frozenset(
    {
        "add_vision_id",
        "builtin_tools",
        "citation_mode",
        "clear_thinking",
        "controls",
        "custom_tools",
        "date_string",
        "documents",
        "enable_thinking",
        "force_reasoning",
        "keep_past_thinking",
        "low_effort",
        "model_identity",
        "preserve_thinking",
        "reasoning_effort",
        "thinking",
        "thinking_budget",
        "tools_in_user_message",
        "truncate_history_thinking",
        "xml_tools",
    }
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Checked before anything is rendered, tokenized or compiled.

    Attributes:
        max_choices: replies to one prompt: ``n`` and ``best_of``.
        max_top_logprobs: alternatives for each token.
        max_stops: stop strings.
        max_tools: tools, or functions.
        max_prompts: prompts of one request.
        max_inputs: texts to embed, or documents to rank, of one request.
        max_messages: messages of one conversation.
        template_kwargs: names that ``chat_template_kwargs`` may have.
        strict: a field that is not known is an error, and not ignored.
    """

    max_choices: int = 8
    max_top_logprobs: int = 20
    max_stops: int = 16
    max_tools: int = 512
    max_prompts: int = 64
    max_inputs: int = 2048
    max_messages: int = 10_000
    template_kwargs: frozenset[str] = TEMPLATE_KWARGS
    strict: bool = False

    def check_number(self, body: Mapping[str, Any], name: str, most: int) -> None:
        """Refuse a number above a limit. What is no number is refused by who reads it.

        Also a float: 100.0 is read as the integer that it is.
        """
        value = body.get(name)
        if isinstance(value, (int, float)) and value > most:
            message = f"{name}={shown(value, 40)} is more than this server allows ({most})"
            raise RequestError(Kind.INVALID_VALUE, message, name)

    def check_length(self, body: Mapping[str, Any], name: str, most: int) -> None:
        """Refuse a list above a limit."""
        value = body.get(name)
        if isinstance(value, list) and len(value) > most:
            message = f"{name} has {len(value)} entries, and this server allows {most}"
            raise RequestError(Kind.INVALID_VALUE, message, name)
