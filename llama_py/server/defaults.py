"""``served``: a model with the server's defaults for requests that do not say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from llama_py.params import SamplingParams

if TYPE_CHECKING:
    from llama_py.api.rendering import ModelContext
    from llama_py.chat.messages import ChatRequest
    from llama_py.chat.rendered import RenderedChat
    from llama_py.server.config.settings import Settings

__all__ = ["sampling_of", "served"]

_NAMES = (
    *("temperature", "top_k", "top_p", "min_p", "seed"),
    *("repeat_penalty", "presence_penalty", "frequency_penalty"),
)


def sampling_of(settings: Settings) -> dict[str, Any]:
    """The sampling parameters that the settings give.

    Raises:
        ParameterError: a value is not allowed.
    """
    given = {name: getattr(settings, name) for name in _NAMES}
    chosen = {name: value for name, value in given.items() if value is not None}
    SamplingParams(**chosen)
    return chosen


def served(
    own: ModelContext, sampling: Mapping[str, Any], max_tokens: int | None, reasoning: str
) -> ModelContext:
    """The facts about a model for a call over HTTP.

    Args:
        sampling, max_tokens: what holds for requests that do not say;
        reasoning: and ``"on"``, ``"off"`` or ``"auto"``.
    """
    render = own.render_chat
    if reasoning != "auto":
        render = partial(_render, render, reasoning == "on")
    return replace(own, sampling=sampling, max_tokens=max_tokens, render_chat=render)


def _render(
    render: Callable[[ChatRequest], RenderedChat], thinks: bool, request: ChatRequest
) -> RenderedChat:
    """Render a conversation; whether the model reasons is the server's, if nobody said."""
    said = (request.enable_thinking, request.reasoning_effort) != (None, None)
    if not said and "enable_thinking" not in request.template_kwargs:
        request = replace(request, enable_thinking=thinks)
    return render(request)
