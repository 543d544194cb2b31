"""``Llama.score``: how likely the model finds given continuations of one beginning.

The beginning is evaluated once, by an ordinary request. The logits at its end give the first token
of every continuation, and each further token needs the one before it: a continuation of ``n``
tokens costs ``n - 1``, in a sequence that is forked from the beginning and dropped when it was
read. As many of them as there is room for run side by side, as requests of the engine, in steps
with those of everybody else. If the beginning has to leave the memory meanwhile, it is brought back
before the next ones.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from llama_py.api.call import Outcome
from llama_py.api.runtime import Runtime
from llama_py.api.scoring.tokens import Continuations, Prefix, read_continuations, read_prefix
from llama_py.engine.events import Events
from llama_py.engine.logprobs import log_normalizer
from llama_py.engine.request import FinishEvent, GenerationRequest, Prompt, Record
from llama_py.errors import (
    ContextOverflowError,
    GenerationTimeout,
    LlamaError,
    ParameterError,
    QueueFullError,
)
from llama_py.params import GenerationParams, SamplingParams, check_number

if TYPE_CHECKING:
    from llama_py.memory.sequences import LiveSequence

__all__ = ["Score", "ScoringJob", "TokenIds"]

_GREEDY = SamplingParams(temperature=0.0)
Tokens: TypeAlias = tuple[int, ...]
#: Token ids, as a list or as a vector.
TokenIds: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """How likely one continuation is.

    Attributes:
        logprob: natural logarithm of its probability, given what comes before it: the sum of
            ``token_logprobs``, and 0.0 for the empty continuation. Not more than 0.
        token_logprobs: float32 ``(n,)``, that of each token, given all those before it.
        tokens: int32 ``(n,)``, its tokens.
        text: what was given; of tokens, what they spell.
    """

    logprob: float
    token_logprobs: NDArray[np.float32]
    tokens: NDArray[np.int32]
    text: str

    @classmethod
    def of(cls, tokens: Tokens, logprobs: Sequence[float], text: str) -> Score:
        """The score of a continuation, from the log-probabilities of its tokens."""
        each = [float(value) for value in logprobs]
        return cls(float(sum(each)), np.array(each, np.float32), np.array(tokens, np.int32), text)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def mean(self) -> float:
        """The mean of ``token_logprobs``, to compare continuations of different lengths; 0.0 of
        the empty one."""
        return self.logprob / len(self.tokens) if len(self.tokens) else 0.0


class ScoringJob:
    """One call of ``score``. ``cancel`` may be called by any thread."""

    def __init__(
        self,
        runtime: Runtime,
        prefix: Any,
        continuations: Any,
        timeout: float | None,
        options: Mapping[str, Any],
    ) -> None:
        if timeout is not None:
            check_number("timeout", timeout, 0)
        self._runtime = runtime
        self._arguments = prefix, continuations, options
        self._timeout = timeout
        self._deadline = None if timeout is None else time.perf_counter() + timeout
        self._cancelled = False
        self._running: Events | None = None
        #: Tokens of what was evaluated, the logits at its end, and the sequence that has it.
        self._begun: Tokens = ()
        self._row: NDArray[np.float32] | None = None
        self._sequence: LiveSequence | None = None

    def cancel(self) -> None:
        """Let ``run`` end early, with an error."""
        self._cancelled = True
        if self._running is not None:
            self._running.close(wait=False)

    def run(self) -> list[Score]:
        """See ``Llama.score``."""
        prefix, given = self._read()
        there = self._runtime.port.elsewhere
        if there is not None:
            asked = [*prefix.tokens], [[*each] for each in given.tokens], self._time_left()
            return _listed(given, there.ask("score", *asked))
        found: dict[Tokens, list[float]] = {tokens: [] for tokens in given.tokens}
        if any(found):
            self._begun = prefix.tokens
            try:
                self._begin()
                self._score(found)
            finally:
                self._let_go()
        return _listed(given, [found[tokens] for tokens in given.tokens])

    # -- before anything is evaluated -----------------------------------------------------------

    def _read(self) -> tuple[Prefix, Continuations]:
        """The tokens, all of which fit into the context."""
        prefix, continuations, options = self._arguments
        vocab = self._runtime.port.model.vocab
        listed = isinstance(prefix, Sequence) and not isinstance(prefix, (str, bytes))
        if listed and any(isinstance(item, Mapping) for item in prefix):
            prompt = self._runtime.calls.prompt_of(prefix, options)
            if prompt.media:
                raise ParameterError(
                    "score() reads text only: there are pictures or sounds among the messages; "
                    "ask with create_chat_completion(..., logprobs=True)"
                )
            start = Prefix((*self._runtime.calls.tokens_of(prompt),))
        elif options:
            raise ParameterError(f"{next(iter(options))} has no meaning without messages")
        else:
            start = read_prefix(vocab, prefix)
        start, given = read_continuations(vocab, start, continuations)
        limit, count = self._runtime.port.facts.limit, len(start.tokens)
        if count > limit:
            raise ContextOverflowError(count, limit, limit, "the prefix")
        for index, tokens in enumerate(given.tokens):
            # The last token is not evaluated: nothing comes after it.
            if count + len(tokens) - 1 > limit:
                what = f"the prefix with continuations[{index}]"
                raise ContextOverflowError(count + len(tokens), limit, limit + 1, what)
        return start, given

    # -- the beginning --------------------------------------------------------------------------

    def _begin(self) -> None:
        """Evaluate the beginning, as far as it is not in memory."""
        outcome = Outcome(self._runtime.last)
        request = self._request(self._begun, keep_logits=True)
        try:
            outcome.records = self._run([request])
        finally:
            outcome.note_end()
        record = outcome.records[0]
        self._row = record.logits
        self._runtime.loaded.driver.run(lambda: self._take(record.cache["sequence"]))

    def _take(self, number: int) -> None:
        """Others may have the sequence, and its cells, when nothing else is left."""
        sequence = self._runtime.loaded.cache.live.by_number.get(number)
        if sequence is not None and self._holds(sequence):
            self._sequence = sequence
            # A single sequence is continued, and cut again.
            sequence.reserved = self._runtime.loaded.context.n_seq_max > 1

    def _holds(self, sequence: LiveSequence) -> bool:
        count = len(self._begun)
        live = sequence in self._runtime.loaded.cache.live
        return live and sequence.tokens[:count] == [*self._begun]

    def _let_go(self) -> None:
        sequence, self._sequence = self._sequence, None
        if sequence is not None:
            self._runtime.loaded.driver.run(lambda: setattr(sequence, "reserved", False))

    # -- the continuations ----------------------------------------------------------------------

    def _score(self, found: dict[Tokens, list[float]]) -> None:
        row = self._row
        if row is None:
            raise LlamaError("the logits behind the prefix are missing")
        normalizer = log_normalizer(row)
        for tokens in found:
            if tokens:
                first = float(np.float32(float(row[tokens[0]]) - normalizer))
                found[tokens] = [first]
        # Those of one length end together.
        longer = sorted((tokens for tokens in found if len(tokens) > 1), key=len)
        while longer:
            driver = self._runtime.loaded.driver
            # The beginning may have left the memory meanwhile.
            if not driver.run(lambda: self._sequence is not None and self._holds(self._sequence)):
                self._let_go()
                self._begin()
            # They run side by side: where there is room, or in the place of idle conversations,
            # but not of most of them.
            most = self._runtime.loaded.context.n_seq_max
            free = most - len(self._runtime.loaded.cache.live.by_number)
            width = max(1, free, most // 2)
            del longer[: self._score_some(longer[:width], found)]

    def _score_some(self, some: Sequence[Tokens], found: dict[Tokens, list[float]]) -> int:
        """Score these, or the first of them if the queue is full; how many that were."""
        requests = [
            self._request((*self._begun, *tokens[:-1]), targets=tokens[1:]) for tokens in some
        ]
        try:
            records = self._run(requests)
        except QueueFullError:
            if len(requests) == 1:
                raise
            records = self._run(requests[:1])
        for tokens, record in zip(some, records, strict=False):
            if len(record.scored) != len(record.request.targets):
                raise LlamaError("a token was not scored")  # rather than a wrong sum
            found[tokens] = [*found[tokens], *record.scored]
        return len(records)

    # -- requests -------------------------------------------------------------------------------

    def _request(self, tokens: Tokens, **options: Any) -> GenerationRequest:
        generation = GenerationParams(max_tokens=0, timeout=self._time_left())
        return GenerationRequest(Prompt(tokens=tokens), _GREEDY, generation, **options)

    def _time_left(self) -> float | None:
        if self._deadline is None:
            return None
        left = self._deadline - time.perf_counter()
        if left <= 0:
            raise self._too_late()
        return left

    def _too_late(self) -> GenerationTimeout:
        return GenerationTimeout(f"scoring took longer than timeout={self._timeout} seconds")

    def _run(self, requests: Sequence[GenerationRequest]) -> list[Record]:
        """Run requests to their ends; raise what one of them ended with."""
        with self._runtime.submit(requests, whole=True) as events:
            self._running = events
            if self._cancelled:  # it came before they were known
                self.cancel()
            for _, event in events:
                if isinstance(event, FinishEvent) and event.error is not None:
                    if isinstance(event.error, GenerationTimeout):
                        raise self._too_late()
                    raise event.error
        self._running = None
        return events.records


def _listed(given: Continuations, logprobs: Sequence[list[float]]) -> list[Score]:
    return [
        Score.of(tokens, each, text)
        for tokens, each, text in zip(given.tokens, logprobs, given.texts, strict=True)
    ]
