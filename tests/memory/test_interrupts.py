"""Ctrl-C anywhere in the bookkeeping, where the caller steps: later calls are right."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from llama_py import Llama
from tests.memory.oracle import Oracle, nmse
from tests.models import tiny_model

GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 3, "ignore_eos": True}


class Interrupt:
    """Raises KeyboardInterrupt at the ``at``-th line that ``llama_py.memory`` runs."""

    def __init__(self, at: int) -> None:
        self.at, self.lines = at, 0

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        return self.line if "/llama_py/memory/" in frame.f_code.co_filename else None

    def line(self, frame: FrameType, event: str, _: object) -> Any:
        self.lines += event == "line"
        if event == "line" and self.lines == self.at:
            raise KeyboardInterrupt
        return self.line


def interrupted(call: Callable[[], object], at: int) -> int:
    """Run ``call`` and interrupt it; the lines that it ran in ``llama_py.memory``."""
    interrupt, before = Interrupt(at), sys.gettrace()
    sys.settrace(interrupt)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return interrupt.lines


def words(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(40, 460), k=count)


FIRST, SECOND = words(1, 60), words(2, 70)
CALLS = {
    "extended": FIRST + words(3, 8),
    "cut": FIRST[:45] + words(4, 5),
    "offloaded": SECOND + words(5, 5),
    "new": words(6, 50),
}


@pytest.fixture(params=["full", "iswa", "recurrent", "hybrid"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def llm(kind: str) -> Iterator[Llama]:
    path = str(tiny_model(kind))
    options: dict[str, Any] = {
        "n_ctx": 256,
        "n_seq_max": 1,
        "n_ubatch": 32,
        "n_batch": 64,
        "in_place": True,
    }
    with Llama(path, n_threads=1, flash_attn=False, type_k=0, type_v=0, **options) as llm:
        yield llm


def prepare(llm: Llama) -> None:
    llm.reset()
    llm.create_completion(FIRST, **GREEDY)
    llm.create_completion(SECOND, **GREEDY)
    llm.create_completion(CALLS["extended"], **GREEDY)


@pytest.mark.parametrize("points", [12, pytest.param(40, marks=pytest.mark.long)])
def test_an_interrupt_in_the_bookkeeping_spoils_nothing(llm: Llama, kind: str, points: int) -> None:
    """At so many random lines of each of the calls."""
    oracle = Oracle(tiny_model(kind), n_ctx=256)
    expected = {name: oracle.greedy(prompt, 3)[1] for name, prompt in CALLS.items()}
    oracle.close()
    for prompt in CALLS.values():
        prepare(llm)
        lines = interrupted(lambda p=prompt: llm.create_completion(p, **GREEDY), -1)  # type: ignore[misc]
        for at in sorted(random.Random(7).sample(range(1, lines), points)):
            prepare(llm)
            interrupted(lambda p=prompt: llm.create_completion(p, **GREEDY), at)  # type: ignore[misc]
            for name, later in CALLS.items():
                llm.create_completion(later, **GREEDY)
                assert nmse(llm.last_logits, expected[name]) < 1e-9, (at, name, llm.cache_info)
            assert not any(sequence["busy"] for sequence in llm.memory_report()["sequences"])
