"""Conversations on their way to a store: in pieces, once, beside the streams, and exactly."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_py import Llama, LlamaDiskCache, LlamaRAMCache
from llama_py.errors import StateError
from llama_py.memory import saving
from llama_py.memory.sequences import LiveSequence
from tests.memory.stores import all_of, there
from tests.models import KINDS, tiny_model
from tests.patience import PATIENCE

OPTIONS: dict[str, Any] = {
    "n_ctx": 1024,
    "n_seq_max": 2,
    "n_threads": 1,
    "flash_attn": False,
    "type_k": 0,
    "type_v": 0,
}
#: Some 48 cells of the tiny model.
PIECE = 100_000


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_PIECE", PIECE)


@pytest.fixture
def llm() -> Iterator[Llama]:
    with Llama(str(tiny_model("full")), **OPTIONS) as llm:
        yield llm


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LlamaDiskCache]:
    with LlamaDiskCache(tmp_path / "store") as store:
        yield store


def prompt(count: int, first: int = 0) -> list[int]:
    return [50 + (first + 7 * place) % 200 for place in range(count)]


def evaluate(llm: Llama, tokens: list[int]) -> LiveSequence:
    """Evaluate a prompt, and return the sequence that holds it."""
    llm.create_completion(tokens, max_tokens=1, temperature=0)
    return llm.runtime.loaded.cache.live.by_number[llm.cache_info["sequence"]]


def written(store: LlamaDiskCache) -> dict[str, tuple[int, int]]:
    """Size and time of each file."""
    found = {path.name: path.stat() for path in Path(store.cache_dir).rglob("*.s[te]*")}
    return {name: (it.st_size, it.st_mtime_ns) for name, it in found.items()}


# --- cells ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("flash_attn", [False, True])
def test_ranges_of_cells_come_back_bit_for_bit(flash_attn: bool) -> None:
    options = {**OPTIONS, "flash_attn": flash_attn, "n_seq_max": 3}
    with Llama(str(tiny_model("full")), **options) as llm:
        sequence = evaluate(llm, prompt(300))
        context, pool = llm.runtime.loaded.context, llm.runtime.loaded.cache
        whole = context.state_get(sequence.number)
        pool.saving.begin(sequence)
        store = LlamaRAMCache()
        llm.set_cache(store)
        pool.saving.begin(sequence, least=1)
        pool.saving.flush()
        (match,) = store.find(np.array(sequence.tokens, np.int32), pool.fingerprint(()))
        stored = there(store.get(match.key))
        assert len(stored.segments) >= 5
        pool.stores.saved = None
        restored = there(pool.bring_in(stored))
        assert restored.number != sequence.number
        again = context.state_get(restored.number)
        cells = 16 + 12 * len(sequence.tokens)  # positions and sequences come before the cells
        assert np.array_equal(again[cells:], whole[cells:])
        assert np.array_equal(context.state_get(sequence.number), whole)
        spare = there(context.spare)
        assert (spare, context.n_seq_max, context.pos_max(spare)) == (3, 3, -1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_process_goes_on_with_what_was_saved(kind: str, tmp_path: Path) -> None:
    tokens = prompt(400)
    with Llama(str(tiny_model(kind)), **OPTIONS) as llm, LlamaDiskCache(tmp_path) as store:
        llm.set_cache(store)
        evaluate(llm, tokens)
        more = [*tokens, *prompt(60, 3)]
        evaluate(llm, more)
        fresh = llm.create_completion(more, max_tokens=9, temperature=0)["choices"][0]["text"]
    segments = len([*tmp_path.rglob("*.segment")])
    assert segments >= 5 if kind == "full" else segments == 0
    with Llama(str(tiny_model(kind)), **OPTIONS) as llm, LlamaDiskCache(tmp_path) as store:
        llm.set_cache(store)
        again = llm.create_completion(more, max_tokens=9, temperature=0)["choices"][0]["text"]
        assert again == fresh
        assert llm.cache_info["action"] == "load"
        assert llm.cache_info["evaluated"] <= 2


# --- what is written ------------------------------------------------------------------------------


def test_a_turn_writes_only_what_is_new(llm: Llama, store: LlamaDiskCache) -> None:
    llm.set_cache(store)
    tokens = prompt(400)
    evaluate(llm, tokens)
    assert llm.cache.flush()
    before = written(store)
    whole = sum(size for size, _ in before.values())
    for turn in range(4):
        tokens = [*tokens, *prompt(60, turn)]
        evaluate(llm, tokens)
        assert llm.cache.flush()
        now = written(store)
        segments = {name: it for name, it in before.items() if name.endswith(".segment")}
        assert segments.items() <= now.items()
        new = sum(size for name, (size, _) in now.items() if name not in before)
        assert new < whole / 2
        assert len(store) == 1
        before = now


def test_a_branch_shares_the_beginning(llm: Llama, store: LlamaDiskCache) -> None:
    llm.set_cache(store)
    tokens = prompt(300)
    evaluate(llm, tokens)
    assert llm.cache.flush()
    one = store.used_bytes
    evaluate(llm, [*tokens[:250], *prompt(60, 5)])
    assert llm.cache_info["action"] == "fork"
    assert llm.cache.flush()
    assert len(store) == 2
    assert store.used_bytes < 1.6 * one


def test_a_loaded_conversation_is_not_written_again(tmp_path: Path) -> None:
    tokens = prompt(400)
    with Llama(str(tiny_model("full")), **OPTIONS) as llm, LlamaDiskCache(tmp_path) as store:
        llm.set_cache(store)
        evaluate(llm, tokens)
    with Llama(str(tiny_model("full")), **OPTIONS) as llm, LlamaDiskCache(tmp_path) as store:
        before = {name for name in written(store) if name.endswith(".segment")}
        llm.set_cache(store)
        evaluate(llm, [*tokens, *prompt(60, 3)])
        assert llm.cache.flush()
        assert before <= written(store).keys()
        assert len(store) == 1


def test_an_offloaded_conversation_is_not_written_again(llm: Llama, store: LlamaDiskCache) -> None:
    llm.set_cache(store)
    tokens = prompt(400)
    evaluate(llm, tokens)
    for number in (1, 2):
        evaluate(llm, prompt(40, number))
    assert llm.cache.flush()
    before = {name for name in written(store) if name.endswith(".segment")}
    evaluate(llm, [*tokens, *prompt(60, 3)])
    assert llm.cache_info["action"] == "load"
    assert llm.cache.flush()
    assert before <= written(store).keys()
    assert len(store) == 1


def test_one_that_is_offloaded_while_it_is_saved(llm: Llama, store: LlamaDiskCache) -> None:
    pool = llm.runtime.loaded.cache
    tokens = prompt(400)
    sequence = evaluate(llm, tokens)
    pool.stores.saved = store
    pool.saving.begin(sequence)
    pool.live.evict(sequence)
    assert store.wait()
    before = {name for name in written(store) if name.endswith(".segment")}
    assert len(before) > 5
    evaluate(llm, [*tokens, *prompt(60, 3)])
    assert llm.cache_info["action"] == "load"
    assert llm.cache.flush()
    assert before <= written(store).keys()
    assert len(store) == 1


def test_another_store_gets_all_of_it(llm: Llama, store: LlamaDiskCache, tmp_path: Path) -> None:
    llm.set_cache(store)
    tokens = prompt(300)
    evaluate(llm, tokens)
    assert llm.cache.flush()
    with LlamaDiskCache(tmp_path / "other") as other:
        llm.set_cache(other)
        evaluate(llm, [*tokens, *prompt(60, 3)])
        assert llm.cache.flush()
        assert other.used_bytes > store.used_bytes
        store.clear()
        (key,) = other._ledger.keys()
        assert other.get(key) is not None


def test_a_store_that_was_emptied_gets_all_of_it(llm: Llama, store: LlamaDiskCache) -> None:
    llm.set_cache(store)
    tokens = prompt(300)
    evaluate(llm, tokens)
    assert llm.cache.flush()
    store.clear()
    evaluate(llm, [*tokens, *prompt(60, 3)])
    assert llm.cache.flush()
    (key,) = store._ledger.keys()
    assert there(store.get(key)).segments


# --- when -----------------------------------------------------------------------------------------


def test_a_reply_has_ended_before_its_cells_are_copied(
    llm: Llama, store: LlamaDiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []
    get = type(llm.runtime.loaded.context).state_get

    def state_get(self: Any, *args: Any, **kwargs: Any) -> Any:
        closed.append(bool(llm.runtime.loaded.engine.requests.ended))
        return get(self, *args, **kwargs)

    llm.set_cache(store)
    monkeypatch.setattr(type(llm.runtime.loaded.context), "state_get", state_get)
    evaluate(llm, prompt(300))
    assert llm.cache.flush()
    assert len(closed) > 5
    assert all(closed)


def test_a_slow_disk_delays_no_reply(
    llm: Llama, store: LlamaDiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    write = store._segments.write

    def slow(*arguments: Any) -> None:
        go_on.wait(PATIENCE)
        write(*arguments)

    monkeypatch.setattr(store._segments, "write", slow)
    llm.set_cache(store)
    tokens = prompt(300)
    for turn in range(3):
        tokens = [*tokens, *prompt(60, turn)]
        evaluate(llm, tokens)
    assert not llm.cache.flush(0.01)
    go_on.set()
    assert llm.cache.flush()
    assert len(store) == 1


def test_one_step_copies_little(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_BUDGET", 0.0)
    pool = llm.runtime.loaded.cache
    sequence = evaluate(llm, prompt(300))
    pool.stores.saved = LlamaRAMCache()
    pool.saving.begin(sequence)
    (job,) = pool.saving.jobs
    steps = 1
    while pool.saving.step():
        steps += 1
        assert job.segments[-1].nbytes <= PIECE * 1.1
    assert steps > 5
    assert len(pool.stores.saved) == 1
    assert not pool.saving.step()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", [8, 60])
def test_a_conversation_is_offloaded_for_what_a_cut_loses(kind: str, left: int) -> None:
    """With one sequence, an end that is left is cut off: a short one is not worth a copy."""
    with Llama(str(tiny_model(kind)), **{**OPTIONS, "n_seq_max": 1}) as llm:
        tokens = prompt(300)
        llm.create_completion(tokens, max_tokens=left, temperature=0, ignore_eos=True)
        evaluate(llm, [*tokens, *prompt(20, 3)])
        assert llm.cache_info["evaluated"] <= 21
        assert llm.runtime.loaded.cache.stores.offload_store is not None
        assert len(llm.runtime.loaded.cache.stores.offload_store) == (left == 60)


@pytest.mark.parametrize("how", ["evict", "drop", "cut", "clear", "set_cache", "close"])
def test_cells_are_copied_before_they_go(tmp_path: Path, how: str) -> None:
    tokens = prompt(300)
    options = {**OPTIONS, "n_seq_max": 1}
    with LlamaDiskCache(tmp_path) as store, Llama(str(tiny_model("full")), **options) as llm:
        pool = llm.runtime.loaded.cache
        sequence = evaluate(llm, tokens)
        pool.stores.saved = store
        pool.saving.begin(sequence)
        assert len(pool.saving.jobs) == 1
        if how == "cut":
            evaluate(llm, [*tokens[:200], 51, 52, 53])
        elif how == "set_cache":
            llm.set_cache(None)
        elif how == "close":
            llm.close()
        elif how == "clear":
            llm.reset()
        else:
            getattr(pool.live, how)(sequence)
        store.wait()
        lengths = {there(store.info(key)).length for key in all_of(store)}
        assert 300 in lengths


def test_a_conversation_that_goes_on_is_saved_as_it_was(llm: Llama, store: LlamaDiskCache) -> None:
    pool = llm.runtime.loaded.cache
    tokens = prompt(300)
    sequence = evaluate(llm, tokens)
    pool.stores.saved = store
    pool.saving.begin(sequence)
    pool.saving.step()
    for _ in range(3):
        llm.runtime.loaded.engine.evaluate(sequence, [60, 61, 62], every=False)
        pool.saving.step()
    pool.saving.flush()
    assert store.wait()
    (key,) = store._ledger.keys()
    stored = there(store.get(key))
    assert stored.tokens.tolist() == tokens
    fresh = there(pool.bring_in(stored))
    expected = llm.runtime.loaded.engine.evaluate(sequence, [63], every=False)[0]
    for token in (60, 61, 62) * 3:
        llm.runtime.loaded.engine.evaluate(fresh, [token], every=False)
    found = llm.runtime.loaded.engine.evaluate(fresh, [63], every=False)[0]
    assert np.abs(found - expected).max() < 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_is_copied_in_pieces(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes on meanwhile, or has to go, does no harm to it."""
    monkeypatch.setattr(saving, "_BUDGET", 0.0)
    with Llama(str(tiny_model(kind)), **OPTIONS) as llm:
        tokens = prompt(300)
        sequence = evaluate(llm, tokens)
        expected = llm.runtime.loaded.engine.evaluate(sequence, [60], every=False)[0]
        pool = llm.runtime.loaded.cache
        copying = pool.saving.copy(sequence)
        while copying.result is None and pool.saving.advance(copying):
            if len(sequence.tokens) < 310:
                llm.runtime.loaded.engine.evaluate(sequence, [61], every=False)
            elif sequence in pool.live:
                pool.live.evict(sequence)
        stored = there(copying.result)
        assert stored.tokens.tolist() == [*tokens, 60]
        assert len(stored.segments) >= 5 if kind == "full" else stored.segments == ()
        llm.reset()
        fresh = there(pool.bring_in(stored))
        pool.saving.flush()
        found = llm.runtime.loaded.engine.evaluate(fresh, [62], every=False)[0]
        llm.reset()
        again = llm.runtime.loaded.engine.evaluate(evaluate(llm, [*tokens, 60]), [62], every=False)[
            0
        ]
        assert np.abs(found - again).max() < 1e-3
        assert np.abs(found - expected).max() > 1e-3


