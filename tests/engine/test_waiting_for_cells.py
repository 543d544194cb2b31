"""A conversation whose copy finds no cells beside those that run waits for them.

What is stored cannot be loaded then; evaluated again, it would run out of cells itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llama_py.engine.loop import MOST_EVENTS
from tests.engine.rig import Asked, Rig, ask, words

LARGE, OTHER, NEXT = words(1, 400), words(2, 380), words(4, 5)


@pytest.fixture(params=["full", "iswa"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A large conversation is offloaded, and another one generates in its place."""
    rig = Rig(request.param, n_seq_max=4, n_ctx=768)
    rig.run(ask(LARGE, 2))
    yield rig
    rig.close()


def streaming(rig: Rig, count: int = 100) -> Asked:
    stream = ask(OTHER, count)
    rig.submit(stream)
    rig.step_until(lambda: len(stream.generated) > 2)
    return stream


def test_it_is_not_evaluated_again(rig: Rig) -> None:
    stream, back = streaming(rig), ask([*LARGE, *NEXT], 4)
    rig.submit(back)
    rig.read(back, stream)
    rig.check(stream)
    rig.check(back)
    assert back.record.cache["action"] == "load"
    assert back.record.cache["reused"] >= len(LARGE) - 1
    assert rig.driver.engine.metrics.preempted == 0
    rig.check_at_rest()


def test_small_ones_overtake_it_while_a_large_one_runs(rig: Rig) -> None:
    stream, back = streaming(rig, 240), ask([*LARGE, *NEXT], 4)
    rig.submit(back)
    small = [ask(words(10 + each, 20), 3) for each in range(12)]
    rig.submit(*small)
    rig.step_until(lambda: stream.ended)
    assert all(each.ended for each in small)
    rig.read(back, stream, *small)
    for each in (back, stream, *small):
        rig.check(each)
    assert back.record.cache["reused"] >= len(LARGE) - 1
    rig.check_at_rest()


def test_not_for_ever(rig: Rig) -> None:
    """Many small ones together leave no room either, and new ones come all the time."""
    stream, back = streaming(rig, 10), ask([*LARGE, *NEXT], 4)
    beside = [ask(words(30 + each, 180), 60) for each in range(2)]
    rig.submit(*beside)
    rig.step_until(lambda: all(each.started for each in beside))
    rig.submit(back)
    later = [ask(words(40 + each, 150), 15 + 11 * each % 31) for each in range(40)]
    rig.submit(*later)
    rig.step_until(lambda: back.started)
    assert 0 < sum(each.started for each in later) <= 10
    rig.read(back, stream, *beside, *later)
    for each in (back, *later):
        rig.check(each)
    rig.check_at_rest()


def test_one_whose_reader_does_not_read_makes_room(rig: Rig) -> None:
    stream, back = ask(words(5, 200), MOST_EVENTS + 50), ask([*LARGE, *NEXT], 4)
    rig.submit(stream)
    rig.step_until(lambda: len(stream.generated) >= MOST_EVENTS)
    rig.run(back)
    rig.check(back)
    assert not stream.ended
    assert back.record.cache["reused"] >= len(LARGE) - 1
    rig.read(stream)
    rig.check(stream)
    rig.check_at_rest()
