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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from llama_py.api.scoring_tokens import Continuations, Prefix, read_continuations, read_prefix
from llama_py.engine.logprobs import log_normalizer
from llama_py.engine.request import Event, FinishEvent, Prompt, Request
from llama_py.errors import (
    ContextOverflowError,
    GenerationTimeout,
    LlamaError,
    ParameterError,
    QueueFullError,
)
from llama_py.params import GenerationParams, SamplingParams, check_number

if TYPE_CHECKING:
    from llama_py.core.context import Context
    from llama_py.core.model import Model
    from llama_py.engine.engine import Engine
    from llama_py.memory.cache import SequenceCache
    from llama_py.memory.sequences import LiveSequence

__all__ = ["Score", "ScoringInterface", "ScoringJob"]

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

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def mean(self) -> float:
        """The mean of ``token_logprobs``, to compare continuations of different lengths; 0.0 of
        the empty one."""
        return self.logprob / len(self.tokens) if len(self.tokens) else 0.0


class ScoringInterface:
    """Scoring. Part of ``Llama``."""

    _model: Model
    _context: Context
    _cache: SequenceCache
    _engine: Engine

    def score(
        self,
        prefix: str | TokenIds | Sequence[Mapping[str, Any]],
        continuations: Sequence[str | TokenIds],
        *,
        timeout: float | None = None,
        **options: Any,
    ) -> list[Score]:
        """Log-probabilities of many continuations of one beginning, which is evaluated once.

        They are what the model says, before any temperature, bias or penalty, in natural
        logarithms, and the same as one by one (``create_completion`` with ``echo`` and
        ``logprobs``) but for rounding.

        The tokens of a text are those that it has behind the prefix. Where its beginning would
        melt into the last token of a prefix that is a text (``"The answer is "`` and ``"yes"`` have
        the token ``" yes"``), that token is scored too, for every continuation of the call, so that
        they compare. Tokens, and conversations, are continued where they end. Give tokens
        to say exactly what is scored.

        Args:
            prefix: a text, which begins as a prompt of ``create_completion`` does (with BOS, if the
                model wants one; texts of special tokens are these tokens); or token ids, exactly
                as they are; or messages, whose reply is scored.
            continuations: texts or lists of token ids, any number of them. One that is empty has
                the probability 1.
            timeout: seconds for the whole call.
            options: with messages, what changes the prompt: ``tools``, ``chat_template_kwargs``.

        Returns:
            One ``Score`` for each continuation, in their order.

        Raises:
            ContextOverflowError: the prefix, or the prefix with one of the continuations, which is
                named by its index, does not fit; nothing was evaluated.
            GenerationTimeout: it took too long.
            ParameterError: an argument is wrong.
        """
        return self._scoring(prefix, continuations, timeout, options).run()

    def _scoring(
        self, prefix: Any, continuations: Any, timeout: Any, options: Mapping[str, Any]
    ) -> ScoringJob:
        if timeout is not None:
            check_number("timeout", timeout, 0)
        return ScoringJob(self, prefix, continuations, timeout, options)

    def _submit(self, *requests: Request) -> None:
        raise LlamaError("the facade is missing")

    def _prompt_of(self, messages: Any, options: Mapping[str, Any]) -> Prompt:
        raise LlamaError("the facade is missing")

    def _fresh_tokens(self, prompt: Prompt) -> list[int]:
        raise LlamaError("the facade is missing")


