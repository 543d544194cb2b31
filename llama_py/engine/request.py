"""``Request``: one sequence to be evaluated and continued, and the events it produces.

A request goes through ``WAITING -> PREFILL -> DECODING`` and ends ``FINISHED``, ``CANCELLED`` or
``FAILED``. It belongs to the engine's thread of control; only its event queue is read from outside.
"""

from __future__ import annotations

import enum
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llama_py.engine.text import ReplyText
from llama_py.params import GenerationParams, SamplingParams

if TYPE_CHECKING:
    from llama_py.core.sampler import Sampler
    from llama_py.memory.sequences import Lease, ResolvedPrompt

__all__ = [
    "MOST_EVENTS",
    "Event",
    "FinishEvent",
    "Prompt",
    "Request",
    "RequestState",
    "TokenEvent",
    "TokenLogprobs",
]

_numbers = itertools.count(1)
#: Events a consumer may leave unread before its sequence is paused.
MOST_EVENTS = 256
#: Prompt tokens whose rows of logits are kept at once.
_LOGPROB_CHUNK = 64


class RequestState(enum.Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODING = "decoding"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """True when no more events will come."""
        return self in (RequestState.FINISHED, RequestState.CANCELLED, RequestState.FAILED)


@dataclass(slots=True)
class Prompt:
    """What is to be evaluated: text, or tokens.

    Attributes:
        text: the prompt's bytes, or None if only tokens were given.
        tokens: its tokens, or None if they are to be found from the text (text-prefix matching
            may keep the tokens of a cached reply instead of tokenizing it again).
        boundaries: byte offsets in ``text`` at which a message begins (role boundaries).
        add_special: add BOS as the model was trained with, where the prompt begins.
        plain: (start, end) byte offsets in ``text``, ascending and disjoint, between which nothing
            is read as a special token: the text of one that overlaps such a range is tokenized as
            the characters it consists of.
    """

    text: bytes | None = None
    tokens: Sequence[int] | None = None
    boundaries: tuple[int, ...] = ()
    add_special: bool = True
    plain: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, before biases and penalties.

    Attributes:
        logprob: natural logarithm of the chosen token's probability.
        ids: int32 ``(k,)``, the k most likely tokens, most likely first.
        logprobs: float32 ``(k,)``, theirs.
    """

    logprob: float
    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]


@dataclass(slots=True)
class TokenEvent:
    """One sampled token. ``text`` is what became certain with it, and may be empty."""

    token: int
    text: str
    logprobs: TokenLogprobs | None = None


@dataclass(slots=True)
class FinishEvent:
    """The last event.

    Attributes:
        reason: ``"stop"``, ``"length"``, ``"cancelled"`` or ``"error"``.
        text: text that had been held back (it might have begun a stop string) and belongs to
            the reply.
        stop: the stop string that was found, if one ended the reply.
        error: why, if the reason is ``"error"`` (also GenerationTimeout) or ``"cancelled"``
            (RequestCancelled).
    """

    reason: str
    text: str = ""
    stop: str | None = None
    error: BaseException | None = None


Event = TokenEvent | FinishEvent


@dataclass(slots=True, eq=False)
class Request:
    """See the module. Made by the facade, given to ``Engine.submit``.

    Attributes:
        prompt: what to evaluate.
        sampling, generation: how to continue it, and until when.
        session: the conversation it belongs to, or None.
        priority: smaller goes first.
        choice: index among several choices of one prompt (varies the seed).
        echo_special: give special tokens their text (``<|im_end|>``) in the events.
        visible: special tokens that are given their text in any case (a parser needs them).
        whole: its consumer wants nothing before the last event, and is not woken for tokens.
        on_event: called by the thread that drives for each event, instead of queueing it in
            ``events``. It runs under the engine's lock and must return at once.
        backlog: with ``on_event``: how many events its consumer has not read yet. A request that
            is too far behind pauses; call ``Engine.resume`` when there is room again.
        on_progress: called with (prompt tokens in memory, prompt tokens) after each chunk.
        targets: tokens whose log-probabilities are wanted, one for each of the last tokens of the
            prompt: ``targets[i]`` is what follows ``prompt[len(prompt) - len(targets) + i]``. What
            comes before those may be reused as ever; what such a request evaluates is forgotten.
        pin: what it evaluated stays in memory as long as anything else can go.

    Filled in by the engine:
        tokens: the prompt's tokens, once known; ``n_prompt`` of them.
        generated: sampled tokens, in order (the last one is not yet in memory).
        prompt_logprobs: one entry per prompt token but the first, if they were asked for.
        scored: the log-probability of each of the targets.
        reused: prompt tokens that were in memory already.
        cache: the record of what was reused, and why not more (``llm.cache_info``).
    """

    prompt: Prompt
    sampling: SamplingParams = field(default_factory=SamplingParams)
    generation: GenerationParams = field(default_factory=GenerationParams)
    session: str | None = None
    priority: int = 0
    choice: int = 0
    echo_special: bool = False
    visible: frozenset[int] = frozenset()
    whole: bool = False
    on_event: Callable[[Event], None] | None = None
    backlog: Callable[[], int] | None = None
    on_progress: Callable[[int, int], None] | None = None
    targets: tuple[int, ...] = ()
    pin: bool = False

    number: int = field(default_factory=lambda: next(_numbers))
    state: RequestState = RequestState.WAITING
    tokens: list[int] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    scored: list[float] = field(default_factory=list)
    cache: dict[str, object] = field(default_factory=dict)
    events: deque[Event] = field(default_factory=deque)
    cancelled: bool = False
    #: The last event was handed out. ``state`` says a moment earlier that the request has ended.
    closed: bool = False
    submitted: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    ended: float = 0.0
    text: ReplyText = field(init=False)
    sampler: Sampler | None = None
    lease: Lease | None = None
    resolved: ResolvedPrompt | None = None
    #: The running request whose prefill this one waits for, and until which position.
    waits_for: tuple[Request, int] | None = None
    #: What the prompt was resolved against (``Board.ended`` at that time).
    resolved_at: int = 0
    #: It had to give its sequence back, and evaluates its prompt and reply again.
    preempted: bool = False
    #: Generated tokens that became part of the prompt when the request was preempted.
    n_resumed: int = 0
    #: Set when an event arrives or when this request's owner should drive the engine.
    wakeup: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.text = ReplyText(self.generation.stop)

    @property
    def n_prompt(self) -> int:
        """Tokens in the prompt."""
        return len(self.tokens)

    @property
    def reused(self) -> int:
        """Prompt tokens that did not have to be evaluated."""
        return int(self.cache.get("reused", 0))  # type: ignore[call-overload, no-any-return]

    def undecoded(self, lease: Lease) -> int | None:
        """The token that was sampled last, if it is not in the memory of ``lease``."""
        held = self.n_prompt + len(self.generated) - 1
        return self.generated[-1] if self.generated and lease.position == held else None

    @property
    def done(self) -> bool:
        """True when the last event was produced."""
        return self.state.ended

    @property
    def blocked(self) -> bool:
        """True while its consumer is so far behind that more events would pile up."""
        if self.whole:
            return False
        unread = len(self.events) if self.backlog is None else self.backlog()
        return unread >= MOST_EVENTS

    @property
    def prompt_known(self) -> bool:
        """True when the log-probabilities of all prompt tokens were read."""
        return len(self.prompt_logprobs) == self.n_prompt - 1

    @property
    def first_output(self) -> int:
        """The first of the prompt's positions whose logits are wanted; the last one always is."""
        if self.generation.prompt_logprobs:
            return 0
        return self.n_prompt - max(1, len(self.targets))

    @property
    def prompt_left(self) -> int:
        """Prompt tokens that are still to be evaluated; 0 when it is generating."""
        return self.lease.remaining if self.lease is not None else 0

    @property
    def chunk_limit(self) -> int:
        """Prompt tokens until a checkpoint is due, or until their logits must be read."""
        if self.lease is None:
            return 0
        limit = self.prompt_left
        if self.targets or self.generation.prompt_logprobs:
            limit = max(0, self.first_output - self.lease.position) + _LOGPROB_CHUNK
        return min(limit, self.lease.cuts[0] - self.lease.position) if self.lease.cuts else limit
