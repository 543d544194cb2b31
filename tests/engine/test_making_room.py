"""A large idle conversation makes room for a new one piece by piece, while others generate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llama_py import LlamaDiskCache
from llama_py.engine import admission
from llama_py.errors import StateError
from llama_py.memory import saving
from tests.engine.rig import Asked, Rig, ask, words
from tests.patience import PATIENCE
from tests.slowness import slow_steps

IDLE, STREAM, NEW = words(1, 400), words(2, 30), words(3, 40)
PIECE = 40_000  # bytes, some 20 tokens


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig("full", n_seq_max=2)
    rig.cache.saving.piece = PIECE
    rig.run(ask(IDLE, 2))
    yield rig
    rig.close()


@pytest.fixture
def one_piece_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_BUDGET", 0.0)
    monkeypatch.setattr(saving, "_HURRY", 0.0)


def streaming(rig: Rig, count: int = 200) -> Asked:
    """A request that has begun to generate."""
    stream = ask(STREAM, count)
    rig.submit(stream)
    rig.step_until(lambda: len(stream.generated) > 2)
    return stream


def copies(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of each state that is copied out of the context: the sequence, and its bytes."""
    made: list[tuple[int, int]] = []
    state_get = rig.context.state_get

    def watched(sequence: int = 0, *arguments: Any, **options: Any) -> NDArray[np.uint8]:
        state = state_get(sequence, *arguments, **options)
        made.append((sequence, state.nbytes))
        return state

    monkeypatch.setattr(rig.context, "state_get", watched)
    return made


def comes_back(rig: Rig) -> None:
    """The conversation that had to go is loaded again, and goes on as if it had not."""
    back = ask([*IDLE, *words(4, 5)], 6)
    rig.run(back)
    rig.check(back)
    assert back.record.cache["action"] == "load"
    assert back.record.cache["reused"] >= len(IDLE)


