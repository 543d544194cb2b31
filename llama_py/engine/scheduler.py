"""What goes into the next step. Pure: it decides, and touches nothing.

Streams that are generating go first, one token each. What is left of the step's budget is filled
with prompt chunks, in the order in which the requests came, so that a long prompt never keeps
running streams waiting for more than one step. A step with both is half as large as one with
prompts alone, so that streams do not wait for long. A chunk ends where a checkpoint is to be taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

__all__ = ["Decode", "Prefill", "Schedulable", "StepPlan", "plan_step"]


class Schedulable(Protocol):
    """What the scheduler sees of a request."""

    @property
    def paused(self) -> bool:
        """Its consumer is behind: leave it out."""

    @property
    def prompt_left(self) -> int:
        """Prompt tokens that are still to be evaluated; 0 when it is generating."""

    @property
    def chunk_limit(self) -> int:
        """Most prompt tokens that may be evaluated before something has to be done with them."""


R = TypeVar("R", bound=Schedulable)


@dataclass(frozen=True, slots=True)
class Decode(Generic[R]):
    """The token that ``request`` sampled last; the next one is sampled from its logits."""

    request: R


@dataclass(frozen=True, slots=True)
class Prefill(Generic[R]):
    """The next ``count`` tokens of the prompt of ``request``."""

    request: R
    count: int


@dataclass(frozen=True, slots=True)
class StepPlan(Generic[R]):
    """One step: what is decoded together, in this order. Further kinds of entries may come.

    Attributes:
        decodes: one row each.
        prefills: ``count`` rows each.
    """

    decodes: tuple[Decode[R], ...] = ()
    prefills: tuple[Prefill[R], ...] = ()

    def __len__(self) -> int:
        return len(self.decodes) + len(self.prefills)


def plan_step(
    running: Sequence[R], n_batch: int, n_chunk: int, most_prompts: int | None = None
) -> StepPlan[R]:
    """The next step.

    Args:
        running: requests that own a sequence, oldest first.
        n_batch: most tokens in one step.
        n_chunk: most tokens in one step with prompts in it; half of it beside running streams.
        most_prompts: most requests that may evaluate their prompts in it; None is any number.
    """
    ready = [request for request in running if not request.paused]
    decodes = [Decode(request) for request in ready if not request.prompt_left][:n_batch]
    room = min(n_chunk, n_batch) // (2 if decodes else 1)
    budget = max(room - len(decodes), 1 if len(decodes) < n_batch else 0)
    prefills: list[Prefill[R]] = []
    for request in ready:
        if budget <= 0 or len(prefills) == most_prompts:
            break
        if request.prompt_left:
            count = min(request.prompt_left, request.chunk_limit, budget)
            prefills.append(Prefill(request, count))
            budget -= count
    return StepPlan(tuple(decodes), tuple(prefills))
