"""Batches of several micro-batches, while sequences share the cells of a sliding window.

Before llama.cpp computes a batch, it places all of its micro-batches on trial, and what that
removed was not brought back: the first ones were computed without cells that they attend to. It
takes several sequences whose cells lie in disorder, so sequences are drawn at random, and every row
of logits is compared with a fresh evaluation of the same tokens.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from llama_py._native.loader import build_info, library
from llama_py.core.batch import Batch
from llama_py.core.context import Context
from llama_py.core.model import Model
from llama_py.params import ContextParams
from tests.memory.oracle import Oracle, nmse
from tests.models import Kind, tiny_model

N_CTX, N_SEQ, N_BATCH = 1024, 4, 128
Plan = list[tuple[int, list[int]]]


class Shared:
    """Sequences in one context, and what each of them holds."""

    def __init__(self, path: Path, seed: int, *, n_ubatch: int) -> None:
        self.random = random.Random(seed)
        self.model = Model(path)
        settings = ContextParams(
            n_ctx=N_CTX,
            n_seq_max=N_SEQ,
            n_threads=1,
            flash_attn=False,
            swa_full=False,
            kv_unified=True,
            type_k=0,
            type_v=0,
            n_ubatch=n_ubatch,
            n_batch=N_BATCH,
        )
        self.context = Context(self.model, settings)
        self.batch = Batch(N_BATCH)
        self.held: dict[int, list[int]] = {number: [] for number in range(N_SEQ)}

    def forget(self, number: int) -> None:
        self.context.seq_rm(number, -1, -1)
        self.held[number] = []

    def fork(self) -> None:
        """Let one sequence hold what another one holds."""
        source, target = self.random.sample(range(N_SEQ), 2)
        self.forget(target)
        self.context.seq_cp(source, target)
        self.held[target] = [*self.held[source]]

    def draw(self) -> Plan:
        """Further tokens for one to three sequences: one, a few, or a chunk of a prompt."""
        room, plan = N_BATCH, Plan()
        for number in self.random.sample(range(N_SEQ), self.random.randint(1, 3)):
            count = self.random.choice([1, 1, 6, self.random.randint(1, max(1, room))])
            count = min(count, room, N_CTX - 24 - len(self.held[number]))
            if count > 0:
                tokens = [self.random.randrange(20, 250) for _ in range(count)]
                plan.append((number, tokens))
                room -= count
        return plan

    def decode(self, plan: Plan) -> Iterator[tuple[list[int], int]]:
        """Evaluate a plan; what each sequence holds then, and the row of its logits."""
        self.batch.clear()
        rows = []
        for number, tokens in plan:
            first = self.batch.add(tokens, len(self.held[number]), number, False)
            rows.append(first + len(tokens) - 1)
            self.batch.outputs[rows[-1]] = 1
        assert self.context.decode(self.batch) == 0
        for (number, tokens), row in zip(plan, rows, strict=True):
            self.held[number] = self.held[number] + tokens
            yield self.held[number], row

    def make_room(self) -> None:
        """Forget the longest sequence, if a batch more might not fit."""
        if sum(map(len, self.held.values())) + N_BATCH > N_CTX - 24:
            self.forget(max(self.held, key=lambda number: len(self.held[number])))


def errors(shared: Shared, oracle: Oracle, steps: int) -> Iterator[float]:
    """The error of each row of logits, in so many random steps."""
    for _ in range(steps):
        chance = shared.random.random()
        if chance < 0.1:
            shared.forget(shared.random.randrange(N_SEQ))
        elif chance < 0.15:
            shared.fork()
        else:
            plan = shared.draw()
            shared.make_room()
            for held, row in shared.decode(plan):
                yield nmse(shared.context.logits(row), oracle.logits(held))


def greatest_error(kind: Kind, window: int) -> float:
    path = tiny_model(kind, n_swa=window)
    shared, oracle = Shared(path, seed=1, n_ubatch=32), Oracle(path, n_ctx=N_CTX)
    try:
        return max(errors(shared, oracle, 150))
    finally:
        shared.context.close()
        shared.model.close()
        oracle.close()


@pytest.mark.parametrize(("kind", "window"), [("iswa", 128), ("hybrid_swa", 64)])
def test_every_row_sees_its_whole_window(kind: Kind, window: int) -> None:
    assert greatest_error(kind, window) < 1e-9


def test_without_the_rule_rows_miss_cells() -> None:
    """When this fails, llama.cpp keeps the cells itself, and the rule may have done its work."""
    if build_info()["rules"].get("LLAMA_PY_WINDOW_CELLS") != "applied":
        pytest.skip("this build leaves llama.cpp's lines as they are")
    removes = ctypes.c_ubyte.in_dll(library("llama"), "llama_py_trials_remove")
    removes.value = 1
    try:
        assert greatest_error("iswa", 128) > 1e-6
    finally:
        removes.value = 0
