"""``Generation``: the engine's own record of a request in flight.

A request goes through ``WAITING -> PREFILL -> DECODING`` and ends ``FINISHED``, ``CANCELLED`` or
``FAILED``. A preempted one goes back to ``WAITING``.
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llama_py.core.sampling.history import TokenHistory
from llama_py.core.sampling.sampler import Sampler
from llama_py.engine.drafts.payoff import Drafting
from llama_py.engine.reply_text import ReplyText
from llama_py.engine.request import GenerationRequest, Record
from llama_py.memory.media_tokens import media_length
from llama_py.memory.sequences import Lease, ResolvedPrompt

if TYPE_CHECKING:
    from llama_py.engine.media import MediaCells, Medium

__all__ = ["Generation", "RequestState"]

_numbers = itertools.count(1)
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


_ENDED = frozenset({RequestState.FINISHED, RequestState.CANCELLED, RequestState.FAILED})


@dataclass(slots=True, eq=False)
class Generation:
    """Made by whoever submits a request (``prepare``), and owned by the engine from ``add`` on.

    Attributes:
        request: what was asked for.
        record: what its owner reads.
        prompt: its tokens. A preempted request has what it generated at the end of them.
        sampler: chooses its tokens, and is closed when it ends.
        number: names it in outputs; ascending in the order of submission.
        state: see ``RequestState``.
        text: the text of the reply so far.
        lease: its sequence, while it has one.
        history: prompt and reply, for whoever asks ``seen``; made when that is first asked.
        drafting: how its drafts fare, or None: there are none.
        plain: C chooses its next token alone, and nothing else is asked of a row of logits.
        at_once: steps, and seconds of them, that may be made before anything is handed over.
        read: somebody reads its tokens as they come.
        paused: its consumer is behind; it generates nothing until that has caught up.
        waits_for: a request whose prefill this one is going to share, and up to which position.
        resolved_at: ``InFlight.ended`` when ``prompt`` was looked up in the cache.
        preempted: it had to give its sequence back, and evaluates its prompt and reply again.
        overtaken: how many began before it while there were no cells for what it goes on from.
        n_resumed: generated tokens that became part of ``prompt`` when it was preempted.
    """

    request: GenerationRequest
    record: Record
    prompt: ResolvedPrompt
    sampler: Sampler
    resolved_at: int = 0
    number: int = field(default_factory=lambda: next(_numbers))
    state: RequestState = RequestState.WAITING
    text: ReplyText = field(init=False)
    lease: Lease | None = None
    history: TokenHistory | None = None
    drafting: Drafting | None = None
    plain: bool = field(init=False)
    at_once: tuple[int, float] = (1, 0.0)
    read: bool = False
    paused: bool = False
    waits_for: tuple[Generation, int] | None = None
    preempted: bool = False
    overtaken: int = 0
    n_resumed: int = 0

    def __post_init__(self) -> None:
        generation = self.request.generation
        self.text = ReplyText(generation.stop)
        looks = generation.logprobs is not None or bool(generation.stopping_criteria)
        self.plain = self.sampler.in_steps and not looks and generation.max_tokens != 0

    @property
    def order(self) -> tuple[int, int]:
        """By priority, then in the order of submission."""
        return self.request.priority, self.number

    @property
    def ended(self) -> bool:
        """True when its last event was produced."""
        return self.state in _ENDED

    @property
    def deadline(self) -> float | None:
        """When its time is over (of the engine's clock), or None."""
        timeout = self.request.generation.timeout
        return None if timeout is None else self.record.submitted + timeout

    def seen(self) -> NDArray[np.intc]:
        """The tokens of prompt and reply so far: a view that cannot be written to, ``(n,)``."""
        record = self.record
        if self.history is None:
            self.history = TokenHistory(record.tokens)
        for token in record.generated[len(self.history) - record.n_prompt :]:
            self.history.append(token)
        return self.history.array

    def undecoded(self, lease: Lease) -> list[int]:
        """The sampled tokens that are not in the memory of ``lease``.

        While it generates, that is the last one; after a draft that was taken back there are more.
        """
        known = lease.held - self.record.n_prompt
        return self.record.generated[known:] if known >= 0 else []

    def steps_at_once(self, lease: Lease, limit: int) -> int:
        """How many steps may be made before anybody looks at what came of them; 1 at least.

        Args:
            limit: tokens that a sequence can hold.
        """
        generation = self.request.generation
        if generation.stop or generation.stop_tokens:
            return 1
        steps = min(self.at_once[0], limit - lease.held)
        if generation.max_tokens is not None:
            steps = min(steps, generation.max_tokens - len(self.record.generated))
        return max(1, steps)

    @property
    def first_output(self) -> int:
        """The first of the prompt's positions whose logits are wanted; the last one always is."""
        if self.request.generation.prompt_logprobs:
            return 0
        return self.record.n_prompt - max(1, len(self.request.targets))

    @property
    def prompt_known(self) -> bool:
        """True when the log-probabilities of all prompt tokens were read."""
        return len(self.record.prompt_logprobs) == self.record.n_prompt - 1

    @property
    def prompt_left(self) -> int:
        """Prompt tokens that are still to be evaluated; 0 when it is generating."""
        return self.lease.remaining if self.lease is not None else 0

    @property
    def to_evaluate(self) -> int:
        """Tokens of its prompt that were not reused."""
        lease = self.lease
        return len(lease.prompt.tokens) - lease.info.reused if lease is not None else 0

    @property
    def written(self) -> int:
        """Tokens of its reply."""
        return len(self.record.generated)

    @property
    def started(self) -> float:
        """When it was admitted, of the engine's clock."""
        return self.record.started

    @property
    def at_media(self) -> bool:
        """Whether its prompt goes on with a picture or a sound."""
        lease = self.lease
        if lease is None or not lease.prompt.has_media or not lease.remaining:
            return False
        return bool(lease.prompt.tokens[lease.held] < 0)

    def next_stretch(self) -> tuple[Medium, MediaCells] | None:
        """What its prompt goes on with, if that is a picture or a sound; None: nobody has it.

        Raises:
            RuntimeError: it is at no picture.
        """
        lease = self.lease
        if lease is None:
            raise RuntimeError("a request without a sequence was scheduled")
        tokens, held = lease.prompt.tokens, lease.held
        key = tokens[held : held + media_length(tokens, held)].tobytes()
        for placed in self.request.prompt.media:
            stretch = placed.medium.stretches.get(key)
            if stretch is not None:
                return placed.medium, stretch
        return None

    @property
    def chunk_limit(self) -> int:
        """Prompt tokens until somebody goes on from there, or until their logits must be read, or
        until a picture or a sound follows."""
        lease = self.lease
        if lease is None:
            return 0
        limit = lease.remaining
        if lease.prompt.has_media:
            media = np.flatnonzero(lease.prompt.tokens[lease.held :] < 0)
            limit = min(limit, int(media[0])) if len(media) else limit
        if self.request.targets or self.request.generation.prompt_logprobs:
            limit = max(0, self.first_output - lease.held) + _LOGPROB_CHUNK
        return min(limit, lease.cuts[0] - lease.held) if lease.cuts else limit
