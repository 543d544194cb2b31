"""What goes into the engine and what comes out: ``GenerationRequest``, events, ``Record``.

A request is frozen. What becomes of it is in the engine's own ``Generation``, and in the ``Record``
that its owner reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llama_py.memory.sequences import ReuseInfo
from llama_py.memory.text_keys import TextMedium
from llama_py.options.drafters import Speculative
from llama_py.params import GenerationParams, SamplingParams

if TYPE_CHECKING:
    from llama_py.engine.media import PlacedMedium

__all__ = [
    "Event",
    "FinishEvent",
    "GenerationRequest",
    "Output",
    "Prompt",
    "Record",
    "TokenEvent",
    "TokenLogprobs",
]


@dataclass(frozen=True, slots=True)
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
        media: pictures and sounds, in order, in place of what ``text`` has there.
    """

    text: bytes | None = None
    tokens: Sequence[int] | None = None
    boundaries: tuple[int, ...] = ()
    add_special: bool = True
    plain: tuple[tuple[int, int], ...] = ()
    media: tuple[PlacedMedium, ...] = ()

    @property
    def text_media(self) -> list[TextMedium]:
        """What the prompt's tokens have in place of its pictures and sounds."""
        return [TextMedium(each.start, each.end, each.medium.tokens) for each in self.media]


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

#: What one request got from one step: its number and an event.
Output = tuple[int, Event]


@dataclass(frozen=True, slots=True, eq=False)
class GenerationRequest:
    """One sequence to be evaluated and continued. Compared by identity.

    Attributes:
        prompt: what to evaluate.
        sampling, generation: how to continue it, and until when.
        session: the conversation it belongs to, or None.
        priority: requests with a smaller number are admitted first.
        choice: index among several choices of one prompt (varies the seed).
        echo_special: give special tokens their text (``<|im_end|>``) in the events.
        visible: special tokens that are given their text in any case (a parser needs them).
        on_progress: called in the engine's thread with (prompt tokens in memory, prompt tokens)
            when it begins, with those that are reused, and after each chunk of the prompt.
        targets: tokens whose log-probabilities are wanted, one for each of the last tokens of the
            prompt: ``targets[i]`` is what follows ``prompt[len(prompt) - len(targets) + i]``. What
            comes before those may be reused as ever; what such a request evaluates is forgotten.
        pin: what it evaluated stays in memory as long as anything else can go.
        keep_logits: a copy of the logits behind its last token goes to ``Record.logits``.
        reuse: False evaluates the whole prompt; what comes of it may be reused all the same.
        namespace: what the cells depend on beside the tokens (adapters, tenants). Requests reuse
            only what was evaluated in their own namespace. None: that of the loaded adapters.
        speculative: who drafts for it; None: whoever drafts for the model.
    """

    prompt: Prompt
    sampling: SamplingParams = field(default_factory=SamplingParams)
    generation: GenerationParams = field(default_factory=GenerationParams)
    session: str | None = None
    priority: int = 0
    choice: int = 0
    echo_special: bool = False
    visible: frozenset[int] = frozenset()
    on_progress: Callable[[int, int], None] | None = None
    targets: tuple[int, ...] = ()
    pin: bool = False
    keep_logits: bool = False
    reuse: bool = True
    namespace: Hashable | None = None
    speculative: Speculative | None = None

    def without_callbacks(self) -> GenerationRequest:
        """The same for the record: what callers gave may refer to their model, and so keep it."""
        sampling, generation = self.sampling, self.generation
        callbacks = sampling.logits_processors or generation.stopping_criteria or self.on_progress
        if not (callbacks or self.speculative):
            return self
        return replace(
            self,
            sampling=replace(sampling, logits_processors=()),
            generation=replace(generation, stopping_criteria=()),
            on_progress=None,
            speculative=None,
        )


@dataclass(slots=True, eq=False)
class Record:
    """What is known about a request so far; complete when its last event was read.

    Written by the engine's thread only.

    Attributes:
        request: what was asked for.
        tokens: the prompt's tokens.
        generated: sampled tokens, in order (the last one is not in memory).
        closed: the last of them ended the reply, and is no part of it.
        prompt_logprobs: one entry per prompt token but the first, if they were asked for.
        scored: the log-probability of each of the targets.
        cache: what was reused, and why not more; empty before it is known.
        reason: how it ended (see ``FinishEvent``); empty before that.
        drafted, accepted: tokens that were guessed, and how many of these were right.
        logits: float32 ``(n_vocab,)``, if they were to be kept and it ended well.
        submitted, started, first_token, last_token, ended: times of the engine's clock
            (``time.perf_counter()``), 0.0 where it has not come to that.
    """

    request: GenerationRequest
    tokens: list[int] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)
    closed: bool = False
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    scored: list[float] = field(default_factory=list)
    cache: ReuseInfo = field(default_factory=ReuseInfo)
    reason: str = ""
    drafted: int = 0
    accepted: int = 0
    logits: NDArray[np.float32] | None = None
    submitted: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    ended: float = 0.0

    @property
    def n_prompt(self) -> int:
        """Tokens in the prompt."""
        return len(self.tokens)

    @property
    def n_reply(self) -> int:
        """Tokens in the reply."""
        return len(self.generated) - self.closed

    @property
    def reused(self) -> int:
        """Prompt tokens that did not have to be evaluated."""
        return self.cache.get("reused", 0)
