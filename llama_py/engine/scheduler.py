"""What goes into the next step. Pure: it decides, and touches nothing.

Streams that are generating go first, one token each, then the drafts of those that have one. What
is left of the step's budget is filled with prompt chunks, so that a long prompt never keeps running
streams waiting for more than one step. A step with both is half as large as one with prompts alone,
and smaller where somebody reads a stream and a step takes long (``prefill_budget``): three usual
steps of the streams and 50 ms at most, or up to one second where many requests begin. A chunk ends
where a checkpoint is to be taken, or where another request goes on.

Prompts are served in the order in which they came, with one exception: half of the budget is there
for those that have at most half as much left as the first one, shortest first; only the shortest
is cut there, and what is over goes to the others in their order. So

* a prompt of ``n`` tokens beside one of ``2n`` or more is done after ``ceil(n / half)`` steps,
  where ``half`` is half of a step's budget; if ``s`` tokens of shorter ones come before it, after
  ``2 * ceil((n + s) / half)``;
* the first one gets half of each step or more, whatever comes, and everyone is the first one some
  day: nobody waits longer than twice as many steps as in the order of arrival.

Where no stream runs, a step is long: seconds, of a model of some size. Then short prompts that are
a quarter of it at most, all together, have a short step to themselves instead, and begin at once;
the next one has the first prompt in it again. Where a step has room for one prompt only, short ones
have every other step.

When several come at once and no stream runs, a step takes all of them, if that makes it longer by
half at most: the little that is left over would take much longer beside those who begin.

Where each sequence has a buffer of cells of its own, llama.cpp cuts a step into parts with the same
number of tokens of each sequence. A chunk that the budget cuts short would cut all others, too: if
less than a quarter of the step is left, it waits for the next one, and prompts that fit go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

__all__ = [
    "Decode",
    "Draft",
    "Entry",
    "Prefill",
    "Schedulable",
    "StepPlan",
    "Verify",
    "plan_step",
]


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

    @property
    def rows(self) -> int:
        """Its rows in the step."""
        return 1


@dataclass(frozen=True, slots=True)
class Verify(Generic[R]):
    """The tokens that ``request`` sampled last, and a guess at those that follow them.

    The next token is sampled from the logits of the last one known; as long as it is the one that
    was guessed, another one is sampled from those of the guess.

    Attributes:
        draft: the guess.
        known: tokens that were sampled and are not in memory; several after a draft that was taken
            back.
    """

    request: R
    draft: tuple[int, ...]
    known: int = 1

    @property
    def rows(self) -> int:
        """Its rows in the step."""
        return self.known + len(self.draft)


class Draft(NamedTuple):
    """What a stream is to decode in the next step, if that is more than its last token.

    Attributes:
        tokens: a guess at what comes next.
        known: see ``Verify``.
    """

    tokens: Sequence[int]
    known: int = 1


@dataclass(frozen=True, slots=True)
class Prefill(Generic[R]):
    """The next ``count`` tokens of the prompt of ``request``."""

    request: R
    count: int

    @property
    def rows(self) -> int:
        """Its rows in the step."""
        return self.count


#: What one request does in a step.
Entry = Decode[R] | Verify[R] | Prefill[R]


@dataclass(slots=True)
class StepPlan(Generic[R]):
    """One step: what is decoded together, in this order. Further kinds of entries may come.

    Attributes:
        decodes: one row each.
        verifies: one row for each known token, and for each one of the draft.
        prefills: ``count`` rows each.
        steps: where C chooses the next tokens by itself, how many steps it may make of this at
            once; 0: the tokens are chosen from the logits.
        seconds: when it ends at the latest, where it can be ended; None is any time.
        vectors: what the cells of a picture or a sound are evaluated with, which is the only entry
            then; None: there are tokens.
    """

    decodes: tuple[Decode[R], ...] = ()
    verifies: tuple[Verify[R], ...] = ()
    prefills: tuple[Prefill[R], ...] = ()
    steps: int = 0
    seconds: float | None = None
    vectors: object = None

    def __len__(self) -> int:
        return len(self.decodes) + len(self.verifies) + len(self.prefills)

    @property
    def entries(self) -> tuple[Entry[R], ...]:
        """All of them, in the order of their rows."""
        return (*self.decodes, *self.verifies, *self.prefills)

    @property
    def rows(self) -> int:
        """Rows of the streams that generate."""
        return len(self.decodes) + sum(entry.rows for entry in self.verifies)


def plan_step(
    running: Sequence[R],
    n_batch: int,
    n_chunk: int,
    most_prompts: int | None = None,
    drafts: Mapping[R, Draft] | None = None,
    *,
    separate: bool = False,
    beside: int | None = None,
    passed_over: bool = False,
) -> StepPlan[R]:
    """The next step.

    Args:
        running: requests that own a sequence, oldest first.
        n_batch: most tokens in one step.
        n_chunk: most tokens in one step with prompts in it; half of it beside running streams, and
            half as many again if that is all of several prompts.
        most_prompts: most requests that may have more than one row in it; None is any number.
        drafts: for some of those that generate, what else they are to decode.
        separate: each sequence has a buffer of its own.
        beside: most tokens of prompts beside running streams.
        passed_over: the last step had prompts, and not the first one.
    """
    ready = [request for request in running if not request.paused]
    decodes = [Decode(request) for request in ready if not request.prompt_left][:n_batch]
    waiting = [request for request in ready if request.prompt_left]
    if not decodes and len(waiting) > 1:
        tokens = sum(request.prompt_left for request in waiting)
        if n_chunk < tokens <= n_chunk + n_chunk // 2:
            n_chunk = tokens  # all that wait
    room = min(n_chunk, n_batch) // (2 if decodes else 1)
    uncut = room // 4 if separate else 0  # fewer tokens of a prompt wait for the next step
    budget = max(room - len(decodes), 1 if len(decodes) < n_batch else 0)
    if decodes and beside is not None:
        budget, uncut = min(budget, beside), min(uncut, beside // 4)
    verifies: list[Verify[R]] = []
    if drafts:
        room = 0 if waiting and most_prompts else budget // 2 if waiting else budget
        decodes, verifies = _with_drafts(decodes, drafts, room, n_batch, most_prompts)
        budget -= sum(entry.rows - 1 for entry in verifies)
    places = None if most_prompts is None else most_prompts - len(verifies)
    alone = not decodes and not verifies and not passed_over
    prefills = _short_ones(waiting, budget, places) if alone else []
    prefills = prefills or _chunks(waiting, budget, places, uncut, passed_over)
    return StepPlan(tuple(decodes), tuple(verifies), tuple(prefills))


def _short_ones(waiting: Sequence[R], budget: int, places: int | None) -> list[Prefill[R]]:
    """Prompts that have a step to themselves, if few tokens are all that they have.

    Nothing where the step could have everything that waits.
    """
    short = _shorter(waiting)
    tokens = sum(map(_wanted, short))
    fits = tokens + _wanted(waiting[0]) <= budget if short else True
    if fits or tokens > budget // 4 or (places is not None and len(short) > places):
        return []
    chosen = set(short)
    return [Prefill(request, _wanted(request)) for request in waiting if request in chosen]


def _shorter(waiting: Sequence[R]) -> list[R]:
    """Prompts with at most half as much left as the first one, shortest first."""
    if not waiting:
        return []
    left = waiting[0].prompt_left
    short = [request for request in waiting[1:] if 2 * request.prompt_left <= left]
    return sorted(short, key=lambda request: request.prompt_left)


def _chunks(
    waiting: Sequence[R], budget: int, places: int | None, uncut: int, passed_over: bool
) -> list[Prefill[R]]:
    """Chunks of prompts, in the order in which these came.

    Args:
        waiting: whose prompts are not done, oldest first.
        places: prompts that the step may have; None is any number.
    """
    if not waiting or budget <= 0 or places == 0:
        return []
    first, short = waiting[0], _shorter(waiting)
    if places == 1:
        first = short[0] if short and not passed_over else first
        return [Prefill(first, min(_wanted(first), budget))]
    counts: dict[R, int] = {}
    reserve = budget // 2
    for number, request in enumerate(short):
        wanted = _wanted(request)
        if reserve > 0 and len(counts) + 1 != places and (wanted <= reserve or not number):
            counts[request] = min(wanted, reserve)
            reserve -= counts[request]
    budget -= sum(counts.values())
    for request in waiting:
        had = counts.get(request, 0)
        wanted = _wanted(request) - had
        if budget <= 0 or (not had and len(counts) == places):
            continue
        if wanted and (had or not counts or request is first or budget >= min(wanted, uncut)):
            counts[request] = had + min(wanted, budget)
            budget -= min(wanted, budget)
    return [Prefill(request, counts[request]) for request in waiting if request in counts]


def _wanted(request: Schedulable) -> int:
    return min(request.prompt_left, request.chunk_limit)


def _with_drafts(
    decodes: Sequence[Decode[R]],
    drafts: Mapping[R, Draft],
    room: int,
    n_batch: int,
    most: int | None,
) -> tuple[list[Decode[R]], list[Verify[R]]]:
    """Streams of one row, and of more. One whose known tokens have no place waits for a step.

    Args:
        room: tokens that all drafts together may have.
        n_batch: rows that the step may have.
        most: streams that may have more than one row; None is any number.
    """
    plain: list[Decode[R]] = []
    verifies: list[Verify[R]] = []
    spare = n_batch - len(decodes)
    left = sum(entry.request in drafts for entry in decodes)
    for entry in decodes:
        draft = drafts.get(entry.request)
        if draft is None:
            plain.append(entry)
            continue
        behind, full = draft.known - 1, len(verifies) == most
        share = 0 if full else max(0, min(-(-room // left), spare - behind))
        left -= 1
        tokens = tuple(draft.tokens[:share])  # an equal share, rounded up
        if behind and (full or behind > spare):
            continue
        room -= len(tokens)
        spare -= len(tokens) + behind
        if tokens or behind:
            verifies.append(Verify(entry.request, tokens, draft.known))
        else:
            plain.append(entry)
    return plain, verifies
