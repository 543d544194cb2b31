"""What it costs that a model has a process of its own.

The same model is loaded into this process and, with ``isolate=True``, into one of its own. Each
repeat measures both right after each other, in changing order: one greedy stream of --generate
tokens, whose chunks a thread reads as they come, and --streams of them at once, each read by a
thread of its own. The cost of the border is the difference of the seconds for one token of the
single stream, and beside it that of the processor time of both processes together; and what the
border takes where there is nothing else: the events of so many streams written, sent, received,
read and entered in their records, by one thread, in processor time, which other work on the machine
disturbs least. Figures are medians of the repeats, and ratios are medians of the ratios within a
repeat. With a small model (the default) the border is a large part of a token's time; how much of a
real reply it is, a real one shows.

Flash attention is as it is by default, and each stream has cells of its own, because replies do not
depend on each other then (``docs/performance.md``). Exit code 1 if the two do not say the same.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_py.bench.http_load import in_threads
from llama_py.bench.report import Report, median, ratios
from llama_py.bench.subject import add_model_arguments, conditions, load, whole_context

if TYPE_CHECKING:
    from llama_py.api.llama import Llama

__all__ = ["add_arguments", "run"]

_PROMPT = "Once upon a time there was "
#: Microseconds of the border for one token, and the share of the tokens per second that is asked.
_MOST_MICROSECONDS, _LEAST_SHARE = 60.0, 0.97


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.set_defaults(flash_attn="default")
    parser.add_argument("--generate", type=int, default=400, metavar="N")
    parser.add_argument("--streams", type=int, default=8, metavar="N")
    parser.add_argument("--repeats", type=int, default=7, metavar="N")


@dataclass(frozen=True, slots=True)
class _Run:
    """How long some streams took.

    Attributes:
        tokens: of all of them together.
        seconds: until all had ended.
        processor: seconds of processor time, of both processes.
        texts: what they said.
    """

    tokens: int
    seconds: float
    processor: float
    texts: list[str]


def run(options: argparse.Namespace) -> Report:
    n_ctx = whole_context(options.streams * (options.generate + 64))
    report = Report("isolation", conditions(options, n_ctx))
    runs: dict[tuple[str, int], list[_Run]] = {}
    # Where replies do not depend on what else is in memory, they can be compared.
    more: dict[str, Any] = {"n_seq_max": options.streams, "kv_unified": False}
    with (
        contextlib.closing(load(options, n_ctx, **more)) as here,
        contextlib.closing(load(options, n_ctx, isolate=True, **more)) as there,
    ):
        subjects = {"in this process": here, "isolated": there}
        for llm in subjects.values():
            _streams(llm, options.streams, 16)
        for repeat in range(options.repeats):
            order = [*subjects.items()]
            for count in (1, options.streams):
                for name, llm in order if repeat % 2 == 0 else reversed(order):
                    found = _streams(llm, count, options.generate)
                    runs.setdefault((name, count), []).append(found)
    _show(report, runs, options.streams)
    return report


def _streams(llm: Llama, count: int, tokens: int) -> _Run:
    """Read some streams at once, each in a thread."""

    def read(number: int) -> tuple[int, str]:
        stream = llm.create_completion(
            f"{_PROMPT}{number}",
            max_tokens=tokens,
            temperature=0,
            ignore_eos=True,
            reuse=False,
            stream=True,
            stream_options={"include_usage": True},
        )
        text, written = [], 0
        for chunk in stream:
            text += [choice["text"] for choice in chunk["choices"]]
            if (usage := chunk.get("usage")) is not None:
                written = usage["completion_tokens"]
        return written, "".join(text)

    status = llm.runtime.port.own_process
    others = [status.pid] if status is not None else []
    before, start = _processor(others), time.perf_counter()
    found = in_threads(read, count)
    seconds = time.perf_counter() - start
    return _Run(
        sum(count for count, _ in found),
        seconds,
        _processor(others) - before,
        [text for _, text in found],
    )


def _processor(others: list[int]) -> float:
    """Seconds of processor time of this process and of others; of the latter on Linux only."""
    total = time.process_time()
    for pid in others:
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # a thread that ended just now
                total += int(task.read_text(encoding="ascii").split()[0]) * 1e-9
    return total


def _border_alone(streams: int, steps: int = 4000) -> float:
    """Microseconds of processor time for a token that crosses, where each of some streams has one
    in each message."""
    from llama_py.api.isolation.codec import Codec
    from llama_py.api.isolation.connection import MessageSocket
    from llama_py.api.isolation.messages import USUAL, note_event, row_of
    from llama_py.engine.request import GenerationRequest, Prompt, Record, TokenEvent

    codec, request = Codec(), GenerationRequest(Prompt(b""))
    sent = [Record(request) for _ in range(streams)]
    received = [Record(request) for _ in range(streams)]
    ends = [MessageSocket(each, USUAL) for each in socket.socketpair()]
    event = TokenEvent(1234, " there")
    start = time.thread_time()
    for _ in range(steps):
        rows = [row_of(number, event, record) for number, record in enumerate(sent)]
        ends[0].send(codec.encode_plain((9, rows)))
        data = ends[1].receive()
        if data is None:
            raise RuntimeError("the socket was closed")
        for row in codec.decode(data)[1]:
            note_event(row, received[row[0]])
    seconds = time.thread_time() - start
    for each in ends:
        each.close()
    return 1e6 * seconds / (steps * streams)


def _show(report: Report, runs: dict[tuple[str, int], list[_Run]], streams: int) -> None:
    table = report.table("", "model", "streams", "tokens/s", "µs/token", "processor µs/token")
    for (name, count), each in runs.items():
        speeds = median([found.tokens / found.seconds for found in each])
        wall = median([1e6 * found.seconds / found.tokens for found in each])
        processor = median([1e6 * found.processor / found.tokens for found in each])
        table.add(name, count, speeds, wall, processor)
    for count in (1, streams):
        pairs = [*zip(runs["in this process", count], runs["isolated", count], strict=True)]
        if any(one.texts != other.texts for one, other in pairs):
            report.fail(f"{count} streams did not say the same in both")
    one = [*zip(runs["in this process", 1], runs["isolated", 1], strict=True)]
    cost = [1e6 * (b.seconds / b.tokens - a.seconds / a.tokens) for a, b in one]
    report.at_most("the border, µs per streamed token", median(cost), _MOST_MICROSECONDS)
    cost = [1e6 * (b.processor / b.tokens - a.processor / a.tokens) for a, b in one]
    report.at_most("... in processor time of both", median(cost), _MOST_MICROSECONDS)
    rates = {
        name: [found.tokens / found.seconds for found in runs[name, streams]]
        for name in ("in this process", "isolated")
    }
    table = report.table("the border alone", "streams", "processor µs/token")
    for count in (1, streams):
        table.add(count, _border_alone(count))
    share = median(ratios(rates["isolated"], rates["in this process"]))
    report.at_least(f"tokens/s of {streams} streams, beside one process", share, _LEAST_SHARE)
