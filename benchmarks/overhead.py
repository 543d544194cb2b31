"""The time of one token outside of evaluating and sampling (part of ``hotpath``).

The time of a greedy call is split into ``llama_decode`` (the evaluation itself), choosing the
tokens, and everything else, which is the cost of this library. The difference between a long call
and a short one gives the cost per token. Then the engine's parts are wrapped with clocks, each of
which adds a third of a microsecond to what it measures.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llama_py.bench.report import Report, median
from llama_py.core.batch import Batch
from llama_py.core.context import Context
from llama_py.core.vocab import Vocab
from llama_py.engine.books import Books
from llama_py.engine.engine import Engine
from llama_py.engine.loop import Loop
from llama_py.engine.runner import Runner
from llama_py.engine.sampling import Sampling
from llama_py.engine.step_planner import StepPlanner

__all__ = ["run_overhead"]

#: Wall, decode and choosing seconds.
_Split = tuple[float, float, float]


def run_overhead(report: Report, llm: Any, options: argparse.Namespace) -> None:
    """Add the breakdown, and the targets."""
    prompt = llm.tokenize("Once upon a time", add_bos=True)
    whole: list[_Split] = []
    streamed: list[_Split] = []
    for _ in range(options.repeats):
        for stream, found in ((False, whole), (True, streamed)):
            found.append(_one_token(llm, prompt, options.tokens, stream))
    clocks = _breakdown(llm, prompt, options.tokens)
    table = report.table("microseconds a token, median", "part", "us", "streamed")
    for name, column in (("whole token", 0), ("llama_decode", 1), ("choosing", 2)):
        table.add(
            name, *(1e6 * median([part[column] for part in way]) for way in (whole, streamed))
        )
    others, streams = (1e6 * median([a - b - c for a, b, c in way]) for way in (whole, streamed))
    table.add("everything else", others, streams)
    inner = report.table("inside one call, with clocks: microseconds a token", "part", "us")
    for name, seconds in clocks.items():
        inner.add(name, 1e6 * seconds)
    report.at_most("microseconds a token outside llama_decode and sampling", others, 15)
    report.at_most("the same while streaming", streams, 40)


def _one_token(llm: Any, prompt: list[int], count: int, stream: bool) -> _Split:
    """The cost of a token: the difference between two calls, divided by that of their tokens."""
    short, few = _timed_call(llm, prompt, count, stream)
    long, many = _timed_call(llm, prompt, 3 * count, stream)
    wall, decode, choosing = ((b - a) / (many - few) for a, b in zip(short, long, strict=True))
    return wall, decode, choosing


def _timed_call(llm: Any, prompt: list[int], count: int, stream: bool) -> tuple[_Split, int]:
    """Wall, decode and choosing seconds of a call, and how many tokens it generated."""
    metrics = llm.runtime.loaded.engine.metrics
    before = metrics.decode_seconds, metrics.sample_seconds, metrics.generated
    start = time.perf_counter()
    answer = llm.create_completion(
        prompt, max_tokens=count, temperature=0.0, stream=stream, ignore_eos=True
    )
    if stream:
        for _ in answer:
            pass
    seconds = time.perf_counter() - start
    split = seconds, metrics.decode_seconds - before[0], metrics.sample_seconds - before[1]
    return split, metrics.generated - before[2]


#: The engine's parts, from the outside in.
_PARTS: tuple[tuple[type, str], ...] = (
    (Loop, "step"),
    (Engine, "step"),
    (StepPlanner, "plan"),
    (Runner, "run"),
    (Batch, "add_one"),
    (Context, "decode_steps"),
    (Books, "enter"),
    (Sampling, "enter"),
    (Vocab, "plain_piece"),
)


def _breakdown(llm: Any, prompt: list[int], count: int) -> dict[str, float]:
    """Seconds a token of the engine's parts, each without what is listed below it."""
    clocks = _Clocks()
    with clocks.on(_PARTS):
        start = time.perf_counter()
        llm.create_completion(prompt, max_tokens=count, temperature=0.0, ignore_eos=True)
        whole = (time.perf_counter() - start) / count
    seconds = {name: sum(times) / count for name, times in clocks.times.items()}
    return {**seconds, "whole call": whole}


class _Clocks:
    """Exclusive times of wrapped methods."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}
        self._stack: list[float] = []

    @contextmanager
    def on(self, places: Sequence[tuple[type, str]]) -> Iterator[None]:
        """Wrap methods of these classes for a while."""
        methods = [(owner, name, getattr(owner, name)) for owner, name in places]
        try:
            for owner, name, method in methods:
                setattr(owner, name, self._wrapped(method, f"{owner.__name__}.{name}"))
            yield
        finally:
            for owner, name, method in methods:
                setattr(owner, name, method)

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
