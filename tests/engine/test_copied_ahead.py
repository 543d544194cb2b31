"""Conversations that make room for each other are copied while nobody asks, and not while somebody
waits."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llama_py import Llama
from tests.models import tiny_model
from tests.patience import PATIENCE

ONE, OTHER, THIRD = "alpha " * 60, "beta " * 70, "gamma " * 50


def load(kind: str = "full", **options: Any) -> Llama:
    given: dict[str, Any] = {"n_ctx": 1024, "n_seq_max": 1, "n_threads": 1, **options}
    return Llama(str(tiny_model(kind)), verbose=False, **given)


def ask(llm: Llama, prompt: str) -> str:
    return str(llm.create_completion(prompt, max_tokens=4, temperature=0.0)["choices"][0]["text"])


def copied(llm: Llama, count: int) -> bool:
    """Whether so many conversations are in the store, as soon as they can be."""
    loaded, end = llm.runtime.loaded, time.monotonic() + PATIENCE
    store = loaded.cache.stores.offload_store
    assert store is not None
    while len(store) < count and time.monotonic() < end:
        time.sleep(0.01)
    return len(store) == count


def rests(llm: Llama) -> None:
    """Wait until the engine has copied what it wants to, if it does."""
    loaded, end = llm.runtime.loaded, time.monotonic() + PATIENCE

    def done() -> bool:
        return not (loaded.engine.may_copy_ahead or loaded.cache.saving.jobs)

    time.sleep(0.2)
    while not loaded.driver.run(done) and time.monotonic() < end:
        time.sleep(0.2)  # what is run keeps the engine from it


def watched(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each state that is copied out of the context from now on; checkpoints are none."""
    context, made = llm.runtime.loaded.context, list[int]()
    state_get = context.state_get

    def get(seq: int, *, partial: bool = False) -> NDArray[np.uint8]:
        state = state_get(seq, partial=partial)
        made.extend([] if partial else [state.nbytes])
        return state

    monkeypatch.setattr(context, "state_get", get)
    return made


@pytest.mark.parametrize("kind", ["full", "iswa", "recurrent", "hybrid"])
def test_who_comes_back_waits_for_no_copy(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(kind) as llm, load(kind, parking_bytes=0) as fresh:
        ask(llm, ONE)
        ask(llm, OTHER)
        rests(llm)
        made = watched(llm, monkeypatch)
        for prompt in (ONE, OTHER, ONE):
            said, during = ask(llm, prompt + "and?"), [*made]
            assert not during, "the other one was copied before"
            assert llm.runtime.last.record.cache["action"] in ("load", "restore")
            fresh.reset()
            assert said == ask(fresh, prompt + "and?")
            rests(llm)
            made.clear()


def test_a_single_conversation_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    with load() as llm:
        made = watched(llm, monkeypatch)
        said = ONE
        for _ in range(3):
            said += ask(llm, said) + " more"
            rests(llm)
        assert not made
        store = llm.runtime.loaded.cache.stores.offload_store
        assert store is not None
        assert len(store) == 0


def test_no_older_copy_goes_for_one_that_may_not_be_needed() -> None:
    with load() as llm:
        state = len(llm.runtime.loaded.context.state_get(0)) if ask(llm, ONE) else 0
        assert state
    with load(parking_bytes=int(1.5 * state)) as llm:
        ask(llm, ONE)
        ask(llm, OTHER)
        rests(llm)
        store = llm.runtime.loaded.cache.stores.offload_store
        assert store is not None
        assert len(store) == 1
        ask(llm, ONE + "and?")
        assert llm.runtime.last.record.cache["action"] == "load"


def test_who_asks_at_once_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy begins when nobody has asked for a while, not right behind a reply."""
    with load() as llm:
        ask(llm, ONE)
        made = watched(llm, monkeypatch)
        said = OTHER + ask(llm, OTHER)
        count = len(made)  # the first one had to make room
        said += ask(llm, said)
        assert len(made) == count
        assert copied(llm, 2)
        assert len(made) > count


def test_what_shares_cells_is_copied_before_they_run_out() -> None:
    with load(n_seq_max=4, n_ctx=512) as llm:
        for prompt in (ONE, OTHER, THIRD):
            ask(llm, prompt)
        assert copied(llm, 3), "one as long as the last one would displace both"


def test_conversations_that_begin_alike_make_room_for_each_other_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next one goes on in the same sequence, behind what both begin with."""
    with load() as llm:
        for prompt in (ONE, ONE[:60] + OTHER):
            ask(llm, prompt)
        rests(llm)
        made = watched(llm, monkeypatch)
        ask(llm, ONE + "and?")
        during = [*made]
        assert llm.runtime.last.record.cache["action"] == "load"
        assert not during
