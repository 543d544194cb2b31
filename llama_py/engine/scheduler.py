"""What goes into the next step. Pure: it decides, and touches nothing.

Streams that are generating go first, one token each, then the drafts of those that have one. What
is left of the step's budget is filled with prompt chunks, in the order in which the requests came,
so that a long prompt never keeps running streams waiting for more than one step. A step with both is half as large as one with
prompts alone, so that streams do not wait for long. A chunk ends where a checkpoint is to be taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

__all__ = ["Decode", "Prefill", "Schedulable", "StepPlan", "Verify", "plan_step"]


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
class Verify(Generic[R]):
    """The token that ``request`` sampled last, and a guess at those that follow it.

    The next token is sampled from the logits of the first; as long as it is the one that was
    guessed, another one is sampled from those of the guess.
    """

    request: R
    draft: tuple[int, ...]


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
        verifies: one row each, and one for each token of the draft.
        prefills: ``count`` rows each.
    """

    decodes: tuple[Decode[R], ...] = ()
    verifies: tuple[Verify[R], ...] = ()
    prefills: tuple[Prefill[R], ...] = ()

    def __len__(self) -> int:
        return len(self.decodes) + len(self.verifies) + len(self.prefills)

    @property
    def rows(self) -> int:
        """Rows of the streams that generate."""
        drafted = sum(len(entry.draft) for entry in self.verifies)
        return len(self.decodes) + len(self.verifies) + drafted


def plan_step(
    running: Sequence[R],
    n_batch: int,
    n_chunk: int,
    most_prompts: int | None = None,
    drafts: Mapping[R, Sequence[int]] | None = None,
) -> StepPlan[R]:
    """The next step.

    Args:
        running: requests that own a sequence, oldest first.
        n_batch: most tokens in one step.
        n_chunk: most tokens in one step with prompts in it; half of it beside running streams.
        most_prompts: most requests that may evaluate their prompts in it; None is any number.
        drafts: a guess at what comes next, for some of those that generate.
    """
    ready = [request for request in running if not request.paused]
    decodes = [Decode(request) for request in ready if not request.prompt_left][:n_batch]
    room = min(n_chunk, n_batch) // (2 if decodes else 1)
    budget = max(room - len(decodes), 1 if len(decodes) < n_batch else 0)
    verifies: list[Verify[R]] = []
    if drafts:
        waiting = any(request.prompt_left for request in ready)
        decodes, verifies = _with_drafts(decodes, drafts, budget // 2 if waiting else budget)
        budget -= sum(len(entry.draft) for entry in verifies)
    prefills: list[Prefill[R]] = []
    for request in ready:
        if budget <= 0 or len(prefills) == most_prompts:
            break
        if request.prompt_left:
            count = min(request.prompt_left, request.chunk_limit, budget)
            prefills.append(Prefill(request, count))
            budget -= count
    return StepPlan(tuple(decodes), tuple(verifies), tuple(prefills))


def _with_drafts(
    decodes: Sequence[Decode[R]], drafts: Mapping[R, Sequence[int]], room: int
) -> tuple[list[Decode[R]], list[Verify[R]]]:
    """Streams without and with a draft; all drafts together have at most ``room`` tokens."""
    plain: list[Decode[R]] = []
    verifies: list[Verify[R]] = []
    left = sum(entry.request in drafts for entry in decodes)
    for entry in decodes:
        draft = drafts.get(entry.request)
        if draft is None:
            plain.append(entry)
            continue
        draft = draft[: -(-room // left)]  # an equal share, rounded up
        left -= 1
        room -= len(draft)
        if draft:
            verifies.append(Verify(entry.request, tuple(draft)))
        else:
            plain.append(entry)
    return plain, verifies
