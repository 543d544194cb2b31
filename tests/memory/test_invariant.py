"""Whatever was reused, the logits are those of a fresh context that evaluated the same tokens.

One state machine, run on every kind of memory, does what users do in random order. Each of its
steps ends in a comparison with the oracle (see ``driver.py``).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from tests.memory.driver import N_CTX, Driver
from tests.models import tiny_model

#: Operations in one run of the machine, and runs, in the default suite: 300 and more per kind.
STEPS, RUNS, FEW_RUNS = 50, 10, 4
#: The long run: LLAMA_PY_LONG_RUNS times 50 operations per kind.
LONG_RUNS = int(os.environ.get("LLAMA_PY_LONG_RUNS", "800"))

words = st.lists(st.integers(0, 9), min_size=1, max_size=7)
place = st.integers(0, 7)
few = st.integers(1, 6)

VARIANTS = [
    ("full", False, False),
    ("iswa", False, False),
    ("iswa", True, False),
    ("recurrent", False, False),
    ("hybrid", False, False),
    ("hybrid_swa", False, False),
    ("hybrid_swa", True, False),
]
#: Where each sequence has a buffer of cells of its own.
SEPARATE = [
    ("full", False),
    ("iswa", False),
    ("iswa", True),
    ("hybrid", False),
    ("hybrid_swa", False),
]
#: With flash attention, one token and many are computed differently: tolerance instead of equality.
FLASH = [(kind, False, True) for kind in ("full", "iswa", "recurrent", "hybrid", "hybrid_swa")]


class ReuseMachine(RuleBasedStateMachine):
    """The operations, in any order. ``driver`` is set by the test."""

    driver: Driver

    @initialize()
    def begin(self) -> None:
        self.driver.begin()

    @rule(system=st.integers(0, 2), words=words, session=st.sampled_from([None, "a", "b"]))
    def start(self, system: int, words: list[int], session: str | None) -> None:
        self.driver.start(system, words, session)

    @rule(index=place, words=words, n_reply=few)
    def turn(self, index: int, words: list[int], n_reply: int) -> None:
        self.driver.turn(index, words, n_reply)

    @rule(index=place, words=words, n_reply=few)
    def another_turn(self, index: int, words: list[int], n_reply: int) -> None:
        self.driver.turn(index, words, n_reply)

    @rule(index=place, where=place, words=words)
    def edit(self, index: int, where: int, words: list[int]) -> None:
        self.driver.edit(index, where, words)

    @rule(index=place, n_reply=few)
    def regenerate(self, index: int, n_reply: int) -> None:
        self.driver.regenerate(index, n_reply)

    @rule(index=place)
    def fork(self, index: int) -> None:
        self.driver.fork(index)

    @rule()
    def offload(self) -> None:
        self.driver.offload()

    @rule(pieces=st.integers(0, 9))
    def rest(self, pieces: int) -> None:
        self.driver.rest(pieces)

    @rule(index=place, words=words, after=st.integers(0, 3))
    def cancel(self, index: int, words: list[int], after: int) -> None:
        self.driver.cancel(index, words, after)

    @rule(index=place)
    def overflow(self, index: int) -> None:
        self.driver.overflow(index)

    @rule(name=st.integers(0, 2))
    def snapshot(self, name: int) -> None:
        self.driver.snapshot(name)

    @rule(name=st.integers(0, 2), words=words)
    def restore(self, name: int, words: list[int]) -> None:
        self.driver.restore(name, words)

    @rule(system=st.integers(0, 2))
    def prewarm(self, system: int) -> None:
        self.driver.prewarm(system)

    @rule(index=place, cut=st.integers(0, 300), words=words)
    def raw(self, index: int, cut: int, words: list[int]) -> None:
        self.driver.raw(index, cut, words)

    @rule(index=place, words=words, others=words)
    def together(self, index: int, words: list[int], others: list[int]) -> None:
        self.driver.together(index, words, others)

    @rule(index=place, words=words)
    def beside(self, index: int, words: list[int]) -> None:
        self.driver.beside(index, words)

    @rule(index=place, words=words, n_reply=few, right=st.integers(0, 5))
    def drafted(self, index: int, words: list[int], n_reply: int, right: int) -> None:
        self.driver.drafted(index, words, n_reply, right)

    @rule(index=place, words=words, right=st.integers(0, 5), stop=st.integers(0, 9))
    def drafted_together(self, index: int, words: list[int], right: int, stop: int) -> None:
        self.driver.drafted_together(index, words, right, stop)

    @rule(really=st.integers(0, 9))
    def reset(self, really: int) -> None:
        if really == 0:
            self.driver.reset()

    @rule(really=st.integers(0, 4))
    def disk(self, really: int) -> None:
        if really == 0:
            self.driver.use_disk()

    @rule(really=st.integers(0, 9))
    def reopen(self, really: int) -> None:
        if really == 0:
            self.driver.reopen()


def run(
    kind: str,
    swa_full: bool,
    flash_attn: bool,
    runs: int,
    *,
    kv_unified: bool = True,
    random: bool = False,
    tight: bool = False,
    make: Callable[..., Driver] = Driver,
) -> Driver:
    """Run the machine ``runs`` times on one driver; returns it, with its worst error.

    Args:
        make: the driver.
        tight: sequences have windows as wide as a quarter of the context, which few have room for.
    """
    with tempfile.TemporaryDirectory() as directory:
        driver = make(
            tiny_model(kind, n_swa=N_CTX // 4) if tight else tiny_model(kind),
            Path(directory),
            n_seq_max=6 if tight else 3,
            swa_full=swa_full,
            flash_attn=flash_attn,
            kv_unified=kv_unified,
            tolerance=2e-3 if flash_attn else 1e-12,
        )
        machine = type("Machine", (ReuseMachine,), {"driver": driver})
        try:
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=runs,
                    stateful_step_count=STEPS,
                    deadline=None,
                    database=None,
                    derandomize=not random,
                    print_blob=False,
                    phases=(Phase.explicit, Phase.generate, Phase.shrink),
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            driver.close()
        return driver


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kind", "swa_full", "flash_attn"), VARIANTS)
def test_reuse_equals_a_fresh_context(kind: str, swa_full: bool, flash_attn: bool) -> None:
    driver = run(kind, swa_full, flash_attn, RUNS)
    assert driver.operations >= 300
    assert driver.copied_ahead > 0


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kind", "swa_full", "flash_attn"), FLASH)
def test_reuse_is_close_with_flash_attention(kind: str, swa_full: bool, flash_attn: bool) -> None:
    driver = run(kind, swa_full, flash_attn, FEW_RUNS)
    assert driver.operations >= 100


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["iswa", "hybrid_swa"])
def test_reuse_equals_a_fresh_context_where_windows_have_little_room(kind: str) -> None:
    driver = run(kind, False, False, 6, tight=True)
    assert driver.operations >= 150


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kind", "swa_full"), SEPARATE)
def test_reuse_equals_a_fresh_context_with_separate_buffers(kind: str, swa_full: bool) -> None:
    driver = run(kind, swa_full, False, FEW_RUNS, kv_unified=False)
    assert driver.operations >= 100


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("kind", "swa_full"), SEPARATE)
def test_reuse_with_separate_buffers_for_long(kind: str, swa_full: bool) -> None:
    driver = run(kind, swa_full, False, LONG_RUNS, kv_unified=False, random=True)
    print(f"\n{kind} swa_full={swa_full}: {driver.operations} operations, worst {driver.worst:.1e}")
    assert driver.operations >= 20_000


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("kind", "swa_full", "flash_attn"), VARIANTS)
def test_reuse_equals_a_fresh_context_for_long(kind: str, swa_full: bool, flash_attn: bool) -> None:
    driver = run(kind, swa_full, flash_attn, LONG_RUNS, random=True)
    print(f"\n{kind} swa_full={swa_full}: {driver.operations} operations, worst {driver.worst:.1e}")
    assert driver.operations >= 20_000
