"""``plan_reuse``: how a prompt is best begun, given everything that is held somewhere.

Pure: views in, plan out. The rule is simple. Every holder that shares a prefix with the prompt can
give back a certain number of tokens, depending on the kind of memory, and the largest number wins;
a holder in memory beats a stored one unless the stored one saves clearly more.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from llama_py.memory.costs import LOAD_MARGIN, Costs
from llama_py.memory.kinds import MemoryTraits
from llama_py.memory.positions import TEXT, Positions

__all__ = ["Action", "HeldPrefix", "ReusePlan", "plan_reuse"]

_DEAR = "evaluating it takes less time here than fetching what is stored"


class Action(enum.Enum):
    """How the plan begins the sequence."""

    EVALUATE = "evaluate"  # from nothing
    CONTINUE = "continue"  # an idle sequence goes on where it ended, or is cut in place
    FORK = "fork"  # share the cells of a sequence that has to stay as it is
    LOAD = "load"  # bring a state back from a store
    RESTORE = "restore"  # a checkpoint alone is the whole state


@dataclass(frozen=True, slots=True)
class HeldPrefix:
    """One holder's view: a live sequence, or a stored state.

    Attributes:
        holder: the sequence id, or the store's key.
        length: tokens it holds.
        matched: how many of them, from the beginning, are the prompt's.
        pos_min: smallest position that its memory has.
        busy: a request is using it.
        stored: it is in a store and not in memory.
        checkpoints: after how many tokens it was taken, for each checkpoint that comes with a
            stored state.
        positions: which positions its tokens take.
    """

    holder: object
    length: int
    matched: int
    pos_min: int = 0
    busy: bool = False
    stored: bool = False
    checkpoints: tuple[int, ...] = ()
    positions: Positions = TEXT


@dataclass(frozen=True, slots=True)
class ReusePlan:
    """Keep ``keep`` tokens of ``source``; load the checkpoint at ``keep`` if ``checkpoint``.

    Attributes:
        reason: why not everything is kept that the prompt shares with something; empty if it is.
    """

    action: Action
    keep: int = 0
    source: object = None
    checkpoint: bool = False
    reason: str = ""


def plan_reuse(
    traits: MemoryTraits,
    n_prompt: int,
    held: Sequence[HeldPrefix],
    checkpoints: Sequence[int],
    costs: Costs | None = None,
) -> ReusePlan:
    """The plan that keeps most; with ``costs``, the one that saves most time.

    Args:
        n_prompt: tokens in the prompt; at least one is always evaluated, for its logits.
        held: what shares a prefix with the prompt.
        checkpoints: after how many tokens the checkpoints in memory were taken, of those whose
            whole prefix is the prompt's.
        costs: of fetching what is stored; None: 16 tokens, whatever it is.
    """
    plans = [_with(traits, n_prompt, view, checkpoints) for view in held]
    if traits.checkpoint_is_whole:
        deepest = max((position for position in checkpoints if position < n_prompt), default=0)
        plans.append(ReusePlan(Action.RESTORE, deepest, None, deepest > 0))
    margins = (
        {view.holder: costs.margin(view.length) for view in held if view.stored} if costs else {}
    )
    if costs:
        plans.append(ReusePlan(Action.EVALUATE, reason=_DEAR if margins else ""))
    best = max(plans, key=partial(_worth, margins), default=ReusePlan(Action.EVALUATE))
    shared = max((view.matched for view in held), default=0)
    if best.keep == 0:
        reason = (
            best.reason or traits.why_not()
            if shared > 0
            else "nothing cached begins like this prompt"
        )
        return ReusePlan(Action.EVALUATE, reason=reason)
    if best.reason or best.keep >= min(shared, n_prompt - 1):
        return best
    # Something shares more with the prompt, and is of less use.
    most = max(plans, key=lambda plan: plan.keep)
    more = most.keep - best.keep
    if more <= 0:
        return replace(best, reason=most.reason or traits.why_not())
    return replace(best, reason=f"loading what is stored would have kept only {more} tokens more")


def _with(
    traits: MemoryTraits, n_prompt: int, view: HeldPrefix, checkpoints: Sequence[int]
) -> ReusePlan:
    wanted = min(view.matched, n_prompt - 1)
    action = Action.LOAD if view.stored else Action.FORK if view.busy else Action.CONTINUE
    if traits.can_resume(view.pos_min, view.length, wanted, view.positions):
        return ReusePlan(action, wanted, view.holder)
    known = view.checkpoints if view.stored else checkpoints
    deepest = max((position for position in known if position <= wanted), default=0)
    reason = traits.why_not() if wanted > deepest else ""
    return ReusePlan(action, deepest, view.holder, deepest > 0, reason)


def _worth(margins: Mapping[object, float], plan: ReusePlan) -> tuple[float, int]:
    """Tokens kept, less what a load costs; then the cheaper action."""
    preference = {
        Action.CONTINUE: 4,
        Action.FORK: 3,
        Action.RESTORE: 2,
        Action.LOAD: 1,
        Action.EVALUATE: 0,
    }
    margin = margins.get(plan.source, LOAD_MARGIN) if plan.action is Action.LOAD else 0
    return plan.keep - margin, preference[plan.action]
