"""``Engine``: requests in, outputs out. Single-threaded: whoever calls it is its only caller.

``add`` takes a request, each ``step`` decodes once for everybody and returns what came out, and
``cancel`` ends one early. A step admits requests (``admission``), plans what is decoded
(``step_planner``, ``scheduler``), decodes (``runner``), and enters what is in memory now and what
was sampled (``books``, ``sampling``); then a piece of what is copied beside it
(``memory.transfers``). A request that fails, is cancelled or runs out of time ends alone.

Who calls it is the business of ``driver``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from llama_py.core.context import Context
from llama_py.engine.admission import Admission
from llama_py.engine.books import ABORTED, Books, describe
from llama_py.engine.clock import Clock
from llama_py.engine.drafts.proposals import Drafts
from llama_py.engine.generation import Generation
from llama_py.engine.in_flight import InFlight
from llama_py.engine.media_steps import MediaSteps
from llama_py.engine.metrics import Metrics
from llama_py.engine.prefill_budget import PrefillBudget
from llama_py.engine.request import Output
from llama_py.engine.runner import Runner
from llama_py.engine.sampling import Sampling
from llama_py.engine.step_planner import StepPlanner
from llama_py.errors import (
    ClosedError,
    ContextOverflowError,
    DecodeError,
    LlamaError,
    RequestCancelled,
)
from llama_py.memory.cache import SequenceCache
from llama_py.memory.sequences import LiveSequence
from llama_py.options.drafters import Speculative

__all__ = ["Engine"]


class Engine:
    """Generates for any number of requests with one context.

    Args:
        context: the context; nothing else may decode with it.
        cache: its sequences.
        speculative: who drafts for requests that say nothing, or None.
        clock: what time it is, for whatever depends on that; None: the machine's.

    Attributes:
        requests: the requests in flight, the metrics, and the last logits.
        media: pictures and sounds of prompts; its ``encoder`` is set where the model has one.
        worked: the last step did something; False if it found nothing that can go on.
        stepping: a step is in progress, which is true in callbacks only.
    """

    def __init__(
        self,
        context: Context,
        cache: SequenceCache,
        speculative: Speculative | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.context = context
        self.cache = cache
        self.vocab = context.model.vocab
        self.clock = clock = clock or Clock()
        self.worked = False
        self.stepping = False
        metrics = Metrics()
        # What an aborted decode did to a recurrent state cannot be undone.
        self.runner = Runner(context, metrics, clock, abortable=not cache.traits.recurrent)
        self.requests = InFlight(cache, self.runner.logits, metrics, clock)
        self._admission = Admission(self.requests, cache, self.vocab, context.n_seq_max)
        self._sampling = Sampling(self.requests, self.runner, self.vocab)
        self._drafts = Drafts(self.requests, cache, context, speculative)
        self._prefill_budget = PrefillBudget()
        self._transfers = cache.transfers
        self.media = MediaSteps(self.requests, clock)
        self._planner = StepPlanner(
            self.requests,
            cache,
            context,
            self.runner,
            self._drafts,
            self._prefill_budget,
            self.media,
        )
        self._books = Books(
            self.requests,
            cache,
            self._sampling,
            self._drafts,
            self._admission,
            self._prefill_budget,
        )
        self._chunk = min(context.n_ubatch, context.n_batch)

    @property
    def metrics(self) -> Metrics:
        """Counters since loading, or since ``reset_counters``."""
        return self.requests.metrics

    @property
    def drafts(self) -> bool:
        """Whether requests that say nothing about drafts have some."""
        return self._drafts.by_default

    def reset_counters(self) -> None:
        """Begin the metrics anew, and forget the last logits."""
        self.requests.metrics = self.runner.metrics = Metrics()
        self.requests.last_logits = self.requests.last_sequence = None

    # -- requests -------------------------------------------------------------------------------

    def add(self, running: Generation) -> None:
        """Queue a request that was prepared (see ``generation.prepare``)."""
        self._drafts.begin(running)
        self.requests.add(running)

    def cancel(self, number: int) -> None:
        """End a request; its sequence keeps what was decoded. Does nothing if it has ended."""
        running = self.requests.find(number)
        if running is not None:
            self.requests.cancel(running)

    def pause(self, number: int, paused: bool = True) -> None:
        """Leave a request out of the steps, because its consumer is behind, or go on with it."""
        running = self.requests.find(number)
        if running is not None:
            running.paused = paused

    def fail_all(self, error: BaseException) -> None:
        """End every request with an error."""
        for running in self.requests:
            self.requests.fail(running, error)

    def start_over(self) -> None:
        """After an interrupt in the middle of a step: forget all requests and sequences.

        Nothing of what they say is certain any more.
        """
        requests = self.requests
        self._transfers.give_up()
        for running in requests:
            running.sampler.close()
        requests.metrics.failed += len(requests.waiting) + len(requests.running)
        requests.waiting, requests.running, requests.outputs = [], [], []
        requests.deadlines = requests.drafting = 0
        requests.last_logits = requests.last_sequence = None
        self.cache.clear()

    def close(self) -> None:
        """Fail what is in flight and stop the threads that sample. The context stays."""
        self.fail_all(ClosedError("the model was closed while this request was running"))
        self._sampling.close()
        self._drafts.close()
        self.cache.saving.flush()

    def take_outputs(self) -> list[Output]:
        """What came out since the last time, in the order in which it came."""
        outputs, self.requests.outputs = self.requests.outputs, []
        return outputs

    # -- a step ---------------------------------------------------------------------------------

    def step(self) -> list[Output]:
        """Decode once, at most, and return what came out of it.

        Where C chooses the tokens and nobody waits for what comes of each step, that is several
        steps (``StepPlan.steps``).
        """
        begun, requests = self.clock(), self.requests
        self.stepping = True
        try:
            if requests.deadlines:
                requests.expire()
            self._admission.admit()
            plan = self._planner.plan()
            self._drafts.watch(plan)
            self.worked = False
            if plan.decodes or plan.verifies or plan.prefills:
                self._books.enter(plan, self.runner.run(plan))
                self.worked = True
            if not requests.running:
                self._planner.forget()
            if self._transfers.pending:  # a piece at a time, between two steps of the others
                took, usual = self.clock() - begun, self._planner.usual()
                self.worked |= self._transfers.work(took, usual)
        finally:
            self.stepping = False
        return self.take_outputs()

    @property
    def may_copy_ahead(self) -> bool:
        """Whether ``copy_ahead`` may have something to do while no request is in flight."""
        requests = self.requests
        return self._transfers.may_copy_ahead and not (requests.running or requests.waiting)

    def copy_ahead(self) -> None:
        """Begin to copy what the next conversation displaces; the next steps go on with it."""
        if self.may_copy_ahead:
            self._transfers.copy_ahead()

    # -- without a request ----------------------------------------------------------------------

    def evaluate(
        self,
        sequence: LiveSequence,
        tokens: Sequence[int],
        *,
        every: bool = False,
        wanted: Callable[[], bool] = lambda: True,
    ) -> list[NDArray[np.float32]]:
        """Append tokens to a sequence that no request uses (``Llama.eval``).

        Args:
            every: return the logits of each token and not only of the last.
            wanted: False as soon as the caller has left; asked before each chunk.

        Returns:
            Copies of rows, float32 ``(n_vocab,)``.

        Raises:
            ContextOverflowError: they do not fit; nothing was evaluated.
            DecodeError: llama_decode failed; the sequence holds what was evaluated before.
            RequestCancelled: it was not wanted any more.
        """
        limit = self.cache.limit
        count = len(sequence.tokens) + len(tokens)
        if count > limit:
            raise ContextOverflowError(count, limit, limit)
        self.requests.moves_on(sequence)
        rows: list[NDArray[np.float32]] = []
        size = min(64, self._chunk) if every else self._chunk
        try:
            for start in range(0, len(tokens), size):
                chunk = tokens[start : start + size]
                rows += self._evaluate_chunk(sequence, chunk, every, wanted)
        except LlamaError:
            self.cache.live.trim(sequence)
            raise
        self.requests.last_logits, self.requests.last_sequence = rows[-1], sequence
        return rows

    def _evaluate_chunk(
        self,
        sequence: LiveSequence,
        tokens: Sequence[int],
        every: bool,
        wanted: Callable[[], bool],
    ) -> list[NDArray[np.float32]]:
        position = sequence.end
        code = ABORTED
        while code == ABORTED or (code == 1 and self.cache.live.make_room()):
            if not wanted():
                raise RequestCancelled("the evaluation was interrupted")
            code = self.runner.decode_tokens(tokens, position, sequence.number, every)
            if code == ABORTED:  # it may have been meant for a request that has ended
                self.cache.live.trim(sequence)
        if code:
            raise DecodeError(describe(code), code)
        sequence.tokens.extend(tokens)
        first = 0 if every else len(tokens) - 1
        return [self.runner.logits(row).copy() for row in range(first, len(tokens))]
