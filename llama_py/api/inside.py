"""``Inside``: the parts of a ``Llama``, for the packages above this one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llama_py.api.call import LastCalls
from llama_py.api.calls import Calls
from llama_py.api.dispatch import Dispatch
from llama_py.api.embedding.lists import EmbeddingLists
from llama_py.api.lowlevel import ByHand
from llama_py.api.rendering import Rendering
from llama_py.api.runtime import Runtime
from llama_py.api.scoring.scoring import ScoringJob, ScoringParts

__all__ = ["Inside"]


@dataclass(frozen=True, slots=True)
class Inside:
    """The parts of a ``Llama``. They change with the versions: programs use the ``Llama`` itself.

    No part refers to the ``Llama``, so that ``del`` frees everything at once.

    Attributes:
        arguments: the keyword arguments that a copy of the ``Llama`` is made with.
        runtime: the model, its context, and the engine that drives them.
        rendering: conversations to prompts.
        calls: arguments to checked calls.
        dispatch: calls to the engine, and their replies.
        embedding: calls that embed.
        by_hand: evaluating token by token.
        last: what the last call left behind.
    """

    arguments: dict[str, Any]
    runtime: Runtime
    rendering: Rendering
    calls: Calls
    dispatch: Dispatch
    embedding: EmbeddingLists
    by_hand: ByHand
    last: LastCalls

    def scoring(
        self, prefix: Any, continuations: Any, timeout: Any, options: Mapping[str, Any]
    ) -> ScoringJob:
        """A call of ``score``, for either face to run."""
        parts = ScoringParts(self.runtime, self.calls, self.dispatch, self.last)
        return ScoringJob(parts, prefix, continuations, timeout, options)
