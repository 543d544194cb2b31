"""``ServedContext``: a model with the server's defaults for requests that do not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from llama_py.params import SamplingParams

if TYPE_CHECKING:
    from llama_py.chat.messages import ChatRequest
    from llama_py.chat.rendered import RenderedChat
    from llama_py.chat.vocab import VocabLike
    from llama_py.dialects.context import CallContext
    from llama_py.server.config.settings import Settings

__all__ = ["ServedContext", "sampling_of"]

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


@dataclass(frozen=True, slots=True)
class ServedContext:
    """See ``dialects.context.CallContext``.

    Attributes:
        sampling, max_tokens: what holds for requests that do not say;
        reasoning: and ``"on"``, ``"off"`` or ``"auto"``.
    """

    own: CallContext
    sampling: Mapping[str, Any]
    max_tokens: int | None
    reasoning: str

    @property
    def vocab(self) -> VocabLike:
        return self.own.vocab

    @property
    def metadata(self) -> Mapping[str, str]:
        return self.own.metadata

    @property
    def seed(self) -> int:
        return self.own.seed

    @property
    def model_path(self) -> str:
        return self.own.model_path

    @property
    def last_n_tokens_size(self) -> int:
        return self.own.last_n_tokens_size

    @property
    def spm_infill(self) -> bool:
        return self.own.spm_infill

    def render_chat(self, request: ChatRequest) -> RenderedChat:
        """Render a conversation; whether the model reasons is the server's, if nobody said."""
        said = (request.enable_thinking, request.reasoning_effort) != (None, None)
        said = said or "enable_thinking" in request.template_kwargs
        if self.reasoning != "auto" and not said:
            request = replace(request, enable_thinking=self.reasoning == "on")
        return self.own.render_chat(request)
