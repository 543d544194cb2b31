"""A large stored conversation is loaded piece by piece, while others generate."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_py import LlamaDiskCache
from llama_py.api.kept.conversations import Conversations
from llama_py.errors import StateError
from llama_py.memory import saving, state_loader
from tests.engine.rig import Asked, Rig, ask, words
from tests.engine.test_making_room import PIECE, copies, streaming
from tests.patience import PATIENCE

IDLE, NEXT = words(1, 400), words(4, 5)


@pytest.fixture(autouse=True)
def one_piece_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (saving, state_loader):
        monkeypatch.setattr(module, "_BUDGET", 0.0)
    monkeypatch.setattr(saving, "_HURRY", 0.0)


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A conversation is offloaded."""
    rig = Rig("full", n_seq_max=3)
    rig.cache.saving.piece = PIECE
    rig.run(ask(IDLE, 2))
    offload(rig)
    yield rig
    rig.close()


def offload(rig: Rig) -> None:
    """Offload what is in memory."""
    for sequence in [*rig.cache.live]:
        rig.cache.live.evict(sequence)


def loads(rig: Rig, patch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each state that is loaded into the context."""
    made: list[int] = []
    state_set = rig.context.state_set

    def watched(sequence: int, state: Any, *, partial: bool = False) -> None:
        made.append(len(state))
        state_set(sequence, state, partial=partial)

    patch.setattr(rig.context, "state_set", watched)
    return made


def follow_up() -> Asked:
    """The next turn of the conversation."""
    return ask([*IDLE, *NEXT], 6)


def check_loaded(rig: Rig, asked: Asked) -> None:
    rig.check(asked)
    assert asked.record.cache["action"] == "load"
    assert asked.record.cache["reused"] >= len(IDLE)
    assert asked.record.cache["restored_bytes"] > 10 * PIECE


def test_a_stream_goes_on_while_a_conversation_is_loaded(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, back = streaming(rig), follow_up()
    made, before = loads(rig, monkeypatch), len(stream.generated)
    rig.submit(back)
    rig.step_until(lambda: back.started)
    assert len(made) > 15
    assert max(made) < 1.5 * PIECE, "nothing was loaded whole"
    assert len(stream.generated) - before >= len(made) - 1, "a token with each piece"
    rig.read(back, stream)
    rig.check(stream)
    check_loaded(rig, back)
    rig.check_at_rest()


def test_what_is_on_disk_is_read_by_a_thread(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LlamaDiskCache(tmp_path) as disk:
        rig.llm.set_cache(disk)
        rig.run(ask(IDLE, 2))
        assert rig.llm.cache.flush(20)
        rig.llm.reset()
        stream, back = streaming(rig), follow_up()
        get, go_on, threads = disk.get, threading.Event(), []

        def slow(key: str) -> Any:
            threads.append(threading.current_thread())
            assert go_on.wait(PATIENCE)
            return get(key)

        monkeypatch.setattr(disk, "get", slow)
        made, before = loads(rig, monkeypatch), len(stream.generated)
        rig.submit(back)
        for _ in range(5):
            rig.step()
        assert len(stream.generated) - before >= 5, "the disk keeps nobody waiting"
        assert not back.started
        go_on.set()
        rig.step_until(lambda: back.started)
        assert len(threads) == 1
        assert threads[0] is not threading.current_thread()
        assert max(made) < 1.5 * PIECE
        rig.read(back, stream)
        rig.check(stream)
        check_loaded(rig, back)
        rig.check_at_rest()
        rig.llm.set_cache(None)


def test_with_nobody_beside_it_is_loaded_at_once(rig: Rig) -> None:
    rig.submit(back := follow_up())
    rig.step()
    assert back.started
    rig.read(back)
    check_loaded(rig, back)


@pytest.mark.parametrize("steps", [1, 4])
def test_who_waits_does_not_wait_for_streams_that_have_ended(rig: Rig, steps: int) -> None:
    stream, back = streaming(rig), follow_up()
    rig.submit(back)
    for _ in range(steps):
        rig.step()
    waits = not back.started
    rig.cancel(stream)
    rig.step_until(lambda: stream.ended)
    rig.step()
    assert waits
    assert back.started
    rig.read(back)
    check_loaded(rig, back)
    rig.check_at_rest()


@pytest.mark.parametrize("steps", [1, 4, 8])
def test_who_waits_may_leave(rig: Rig, steps: int) -> None:
    stream, back = streaming(rig), follow_up()
    rig.submit(back)
    for _ in range(steps):
        rig.step()
    rig.cancel(back)
    rig.read(stream)
    rig.check(stream)
    rig.check_at_rest()
    rig.run(back := follow_up())
    check_loaded(rig, back)


def test_a_reset_in_the_middle(rig: Rig) -> None:
    stream, back = streaming(rig), follow_up()
    rig.submit(back)
    for _ in range(4):
        rig.step()
    rig.llm.reset(cancel=True)
    assert rig.cache.live.by_number == {}
    rig.run(again := follow_up())
    rig.check(again)
    assert again.record.cache["action"] == "evaluate"
    rig.check_at_rest()
    assert stream.ended


def test_an_interrupt_in_the_middle_of_a_step_forgets_it(rig: Rig) -> None:
    _stream, back = streaming(rig), follow_up()
    rig.submit(back)
    for _ in range(4):
        rig.step()
    assert rig.cache.transfers._loads
    rig.driver._inside = True  # as an interrupt leaves it
    rig.run(again := follow_up())
    rig.check(again)
    assert not rig.cache.transfers._loads
    rig.check_at_rest()


def test_two_that_go_on_from_the_same(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = streaming(rig)
    made = loads(rig, monkeypatch)
    one, two = follow_up(), ask([*IDLE, *words(5, 6)], 6)
    rig.submit(one)
    rig.submit(two)
    rig.step_until(lambda: one.started and two.started)
    assert sum(made) < 1.2 * rig.cache.stores.offload_store.stats().used_bytes  # type: ignore[union-attr]
    rig.read(one, two, stream)
    rig.check(two, stream)
    check_loaded(rig, one)
    assert two.record.cache["action"] == "fork"
    assert two.record.cache["reused"] >= len(IDLE)
    rig.check_at_rest()


def test_two_that_go_on_from_different_ones() -> None:
    rig = Rig("full", n_seq_max=4)
    rig.cache.saving.piece = PIECE
    other = words(6, 300)
    rig.run(ask(IDLE, 2), ask(other, 2))
    offload(rig)
    stream = streaming(rig)
    one, two = follow_up(), ask([*other, *NEXT], 6)
    rig.submit(one)
    rig.submit(two)
    rig.read(one, two, stream)
    rig.check(two, stream)
    check_loaded(rig, one)
    assert two.record.cache["action"] == "load"
    rig.check_at_rest()
    rig.close()


def test_others_make_room_for_it_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one is copied out before the other one is loaded."""
    rig = Rig("full", n_seq_max=2)
    rig.cache.saving.piece = PIECE
    other = words(6, 300)
    rig.run(ask(IDLE, 2))
    offload(rig)
    rig.run(ask(other, 2))
    stream, back = streaming(rig), follow_up()
    made, copied = loads(rig, monkeypatch), copies(rig, monkeypatch)
    before = len(stream.generated)
    rig.submit(back)
    rig.step_until(lambda: back.started)
    assert max(made) < 1.5 * PIECE
    assert max(size for _, size in copied) < 1.5 * PIECE
    assert len(stream.generated) - before >= len(made) + len(copied) - 2
    rig.read(back, stream)
    rig.check(stream)
    check_loaded(rig, back)
    rig.run(again := ask([*other, *NEXT], 4))
    rig.check(again)
    assert again.record.cache["action"] == "load"
    rig.check_at_rest()
    rig.close()


def test_cells_that_run_out_meanwhile() -> None:
    """Streams need what is being loaded into: they go on, and in the end so does who waits."""
    rig = Rig("full", n_ctx=640, n_seq_max=4)
    rig.cache.saving.piece = 10_000
    rig.run(ask(IDLE, 2))
    offload(rig)
    streams = [ask(words(seed, 100), 110) for seed in (2, 3)]
    rig.submit(*streams)
    rig.step_until(lambda: all(len(each.generated) > 15 for each in streams))
    back = follow_up()
    rig.submit(back)
    rig.read(*streams, back)
    rig.check(*streams, back)
    rig.check_at_rest()
    rig.close()


@pytest.mark.parametrize("broken", ["cells", "store", "read"])
def test_what_cannot_be_loaded_is_evaluated(
    rig: Rig, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, back = streaming(rig), follow_up()
    offload_store = rig.cache.stores.offload_store
    assert offload_store is not None
    if broken == "cells":
        state_set, count = rig.context.state_set, 0

        def fails(*arguments: Any, **options: Any) -> None:
            nonlocal count
            count += 1
            if count > 5:
                raise StateError("damaged")
            state_set(*arguments, **options)

        monkeypatch.setattr(rig.context, "state_set", fails)
    elif broken == "store":
        monkeypatch.setattr(offload_store, "get", lambda _key: None)
    rig.submit(back)
    if broken == "read":
        rig.step()
        (running,) = rig.engine.requests.waiting
        assert rig.cache.transfers.load_of(running) is not None
        monkeypatch.setattr(rig.cache.loader, "_append", _raises)
    rig.read(back, stream)
    rig.check(back, stream)
    assert back.record.cache["action"] == ("load" if broken == "read" else "evaluate")
    rig.check_at_rest()


def _raises(*_: Any) -> None:
    raise MemoryError("no memory")


def test_nothing_is_found_before_it_is_loaded(rig: Rig) -> None:
    """A prompt that begins in the same way is not given a sequence that holds a part of it."""
    stream, back = streaming(rig), follow_up()
    rig.submit(back)
    for _ in range(6):
        rig.step()
    (busy,) = [it for it in rig.cache.live if it.busy and it.tokens[:9] == IDLE[:9]]
    assert 0 < len(busy.tokens) < len(IDLE)
    assert busy.tokens == IDLE[: len(busy.tokens)]
    assert rig.context.pos_max(busy.number) + 1 == len(busy.tokens)
    other = ask(IDLE[:20], 4)
    rig.submit(other)
    rig.read(other, back, stream)
    rig.check(other, stream)
    check_loaded(rig, back)
    rig.check_at_rest()


@pytest.mark.parametrize("kind", ["iswa", "recurrent", "hybrid"])
def test_what_is_one_piece_is_loaded_at_once(kind: str) -> None:
    rig = Rig(kind, n_seq_max=3)
    rig.cache.saving.piece = 1000
    rig.run(ask(IDLE, 2))
    offload(rig)
    stream, back = streaming(rig), follow_up()
    rig.submit(back)
    rig.read(back, stream)
    rig.check(back, stream)
    assert back.record.cache["action"] == ("restore" if kind == "recurrent" else "load")
    rig.check_at_rest()
    rig.close()


# --- for callers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["load_state", "restore", "conversation"])
def test_a_state_is_brought_back_beside_a_stream(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig("full", in_place=False, n_seq_max=3)
    rig.cache.saving.piece = PIECE
    rig.llm.create_completion(IDLE, max_tokens=2, temperature=0)
    state = rig.llm.save_state()
    rig.llm.cache.snapshot("it")
    rig.llm.reset()
    stream = ask(words(2, 30), 240)
    rig.submit(stream)
    made, tokens_at = loads(rig, monkeypatch), []
    watched = rig.context.state_set

    def counted(*arguments: Any, **options: Any) -> None:
        tokens_at.append(len(stream.generated))
        watched(*arguments, **options)

    monkeypatch.setattr(rig.context, "state_set", counted)
    if how == "load_state":
        rig.llm.load_state(state)
        assert rig.llm.n_tokens == len(state.stored.tokens)
    elif how == "restore":
        assert rig.llm.cache.restore("it").n_tokens == len(state.stored.tokens)
    else:
        Conversations(rig.llm.runtime.loaded).bring_in(state.stored, "anna")
    assert len(made) > 15
    assert max(made) < 1.5 * PIECE
    assert tokens_at[-1] - tokens_at[0] >= len(made) // 4, "a token with a few pieces"
    if how != "conversation":
        rig.llm.eval(NEXT)
        found = rig.llm.last_logits.copy()
        rig.llm.reset(cancel=True)
        rig.llm.eval([*state.stored.tokens.tolist(), *NEXT])
        assert abs(rig.llm.last_logits - found).max() < 1e-3
    else:
        rig.read(stream)
        rig.check(stream)
        rig.run(back := follow_up())
        rig.check(back)
        assert back.record.cache["reused"] >= len(IDLE)
        rig.check_at_rest()
    rig.close()
