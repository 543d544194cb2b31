"""What was just evaluated is reused, however tight the context is, and every miss has a reason.

Prompts shorter than half of the context branch from each other in generated ways, in contexts in
which few of them have room: in the cache of a sliding window, each sequence has cells of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llama_py import Llama
from llama_py.errors import StateError
from llama_py.memory.sequences import as_tokens, common_prefix
from tests.models import KINDS, tiny_model

from .cuts import CutRecorder
from .oracle import Oracle, nmse

#: Cells of all sequences together, and the window: five of them fill the cache.
N_CTX, WINDOW = 512, 96
HALF = N_CTX // 2


class Step(NamedTuple):
    """A prompt: it begins like that of an earlier step, or of none."""

    back: int
    share: float
    more: int
    reply: int


STEPS = st.lists(
    st.builds(
        Step,
        back=st.integers(0, 4),
        share=st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]),
        more=st.integers(1, 150),
        reply=st.sampled_from([1, 2, 20, 100]),
    ),
    min_size=4,
    max_size=12,
)


class Prompts:
    """Makes prompts, evaluates them, and looks at what was reused."""

    def __init__(self, llm: Llama) -> None:
        self.llm = llm
        self.cache = llm.runtime.loaded.cache
        self.cuts = CutRecorder()
        self.cuts.watch(llm)
        self.begin()

    def begin(self) -> None:
        """Forget everything."""
        self.llm.reset()
        self.done: list[list[int]] = []
        self.next = 0

    def tokens(self, count: int) -> list[int]:
        """So many that no prompt has had at that place."""
        self.next += 1
        return [(self.next * 31 + place * 7) % 400 + 20 for place in range(count)]

    def make(self, step: Step) -> list[int]:
        """The prompt of a step."""
        earlier = self.done[-1 - step.back] if step.back < len(self.done) else []
        start = earlier[: int(step.share * len(earlier))]
        return (start + self.tokens(step.more))[: HALF - 1]

    def call(self, prompt: Sequence[int], reply: int) -> dict[str, Any]:
        """Evaluate it; what was reused."""
        self.llm.create_completion([*prompt], max_tokens=reply, temperature=0.0, ignore_eos=True)
        self.done.append([*prompt])
        info: dict[str, Any] = dict(self.llm.cache_info)
        return info

    def at_least(self, prompt: Sequence[int]) -> int:
        """Tokens of a prompt that the memory is certain to give back, and of its predecessor."""
        if not self.done:
            return 0
        shared = min(common_prefix(as_tokens(self.done[-1]), as_tokens(prompt)), len(prompt) - 1)
        traits = self.cache.traits
        if not traits.needs_checkpoints:
            return shared
        ids = as_tokens(prompt)
        along = self.cache.index.checkpoints_along(ids[: shared + 1], self.cache.namespace)
        return max((place for place in along if place <= shared), default=0)

    def most(self, prompt: Sequence[int]) -> int:
        """Tokens that it shares with anything that was evaluated."""
        ids = as_tokens(prompt)
        shared = max((common_prefix(as_tokens(each), ids) for each in self.done), default=0)
        return min(shared, len(prompt) - 1)


def check(prompts: Prompts, steps: Sequence[Step], oracle: Oracle | None = None) -> None:
    for step in steps:
        prompt = prompts.make(step)
        least, most = prompts.at_least(prompt), prompts.most(prompt)
        info = prompts.call(prompt, step.reply)
        assert info["reused"] >= least, info
        assert info["reused"] >= most or info["reason"], info
        if oracle is not None:
            compare(prompts, oracle)
        again = prompts.call(prompt, 1)
        assert (again["reused"], again["evaluated"]) == (len(prompt) - 1, 1), again
        assert again["reason"] == ""


def compare(prompts: Prompts, oracle: Oracle) -> None:
    """The logits are those of a context that reused nothing."""
    record = prompts.llm.runtime.last.record
    runs, certain = prompts.cuts.runs(record.tokens)
    expected, row = oracle.greedy(record.tokens, len(record.generated), runs)
    error = nmse(prompts.llm.last_logits, row)
    assert error <= (1e-12 if certain else 1e-9), (error, record.cache)
    assert record.generated == expected


def model_of(kind: str) -> Path:
    """With a window that few of have room, where it has one."""
    plain = kind in ("full", "recurrent", "hybrid")
    return tiny_model(kind) if plain else tiny_model(kind, n_swa=WINDOW)


def load(kind: str, *, unified: bool = True, n_seq_max: int = 8) -> Llama:
    return Llama(
        str(model_of(kind)),
        n_ctx=N_CTX if unified else N_CTX * n_seq_max,
        n_seq_max=n_seq_max,
        kv_unified=unified,
        n_ubatch=64,
        n_batch=128,
        n_threads=1,
        flash_attn=False,
        type_k=0,
        type_v=0,
    )


@pytest.mark.parametrize("n_seq_max", [2, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_that_was_just_evaluated_is_reused(kind: str, n_seq_max: int) -> None:
    run(kind, 12, n_seq_max=n_seq_max)


@pytest.mark.parametrize("kind", ["full", "iswa", "hybrid", "hybrid_swa"])
def test_so_it_is_where_each_sequence_has_a_buffer_of_its_own(kind: str) -> None:
    run(kind, 6, n_seq_max=3, unified=False)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("n_seq_max", [2, 3, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_that_was_just_evaluated_is_reused_for_long(kind: str, n_seq_max: int) -> None:
    run(kind, 400, n_seq_max=n_seq_max, random=True)


def run(
    kind: str, examples: int, *, n_seq_max: int, unified: bool = True, random: bool = False
) -> None:
    oracle = Oracle(model_of(kind), n_ctx=N_CTX)
    with load(kind, unified=unified, n_seq_max=n_seq_max) as llm:
        prompts = Prompts(llm)

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=not random,
            suppress_health_check=list(HealthCheck),
        )
        @given(STEPS)
        def reuses(steps: list[Step]) -> None:
            prompts.begin()
            check(prompts, steps, oracle)

        reuses()
    oracle.close()


def test_forks_of_one_prompt_that_fill_the_window_s_cells() -> None:
    """Each has a window of its own, and none is evaluated again for want of room: others go."""
    with load("iswa") as llm:
        prompts = Prompts(llm)
        opening = prompts.tokens(200)
        prompts.call(opening, 2)
        for number in range(8):
            info = prompts.call(opening[:96] + prompts.tokens(50), 2)
            assert (info["reused"], info["reason"]) == (96, differs(96)), number
        assert llm.runtime.loaded.cache.live.cells_used() < N_CTX


def differs(place: int) -> str:
    return f"the prompt differs from what is cached in token {place}"


def test_a_miss_for_want_of_window_cells_says_so() -> None:
    """``opening`` is in memory as a whole, and not its window: of it, nothing can be kept."""
    with load("iswa") as llm:
        prompts = Prompts(llm)
        opening = prompts.tokens(200)
        prompts.call(opening, 120)
        for _ in range(3):
            prompts.call(prompts.tokens(120), 2)
        info = prompts.call(opening[:100] + prompts.tokens(20), 2)
        assert (info["reused"], info["reason"]) == (0, "window cells are gone")


def test_what_could_not_be_brought_back_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with load("iswa") as llm:
        prompts = Prompts(llm)
        opening = prompts.tokens(150)
        prompts.call(opening, 2)

        def refuse(*_args: object, **_options: object) -> None:
            raise StateError("no cells")

        monkeypatch.setattr(llm.runtime.loaded.context, "state_set", refuse)
        info = prompts.call(opening[:80] + prompts.tokens(9), 2)
        assert (info["reused"], info["action"]) == (0, "evaluate")
        assert info["reason"] == "what is cached could not be used: no cells"