@pytest.mark.usefixtures("one_piece_a_step")
def test_a_stream_goes_on_while_a_conversation_is_offloaded(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = streaming(rig)
    made = copies(rig, monkeypatch)
    new, before = ask(NEW, 4), len(stream.generated)
    rig.submit(new)
    rig.step_until(lambda: new.started)
    pieces = [size for _, size in made]
    assert len(pieces) > 15
    assert max(pieces) < 1.5 * PIECE, "nothing was copied whole"
    assert len(stream.generated) - before >= len(pieces) - 1, "a token with each piece"
    assert (rig.cache.stores.offloaded, rig.cache.stores.dropped) == (1, 0)
    rig.read(new, stream)
    rig.check(new, stream)
    comes_back(rig)
    rig.check_at_rest()


def test_with_nobody_beside_it_is_offloaded_at_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.run(ask(words(5, 30), 2))  # both sequences are taken now
    made = copies(rig, monkeypatch)
    rig.submit(new := ask(NEW, 4))
    rig.step()
    assert new.started
    assert len(made) > 15, "in pieces, so that it can be loaded in pieces"
    rig.read(new)
    comes_back(rig)


@pytest.mark.usefixtures("one_piece_a_step")
def test_who_waits_does_not_wait_for_streams_that_have_ended(rig: Rig) -> None:
    stream, new = streaming(rig), ask(NEW, 4)
    rig.submit(new)
    for _ in range(4):
        rig.step()
    waits = not new.started
    rig.cancel(stream)
    rig.step_until(lambda: stream.ended)
    rig.step()
    assert waits
    assert new.started
    rig.read(new)
    rig.check(new)
    comes_back(rig)
    rig.check_at_rest()


@pytest.mark.usefixtures("one_piece_a_step")
def test_who_waits_may_leave(rig: Rig) -> None:
    stream, new = streaming(rig), ask(NEW, 4)
    rig.submit(new)
    for _ in range(4):
        rig.step()
    rig.cancel(new)
    rig.read(stream)
    rig.check(stream)
    again = ask([*IDLE, *words(4, 5)], 6)
    rig.run(again)
    rig.check(again)
    assert again.record.cache["action"] == "continue", "nothing had to go"
    rig.check_at_rest()


@pytest.mark.usefixtures("one_piece_a_step")
@pytest.mark.parametrize("tail", [[], words(4, 30)], ids=["cut", "longer"])
def test_a_conversation_that_goes_on_while_it_is_copied(tail: list[int]) -> None:
    """Another one has to go in its place, and neither of its copies is taken for the other."""
    rig = Rig("full", n_seq_max=3)
    rig.cache.saving.piece = PIECE
    other = words(6, 300)
    rig.run(ask(IDLE, 2))
    rig.run(ask(other, 2))
    stream, new = streaming(rig), ask(NEW, 30)
    rig.submit(new)
    for _ in range(4):
        rig.step()
    further = ask([*IDLE, *tail] if tail else IDLE[:-50], 6, priority=-1)
    rig.submit(further)
    rig.step_until(lambda: further.started and new.started)
    rig.read(stream, new, further)
    rig.check(stream, new, further)
    assert further.record.cache["reused"] >= len(IDLE) - 51
    for prompt in (IDLE, other):
        back = ask([*prompt, *words(7, 5)], 6)
        rig.run(back)
        rig.check(back)
        assert back.record.cache["reused"] >= len(prompt)
    rig.check_at_rest()
    rig.close()


@pytest.mark.parametrize("broken", ["cells", "store"])
def test_what_cannot_be_copied_keeps_nobody_waiting(
    rig: Rig, broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream, new = streaming(rig), ask(NEW, 4)

    def fails(*_: Any, **__: Any) -> Any:
        raise StateError("no memory")

    if broken == "cells":
        monkeypatch.setattr(rig.context, "state_get", fails)
    else:
        monkeypatch.setattr(rig.cache.stores.offload_store, "put", fails)
    rig.submit(new)
    rig.step_until(lambda: new.ended)
    rig.read(new, stream)
    rig.check(new, stream)
    assert (rig.cache.stores.offloaded, rig.cache.stores.dropped) == (0, 1)
    assert "no memory" in caplog.text
    rig.check_at_rest()


def test_room_for_cells_is_made_in_pieces_too(
    one_piece_a_step: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is a sequence left, and all cells belong to conversations that are idle."""
    rig = Rig("full", n_ctx=1024, n_seq_max=8)
    rig.cache.saving.piece = PIECE
    idle = [words(seed, 290) for seed in (11, 12, 13)]
    for tokens in idle:
        rig.run(ask(tokens, 2))
    stream = streaming(rig, 100)
    made = copies(rig, monkeypatch)
    new = ask(words(14, 500), 4)
    rig.submit(new)
    rig.step_until(lambda: new.ended)
    rig.read(new, stream)
    rig.check(new, stream)
    assert max(size for _, size in made) < 1.5 * PIECE
    assert rig.cache.stores.offloaded == 2, "no more than are needed"
    for tokens in idle:
        back = ask([*tokens, 7], 4)
        rig.run(back)
        rig.check(back)
        assert back.record.cache["reused"] >= len(tokens)
    rig.check_at_rest()
    rig.close()


@pytest.mark.usefixtures("one_piece_a_step")
def test_cells_that_run_out_in_the_middle_of_a_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes room then was copied before, a piece with each step."""
    rig = Rig("full", n_ctx=768, n_seq_max=4)
    rig.cache.saving.piece = PIECE
    idle = words(1, 550)
    rig.run(ask(idle, 2))
    stream = streaming(rig, 240)
    made, tokens_at = copies(rig, monkeypatch), []
    copied = rig.context.state_get

    def counted(*arguments: Any, **options: Any) -> NDArray[np.uint8]:
        tokens_at.append(len(stream.generated))
        return copied(*arguments, **options)

    monkeypatch.setattr(rig.context, "state_get", counted)
    rig.step_until(lambda: stream.ended)
    assert max(size for _, size in made) < 1.5 * PIECE
    assert len(set(tokens_at)) == len(tokens_at) > 15, "a token with each piece"
    assert tokens_at[0] > 80, "not before it is necessary"
    assert (rig.cache.stores.offloaded, rig.cache.stores.dropped) == (1, 0)
    rig.read(stream)
    rig.check(stream)
    rig.run(back := ask([*idle, *words(4, 5)], 6))
    rig.check(back)
    assert back.record.cache["action"] == "load"
    rig.check_at_rest()
    rig.close()


@pytest.mark.usefixtures("one_piece_a_step")
def test_what_was_copied_for_somebody_who_left_is_not_copied_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, new = streaming(rig), ask(NEW, 4)
    rig.submit(new)
    rig.step()
    rig.cancel(new)
    rig.step_until(lambda: not rig.cache.saving.pending)
    made = copies(rig, monkeypatch)
    new = ask(NEW, 4)
    rig.submit(new)
    rig.step()
    assert new.started
    assert made == []
    assert (rig.cache.stores.offloaded, rig.cache.stores.dropped) == (1, 0)
    rig.read(new, stream)
    comes_back(rig)


def test_the_saving_store_and_the_offload_store_get_it_at_once(
    rig: Rig, one_piece_a_step: None, tmp_path: Any
) -> None:
    """Each has its own copy, and their segments are not mixed up."""
    with LlamaDiskCache(str(tmp_path)) as disk:
        rig.llm.set_cache(disk)
        stream, asked = streaming(rig), ask([*IDLE, *words(4, 60)], 2)
        rig.submit(asked)
        rig.step_until(lambda: asked.ended)  # its saving begins
        new = ask(NEW, 4)
        rig.submit(new)
        rig.step_until(lambda: new.ended)
        rig.read(asked, new, stream)
        rig.check(asked, new, stream)
        comes_back(rig)
        assert rig.llm.cache.flush(20)
        rig.llm.reset()
        comes_back(rig)
        rig.check_at_rest()


def test_a_conversation_that_came_back_and_grew_is_offloaded_as_it_is_now(rig: Rig) -> None:
    turn = ask(IDLE, 2)
    rig.run(turn)
    for number in range(3):
        rig.run(ask(words(5, 300), 2), ask(words(6, 300), 2))  # they take both sequences
        turn = ask([*turn.tokens, *turn.generated, *words(4 + number, 50)], 2)
        rig.run(turn)
        rig.check(turn)
        assert turn.record.cache["action"] == "load"
        assert turn.record.cache["reused"] >= len(turn.tokens) - 51, "its end was offloaded as well"


def test_what_the_store_has_lost_meanwhile_is_offloaded_again(rig: Rig) -> None:
    stream, new = streaming(rig), ask(NEW, 4)
    rig.submit(new)
    rig.step()
    rig.cancel(new)
    rig.step_until(lambda: not rig.cache.saving.pending)
    assert rig.cache.stores.offload_store is not None
    assert len(rig.cache.stores.offload_store) == 1
    rig.cache.stores.offload_store.clear()
    rig.run(ask(NEW, 4))
    rig.read(stream)
    comes_back(rig)


@pytest.mark.usefixtures("one_piece_a_step")
def test_clients_that_try_again_and_again_make_one_copy(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = streaming(rig)
    made = copies(rig, monkeypatch)
    for seed in range(21, 27):
        new = ask(words(seed, 40), 4)
        rig.submit(new)
        for _ in range(2):
            rig.step()
        assert not new.started
        rig.cancel(new)
    new = ask(NEW, 4)
    rig.submit(new)
    rig.step_until(lambda: new.started)
    assert sum(size for _, size in made) < 1.2 * rig.cache.stores.offload_store.stats().used_bytes  # type: ignore[union-attr]
    assert max(size for _, size in made) < 1.5 * PIECE
    rig.read(new, stream)
    rig.check(new, stream)
    comes_back(rig)


@pytest.mark.usefixtures("one_piece_a_step")
def test_two_who_wait_at_once_and_the_later_one_is_first() -> None:
    rig = Rig("full", n_seq_max=3)
    rig.cache.saving.piece = PIECE
    other = words(6, 300)
    rig.run(ask(IDLE, 2))
    rig.run(ask(other, 2))
    stream = streaming(rig)
    with pytest.MonkeyPatch.context() as patch:
        made = copies(rig, patch)
        first, second = ask(NEW, 8), ask(words(8, 40), 8, priority=-1)
        rig.submit(first)
        rig.step()
        rig.submit(second)
        rig.step_until(lambda: first.started and second.started)
        assert max(size for _, size in made) < 1.5 * PIECE
    rig.read(first, second, stream)
    rig.check(first, second, stream)
    for prompt in (IDLE, other):
        back = ask([*prompt, *words(4, 5)], 4)
        rig.run(back)
        rig.check(back)
        assert back.record.cache["action"] == "load"
    rig.check_at_rest()
    rig.close()


@pytest.mark.usefixtures("one_piece_a_step")
def test_nobody_waits_for_a_copy_that_makes_no_room() -> None:
    """Its conversation goes on, and a small one makes room in its place."""
    rig = Rig("full", n_seq_max=3)
    rig.cache.saving.piece = 10_000
    turn = ask(IDLE, 2)
    rig.run(turn)
    rig.run(ask(words(8, 20), 2))
    stream, new = streaming(rig), ask(NEW, 4)
    rig.submit(new)
    for _ in range(3):
        rig.step()
    waits = not new.started
    further = ask([*IDLE, *turn.generated, *words(9, 5)], 60)
    rig.submit(further)
    rig.step()
    assert further.started, "who needs no room does not wait behind who does"
    rig.step()
    assert waits
    assert new.started
    assert not rig.cache.saving.pending
    rig.read(new, further, stream)
    rig.check(new, further, stream)
    rig.check_at_rest()
    rig.close()


@pytest.mark.usefixtures("one_piece_a_step")
def test_a_request_keeps_nothing_of_what_made_room_for_it(rig: Rig) -> None:
    stream, new = streaming(rig), ask(NEW, 100)
    rig.submit(new)
    rig.step()
    (running,) = rig.engine.requests.waiting
    (copying,) = rig.cache.transfers._waits[running].copies
    rig.step_until(lambda: new.started)
    assert running not in rig.cache.transfers._waits
    assert copying.segments == ()
    rig.read(new, stream)


@pytest.mark.usefixtures("one_piece_a_step")
def test_a_store_that_fails_fails_one_request(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    stream, new = streaming(rig), ask(NEW, 4)
    with LlamaDiskCache(str(tmp_path)) as disk:
        rig.llm.set_cache(disk)

        def fails(*_: Any) -> Any:
            raise OSError("no disk")

        monkeypatch.setattr(disk, "find", fails)
        rig.submit(new)
        rig.step_until(lambda: new.ended)
        assert new.record.reason == "error"
        monkeypatch.undo()
        rig.llm.set_cache(None)
    rig.read(stream)
    rig.check(stream)
    rig.check_at_rest()


@pytest.mark.usefixtures("one_piece_a_step")
def test_the_copy_of_a_pinned_beginning_stays_its_own() -> None:
    """Its conversation goes on while it is copied, where there is no other sequence."""
    rig = Rig("full", n_seq_max=2)
    rig.cache.saving.piece = PIECE
    rig.run(ask(IDLE, 1, pin=True))
    stream, new = streaming(rig), ask([*IDLE, *words(9, 40)], 40)
    rig.submit(new)
    for _ in range(4):
        rig.step()
    assert stream.events is not None
    rig.engine.pause(rig.engine.requests.running[0].number)
    rig.step_until(lambda: new.started)
    rig.step_until(lambda: not rig.cache.saving.pending)
    (pin,) = rig.cache.stores.pins
    assert pin.offloaded_key is not None
    assert rig.cache.stores.offload_store is not None
    assert rig.cache.stores.offload_store.info(pin.offloaded_key) is not None
    (sequence,) = [it for it in rig.cache.live if len(it.tokens) > len(IDLE)]
    assert sequence.offloaded_key != pin.offloaded_key
    rig.engine.pause(rig.engine.requests.running[0].number, False)
    rig.read(new, stream)
    rig.check(new, stream)
    rig.check_at_rest()
    rig.close()


@pytest.mark.usefixtures("one_piece_a_step")
def test_who_has_to_begin_again_later_is_copied_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is idle when cells run out: the youngest goes, a few pieces at once at the most."""
    rig = Rig("full", n_ctx=512, n_seq_max=2)
    rig.cache.saving.piece = PIECE
    asked = [ask(words(20 + n, 150), 160) for n in range(2)]
    rig.submit(*asked)
    made = copies(rig, monkeypatch)
    most = 0
    while not rig.engine.metrics.preempted:
        before = len(made)
        assert rig.step()
        most = max(most, len(made) - before)
    assert len(made) > 8, "in pieces"
    assert most <= 3
    rig.read(*asked)
    rig.check(*asked)
    assert rig.engine.metrics.preempted == 1
    assert rig.engine.metrics.evaluated < 400, "it came back as it was"
    rig.check_at_rest()
    rig.close()


def test_who_has_only_just_come_has_nothing_to_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine looks ahead in the very step in which a second request gets its sequence."""
    monkeypatch.setattr(admission, "_LOOK", 1)
    rig = Rig("full", n_seq_max=2)
    stream, new = streaming(rig), ask(NEW, 4)
    rig.submit(new)
    rig.read(new, stream)
    assert [each.record.reason for each in (new, stream)] == ["length", "length"]
    rig.check(new, stream)
    rig.check_at_rest()
    rig.close()


@pytest.mark.usefixtures("one_piece_a_step")
def test_nothing_is_copied_for_a_reset(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, new = streaming(rig), ask(NEW, 4)
    rig.submit(new)
    for _ in range(3):
        rig.step()
    rig.cancel(new)
    rig.cancel(stream)
    rig.wait_until_idle()
    assert rig.cache.saving.jobs, "there is more to copy"
    made = copies(rig, monkeypatch)
    rig.llm.reset()
    assert made == []
    rig.run(asked := ask(IDLE, 2))
    rig.check(asked)


@pytest.mark.usefixtures("one_piece_a_step")
def test_what_the_store_has_no_room_for_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two have to leave, and the store has room for one of them."""
    rig = Rig("full", n_ctx=1024, n_seq_max=8)
    rig.cache.saving.piece = PIECE
    for seed in (11, 12, 13):
        rig.run(ask(words(seed, 290), 2))
    stream = streaming(rig, 100)
    offload_store = rig.cache.stores.offload_store
    assert offload_store is not None
    offload_store.capacity_bytes = 700_000
    made = copies(rig, monkeypatch)
    new = ask(words(14, 500), 4)
    rig.submit(new)
    rig.step_until(lambda: new.started)
    # The third one, the next to go, may be copied behind that, when nothing has come for a while.
    copied = sum(size for _, size in made)
    rig.read(new, stream)
    rig.check(new, stream)
    assert copied < 1_300_000
    rig.check_at_rest()
    rig.close()


@pytest.mark.usefixtures("one_piece_a_step")
@pytest.mark.parametrize("how", ["flush", "another store", "a part"])
def test_streams_go_on_while_somebody_waits_for_a_copy(
    how: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_steps(monkeypatch)
    rig = Rig("full", in_place=False, n_seq_max=4)
    rig.cache.saving.piece = PIECE
    stream = ask(STREAM, 240)
    with LlamaDiskCache(str(tmp_path)) as disk:
        rig.llm.create_completion(IDLE, max_tokens=2, temperature=0)
        rig.submit(stream)
        if how != "a part":
            rig.driver.run(lambda: setattr(rig.cache.stores, "saved", disk))
            rig.run(ask([*IDLE, *words(4, 60)], 2))  # its saving begins
        tokens_at: list[int] = []
        made = copies(rig, monkeypatch)
        copied = rig.context.state_get

        def counted(*arguments: Any, **options: Any) -> NDArray[np.uint8]:
            tokens_at.append(len(stream.generated))
            return copied(*arguments, **options)

        monkeypatch.setattr(rig.context, "state_get", counted)
        if how == "flush":
            assert rig.llm.cache.flush(20)
            assert disk.used_bytes > 10 * PIECE
        elif how == "another store":
            rig.llm.set_cache(None)
            assert disk.wait(0, PATIENCE)
        else:
            assert rig.llm.cache.snapshot("half", 390).n_tokens == 390
        assert len(made) > 10
        assert max(size for _, size in made) < 1.5 * PIECE
        assert tokens_at[-1] - tokens_at[0] >= len(made) // 4, "a token with a few pieces"
    rig.read(stream)
    rig.check(stream)
    rig.close()
