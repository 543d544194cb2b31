"""``Books``: enters what a step gave, and says what becomes of one that failed.

The books are changed only after a decode succeeded. After one that failed the context is asked what
is there: a step that was aborted is made again, one for which cells were missing makes room, and
any other failure ends the requests that took part in it.
"""

from __future__ import annotations

from llama_py.engine.admission import Admission
from llama_py.engine.drafts.proposals import Drafts
from llama_py.engine.generation import Generation, RequestState
from llama_py.engine.in_flight import InFlight
from llama_py.engine.prefill_budget import PrefillBudget
from llama_py.engine.request import FinishEvent
from llama_py.engine.runner import StepOutcome
from llama_py.engine.sampling import Sampling
from llama_py.engine.scheduler import StepPlan
from llama_py.errors import CacheFullError, DecodeError
from llama_py.memory.cache import SequenceCache

__all__ = ["ABORTED", "Books", "describe"]

#: What ``llama_decode`` returns when it was aborted.
ABORTED = 2


class Books:
    """Enters steps of an engine: in memory, in the replies, and in what is measured."""

    def __init__(
        self,
        requests: InFlight,
        cache: SequenceCache,
        sampling: Sampling,
        drafts: Drafts,
        admission: Admission,
        budget: PrefillBudget,
    ) -> None:
        self._requests = requests
        self._cache = cache
        self._sampling = sampling
        self._drafts = drafts
        self._admission = admission
        self._budget = budget

    def enter(self, plan: StepPlan[Generation], outcome: StepOutcome) -> None:
        """A step was made, or several."""
        metrics, drafting = self._requests.metrics, self._requests.drafting
        generated = metrics.generated
        before: dict[Generation, int] = {}
        for entry in plan.verifies:
            before[entry.request] = len(entry.request.record.generated)
        streams, tokens = len(plan.decodes) + len(plan.verifies), 0
        for prefill in plan.prefills:
            tokens += prefill.count
        if outcome.chosen:
            if streams > 1:
                for _ in outcome.ends:
                    metrics.batch_streams.add(streams)
            for decode, given, row in zip(plan.decodes, outcome.chosen, outcome.rows, strict=True):
                self._sampling.enter(decode.request, given, outcome.ends, row)
        if outcome.code:
            self._failed(outcome.code, plan)
            return
        if plan.vectors is None:
            self._budget.note(streams, tokens, outcome.last)
            if tokens and self._cache.costs is not None:
                self._cache.costs.evaluated(tokens, outcome.seconds)
        if not plan.steps:
            if drafting:
                self._drafts.observe(plan, outcome.rows)
            if drafting or streams > 1 or plan.prefills:
                metrics.batch_streams.add(len(outcome.rows))
            self._enter_rows(plan, outcome.rows)
        if drafting and metrics.generated > generated:
            self._drafts.note(plan, before, None if plan.prefills else outcome.seconds)
            for entry in plan.verifies:
                running, lease = entry.request, entry.request.lease
                if running.state is RequestState.DECODING and lease is not None and not lease.held:
                    # The memory could not go back behind the draft: begin again, without any.
                    running.drafting = None
                    self._requests.drafting -= 1
                    self._admission.preempt(running)

    def _enter_rows(self, plan: StepPlan[Generation], rows: list[int]) -> None:
        """What was decoded is in memory now, and the next tokens are sampled from its logits."""
        decoded, verified = len(plan.decodes), len(plan.decodes) + len(plan.verifies)
        due: list[tuple[Generation, int]] = []
        for entry, row in zip(plan.decodes, rows, strict=False):
            running = entry.request
            running.lease.sequence.tokens.append(running.record.generated[-1])  # type: ignore[union-attr]
            due.append((running, row))
        drafted = [*zip(plan.verifies, rows[decoded:], strict=False)]
        for verify, _ in drafted:
            lease = verify.request.lease
            if lease is not None:
                lease.sequence.tokens.extend(verify.request.undecoded(lease))
                lease.drafted = len(verify.draft)
        for prefill, row in zip(plan.prefills, rows[verified:], strict=True):
            running, lease = prefill.request, prefill.request.lease
            if lease is None:
                raise RuntimeError("a request without a sequence was evaluated")
            self._cache.advance(lease, prefill.count)
            self._requests.metrics.evaluated += prefill.count
            if not lease.remaining:
                running.state = RequestState.DECODING
                self._cache.index.commit(lease.sequence, lease.prompt)
                due.append((running, row))
        # All checkpoints are taken before any callback, which may take its time.
        for prefill, row in zip(plan.prefills, rows[verified:], strict=True):
            running, request = prefill.request, prefill.request.request
            if request.generation.prompt_logprobs or request.targets:
                self._sampling.read_prompt(running, prefill.count, row)
            if running.lease is not None:
                self._requests.report(running, running.lease.held)
        self._sampling.sample(due, drafted)

    # -- failures -------------------------------------------------------------------------------

    def _failed(self, code: int, plan: StepPlan[Generation]) -> None:
        if code == ABORTED:
            # Cancelled and expired requests are removed before the next step; the rest repeat it.
            # What was aborted is at most one micro-batch, whose cells llama.cpp takes back itself
            # where it can. Those whose sequence is not where they left it begin again all the same.
            for running in [*self._requests.running]:
                lease = running.lease
                if lease is None:
                    continue
                before = lease.held
                self._cache.repair(lease)
                if lease.held != before:
                    self._admission.preempt(running)
            return
        if code == 1 and any(entry.draft for entry in plan.verifies):
            self._drafts.wait()
            return
        involved = [entry.request for entry in plan.entries]
        if code == 1:
            self._out_of_cells(involved)
            return
        for running in involved:
            if running.lease is not None:
                self._cache.repair(running.lease)
            self._requests.fail(running, DecodeError(describe(code), code))

    def _out_of_cells(self, involved: list[Generation]) -> None:
        """Offload an idle conversation; else let one request start again later."""
        if self._cache.live.make_room() or self._cache.transfers.free_loaded():
            return
        if len(self._requests.running) > 1:
            self._admission.preempt_one()
            return
        running = involved[0]
        if running.state is RequestState.DECODING:
            self._requests.end(running, FinishEvent("length", running.text.finish()))
            return
        position = running.lease.held if running.lease else 0
        message = (
            f"no free cells after {position} of {running.record.n_prompt} prompt tokens, with "
            "nothing else in memory; load the model with a larger n_ctx"
        )
        self._requests.fail(running, CacheFullError(message, 1))


def describe(code: int) -> str:
    """The meaning of a code of ``llama_decode`` that is not 0."""
    meanings = {
        1: "there are no free cells for the batch; load the model with a larger n_ctx",
        2: "the computation was aborted",
        -1: "llama.cpp found the batch invalid",
    }
    return f"llama_decode returned {code}: {meanings.get(code, 'the computation failed')}"
