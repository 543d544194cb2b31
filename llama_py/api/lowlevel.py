"""``ByHand``: evaluating and sampling token by token (``eval``, ``sample``, ``generate``).

``eval`` works on a sequence of its own, beside the conversations. Its tokens are in the cache like
all others: a later call whose prompt begins with the same tokens reuses them.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llama_py.api.call import LastCalls, Outcome
from llama_py.api.port import LoadedModel, ModelPort
from llama_py.api.rendering import Rendering
from llama_py.api.score_table import ScoreTable
from llama_py.core.sampling.sampler import Sampler
from llama_py.dialects.requests import read_grammar, read_sampling
from llama_py.engine.events import Events
from llama_py.engine.request import GenerationRequest, Prompt, TokenEvent
from llama_py.errors import LlamaError, ParameterError, StateError, shown
from llama_py.options import GENERATE, SAMPLE, GenerateOptions, SampleOptions
from llama_py.params import GenerationParams, check_number

if TYPE_CHECKING:
    from llama_py.memory.sequences import LiveSequence
    from llama_py.memory.state_loader import StateLoad
    from llama_py.states.state import StoredState

__all__ = ["ByHand"]


class ByHand:
    """Evaluates and samples for the caller; see ``Llama`` for what each method promises.

    Attributes:
        sequence: what ``eval`` evaluated, or None. Changed in the engine's thread.
    """

    def __init__(
        self,
        port: ModelPort,
        rendering: Rendering,
        last: LastCalls,
        *,
        logits_all: bool,
    ) -> None:
        self._port = port
        self._rendering = rendering
        self._last = last
        self.logits_all = logits_all
        self.sequence: LiveSequence | None = None
        self._forget_rows()

    def _forget_rows(self) -> None:
        self._scores = ScoreTable()
        self._sampler: _Sampling | None = None

    @property
    def _loaded(self) -> LoadedModel:
        return self._port.here()

    # -- evaluating -----------------------------------------------------------------------------

    @property
    def tokens(self) -> list[int]:
        """The tokens that ``eval`` has in memory; a copy."""
        return [*self.sequence.tokens] if self.sequence is not None else []

    @property
    def n_tokens(self) -> int:
        """How many there are."""
        return len(self.sequence.tokens) if self.sequence is not None else 0

    @property
    def row(self) -> NDArray[np.float32] | None:
        """The logits at the last evaluated position, if there is one."""
        return self._loaded.engine.requests.last_logits

    @property
    def last_logits(self) -> NDArray[np.float32]:
        """See ``Llama.last_logits``."""
        _ = self._loaded.model.pointer  # raises after close(): no sampling from a freed model
        logits = self.row
        if logits is None:
            raise LlamaError("nothing was evaluated yet; call eval() or create a completion first")
        return logits

    @property
    def scores(self) -> NDArray[np.float32]:
        """See ``Llama.scores``."""
        n_vocab, books = self._loaded.model.vocab.n_tokens, self._loaded.engine.requests
        last = None
        if self.sequence is not None and books.last_sequence is self.sequence:
            last = self.last_logits
        return self._scores.rows(self.n_tokens, n_vocab, last)

    def eval(self, tokens: Sequence[int]) -> None:
        """See ``Llama.eval``."""
        tokens = self._loaded.model.vocab.token_list(tokens)
        if not tokens:
            return
        self._loaded.driver.run_abortable(lambda wanted: self._eval(tokens, wanted))

    def _eval(self, tokens: Sequence[int], wanted: Callable[[], bool]) -> None:
        cache, sequence = self._loaded.cache, self.sequence
        # An interrupt in place may have cleared the memory.
        if sequence is None or sequence not in cache.live:
            sequence = cache.take()
            if sequence is None:
                raise LlamaError("every sequence is busy; wait for a request, or raise n_seq_max")
            self.sequence = sequence
        start = len(sequence.tokens)
        if not start:
            self._forget_rows()  # a failed eval may have emptied it
        sampling, self._sampler = self._sampler, None
        every = self.logits_all
        rows = self._loaded.engine.evaluate(sequence, tokens, every=every, wanted=wanted)
        if every:
            self._scores.put(start, rows)
        if sampling is not None and sampling.hear(tokens):
            self._sampler = sampling

    def let_go(self) -> None:
        """Let other calls reuse what ``eval`` evaluated."""
        if self.sequence is not None:
            self._loaded.driver.run(self.release)

    def release(self) -> None:
        """The same, in the engine's thread."""
        self._forget_rows()
        sequence, self.sequence = self.sequence, None
        if sequence is not None:
            self._loaded.cache.give_back(sequence)

    def adopt(
        self,
        stored: StoredState,
        logits: NDArray[np.float32] | None,
        loading: StateLoad | None = None,
    ) -> None:
        """Go on after a saved state; in the engine's thread.

        Args:
            loading: of this state: what it has is not loaded again.

        Raises:
            StateError: every sequence is busy, or it does not fit.
        """
        self.release()
        sequence = self._loaded.cache.bring_in(stored, loading=loading)
        if sequence is None:
            raise StateError("every sequence is busy; wait for a request, or raise n_seq_max")
        sequence.busy = sequence.by_hand = True
        self.sequence = sequence
        books = self._loaded.engine.requests
        books.last_logits, books.last_sequence = logits, sequence

    def forget(self) -> None:
        """What ``eval`` evaluated is gone from the memory."""
        self.sequence = None
        self._forget_rows()

    # -- sampling -------------------------------------------------------------------------------

    def sample(self, idx: int | None, options: SampleOptions) -> int:
        """See ``Llama.sample``."""
        if idx is not None:
            check_number("idx", idx, integer=True)
        row: NDArray[np.float32] | None
        if idx is None or idx == self.n_tokens - 1:
            row = self.last_logits.copy()
        else:
            row = self._scores.row(idx) if idx < self.n_tokens else None
        if row is None:
            raise ParameterError(f"idx={shown(idx)}: there are logits only for evaluated positions")
        params = read_sampling(SAMPLE, SAMPLE.read(options), self._rendering.call_context())
        if self._sampler is None or self._sampler.sampler.params != params:
            longest = self._loaded.context.n_ctx_seq
            sampler = Sampler(self._loaded.model.vocab, params, self.tokens, longest=longest)
            self._sampler = _Sampling(sampler)
        return self._sampler.sample(row)

    def generate(
        self, tokens: Sequence[int], reset: bool, options: GenerateOptions
    ) -> Generator[int, Sequence[int] | None, None]:
        """See ``Llama.generate``."""
        tokens = self._loaded.model.vocab.token_list(tokens)
        prompt = tokens if reset else [*self.tokens, *tokens]
        given = GENERATE.read(options)
        context = self._rendering.call_context()
        sampling = read_sampling(GENERATE, given, context, read_grammar(given, context))
        criteria: Any = given.get("stopping_criteria") or ()
        generation = GenerationParams(ignore_eos=True, stopping_criteria=criteria)
        for turn in itertools.count():
            request = GenerationRequest(Prompt(tokens=prompt), sampling, generation, choice=turn)
            new: list[int] = []
            more = yield from self._tokens_of(request, new)
            if more is None:
                return
            if sampling.grammar is not None or sampling.constraint is not None:
                raise ParameterError("send(): a grammar cannot tell what tokens of yours mean")
            prompt = [*prompt, *new, *self._loaded.model.vocab.token_list(more)]

    def _tokens_of(
        self, request: GenerationRequest, given: list[int]
    ) -> Generator[int, Sequence[int] | None, Sequence[int] | None]:
        """The tokens of a request, also put into ``given``; returns what was sent, if anything."""
        outcome = Outcome(self._last)
        events = Events(self._loaded.driver, [request], first=self.release)
        outcome.records = events.records
        try:
            with events:
                for index, event in events:
                    outcome.note(index, event)
                    if isinstance(event, TokenEvent):
                        given.append(event.token)
                        more = yield event.token
                        if more is not None:
                            return more
                    elif event.error is not None:
                        raise event.error
        finally:
            outcome.note_end()
        return None


class _Sampling:
    """A sampler that follows what is evaluated.

    Its history has what was evaluated before it was made, what it sampled, and what the caller
    evaluated instead of that or behind it.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        #: Sampled tokens that are not evaluated yet.
        self._ahead: deque[int] = deque()

    def sample(self, row: NDArray[np.float32]) -> int:
        token = self.sampler.sample(row)
        self._ahead.append(token)
        return token

    def hear(self, tokens: Sequence[int]) -> bool:
        """Record evaluated tokens. False if they contradict the sampler's history."""
        for token in tokens:
            if not self._ahead:
                self.sampler.accept(token)
            elif self._ahead.popleft() != token:
                return False
        return True
