"""A fork waits for the threads that are in the index of a cache, and not for its own thread."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from tests.memory.fake_memory import FakeRig
from tests.patience import PATIENCE

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")


def status_of_child(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def impatient() -> Iterator[None]:
    """What hangs ends with an error."""

    def give_up(*_: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(int(PATIENCE))
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("impatient")
def test_a_child_can_use_the_index_whatever_other_threads_did_in_it() -> None:
    rig, stop = FakeRig(), threading.Event()
    rig.ask(b"a beginning")

    def resolve() -> None:
        while not stop.is_set():
            rig.prompt(b"a beginning, and more")

    threads = [threading.Thread(target=resolve) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                signal.alarm(int(PATIENCE) // 2)
                os._exit(len(rig.prompt(b"a beginning").tokens) != 11)
            assert status_of_child(pid) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.usefixtures("impatient")
def test_a_fork_by_the_thread_that_is_in_the_index() -> None:
    """As the handler of a signal may do."""
    rig = FakeRig()
    rig.ask(b"a beginning")
    with rig.cache.index._prefixes._lock:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
    assert status_of_child(pid) == 0