def test_a_copy_whose_cells_are_lost_is_an_error(
    llm: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "_BUDGET", 0.0)
    pool = llm.runtime.loaded.cache
    sequence = evaluate(llm, prompt(300))
    copying = pool.saving.copy(sequence)
    llm.runtime.loaded.context.seq_rm(sequence.number, 100, -1)
    pool.live.trim(sequence)
    with pytest.raises(StateError, match="cells"):
        pool.saving.advance(copying)


# --- what cannot be saved -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "hybrid"])
def test_what_the_store_cannot_take_is_never_copied(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[int] = []
    with Llama(str(tiny_model(kind)), **OPTIONS) as llm:
        get = type(llm.runtime.loaded.context).state_get

        def state_get(self: Any, seq: int, *, partial: bool = False) -> Any:
            if not partial:
                copies.append(seq)
            return get(self, seq, partial=partial)

        monkeypatch.setattr(type(llm.runtime.loaded.context), "state_get", state_get)
        llm.runtime.loaded.cache.stores.offload_store = LlamaRAMCache(10_000)
        llm.set_cache(saved := LlamaRAMCache(10_000))
        for number in range(4):
            evaluate(llm, prompt(100, number))
        assert llm.runtime.loaded.cache.stores.dropped == 2
        assert saved.stats().refused == 4
        assert copies == []


def test_what_fits_is_saved_whatever_was_copied_before_it(llm: Llama) -> None:
    """A state of one token has more bytes for each than a long one."""
    evaluate(llm, prompt(1))
    llm.save_state()
    sequence = evaluate(llm, prompt(900, 1))
    pool, context = llm.runtime.loaded.cache, llm.runtime.loaded.context
    store = LlamaRAMCache(int(1.03 * context.state_size(sequence.number)))
    llm.set_cache(store)
    pool.saving.begin(sequence, least=1)
    pool.saving.flush()
    assert (len(store), store.stats().refused) == (1, 0)


def test_a_disk_that_fails_fails_no_request(
    llm: Llama,
    store: LlamaDiskCache,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    llm.set_cache(store)
    tokens = prompt(300)
    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING, "llama_py"):
        broken.setattr(store._segments, "write", full)
        evaluate(llm, tokens)
        assert llm.cache.flush()
    assert ["No space left" in record.message for record in caplog.records] == [True]
    assert (len(store), written(store)) == (0, {})
    evaluate(llm, [*tokens, *prompt(60, 3)])
    assert llm.cache.flush()
    (key,) = store._ledger.keys()
    assert there(store.get(key)).segments


def test_a_store_that_is_closed_is_given_up(llm: Llama, store: LlamaDiskCache) -> None:
    llm.set_cache(store)
    sequence = evaluate(llm, prompt(300))
    llm.runtime.loaded.cache.saving.begin(sequence, least=0)
    sequence.saved_length = 0
    llm.runtime.loaded.cache.saving.begin(sequence)
    store.close()
    evaluate(llm, prompt(300, 1))
    assert llm.runtime.loaded.cache.stores.saved is None
    assert llm.cache.flush()


def test_a_context_without_a_spare_sequence_saves_whole(tmp_path: Path) -> None:
    options = {**OPTIONS, "n_seq_max": 256}
    with LlamaDiskCache(tmp_path) as store, Llama(str(tiny_model("full")), **options) as llm:
        assert llm.runtime.loaded.context.spare is None
        llm.set_cache(store)
        evaluate(llm, prompt(300))
        assert llm.cache.flush()
        (key,) = store._ledger.keys()
        assert there(store.get(key)).segments == ()


@pytest.mark.parametrize("make", [LlamaRAMCache, None])
def test_what_another_store_has_is_not_taken_for_what_this_one_has(
    make: Any, llm: Llama, tmp_path: Path
) -> None:
    def made(name: str) -> Any:
        return make() if make else LlamaDiskCache(tmp_path / name)

    one, two = made("one"), made("two")
    llm.set_cache(two)
    evaluate(llm, prompt(400, 3))
    llm.set_cache(one)
    evaluate(llm, prompt(400))
    llm.set_cache(two)
    tokens = prompt(460)
    evaluate(llm, tokens)
    text = llm.create_completion(tokens, max_tokens=9, temperature=0)["choices"][0]["text"]
    assert llm.cache.flush()
    llm.reset()
    again = llm.create_completion(tokens, max_tokens=9, temperature=0)["choices"][0]["text"]
    assert llm.cache_info["action"] == "load"
    assert again == text
    one.close()
    two.close()


def evaluate_while(llm: Llama, tokens: list[int], do: Callable[[], None]) -> None:
    """Call ``do`` when the first token of a short reply was sampled."""

    left = [do]

    def first(tokens: Any, logits: Any) -> bool:
        while left:
            left.pop()()
        return False

    llm.create_completion(
        tokens, max_tokens=3, temperature=0, ignore_eos=True, stopping_criteria=[first]
    )
    assert not left


def test_what_another_process_evicts_meanwhile_is_written_again(
    llm: Llama, store: LlamaDiskCache
) -> None:
    llm.set_cache(store)
    evaluate(llm, prompt(400))
    assert llm.cache.flush()
    with LlamaDiskCache(store.cache_dir) as other:
        assert len(other) == 1
        evaluate_while(llm, prompt(460), other.clear)
        assert llm.cache.flush()
        assert len(other) == 1


def test_what_was_evicted_is_written_again_however_little_it_grew(
    llm: Llama, store: LlamaDiskCache
) -> None:
    llm.set_cache(store)
    sequence = evaluate(llm, prompt(400))
    assert llm.cache.flush()
    store.discard(there(sequence.saved_key))
    assert len(store) == 0
    evaluate(llm, prompt(410))
    assert llm.cache.flush()
    assert len(store) == 1


def test_a_store_that_is_closed_meanwhile_fails_no_request(
    store: LlamaDiskCache, caplog: pytest.LogCaptureFixture
) -> None:
    with Llama(str(tiny_model("full")), **OPTIONS, parking_bytes=0) as llm:
        llm.set_cache(store)
        evaluate_while(llm, prompt(100), store.close)
        assert llm.runtime.loaded.cache.stores.saved is None
        assert "failed" not in caplog.text


SCRIPT = """
import sys
from llama_py import Llama, LlamaDiskCache
from llama_py.memory import saving

saving._PIECE = 30_000
saving.Saving.step = lambda self: False  # nothing is saved beside the steps
llm = Llama(sys.argv[1], n_ctx=1024, n_threads=1, in_place=sys.argv[3] == "in place")
llm.set_cache(LlamaDiskCache(sys.argv[2]))
llm.create_completion([50 + 7 * place % 200 for place in range(400)], max_tokens=1)
"""


@pytest.mark.parametrize("stepped", ["in place", "by a thread"])
def test_the_end_of_the_process_saves_what_is_left(stepped: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tiny_model("full")), str(tmp_path), stepped]
    subprocess.run(command, cwd=Path(__file__).parents[2], check=True, timeout=PATIENCE)
    with LlamaDiskCache(tmp_path) as store:
        assert len(store) == 1
