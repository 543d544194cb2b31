"""``Scheduler``: which tokens go into the next step. Pure: it decides, and touches nothing.

Streams that are generating go first, one token each. What is left of the step's budget is filled
with prompt chunks, in the order in which the requests came, so that a long prompt never keeps
running streams waiting for more than one step, and such a step is half as large as others, so that
they do not wait for long. A chunk ends where a checkpoint is to be taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Chunk", "Schedulable", "plan_step"]


class Schedulable(Protocol):
    """What the scheduler sees of a request."""

    @property
    def blocked(self) -> bool:
        """Its consumer is behind: leave it out."""

    @property
    def prompt_left(self) -> int:
        """Prompt tokens that are still to be evaluated; 0 when it is generating."""

    @property
    def chunk_limit(self) -> int:
        """Most prompt tokens that may be evaluated before something has to be done with them."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """``count`` tokens of the request at ``index``; one sampled token if ``count`` is 0."""

    index: int
    count: int


def plan_step(
    running: Sequence[Schedulable], n_batch: int, n_chunk: int, most_prompts: int | None = None
) -> list[Chunk]:
    """The next step.

    Args:
        running: requests that own a sequence, oldest first.
        n_batch: most tokens in one step.
        n_chunk: most tokens in one step with prompts in it; half of it beside running streams.
        most_prompts: most requests that may evaluate their prompts in it; None is any number.
    """
    chunks = [
        Chunk(index, 0)
        for index, request in enumerate(running)
        if not request.prompt_left and not request.blocked
    ][:n_batch]
    room = min(n_chunk, n_batch) // (2 if chunks else 1)
    budget = max(room - len(chunks), 1 if len(chunks) < n_batch else 0)
    prompts = 0
    for index, request in enumerate(running):
        if budget <= 0 or prompts == most_prompts:
            break
        if request.prompt_left and not request.blocked:
            count = min(request.prompt_left, request.chunk_limit, budget)
            chunks.append(Chunk(index, count))
            budget -= count
            prompts += 1
    return chunks
