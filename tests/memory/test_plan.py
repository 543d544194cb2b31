"""Which holder a prompt is begun with, for every kind of memory."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_py.core import context
from llama_py.memory.kinds import WHOLE_COPIES_ONLY, MemoryKind, MemoryTraits, traits_of
from llama_py.memory.plan import Action, HeldPrefix, ReusePlan, plan_reuse

FULL = MemoryTraits(MemoryKind.FULL, 0, recurrent=False)
ISWA = MemoryTraits(MemoryKind.ISWA, 32, recurrent=False, forgets=True)
ISWA_BIG = MemoryTraits(MemoryKind.ISWA, 32, recurrent=False)
RECURRENT = MemoryTraits(MemoryKind.RECURRENT, 0, recurrent=True)
HYBRID = MemoryTraits(MemoryKind.HYBRID, 0, recurrent=True)
HYBRID_ISWA = MemoryTraits(MemoryKind.HYBRID_ISWA, 32, recurrent=True, forgets=True)
ALL = [FULL, ISWA, ISWA_BIG, RECURRENT, HYBRID, HYBRID_ISWA]
NAMES = ["full", "iswa", "iswa-big", "recurrent", "hybrid", "hybrid-iswa"]


def held(length: int, matched: int, pos_min: int = 0, **more: object) -> HeldPrefix:
    return HeldPrefix("a", length, matched, pos_min, **more)  # type: ignore[arg-type]


CONTINUE, FORK, LOAD = Action.CONTINUE, Action.FORK, Action.LOAD

#: traits, tokens in the prompt, what is held, checkpoints -> action, kept, with a checkpoint
TABLE: list[tuple[MemoryTraits, int, list[HeldPrefix], list[int], Action, int, bool]] = [
    # a conversation that simply goes on
    *((traits, 120, [held(100, 100, 68)], [], CONTINUE, 100, False) for traits in ALL),
    # ... while somebody else still generates from it
    *((traits, 120, [held(100, 100, 68, busy=True)], [], FORK, 100, False) for traits in ALL),
    # ... from a store
    *((traits, 120, [held(100, 100, stored=True)], [], LOAD, 100, False) for traits in ALL),
    # one message was changed: full attention is cut, whatever else needs what it has not got
    (FULL, 120, [held(100, 60)], [], CONTINUE, 60, False),
    (ISWA, 120, [held(100, 60, 20)], [], CONTINUE, 60, False),
    (ISWA, 120, [held(100, 60, 28)], [], CONTINUE, 60, False),  # just the window
    (ISWA, 120, [held(100, 60, 29)], [], Action.EVALUATE, 0, False),
    (ISWA, 120, [held(100, 60, 68)], [10, 40], CONTINUE, 40, True),
    (ISWA, 120, [held(100, 60, 68)], [61], Action.EVALUATE, 0, False),
    (ISWA, 120, [held(40, 20, 0)], [], CONTINUE, 20, False),  # nothing is forgotten yet
    (ISWA_BIG, 120, [held(100, 60, 0)], [], CONTINUE, 60, False),
    (RECURRENT, 120, [held(100, 60, 99)], [], Action.EVALUATE, 0, False),
    (RECURRENT, 120, [held(100, 60, 99)], [50], CONTINUE, 50, True),
    (HYBRID, 120, [held(100, 60, 99)], [], Action.EVALUATE, 0, False),
    (HYBRID, 120, [held(100, 60, 99)], [50, 60], CONTINUE, 60, True),
    (HYBRID_ISWA, 120, [held(100, 60, 99, busy=True)], [50], FORK, 50, True),
    # all of the prompt is cached: one token is evaluated for its logits
    (FULL, 100, [held(100, 100)], [], CONTINUE, 99, False),
    (FULL, 50, [held(100, 50)], [], CONTINUE, 49, False),
    (ISWA, 100, [held(100, 100, 60)], [], CONTINUE, 99, False),
    (RECURRENT, 100, [held(100, 100, 99)], [], Action.EVALUATE, 0, False),
    (RECURRENT, 100, [held(100, 100, 99)], [99], CONTINUE, 99, True),
    (HYBRID, 100, [held(100, 100, 99)], [90, 100], CONTINUE, 90, True),
    # a state that is stored brings its own checkpoints
    (HYBRID, 120, [held(100, 60, 99, stored=True, checkpoints=(30,))], [55], LOAD, 30, True),
    # a recurrent checkpoint is the whole state: no holder is needed
    (RECURRENT, 120, [], [70], Action.RESTORE, 70, True),
    (RECURRENT, 120, [], [120], Action.EVALUATE, 0, False),  # the logits need a token
    (HYBRID, 120, [], [70], Action.EVALUATE, 0, False),
    # nothing is held
    *((traits, 120, [], [], Action.EVALUATE, 0, False) for traits in ALL),
]


@pytest.mark.parametrize(
    ("traits", "n_prompt", "holders", "checkpoints", "action", "keep", "checkpoint"), TABLE
)
def test_table(
    traits: MemoryTraits,
    n_prompt: int,
    holders: list[HeldPrefix],
    checkpoints: list[int],
    action: Action,
    keep: int,
    checkpoint: bool,
) -> None:
    plan = plan_reuse(traits, n_prompt, holders, checkpoints)
    assert (plan.action, plan.keep, plan.checkpoint) == (action, keep, checkpoint)
    assert plan.source == (holders[0].holder if holders and keep else None)


@pytest.mark.parametrize("traits", ALL, ids=NAMES)
def test_the_longest_wins_whoever_holds_it(traits: MemoryTraits) -> None:
    holders = [
        HeldPrefix("short", 30, 30),
        HeldPrefix("long", 90, 90, 60),
        HeldPrefix("middle", 60, 60, 30),
    ]
    assert plan_reuse(traits, 120, holders, []).source == "long"


def test_of_equals_the_idle_one_in_memory_wins() -> None:
    stored = HeldPrefix("stored", 50, 50, stored=True)
    busy = HeldPrefix("busy", 50, 50, busy=True)
    idle = HeldPrefix("idle", 50, 50)
    assert plan_reuse(FULL, 99, [stored, busy, idle], []).source == "idle"
    assert plan_reuse(FULL, 99, [stored, busy], []).source == "busy"


@pytest.mark.parametrize(("more", "source"), [(16, "memory"), (17, "stored")])
def test_loading_must_save_more_than_it_costs(more: int, source: str) -> None:
    holders = [
        HeldPrefix("memory", 50, 50),
        HeldPrefix("stored", 50 + more, 50 + more, stored=True),
    ]
    assert plan_reuse(FULL, 200, holders, []).source == source


def test_a_short_stored_state_is_still_better_than_nothing() -> None:
    plan = plan_reuse(FULL, 200, [HeldPrefix("stored", 10, 10, stored=True)], [])
    assert plan.keep in (0, 10)  # a copy for ten tokens: either is right, both are consistent
    assert (plan.action is Action.LOAD) == (plan.keep == 10)


@pytest.mark.parametrize(
    ("traits", "matched", "reason"),
    [
        (FULL, 0, "nothing cached begins like this prompt"),
        (ISWA, 60, "window cells are gone"),
        (RECURRENT, 60, "recurrent state cannot be cut"),
        (HYBRID_ISWA, 60, "recurrent state cannot be cut"),
    ],
)
def test_the_reason_why_nothing_was_kept(traits: MemoryTraits, matched: int, reason: str) -> None:
    assert plan_reuse(traits, 120, [held(100, matched, 68)], []).reason == reason
    assert plan_reuse(traits, 120, [], []).reason == "nothing cached begins like this prompt"


def test_the_reason_why_not_more_was_kept() -> None:
    assert plan_reuse(HYBRID, 120, [held(100, 60)], [50]).reason == "recurrent state cannot be cut"
    assert plan_reuse(HYBRID, 120, [held(100, 60)], [60]).reason == ""
    assert plan_reuse(FULL, 120, [held(100, 60)], []).reason == ""


def test_the_reason_why_what_shares_most_was_not_taken() -> None:
    passed = plan_reuse(ISWA, 120, [held(100, 60, 68), held(50, 40)], [])
    assert (passed.keep, passed.reason) == (40, "window cells are gone")
    costly = plan_reuse(FULL, 120, [held(50, 40), HeldPrefix("stored", 50, 50, stored=True)], [])
    assert costly.keep == 40
    assert "only 10 tokens more" in costly.reason


HELD = st.builds(
    lambda length, share, pos_min, busy, stored, checkpoints: HeldPrefix(
        "x", length, int(length * share), min(pos_min, length), busy, stored, tuple(checkpoints)
    ),
    st.integers(1, 200),
    st.floats(0, 1),
    st.integers(0, 200),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(1, 200), max_size=3),
)


@given(
    st.sampled_from(ALL),
    st.integers(1, 200),
    st.lists(HELD, max_size=4),
    st.lists(st.integers(1, 200), max_size=4),
)
def test_a_plan_never_promises_what_is_not_there(
    traits: MemoryTraits, n_prompt: int, holders: list[HeldPrefix], checkpoints: list[int]
) -> None:
    holders = [
        HeldPrefix(
            i, h.length, min(h.matched, n_prompt), h.pos_min, h.busy, h.stored, h.checkpoints
        )
        for i, h in enumerate(holders)
    ]
    plan = plan_reuse(traits, n_prompt, holders, checkpoints)
    assert 0 <= plan.keep < n_prompt
    assert (plan.keep == 0) == (plan.action is Action.EVALUATE)
    if plan.action in (Action.EVALUATE, Action.RESTORE):
        assert plan.action is Action.EVALUATE or plan.keep in checkpoints
        return
    view = holders[plan.source]  # type: ignore[call-overload]
    assert plan.keep <= view.matched
    if plan.checkpoint:
        assert plan.keep in (view.checkpoints if view.stored else checkpoints)
    else:
        assert traits.can_resume(view.pos_min, view.length, plan.keep)


def test_nothing_held_is_the_plain_plan() -> None:
    expected = ReusePlan(Action.EVALUATE, reason="nothing cached begins like this prompt")
    assert plan_reuse(FULL, 5, [], []) == expected


# -- traits ----------------------------------------------------------------------------------------


@dataclass
class Facts:
    n_swa: int = 0
    is_recurrent: bool = False
    is_hybrid: bool = False
    architecture: str = "llama"
    n_ctx_train: int = 1024


@pytest.mark.parametrize(
    ("facts", "kind", "needs"),
    [
        (Facts(), MemoryKind.FULL, False),
        (Facts(n_swa=64), MemoryKind.ISWA, True),
        (Facts(is_recurrent=True), MemoryKind.RECURRENT, True),
        (Facts(is_hybrid=True), MemoryKind.HYBRID, True),
        (Facts(n_swa=64, is_hybrid=True), MemoryKind.HYBRID_ISWA, True),
        # what a recurrent model says of a window means nothing
        (Facts(n_swa=64, is_recurrent=True), MemoryKind.RECURRENT, True),
    ],
)
def test_kinds(facts: Facts, kind: MemoryKind, needs: bool) -> None:
    traits = traits_of(facts, swa_full=False)
    assert (traits.kind, traits.needs_checkpoints) == (kind, needs)
    assert traits.checkpoint_is_whole == (kind is MemoryKind.RECURRENT)


def test_a_full_size_window_cache_forgets_nothing() -> None:
    assert not traits_of(Facts(n_swa=64), swa_full=True).needs_checkpoints
    assert traits_of(Facts(n_swa=64), swa_full=True).window == 64


@pytest.mark.parametrize("name", ["gpt2", "mpt", "starcoder"])
def test_learned_positions_have_an_end(name: str) -> None:
    assert traits_of(Facts(architecture=name), swa_full=False).max_position == 1024
    assert traits_of(Facts(), swa_full=False).max_position is None


def test_some_memories_copy_whole_sequences_only() -> None:
    for name in ("deepseek4", "glm5-next", "qwen4exp"):
        assert not traits_of(Facts(architecture=name), swa_full=False).copies_parts
    assert traits_of(Facts(), swa_full=False).copies_parts
    assert WHOLE_COPIES_ONLY == context._WHOLE_COPIES_ONLY


def test_a_copy_is_cut_only_where_sequences_share_cells() -> None:
    facts = Facts(architecture="qwen4exp")
    assert traits_of(facts, swa_full=False).cuts_copies
    assert not traits_of(facts, swa_full=False, unified=False).cuts_copies
    assert not traits_of(Facts(architecture="deepseek4"), swa_full=False).cuts_copies


@pytest.mark.parametrize(
    ("traits", "pos_min", "length", "position", "possible"),
    [
        (FULL, 0, 10, 10, True),
        (FULL, 0, 10, 5, True),
        (FULL, 0, 10, 0, False),  # that is a beginning, not a resumption
        (FULL, 3, 10, 5, False),  # the beginning is missing
        (FULL, 3, 10, 3, False),
        (ISWA, 0, 100, 20, True),
        (ISWA, 1, 100, 20, False),
        (ISWA, 8, 100, 40, True),
        (ISWA, 9, 100, 40, False),
        (RECURRENT, 9, 10, 10, True),
        (RECURRENT, 9, 10, 9, False),
        (HYBRID, 9, 10, 9, False),
    ],
)
def test_where_a_sequence_may_be_resumed(
    traits: MemoryTraits, pos_min: int, length: int, position: int, possible: bool
) -> None:
    assert traits.can_resume(pos_min, length, position) is possible
