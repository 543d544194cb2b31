"""A model computes with as many threads as are fastest, beside a program that keeps cores busy."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from llama_py import Llama, demo_model_path
from llama_py.core.host.machine import usable_cores
from llama_py.engine.thread_tuner import ThreadTuner
from llama_py.engine.tuned_threads import TunedThreads
from llama_py.params import ContextParams

PROMPT = [1, 2, 3, 4]
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


def pace_of(llm: Llama) -> TunedThreads | None:
    return llm.runtime.loaded.engine.runner._tuned_threads


class Restless(ThreadTuner):
    """Another number of threads for every step."""

    def note(self, kind: int, seconds: float, work: float = 1.0) -> int:
        self.threads = 1 + self.threads % self.most
        return self.threads


def test_threads_that_were_given_stay() -> None:
    options: Any
    for options in ({"n_threads": 2}, {"n_threads_batch": 2}):
        with Llama(demo_model_path(), n_ctx=256, **options) as llm:
            assert pace_of(llm) is None


def test_a_tiny_model_has_one_thread_and_no_choice() -> None:
    with Llama(demo_model_path(), n_ctx=256) as llm:
        assert pace_of(llm) is None


def test_another_number_of_threads_changes_nothing_else() -> None:
    """Whatever is tried between the steps of a reply, it is the same reply."""
    with Llama(demo_model_path(), n_ctx=1024, n_threads=2, flash_attn=False) as llm:
        llm.runtime.loaded.context.set_threads(1, 1)
        expected = llm.create_completion(PROMPT, max_tokens=60, **GREEDY)["choices"][0]["text"]
        llm.reset()
        tuned_threads = llm.runtime.loaded.engine.runner._tuned_threads = TunedThreads(
            llm.runtime.loaded.context, lambda: None
        )
        tuned_threads._one = Restless(2)
        counts = list[int]()

        def watch(tokens: Any, logits: Any) -> bool:
            counts.append(tuned_threads.threads[0])
            return False

        stream = llm.create_completion(
            PROMPT, max_tokens=60, stream=True, stopping_criteria=watch, **GREEDY
        )
        assert "".join(chunk["choices"][0]["text"] for chunk in stream) == expected
        assert {*counts[2:]} == {1, 2}


def test_a_system_without_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """ggml would end the process over a thread that cannot be started."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Llama(demo_model_path(), n_ctx=256, n_threads=1) as llm:
        tuned_threads = llm.runtime.loaded.engine.runner._tuned_threads = TunedThreads(
            llm.runtime.loaded.context, lambda: None
        )
        tuned_threads._one = Restless(2)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            answer = llm.create_completion(PROMPT, max_tokens=8, **GREEDY)
        assert answer["usage"]["completion_tokens"] == 8
        assert tuned_threads.threads == (1, 1)
        assert llm.runtime.loaded.context.try_threads(2, 1)


# -- beside another program ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large() -> Iterator[Llama]:
    """A model that is worth several threads."""
    from benchmarks.models import made_model

    if usable_cores() < 2:
        pytest.skip("needs two cores")
    with Llama(made_model("smollm2-135m"), n_ctx=2048) as llm:
        yield llm


def threads_become(llm: Llama, right: Callable[[int], bool], seconds: float) -> bool:
    """Generate until most steps have a number of threads that is right, at most so long."""
    tuned_threads, end = pace_of(llm), time.monotonic() + seconds
    assert tuned_threads is not None
    while time.monotonic() < end:
        llm.reset()
        counts = list[int]()

        def watch(tokens: Any, logits: Any, counts: list[int] = counts) -> bool:
            counts.append(tuned_threads.threads[0])
            return time.monotonic() > end

        llm.create_completion(PROMPT, max_tokens=60, stopping_criteria=watch, **GREEDY)
        if sum(map(right, counts)) > 0.8 * len(counts):
            return True
    return False


@pytest.mark.long
def test_beside_a_program_that_spins(large: Llama) -> None:
    """Slow machines get much more time than the second in which it happens on most."""
    most = usable_cores()
    if not threads_become(large, lambda count: count == most, 20):
        pytest.skip("this machine is busy with something else")
    spinning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(most - 1)
    ]
    try:
        assert threads_become(large, lambda count: count < most, 20)
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    assert threads_become(large, lambda count: count == most, 20)


class Threads:
    """The part of a context that a pace needs."""

    params = ContextParams(n_threads=8, n_threads_batch=8)

    def try_threads(self, one: int, many: int) -> bool:
        self.set = one, many
        return True


def pace_with(free: list[float | None]) -> tuple[TunedThreads, Threads]:
    threads = Threads()
    tuned_threads = TunedThreads(threads, lambda: None, lambda: free.pop(0))  # type: ignore[arg-type]
    return tuned_threads, threads


def test_the_first_step_has_the_threads_that_others_leave() -> None:
    """A long prompt is the first step, and would take minutes with threads that wait for others."""
    tuned_threads, threads = pace_with([1.2])
    tuned_threads.before(100.0)
    assert tuned_threads.threads == threads.set == (1, 1)
    tuned_threads.after(512, 3.0, 103.0)
    tuned_threads.before(103.0)  # its own threads say enough from now on


def test_it_has_all_where_nothing_is_known_or_everything_is_free() -> None:
    for free in (None, 8.0):
        tuned_threads, _ = pace_with([free])
        tuned_threads.before(0.0)
        assert tuned_threads.threads == (8, 8)


def test_the_load_is_looked_at_again_after_a_pause() -> None:
    tuned_threads, _ = pace_with([8.0, 2.1])
    tuned_threads.before(0.0)
    tuned_threads.after(512, 1.0, 1.0)
    tuned_threads.before(5.0)
    assert tuned_threads.threads == (8, 8)
    tuned_threads.before(60.0)
    assert tuned_threads.threads == (2, 2)
