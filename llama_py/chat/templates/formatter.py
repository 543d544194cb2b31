"""``Jinja2ChatFormatter``: a chat template as a function, for code written for llama-cpp-python.

It renders as all templates are rendered (``python_jinja``), without the parsers and grammars of
``ChatTemplate``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from llama_py.chat.templates.python_jinja import JinjaTemplate

__all__ = ["ChatFormatter", "ChatFormatterResponse", "Jinja2ChatFormatter"]


@dataclass
class ChatFormatterResponse:
    """The result of a formatter: the prompt of a conversation, and when its reply ends.

    Attributes:
        prompt: the text to continue.
        stop: a text that ends the reply, or several.
        stopping_criteria: called with (tokens so far, logits); true ends the reply.
        added_special: the prompt contains BOS already.
    """

    prompt: str
    stop: str | list[str] | None = None
    stopping_criteria: Any = None
    added_special: bool = False


class ChatFormatter(Protocol):
    """Turns a conversation into a prompt."""

    def __call__(
        self, *, messages: Sequence[Mapping[str, Any]], **kwargs: Any
    ) -> ChatFormatterResponse: ...


class Jinja2ChatFormatter:
    """A ``ChatFormatter`` from a Jinja template.

    Args:
        template: the template's text.
        eos_token, bos_token: texts of those tokens.
        add_generation_prompt: end with the opening of an assistant message.
        stop_token_ids: token ids that end the reply.

    Raises:
        TemplateError: the template does not parse; when called, it fails on these messages, or
            takes more steps, text or time than a template may.
    """

    def __init__(
        self,
        template: str,
        eos_token: str,
        bos_token: str,
        add_generation_prompt: bool = True,
        stop_token_ids: Sequence[int] | None = None,
    ) -> None:
        self.template = template
        self.eos_token = eos_token
        self.bos_token = bos_token
        self.add_generation_prompt = add_generation_prompt
        self.stop_token_ids = None if stop_token_ids is None else frozenset(stop_token_ids)
        self._template = JinjaTemplate(template)

    def __call__(
        self, *, messages: Sequence[Mapping[str, Any]], **kwargs: Any
    ) -> ChatFormatterResponse:
        values = {
            "messages": messages,
            "eos_token": self.eos_token,
            "bos_token": self.bos_token,
            "add_generation_prompt": self.add_generation_prompt,
            "tools": None,
            **kwargs,
        }
        prompt = self._template.render(values)
        stops = self.stop_token_ids
        criterion = None if stops is None else lambda tokens, logits: int(tokens[-1]) in stops
        return ChatFormatterResponse(prompt, [self.eos_token], criterion, True)
