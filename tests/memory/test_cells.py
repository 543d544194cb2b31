"""Which cells are the same: forks share them, and a store keeps one copy of what they share."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_py import Llama, LlamaDiskCache
from llama_py.memory import saving
from llama_py.memory.sequences import LiveSequence, Runs, cells_of, cut_at, first_run
from tests.counting import copied_from
from tests.memory.oracle import Oracle, nmse
from tests.models import tiny_model

PIECE = 100_000  # some 48 cells of the tiny model
SHARED = 400
OWN = 60


def prompt(count: int, first: int = 0) -> list[int]:
    return [50 + (first + 7 * place) % 200 for place in range(count)]


def branch(number: int) -> list[int]:
    """A prompt that begins like those of the other numbers."""
    return [*prompt(SHARED), *prompt(OWN, 11 * number + 1)]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_PIECE", PIECE)


def load(n_seq_max: int) -> Llama:
    options: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "flash_attn": False}
    return Llama(str(tiny_model("full")), n_seq_max=n_seq_max, **options, type_k=0, type_v=0)


@pytest.fixture
def llm() -> Iterator[Llama]:
    with load(4) as llm:
        yield llm


def evaluate(llm: Llama, tokens: list[int]) -> LiveSequence:
    llm.create_completion(tokens, max_tokens=1, temperature=0)
    return llm.runtime.loaded.cache.live.by_number[llm.cache_info["sequence"]]


def offload_all(llm: Llama) -> int:
    """Offload every conversation; returns the bytes that all copies take."""
    cache = llm.runtime.loaded.cache
    while cache.live.make_room():
        pass
    assert cache.live.by_number == {}
    assert cache.stores.offload_store is not None
    return cache.stores.offload_store.used_bytes


def comes_back(llm: Llama, tokens: list[int]) -> None:
    """An offloaded conversation goes on, and its logits are those of a fresh context."""
    more = [*tokens, *prompt(5, 3)]
    evaluate(llm, more)
    assert llm.cache_info["action"] in ("load", "fork", "continue")
    assert llm.cache_info["evaluated"] <= OWN + 6
    expected = Oracle(tiny_model("full")).logits(more)
    assert nmse(llm.last_logits, expected) < 1e-9


# --- names ----------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["grow", "cut", "fork"]), st.integers(0, 7),
                          st.integers(0, 30)), max_size=30))  # fmt: skip
def test_equal_names_are_equal_cells(steps: list[tuple[str, int, int]]) -> None:
    """Beside a list of the cells themselves, each of which is evaluated once."""
    fresh = itertools.count()
    held: list[tuple[Runs, list[int]]] = [(first_run(), [])]
    for action, which, count in steps:
        runs, cells = held[which % len(held)]
        keep = count % (len(cells) + 1)
        if action == "grow":
            cells.extend(next(fresh) for _ in range(count))
        elif action == "cut":
            held[which % len(held)] = (cut_at(runs, keep), cells[:keep])
        else:
            held.append((cut_at(runs, keep), cells[:keep]))
    for (runs, cells), (others, other_cells) in itertools.combinations(held, 2):
        for start, end in ((0, 1), (0, 7), (3, 9), (5, 6), (10, 30)):
            if end <= min(len(cells), len(other_cells)):
                same = cells[start:end] == other_cells[start:end]
                assert (cells_of(runs, start, end) == cells_of(others, start, end)) == same


# --- what the stores keep -------------------------------------------------------------------------


def test_offloaded_branches_share_their_beginning(llm: Llama) -> None:
    evaluate(llm, branch(0))
    alone = offload_all(llm)
    llm.reset()
    for number in range(4):
        evaluate(llm, branch(number))
        assert llm.cache_info["action"] == ("fork" if number else "evaluate")
    assert offload_all(llm) < alone * (1 + 3 * 2 * (OWN + 48) / (SHARED + OWN))
    assert llm.runtime.loaded.cache.stores.offload_store is not None
    assert len(llm.runtime.loaded.cache.stores.offload_store) == 4
    for number in range(4):
        comes_back(llm, branch(number))


def test_saved_branches_share_what_was_evaluated_before_either_was_saved(
    llm: Llama, tmp_path: Path
) -> None:
    sequences = [evaluate(llm, branch(number)) for number in range(4)]
    with LlamaDiskCache(tmp_path) as store:
        llm.set_cache(store)
        llm.runtime.loaded.cache.saving.begin(sequences[0], least=1)
        assert llm.cache.flush()
        alone = store.used_bytes
        for sequence in sequences[1:]:
            llm.runtime.loaded.cache.saving.begin(sequence, least=1)
        assert llm.cache.flush()
        assert len(store) == 4
        assert store.used_bytes < alone * (1 + 3 * 2 * (OWN + 48) / (SHARED + OWN))
        llm.reset()
        for number in range(4):
            comes_back(llm, branch(number))
            llm.reset()


def test_equal_tokens_that_were_evaluated_twice_are_kept_twice(llm: Llama) -> None:
    evaluate(llm, branch(0))
    alone = offload_all(llm)
    llm.reset()
    llm.runtime.loaded.cache.limits = dataclasses.replace(
        llm.runtime.loaded.cache.limits, reuse=False
    )
    one, two = (evaluate(llm, branch(number)) for number in range(2))
    assert cells_of(one.runs, 0, 48) != cells_of(two.runs, 0, 48)
    assert offload_all(llm) > 1.9 * alone


def test_what_comes_back_and_grows_is_copied_as_far_as_it_is_new(
    llm: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(llm, branch(0))
    whole = offload_all(llm)
    comes_back(llm, branch(0))
    copied = copied_from(llm.runtime.loaded.context, monkeypatch)
    assert offload_all(llm) < 1.2 * whole
    assert sum(copied) < 2.5 * PIECE


@pytest.mark.parametrize("n_seq_max", [1, 4])
def test_what_replaces_an_end_is_not_taken_for_it(n_seq_max: int) -> None:
    """With one sequence it is cut in place, with several a fork of it is."""
    with load(n_seq_max) as llm:
        evaluate(llm, branch(0))
        offload_all(llm)
        comes_back(llm, branch(0))
        shortened = [*branch(0)[: SHARED - 100], *prompt(200, 31)]
        evaluate(llm, shortened)
        assert llm.cache_info["action"] == ("continue" if n_seq_max == 1 else "fork")
        offload_all(llm)
        comes_back(llm, shortened)
        offload_all(llm)
        comes_back(llm, branch(0))


def test_a_copy_that_is_given_up_takes_nothing_from_another(llm: Llama) -> None:
    """Two are copied at once and share segments; one goes on, so that its copy is dropped."""
    sequences = [evaluate(llm, branch(number)) for number in range(2)]
    saving_ = llm.runtime.loaded.cache.saving
    first, second = (saving_.offload(sequence) for sequence in sequences)
    assert first is not None
    assert second is not None
    for _ in range(3):
        saving_._advance(first)
    saving_._advance(second)
    assert second.segments[:3] == first.segments[:3]
    sequences[0].busy = True
    assert saving_.hurry([first, second])
    sequences[0].busy = False
    while saving_.step():
        pass
    assert first.error is not None
    assert sequences[1].offloaded_key is not None
    offload_all(llm)
    comes_back(llm, branch(1))
    comes_back(llm, branch(0))
