"""``Engine``: requests in, outputs out. Single-threaded: whoever calls it is its only caller.

``add`` takes a request, each ``step`` decodes once for everybody and returns what came out, and
``cancel`` ends one early. A step admits requests (``admission``), plans what is decoded
(``scheduler``), decodes (``runner``), enters what is in memory now, and samples (``sampling``). The
books are changed only after a decode succeeded; after one that failed the context is asked what is
there. A request that fails, is cancelled or runs out of time ends alone.

Who calls it is the business of ``driver``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from llama_py.core.context import Context
from llama_py.engine.admission import Admission
from llama_py.engine.clock import Clock
from llama_py.engine.drafts.proposals import Drafts
from llama_py.engine.generation import Generation, RequestState
from llama_py.engine.in_flight import InFlight
from llama_py.engine.metrics import Metrics
from llama_py.engine.prefill_budget import PrefillBudget
from llama_py.engine.request import FinishEvent, Output
from llama_py.engine.runner import Runner, by_sequence
from llama_py.engine.sampling import Sampling
from llama_py.engine.scheduler import Decode, Draft, Prefill, StepPlan, plan_step
from llama_py.errors import (
    CacheFullError,
    ClosedError,
    ContextOverflowError,
    DecodeError,
    LlamaError,
    RequestCancelled,
)
from llama_py.memory.cache import SequenceCache
from llama_py.memory.kinds import MemoryKind
from llama_py.memory.sequences import LiveSequence
from llama_py.options.drafters import Speculative

__all__ = ["Engine"]

#: What ``llama_decode`` returns when it was aborted.
_ABORTED = 2
#: Steps after which is looked whether cells run out soon.
_LOOK = 32
#: A stream with so many tokens has only just begun.
_AT_FIRST = 2
#: One with so many is counted with those that begin: it waited with them a moment ago.
_BEGINS = 8


class Engine:
    """Generates for any number of requests with one context.

    Args:
        context: the context; nothing else may decode with it.
        cache: its sequences.
        speculative: who drafts for requests that say nothing, or None.
        clock: what time it is, for whatever depends on that; None: the machine's.

    Attributes:
        requests: the requests in flight, the metrics, and the last logits.
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
        self._looked = 0
        #: The last step with prompts had none of the first one.
        self._passed_over = False
        self._chunk = min(context.n_ubatch, context.n_batch)
        # llama.cpp computes wrong logits when a batch holds chunks of several prompts (NMSE 1e-3),
        # with this kind of memory only. Streams beside one prompt are right.
        hybrid_iswa = cache.traits.kind is MemoryKind.HYBRID_ISWA
        self._most_prompts = 1 if hybrid_iswa else None

    @property
    def metrics(self) -> Metrics:
        """What was done since loading, or since ``reset_counters``."""
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
        """Queue a request that was prepared (see ``preparing``)."""
        self._drafts.begin(running)
        self.requests.add(running)

    def cancel(self, number: int) -> None:
        """End a request; its sequence keeps what was decoded. Does nothing if it has ended."""
        running = self.requests.find(number)
        if running is not None:
            self.requests.cancel(running)

    def cancel_all(self) -> None:
        """End every request."""
        for running in self.requests:
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
        self.cache.saving.give_up()
        for running in requests:
            running.sampler.close()
        requests.metrics.failed += len(requests.waiting) + len(requests.running)
        requests.waiting, requests.running, requests.outputs = [], [], []
        self._admission.loading.clear()
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
        """Decode once, at most, and return what came out of it."""
        begun = self.clock()
        self.stepping = True
        try:
            self.worked = self._step()
            if self._admission.loading or self.cache.saving.pending:
                self._copy_pieces(self.clock() - begun)
        finally:
            self.stepping = False
        return self.take_outputs()

    def _copy_pieces(self, took: float) -> None:
        """A piece at a time, between two steps of the others."""
        running = self.requests.running
        streams = sum(each.state is RequestState.DECODING and not each.paused for each in running)
        usual = self._prefill_budget.usual(streams) if streams else 0.0
        if self._admission.loading:
            self.worked |= self._admission.load(took, usual)
        else:
            self.worked |= self.cache.saving.step(took, usual)

    def _step(self) -> bool:
        requests = self.requests
        if requests.deadlines:
            requests.expire()
        if requests.waiting or self._admission.loading:
            self._admission.admit()
        running = requests.running
        if requests.drafting and running:
            return self._step_with_drafts()
        if running:
            self._look_ahead(running)
        self._drafts.watch()
        if not running:
            return False
        if self._are_plain(running):
            return self._step_plain(running)
        if len(running) == 1 and running[0].state is RequestState.DECODING:
            return self._step_one(running[0])
        plan = self._plan(running)
        if plan:
            self._step_many(plan)
        return bool(plan)

    def _look_ahead(self, running: Sequence[Generation]) -> None:
        """Now and then: what has to make room soon is copied before, a piece with each step."""
        steps = self.metrics.steps
        if 0 <= steps - self._looked < _LOOK:
            return
        self._looked = steps
        streams = sum(each.state is RequestState.DECODING for each in running)
        if streams:
            last = self._admission.next_preempted().lease if len(running) > 1 else None
            self.cache.park_soon(streams, 2 * _LOOK, last)

    def _plan(
        self, running: Sequence[Generation], drafts: Mapping[Generation, Draft] | None = None
    ) -> StepPlan[Generation]:
        n_batch, separate = self.runner.n_batch, not self.context.params.kv_unified
        beside = self._beside_streams(running)
        plan = plan_step(
            running,
            n_batch,
            self._chunk,
            self._most_prompts,
            drafts,
            separate=separate,
            beside=beside,
            passed_over=self._passed_over,
        )
        if plan.prefills:
            first = next(each for each in running if each.prompt_left and not each.paused)
            self._passed_over = plan.prefills[0].request is not first
        return plan

    def _beside_streams(self, running: Sequence[Generation]) -> int | None:
        """Most tokens of prompts in a step beside these; None if nobody reads what it delays."""
        ready = [each for each in running if not each.paused]
        streams = [each for each in ready if not each.prompt_left]
        if len(streams) == len(ready) or not any(each.read for each in streams):
            return None
        most, waiting = max(1, self._chunk // 2), len(ready) - len(streams)
        at_first = together = 0
        pause = self._pause(ready)
        if all(len(each.record.generated) <= _AT_FIRST for each in streams):
            at_first = min(most, self._prefill_budget.at_first())
            together = self._beginning(ready, at_first)
            if together and not pause:
                return together
        size = self._prefill_budget.size(len(streams), most, waiting, pause)
        return max(size, at_first if waiting > 1 else together)

    def _pause(self, ready: Sequence[Generation]) -> float:
        """Seconds that a step of these may take because many begin whom somebody reads, or 0."""
        waiting = [each for each in ready if each.prompt_left]
        young = [each for each in ready if len(each.record.generated) <= _BEGINS]
        left = sum(each.prompt_left for each in waiting)
        waited = self.clock() - min(each.record.started for each in waiting)
        return self._prefill_budget.pause(sum(each.read for each in young), left, waited)

    @staticmethod
    def _beginning(ready: Sequence[Generation], most: int) -> int:
        """Tokens of those short prompts, first ones first, that fit into one step."""
        total = 0
        for each in ready:
            lease = each.lease
            if lease is None or not lease.remaining:
                continue
            whole = len(lease.prompt.tokens) - lease.info.reused
            if whole > most or total + lease.remaining > most:
                break
            total += lease.remaining
        return total

    def _step_with_drafts(self) -> bool:
        """A step in which streams may have drafts; it is measured, so that drafts pay."""
        drafts, metrics = self._drafts.propose(), self.metrics
        running = self.requests.running
        if not drafts and self._are_plain(running) and not self._drafts.watching(running):
            return self._step_undrafted(running)
        plan = self._plan(running, drafts)
        before = {entry.request: len(entry.request.record.generated) for entry in plan.verifies}
        steps, seconds = metrics.generated, metrics.decode_seconds
        self._drafts.watch(plan)
        if plan:
            self._step_many(plan)
        if metrics.generated > steps:  # it did not fail
            took = metrics.decode_seconds - seconds if not plan.prefills else None
            self._drafts.note(plan, before, took)
            self._preempt_lost_ones(plan)
        return bool(plan)

    def _step_undrafted(self, streams: Sequence[Generation]) -> bool:
        """A step in which nobody has a draft; after it, there may be one."""
        before, seconds = self.metrics.generated, self.metrics.decode_seconds
        self._drafts.watch()
        self._step_plain(streams, alone=True)
        if self.metrics.generated > before:  # it did not fail
            self._drafts.costs.add(len(streams), self.metrics.decode_seconds - seconds)
        return True

    def _preempt_lost_ones(self, plan: StepPlan[Generation]) -> None:
        """Where the memory could not go back behind a draft, the tokens are evaluated again."""
        for entry in plan.verifies:
            running, lease = entry.request, entry.request.lease
            if running.state is RequestState.DECODING and lease is not None and not lease.held:
                running.drafting = None
                self.requests.drafting -= 1
                self._admission.preempt(running)

    def _are_plain(self, streams: Sequence[Generation]) -> bool:
        """Whether C can choose their tokens alone."""
        if self.runner.steps is None:
            return False
        for each in streams:
            if not each.plain or each.state is not RequestState.DECODING or each.paused:
                return False
        return len(streams) <= self.runner.n_batch

    def _step_plain(self, streams: Sequence[Generation], *, alone: bool = False) -> bool:
        """Decode and choose in one call; several times, if nobody waits for what comes of each.

        Args:
            alone: once, in any case.
        """
        steps = self.runner.steps
        if steps is None:
            raise RuntimeError("streams cannot be decoded and chosen in one call here")
        streams = [*streams] if self.context.params.kv_unified else by_sequence(streams)
        most, seconds = (1, 0.0) if alone else self._at_once(streams)
        ends = self.runner.decode_steps(steps, streams, most, seconds)
        if len(streams) > 1:
            for _ in ends:
                self.metrics.batch_streams.add(len(streams))
        for row, tokens in enumerate(steps.chosen):
            self._sampling.enter(streams[row], tokens, ends, row)
        if steps.code:
            self._handle_failure(steps.code, StepPlan(tuple(map(Decode, streams))))
        else:
            self._prefill_budget.note(len(streams), 0, self.runner.last_step)
        return True

    def _at_once(self, streams: Sequence[Generation]) -> tuple[int, float]:
        """Steps, and seconds of them, that may be made before anybody looks at the outcome."""
        seconds = min([each.at_once[1] for each in streams])
        busy = self.cache.saving.pending or self._admission.loading
        if self.runner.last_step >= seconds or busy:
            return 1, 0.0
        left = self.requests.time_left(running_only=True)
        limit = self.cache.limit
        most = min([each.steps_at_once(each.lease, limit) for each in streams if each.lease])
        return most, seconds if left is None else min(seconds, left)

    def _step_one(self, running: Generation) -> bool:
        """A single stream whose tokens are drawn, or looked at."""
        if running.paused:
            return False
        code = self.runner.decode_one(running)
        if code:
            self._handle_failure(code, StepPlan((Decode(running),)))
            return True
        self._prefill_budget.note(1, 0, self.runner.last_step)
        running.lease.sequence.tokens.append(running.record.generated[-1])  # type: ignore[union-attr]
        self._sampling.sample(((running, 0),))
        return True

    def _step_many(self, plan: StepPlan[Generation]) -> None:
        seconds = self.requests.time_left(running_only=True) if plan.prefills else None
        code, rows = self.runner.decode(plan, seconds)
        if code:
            self._handle_failure(code, plan)
            return
        tokens = sum(prefill.count for prefill in plan.prefills)
        self._prefill_budget.note(len(plan) - len(plan.prefills), tokens, self.runner.last_step)
        self._drafts.observe(plan, rows)
        self.metrics.batch_streams.add(len(plan))
        due: list[tuple[Generation, int]] = []
        for entry, row in zip(plan.decodes, rows, strict=False):
            running = entry.request
            running.lease.sequence.tokens.append(running.record.generated[-1])  # type: ignore[union-attr]
            due.append((running, row))
        drafted = [*zip(plan.verifies, rows[len(plan.decodes) :], strict=False)]
        for verify, _ in drafted:
            lease = verify.request.lease
            if lease is not None:
                lease.sequence.tokens.extend(verify.request.undecoded(lease))
                lease.drafted = len(verify.draft)
        prompt_rows = rows[len(plan.decodes) + len(plan.verifies) :]
        for prefill, row in zip(plan.prefills, prompt_rows, strict=True):
            if self._advance(prefill):
                due.append((prefill.request, row))
        # All checkpoints are taken before any callback, which may take its time.
        for prefill, row in zip(plan.prefills, prompt_rows, strict=True):
            self._report(prefill, row)
        self._sampling.sample(due, drafted)

    def _advance(self, prefill: Prefill[Generation]) -> bool:
        """A chunk of a prompt is in memory; True if it was the last one."""
        running, lease = prefill.request, prefill.request.lease
        if lease is None:
            raise RuntimeError("a request without a sequence was evaluated")
        self.cache.advance(lease, prefill.count)
        self.metrics.evaluated += prefill.count
        if lease.remaining:
            return False
        running.state = RequestState.DECODING
        self.cache.commit(lease.sequence, lease.prompt)
        return True

    def _report(self, prefill: Prefill[Generation], row: int) -> None:
        """Tell the owner of a request how far its prompt has come."""
        running, request = prefill.request, prefill.request.request
        if request.generation.prompt_logprobs or request.targets:
            self._sampling.read_prompt(running, prefill.count, row)
        if running.lease is not None:
            self.requests.report(running, running.lease.held)

    # -- failures -------------------------------------------------------------------------------

    def _handle_failure(self, code: int, plan: StepPlan[Generation]) -> None:
        if code == _ABORTED:
            # Cancelled and expired requests are removed before the next step; the rest repeat it.
            self._repair()
            return
        if code == 1 and any(entry.draft for entry in plan.verifies):
            self._drafts.wait()
            return
        involved = [entry.request for entry in plan.decodes]
        involved += [entry.request for entry in plan.verifies]
        involved += [entry.request for entry in plan.prefills]
        if code == 1:
            self._out_of_cells(involved)
            return
        for running in involved:
            if running.lease is not None:
                self.cache.repair(running.lease)
            self.requests.fail(running, DecodeError(_describe(code), code))

    def _out_of_cells(self, involved: list[Generation]) -> None:
        """Park an idle conversation; else let one request start again later."""
        if self.cache.make_room() or self._admission.free_loaded():
            return
        if len(self.requests.running) > 1:
            self._admission.preempt_one()
            return
        running = involved[0]
        if running.state is RequestState.DECODING:
            self.requests.end(running, FinishEvent("length", running.text.finish()))
            return
        position = running.lease.held if running.lease else 0
        message = (
            f"no free cells after {position} of {running.record.n_prompt} prompt tokens, with "
            "nothing else in memory; load the model with a larger n_ctx"
        )
        self.requests.fail(running, CacheFullError(message, 1))

    def _repair(self) -> None:
        """Let running requests begin again if their sequence is not where they left it.

        The step that was aborted is at most one micro-batch, whose cells llama.cpp takes back
        itself where it can: this is a second line of defence.
        """
        for running in [*self.requests.running]:
            lease = running.lease
            if lease is None:
                continue
            before = lease.held
            self.cache.repair(lease)
            if lease.held != before:
                self._admission.preempt(running)

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
            self.cache.trim(sequence)
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
        position = len(sequence.tokens)
        code = _ABORTED
        while code == _ABORTED or (code == 1 and self.cache.make_room()):
            if not wanted():
                raise RequestCancelled("the evaluation was interrupted")
            code = self.runner.decode_tokens(tokens, position, sequence.number, every)
            if code == _ABORTED:  # it may have been meant for a request that has ended
                self.cache.trim(sequence)
        if code:
            raise DecodeError(_describe(code), code)
        sequence.tokens.extend(tokens)
        first = 0 if every else len(tokens) - 1
        return [self.runner.logits(row).copy() for row in range(first, len(tokens))]


def _describe(code: int) -> str:
    meanings = {
        1: "there are no free cells for the batch; load the model with a larger n_ctx",
        2: "the computation was aborted",
        -1: "llama.cpp found the batch invalid",
    }
    return f"llama_decode returned {code}: {meanings.get(code, 'the computation failed')}"
