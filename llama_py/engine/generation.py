"""``Generation``: the engine's own record of a request in flight.

A request goes through ``WAITING -> PREFILL -> DECODING`` and ends ``FINISHED``, ``CANCELLED`` or
``FAILED``. A preempted one goes back to ``WAITING``.
"""

from __future__ import annotations

import codecs
import enum
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llama_py.core.sampling.history import TokenHistory
from llama_py.core.sampling.sampler import Sampler
from llama_py.core.vocab import Vocab
from llama_py.engine.clock import Clock
from llama_py.engine.drafts.payoff import Drafting
from llama_py.engine.request import GenerationRequest, Record
from llama_py.memory.cache import SequenceCache
from llama_py.memory.positions import media_length
from llama_py.memory.sequences import Lease, ResolvedPrompt

if TYPE_CHECKING:
    from llama_py.engine.media import MediaCells, Medium

__all__ = ["Generation", "ReplyText", "RequestState", "prepare", "resolve", "whole_characters"]

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


# ---- preparing -----------------------------------------------------------------------------------
#
# Work on a request before the engine gets it, in the caller's thread.
#
# Compiling a grammar, tokenizing a long prompt and feeding it to the penalties may take long. None
# of it touches the context, so that other streams go on meanwhile.


def prepare(
    requests: Sequence[GenerationRequest],
    cache: SequenceCache,
    vocab: Vocab,
    resolved_at: int,
    clock: Clock,
) -> list[Generation]:
    """Find the tokens of the prompts and make the samplers: of all requests, or of none.

    Args:
        resolved_at: how many requests had ended before the cache was looked at.
        clock: says when they were submitted.

    Raises:
        ContextOverflowError: a prompt does not fit.
        GrammarError, ParameterError, TokenizationError: a sampler or a prompt cannot be made.
    """
    prepared: list[Generation] = []
    try:
        for request in requests:
            sampler = Sampler(vocab, request.sampling, (), request.choice, longest=cache.limit)
            before = prepared[-1] if prepared else None
            try:
                if before is not None and before.request.prompt is request.prompt:
                    prompt = before.prompt  # another choice of the same prompt
                else:
                    prompt = resolve(request, cache, vocab)
                record = Record(request, prompt.tokens.tolist(), submitted=clock())
                running = Generation(request, record, prompt, sampler, resolved_at)
                begin_sampler(running)
            except BaseException:
                sampler.close()
                raise
            prepared.append(running)
    except BaseException:
        for running in prepared:
            running.sampler.close()
        raise
    return prepared


def resolve(request: GenerationRequest, cache: SequenceCache, vocab: Vocab) -> ResolvedPrompt:
    """The tokens of a prompt, those of cached replies in its text among them."""
    prompt = request.prompt
    if prompt.tokens is None:
        return cache.resolve_text(
            prompt.text or b"",
            prompt.boundaries,
            plain=prompt.plain,
            add_special=prompt.add_special,
            namespace=request.namespace,
            fresh=not request.reuse,
            media=prompt.text_media if prompt.media else (),
        )
    if not request.targets:  # thousands that begin alike, checked where they were made
        vocab.check_tokens(prompt.tokens)
    return cache.resolve_tokens(prompt.tokens, namespace=request.namespace)


def begin_sampler(running: Generation) -> None:
    """Show the prompt to penalties and processors."""
    if running.sampler.remembers:
        running.sampler.begin([token for token in running.record.tokens if token >= 0])


# ---- reply text ----------------------------------------------------------------------------------
#
# ``ReplyText``: the bytes of sampled tokens to text that may be shown.
#
# Two things hold text back: a UTF-8 character that is still incomplete, and text that may turn out
# to be the beginning of a stop string. The earliest match in the text wins, whichever order the
# stop strings were given in, and also when it lies across token borders.


_DECODER = codecs.getincrementaldecoder("utf-8")


def whole_characters(raw: bytes) -> str:
    """The text of a reply's bytes, without the beginning of a character at their end."""
    return _DECODER("replace").decode(raw)


class ReplyText:
    """Text of one reply.

    Attributes:
        stopped_by: the stop string that was found, or None.
    """

    __slots__ = ("_decoder", "_longest", "_pending", "_stops", "stopped_by")

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._decoder = _DECODER("replace")
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._pending = ""
        self.stopped_by: str | None = None

    def feed(self, piece: bytes) -> str:
        """Add the bytes of a token; returns the text that is now certain."""
        text = self._decoder.decode(piece)
        if not self._longest:
            return text
        text = self._pending + text
        # The longest tail that begins a stop string is held back.
        held = min(len(text), self._longest - 1)
        while held:
            tail = text[-held:]
            if any(stop.startswith(tail) for stop in self._stops):
                break
            held -= 1
        cut = self._first_stop(text)
        # A match counts when no other one that begins before it can come any more.
        if cut is not None and cut[0] <= len(text) - held:
            position, self.stopped_by = cut
            self._pending = ""
            return text[:position]
        self._pending = text[len(text) - held :] if held else ""
        return text[: len(text) - held]

    def finish(self) -> str:
        """The text that was held back and will not become a stop string any more.

        The first bytes of a character whose others did not come are not text: they are left out.
        """
        self._decoder.reset()
        if self.stopped_by is not None:
            return ""
        text, self._pending = self._pending, ""
        cut = self._first_stop(text)
        if cut is None:
            return text
        position, self.stopped_by = cut
        return text[:position]

    @property
    def holds_back(self) -> bool:
        """True while some text is withheld."""
        return bool(self._pending) or self._decoder.getstate()[0] != b""

    def _first_stop(self, text: str) -> tuple[int, str] | None:
        """The earliest match; of those that begin together, the longest."""
        found = [(text.find(stop), stop) for stop in self._stops]
        hits = [(position, -len(stop), stop) for position, stop in found if position >= 0]
        if not hits:
            return None
        position, _, stop = min(hits)
        return position, stop
