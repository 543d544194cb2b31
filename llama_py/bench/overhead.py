"""Where the time of one token goes, outside of evaluating and sampling (part of ``hotpath``).

The engine's parts are wrapped with clocks, and one greedy stream runs. Each token's time is split:
``llama_decode`` (the evaluation itself), choosing the token, and everything else, which is the cost
of this library. The clocks are part of what they measure, a third of a microsecond each; the total
comes from runs without them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llama_py.bench.report import Report, median

__all__ = ["run_overhead"]


def run_overhead(report: Report, llm: Any, options: argparse.Namespace) -> None:
    """Add the breakdown, and the target of 40 microseconds."""
    prompt = llm.tokenize("Once upon a time", add_bos=True)
    others: list[float] = []
    streams: list[float] = []
    split: list[tuple[float, float, float]] = []
    for _ in range(options.repeats):
        for stream, found in ((False, others), (True, streams)):
            parts = _timed_tokens(llm, prompt, options.tokens, stream)
            found += [wall - decode - sample for wall, decode, sample in parts]
            split += parts if not stream else []
    clocks = _breakdown(llm, prompt, options.tokens)
    table = report.table("microseconds a token, median", "part", "us")
    for name, column in (("whole token", 0), ("llama_decode", 1), ("choosing", 2)):
        table.add(name, 1e6 * median([part[column] for part in split]))
    table.add("everything else", 1e6 * median(others))
    table.add("everything else, streamed", 1e6 * median(streams))
    inner = report.table("inside, with clocks: microseconds a token, median", "part", "us")
    for name, times in clocks.items():
        if times:  # a CPU's context is not waited for
            inner.add(name, 1e6 * median(times))
    name = "microseconds a token outside llama_decode and sampling"
    report.at_most(name, 1e6 * median(others), 40)
    report.at_most("the same while streaming", 1e6 * median(streams), 40)


def _timed_tokens(
    llm: Any, prompt: list[int], count: int, stream: bool
) -> list[tuple[float, float, float]]:
    """For each token: wall, decode and sample seconds since the one before."""
    metrics = llm._engine.metrics
    marks: list[tuple[float, float, float]] = []
    events = llm._events

    def watched(requests: Any) -> Iterator[Any]:
        inner = events(requests)
        try:
            for item in inner:
                marks.append((time.perf_counter(), metrics.decode_seconds, metrics.sample_seconds))
                yield item
        finally:
            inner.close()

    llm._events = watched
    try:
        answer = llm.create_completion(prompt, max_tokens=count, temperature=0.0, stream=stream)
        if stream:
            for _ in answer:
                pass
    finally:
        del llm._events
    pairs = zip(marks[1:], marks, strict=False)
    # The last event comes with the token before it.
    return [(a[0] - b[0], a[1] - b[1], a[2] - b[2]) for a, b in pairs if a[1] > b[1]]


def _breakdown(llm: Any, prompt: list[int], count: int) -> dict[str, list[float]]:
    """Seconds of the engine's parts, each without what is listed below it."""
    engine = llm._engine
    stepper, runner, choosing = engine._stepper, engine._runner, engine._stepper._choosing
    places = [
        (engine, "_drive_until_event"),
        (stepper, "step"),
        (stepper, "_step_one"),
        (runner, "decode_one"),
        (runner._batch, "add_one"),
        (runner, "_decode"),
        (runner.context, "decode"),
        (runner.context, "synchronize"),
        (choosing, "_choose"),
        (choosing, "_sample"),
        (runner, "logits"),
        (choosing, "_count_token"),
        (choosing, "_emit"),
        (engine.vocab, "plain_piece"),
        (choosing, "_at_limit"),
    ]
    clocks = _Clocks()
    with clocks.on(places):
        start = time.perf_counter()
        llm.create_completion(prompt, max_tokens=count, temperature=0.0)
        whole = (time.perf_counter() - start) / count
    return {**clocks.times, "whole call by tokens": [whole]}


class _Clocks:
    """Exclusive times of wrapped methods."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}
        self._stack: list[float] = []

    @contextmanager
    def on(self, places: list[tuple[Any, str]]) -> Iterator[None]:
        """Wrap methods of these objects for a while."""
        done: list[tuple[Any, str]] = []
        try:
            for owner, name in places:
                if hasattr(owner, name):
                    label = f"{type(owner).__name__}.{name}"
                    setattr(owner, name, self._wrapped(getattr(owner, name), label))
                    done.append((owner, name))
            yield
        finally:
            for owner, name in done:
                delattr(owner, name)

    def _wrapped(self, method: Callable[..., Any], label: str) -> Callable[..., Any]:
        times = self.times.setdefault(label, [])
        stack, clock = self._stack, time.perf_counter

        def timed(*arguments: Any, **named: Any) -> Any:
            stack.append(0.0)
            start = clock()
            try:
                return method(*arguments, **named)
            finally:
                seconds = clock() - start
                times.append(seconds - stack.pop())
                if stack:
                    stack[-1] += seconds

        return timed
