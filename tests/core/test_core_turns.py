"""Turns: who has had less goes first, nobody waits for those who left, and nobody is forgotten."""

from __future__ import annotations

import threading

import pytest

from llama_py.core.host import core_turns
from llama_py.core.host.core_turns import CoreTurns, Share
from tests.patience import PATIENCE


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(core_turns, "time", clock)
    return clock


def compute(order: CoreTurns, clock: Clock, share: Share, seconds: float) -> None:
    with order.turn(share):
        clock.now += seconds


def test_who_had_more_waits_for_who_was_here_just_now(clock: Clock) -> None:
    order, often, long = CoreTurns(), Share(), Share()
    compute(order, clock, often, 0.001)
    compute(order, clock, long, 0.003)
    compute(order, clock, often, 0.001)
    assert 0 < order._pause(long) < 0.01
    for _ in range(2):
        compute(order, clock, often, 0.001)
    assert order._pause(long) == 0


def test_nobody_waits_for_who_has_left(clock: Clock) -> None:
    order, often, long = CoreTurns(), Share(), Share()
    compute(order, clock, often, 0.001)
    compute(order, clock, long, 0.05)
    clock.now += 0.1
    assert order._pause(long) == 0


def test_time_is_not_saved_up(clock: Clock) -> None:
    order, early, late = CoreTurns(), Share(), Share()
    for _ in range(100):
        compute(order, clock, early, 0.1)
    compute(order, clock, late, 0.1)
    assert late.used == pytest.approx(early.used + 0.1)


def test_one_computes_at_a_time() -> None:
    order, inside, most = CoreTurns(), [], []

    def work() -> None:
        share = Share()
        for _ in range(50):
            with order.turn(share):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(most) == 200
    assert {*most} == {1}


def test_threads_of_one_share_compute_at_once() -> None:
    order, share, together = CoreTurns(), Share(), threading.Barrier(3)

    def work() -> None:
        for _ in range(10):
            with order.turn(share):
                together.wait(PATIENCE)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE)
    assert not together.broken
    assert order._holder is None


def test_nobody_is_kept_waiting_by_threads_that_relieve_each_other() -> None:
    order, share, ended = CoreTurns(), Share(), threading.Event()

    def relieve() -> None:
        while not ended.is_set():
            with order.turn(share):
                ended.wait(0.01)

    threads = [threading.Thread(target=relieve) for _ in range(2)]
    for each in threads:
        each.start()
    try:
        for _ in range(5):
            other = threading.Thread(target=compute_once, args=[order])
            other.start()
            other.join(PATIENCE)
            assert not other.is_alive()
    finally:
        ended.set()
        for each in threads:
            each.join()


def compute_once(order: CoreTurns) -> None:
    with order.turn(Share()):
        pass


def test_an_error_ends_a_turn() -> None:
    order, share = CoreTurns(), Share()
    with pytest.raises(ValueError, match="x"), order.turn(share):
        raise ValueError("x")
    with order.turn(Share()):
        pass