class ScoringJob:
    """One call of ``score``. ``cancel`` may be called by any thread."""

    def __init__(
        self,
        llama: ScoringInterface,
        prefix: Any,
        continuations: Any,
        timeout: float | None,
        options: Mapping[str, Any],
    ) -> None:
        self._llama = llama
        self._arguments = prefix, continuations, options
        self._timeout = timeout
        self._deadline = None if timeout is None else time.perf_counter() + timeout
        self._cancelled = False
        self._running: list[Request] = []
        #: Tokens of what was evaluated, the logits at its end, and the sequence that has it.
        self._begun: Tokens = ()
        self._row: NDArray[np.float32] | None = None
        self._sequence: LiveSequence | None = None

    def cancel(self) -> None:
        """Let ``run`` end early, with an error."""
        self._cancelled = True
        for request in [*self._running]:
            self._llama._engine.cancel(request, wait=False)

    def run(self) -> list[Score]:
        """See ``Llama.score``."""
        prefix, given = self._read()
        self._check_sizes(prefix, given)
        found: dict[Tokens, list[float]] = {tokens: [] for tokens in given.tokens}
        if any(found):
            self._begun = prefix.tokens
            try:
                self._begin()
                self._score(found)
            finally:
                self._let_go()
        return [
            _score(tokens, found[tokens], text)
            for tokens, text in zip(given.tokens, given.texts, strict=True)
        ]

    # -- before anything is evaluated -----------------------------------------------------------

    def _read(self) -> tuple[Prefix, Continuations]:
        prefix, continuations, options = self._arguments
        vocab = self._llama._model.vocab
        if _is_conversation(prefix):
            prompt = self._llama._prompt_of(prefix, options)
            start = Prefix((*self._llama._fresh_tokens(prompt),))
        elif options:
            raise ParameterError(f"{next(iter(options))} has no meaning without messages")
        else:
            start = read_prefix(vocab, prefix)
        return read_continuations(vocab, start, continuations)

    def _check_sizes(self, prefix: Prefix, given: Continuations) -> None:
        limit, count = self._llama._cache.limit, len(prefix.tokens)
        if count > limit:
            raise ContextOverflowError(count, limit, limit, "the prefix")
        for index, tokens in enumerate(given.tokens):
            # The last token is not evaluated: nothing comes after it.
            if count + len(tokens) - 1 > limit:
                what = f"the prefix with continuations[{index}]"
                raise ContextOverflowError(count + len(tokens), limit, limit + 1, what)

    # -- the beginning --------------------------------------------------------------------------

    def _begin(self) -> None:
        """Evaluate the beginning, as far as it is not in memory."""

        def keep(event: Event) -> None:
            # Under the engine's lock, when the sequence was just released.
            if isinstance(event, FinishEvent) and event.error is None:
                self._row = engine.last_logits
                sequence = engine.last_sequence
                if sequence is not None and self._holds(sequence):
                    self._take(sequence)

        engine = self._llama._engine
        request = self._request(self._begun, on_event=keep)
        self._llama._submit(request)
        self._wait([request])

    def _take(self, sequence: LiveSequence) -> None:
        """Others may have it, and its cells, when nothing else is left."""
        self._sequence = sequence
        # A single sequence is continued, and cut again.
        sequence.reserved = self._llama._context.n_seq_max > 1

    def _holds(self, sequence: LiveSequence) -> bool:
        count = len(self._begun)
        live = self._llama._cache.live.get(sequence.number) is sequence
        return live and sequence.tokens[:count] == [*self._begun]

    def _there(self) -> bool:
        """Whether the beginning is still in memory."""
        with self._llama._engine.lock:
            return self._sequence is not None and self._holds(self._sequence)

    def _let_go(self) -> None:
        with self._llama._engine.lock:
            if self._sequence is not None:
                self._sequence.reserved = False
            self._sequence = None

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
            if not self._there():
                self._let_go()
                self._begin()
            del longer[: self._score_some(longer[: self._width()], found)]

    def _width(self) -> int:
        """How many run side by side: where there is room, or in the place of idle conversations,
        but not of most of them."""
        most = self._llama._context.n_seq_max
        free = most - len(self._llama._cache.live)
        return max(1, free, most // 2)

    def _score_some(self, some: Sequence[Tokens], found: dict[Tokens, list[float]]) -> int:
        """Score these, or the first of them if the queue is full; how many that were."""
        requests = [
            self._request((*self._begun, *tokens[:-1]), targets=tokens[1:]) for tokens in some
        ]
        try:
            self._llama._engine.submit(*requests)
        except QueueFullError:
            if len(requests) == 1:
                raise
            requests = requests[:1]
            self._llama._engine.submit(*requests)
        self._wait(requests)
        for tokens, request in zip(some, requests, strict=False):
            if len(request.scored) != len(request.targets):
                raise LlamaError("a token was not scored")  # rather than a wrong sum
            found[tokens] = [*found[tokens], *request.scored]
        return len(requests)

    # -- requests -------------------------------------------------------------------------------

    def _request(self, tokens: Tokens, **options: Any) -> Request:
        generation = GenerationParams(max_tokens=0, timeout=self._time_left())
        return Request(Prompt(tokens=tokens), _GREEDY, generation, whole=True, **options)

    def _time_left(self) -> float | None:
        if self._deadline is None:
            return None
        left = self._deadline - time.perf_counter()
        if left <= 0:
            raise self._too_late()
        return left

    def _too_late(self) -> GenerationTimeout:
        return GenerationTimeout(f"scoring took longer than timeout={self._timeout} seconds")

    def _wait(self, requests: list[Request]) -> None:
        """Read the events of submitted requests to the end; raise what one of them ended with."""
        self._running = requests
        if self._cancelled:  # it came before they were known
            self.cancel()
        for event in self._events(requests):
            if isinstance(event.error, GenerationTimeout):
                raise self._too_late()
            if event.error is not None:
                raise event.error
            if event.reason == "cancelled":
                raise LlamaError("the scoring was cancelled")
        self._running = []

    def _events(self, requests: list[Request]) -> Iterator[FinishEvent]:
        ends = {id(request): request for request in requests}
        for request, event in self._llama._engine.events_of(requests):
            if isinstance(event, FinishEvent) and ends.pop(id(request), None) is not None:
                yield event


def _is_conversation(prefix: Any) -> bool:
    listed = isinstance(prefix, Sequence) and not isinstance(prefix, (str, bytes))
    return listed and any(isinstance(item, Mapping) for item in prefix)


def _score(tokens: Tokens, logprobs: Sequence[float], text: str) -> Score:
    return Score(
        float(sum(logprobs)), np.array(logprobs, np.float32), np.array(tokens, np.int32), text
    )
