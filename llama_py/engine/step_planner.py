"""``StepPlanner``: the next step of the requests that run, with the numbers that only time tells.

``scheduler`` decides what goes into a step. How much of prompts goes beside streams that somebody
reads is chosen here (by ``prefill_budget``, from what the last steps took), and how many steps C
may make at once where nothing but the logits is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llama_py.core.context import Context
from llama_py.engine.drafts.proposals import Drafts
from llama_py.engine.generation import Generation, RequestState
from llama_py.engine.in_flight import InFlight
from llama_py.engine.media_steps import MediaSteps
from llama_py.engine.prefill_budget import PrefillBudget
from llama_py.engine.runner import Runner
from llama_py.engine.scheduler import Decode, Draft, StepPlan, plan_step
from llama_py.memory.cache import SequenceCache
from llama_py.memory.kinds import MemoryKind

__all__ = ["StepPlanner"]


class StepPlanner:
    """Plans the steps of an engine.

    Args:
        budget: what was seen of the steps so far.
    """

    def __init__(
        self,
        requests: InFlight,
        cache: SequenceCache,
        context: Context,
        runner: Runner,
        drafts: Drafts,
        budget: PrefillBudget,
        media: MediaSteps,
    ) -> None:
        self._requests = requests
        self._media = media
        self._cache = cache
        self._runner = runner
        self._drafts = drafts
        self._budget = budget
        self._n_batch = runner.n_batch
        self._chunk = min(context.n_ubatch, context.n_batch)
        self._separate = not context.params.kv_unified
        # llama.cpp computes wrong logits when a batch holds chunks of several prompts (NMSE 1e-3),
        # with this kind of memory only. Streams beside one prompt are right.
        hybrid_iswa = cache.traits.kind is MemoryKind.HYBRID_ISWA
        self._most_prompts = 1 if hybrid_iswa else None
        #: The last step with prompts had none of the first one.
        self._passed_over = False
        #: Where everybody generates, the plan of one step is that of the next one, as a rule.
        self._streams: list[Generation] = []
        self._plan: StepPlan[Generation] = StepPlan()

    def plan(self) -> StepPlan[Generation]:
        """The next step."""
        running, chosen = self._requests.running, self._runner.steps is not None
        drafts: Mapping[Generation, Draft] = {}
        drafting = self._requests.drafting and running
        if drafting:
            drafts = self._drafts.propose()
            chosen = chosen and not self._drafts.watching(running)
        if drafts or len(running) > self._n_batch:
            return self._mixed(running, drafts)
        for each in running:
            if each.state is not RequestState.DECODING or each.paused:
                return self._mixed(running, drafts)
            chosen = chosen and each.plain
        plan = self._plan
        if running != self._streams:
            self._streams = [*running]
            plan = self._plan = StepPlan(tuple(map(Decode, running)))
        if not chosen or not running:
            plan.steps = 0
            return plan
        plan.steps, plan.seconds = 1, 0.0
        seconds = min([each.at_once[1] for each in running])
        # A step after which there may be a draft is made alone.
        alone = drafting or self._cache.transfers.pending
        if not alone and self._runner.last_step < seconds:
            left = self._requests.time_left(running_only=True)
            limit = self._cache.limit
            most = min([each.steps_at_once(each.lease, limit) for each in running if each.lease])
            plan.steps, plan.seconds = most, seconds if left is None else min(seconds, left)
        return plan

    def forget(self) -> None:
        """Nobody runs any more: let go of those who did."""
        self._streams, self._plan = [], StepPlan()

    def usual(self) -> float:
        """Seconds that a step of those who generate now usually takes; 0: that is not known."""
        running = self._requests.running
        streams = sum(each.state is RequestState.DECODING and not each.paused for each in running)
        return self._budget.usual(streams) if streams else 0.0

    # -- with prompts or drafts -----------------------------------------------------------------

    def _mixed(
        self, running: Sequence[Generation], drafts: Mapping[Generation, Draft]
    ) -> StepPlan[Generation]:
        if any(each.at_media for each in running):
            step = self._media.plan(running)
            if step is not None:
                return step
            running = [each for each in running if not each.at_media and not each.ended]
            if not running:
                return StepPlan()
        self._media.others_go()
        plan = plan_step(
            running,
            self._n_batch,
            self._chunk,
            self._most_prompts,
            drafts,
            separate=self._separate,
            beside=self._budget.beside(running, self._chunk, self._requests.clock()),
            passed_over=self._passed_over,
        )
        if plan.prefills:
            first = next(each for each in running if each.prompt_left and not each.paused)
            self._passed_over = plan.prefills[0].request is not first
            plan.seconds = self._requests.time_left(running_only=True)
        return plan
