"""``Planner``: what of a prompt is held where, and how it is best begun.

It collects the views that ``plan_reuse`` decides on, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from llama_py.memory.index import CacheIndex, held_by
from llama_py.memory.kinds import MemoryTraits, SequenceMemory
from llama_py.memory.plan import HeldPrefix, ReusePlan, plan_reuse
from llama_py.memory.sequences import ResolvedPrompt
from llama_py.memory.stores import Refused, Stores

__all__ = ["Decision", "Planner"]

#: Role boundaries closer than this behind another cut are not worth a checkpoint of their own.
_CUT_DISTANCE = 24
#: With more tokens in the cache, stores are not asked what they have of other settings: they know
#: of the first tokens only.
_ASKED = 16


class Decision(NamedTuple):
    """A plan, and everything that shares a beginning with the prompt."""

    plan: ReusePlan
    held: Sequence[HeldPrefix]


class Planner:
    """See the module."""

    def __init__(
        self, memory: SequenceMemory, traits: MemoryTraits, index: CacheIndex, stores: Stores
    ) -> None:
        self._memory = memory
        self._traits = traits
        self._index = index
        self._stores = stores

    def decide(self, prompt: ResolvedPrompt, most: int | None = None) -> Decision:
        """How to begin ``prompt``, of which at most ``most`` tokens may be reused."""
        matches = self._index.match(prompt.tokens, prompt.namespace)
        held = [
            HeldPrefix(
                sequence.number,
                len(sequence.tokens),
                prompt.border(matched),
                self._stores.first_position(sequence, forked=True),
                busy=sequence.busy,
                positions=sequence.positions,
            )
            for sequence, matched in held_by(matches)
        ]
        held += [
            HeldPrefix(
                source,
                found.length,
                prompt.border(found.matched),
                found.pos_min,
                stored=True,
                checkpoints=found.checkpoints,
                positions=prompt.positions,
            )
            for source, found in self._stores.find(prompt.tokens, prompt.namespace)
        ]
        count = prompt.border(len(prompt.tokens) - 1 if most is None else most) + 1
        checkpoints = sorted(self._index.checkpoints.along(matches))
        return Decision(
            plan_reuse(self._traits, count, held, checkpoints, self._stores.costs), held
        )

    def why(self, prompt: ResolvedPrompt, decision: Decision) -> Refused:
        """Why not more can be kept: where the prompt parts from the cache, or what is missing.

        Its kind is empty unless something is stored that has more, and cannot be used.
        """
        plan, held = decision
        matched = max([plan.keep, *(view.matched for view in held)])
        if matched < min(_ASKED, len(prompt.tokens) - 1):
            refused = self._stores.refused(prompt.tokens, prompt.namespace, matched)
            if refused is not None:
                return Refused(refused.kind, f"what is stored {refused.why}")
        if plan.reason or matched >= len(prompt.tokens) - 1:
            return Refused("", plan.reason)
        if any(view.length == view.matched == matched for view in held):
            return Refused("", "")
        message = prompt.message_at(matched)
        where = f"message {message}" if message is not None else f"token {matched}"
        return Refused("", f"the prompt differs from what is cached in {where}")

    def cuts(self, prompt: ResolvedPrompt, kept: int) -> list[int]:
        """Where to stop for a checkpoint: at role boundaries that others may share, and the end.

        The first boundary ends what conversations have in common, and the last message but the
        reply's opening is where the next edit or another question parts from this prompt. They are
        left out where a checkpoint shortly *before* serves as well: what comes behind a boundary
        may be as short as it likes. Behind the last picture there is one as well: another question
        about it is to evaluate no picture.
        """
        if not self._traits.needs_checkpoints:
            return []
        last = prompt.border(len(prompt.tokens) - 1)
        cuts: list[int] = []
        before = kept
        behind = prompt.behind_media
        for boundary in sorted({*prompt.boundaries[:1], *prompt.boundaries[-2:-1], behind}):
            distance = 1 if boundary == behind else _CUT_DISTANCE
            if before + distance <= boundary < last:
                cuts.append(boundary)
                before = boundary
        opening = prompt.boundaries[-1] if prompt.boundaries else last
        if before + _CUT_DISTANCE <= opening <= last - _CUT_DISTANCE:
            cuts.append(opening)
        return [*cuts, last] if last > kept else cuts
