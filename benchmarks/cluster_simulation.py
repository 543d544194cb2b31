"""Clusters larger than this machine, simulated: routings, sizes of memories, and failures.

With --measure, what things cost is measured on a replica that runs here (and kept with --constants
FILE); then the conversations of `benchmarks cluster` are really played against three replicas, and
the simulation of the same has to agree within 15 % before it says anything about more. The
router in the simulation is the cluster's own code. What it cannot know: networks, disks of the
shared store, machines that differ, and what clients do when they have to wait.

Exit code 1 if a real request failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import cluster as real
from benchmarks.cluster_load import Conversation, Outcome, Workload, play
from benchmarks.cluster_model import (
    ROUTINGS,
    Cluster,
    Constants,
    Result,
    constants_of,
    described,
    simulate,
)
from llama_py.bench.http_load import Endpoint, together
from llama_py.bench.report import Report, Target, median
from llama_py.dialects.routing_hints import hint_of
from llama_py.errors import ParameterError
from llama_py.version import LLAMA_CPP_COMMIT, __version__

__all__ = ["add_arguments", "run"]

#: How far the simulation may be from what was measured.
_WITHIN = 0.15
_SIZES = (1, 4, 16, 64)
#: Simulations of what was measured.
_SEEDS = 9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    real.add_arguments(parser)
    parser.add_argument("--measure", action="store_true", help="measure here, and compare")
    parser.add_argument("--constants", type=Path, metavar="FILE", help="read or written (JSON)")
    parser.add_argument(
        "--sizes", default=",".join(map(str, _SIZES)), metavar="N,...", help="replicas"
    )
    parser.add_argument(
        "--memory", type=int, default=0, metavar="TOKENS", help="of a replica, parked ones too"
    )
    parser.add_argument("--load", type=float, default=1.0, help="conversations for each replica")
    parser.add_argument("--failures", type=int, default=4, metavar="N", help="in the last table")


def run(options: argparse.Namespace) -> Report:
    report = Report("cluster-simulation", {"llama_py": __version__, "llama.cpp": LLAMA_CPP_COMMIT})
    workload = real.workload_of(options)
    if options.measure:
        constants, taken = _measured(options, workload)
        _compare(report, options, workload, constants, taken)
        if options.constants is not None:
            text = json.dumps({**described(constants), "taken": taken}, indent=1)
            options.constants.write_text(text + "\n", encoding="utf-8")
    else:
        constants, taken = _read(options.constants)
    report.conditions |= {"constants": described(constants), "taken": taken}
    _sizes(report, options, constants)
    _memories(report, options, constants)
    _failures(report, options, constants)
    return report


def _read(path: Path | None) -> tuple[Constants, float]:
    if path is None:
        return Constants(), 0.5
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        taken = float(values.pop("taken"))
        return constants_of(values), taken
    except (ValueError, KeyError, TypeError) as error:
        raise ParameterError(f"{path} has no constants of --measure: {error}") from None


# ---- what things cost ----------------------------------------------------------------------------


def _measured(options: argparse.Namespace, workload: Workload) -> tuple[Constants, float]:
    """Of one replica behind Ray; and what everybody else computes for each second that it does."""
    with real.cluster(options, routing="prefix", replicas=1) as running:
        endpoint = running.endpoint
        endpoint.chat([{"role": "user", "content": "warm up"}], max_tokens=4)
        overhead, token, position = _prompts(endpoint, options.n_ctx)
        small = _some(workload, 12)
        outcome = play(endpoint, small)
        before = _processor_seconds(running)
        step, stream = _streams(endpoint)
        after = _processor_seconds(running)
    replica, others = (after[0] - before[0], after[1] - before[1])
    agent, chat = _lengths(small, outcome)
    reply = float(np.mean([each.tokens for each in outcome])) if outcome.count else 24.0
    constants = Constants(overhead, step, token, position, stream, reply, agent, chat)
    constants = replace(constants, beside=_beside(options))
    return constants, others / max(replica, 1e-6)


def _processor_seconds(running: real.Running) -> tuple[float, float]:
    """Seconds of a processor: of the replicas, and of Ray and this process."""
    tick = os.sysconf("SC_CLK_TCK")
    replicas = set(running.replicas())
    own, others = 0.0, time.process_time()
    for process in running.processes():
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{process}/stat").read_text(errors="replace")
            words = stat.rpartition(")")[2].split()
            seconds = (int(words[11]) + int(words[12])) / tick
            if process in replicas:
                own += seconds
            else:
                others += seconds
    return own, others


def _prompts(endpoint: Endpoint, most: int) -> tuple[float, float, float]:
    """Seconds of a request, of a token of a prompt, and of that for each token before it."""
    rows, seconds = [], []
    for words in (4, 60, 250, 700, 1500, 3000, 6000):
        if words * 4 > most:
            break
        for _ in range(5):
            text = f"{uuid.uuid4().hex} " + "bread tea apple train " * (words // 4)
            reply = endpoint.chat([{"role": "user", "content": text}], max_tokens=1)
            count = reply.prompt_tokens - reply.cached_tokens
            rows.append((1.0, count, count**2 / 2))
            seconds.append(reply.first_token_seconds)
    weights = 1 / np.array(seconds)  # relative errors count
    found = _least_squares(np.array(rows) * weights[:, None], np.array(seconds) * weights)
    return found[0], found[1], found[2]


def _beside(options: argparse.Namespace) -> float:
    """How much longer a prompt takes while every other processor evaluates one, too."""
    count = os.cpu_count() or 1
    if count == 1:
        return 1.0
    with real.cluster(options, routing="default", replicas=count) as running:

        def ask(number: int) -> float:
            text = f"{uuid.uuid4().hex} " + "bread tea apple train " * (options.n_ctx // 32)
            message = [{"role": "user", "content": text}]
            return float(running.endpoint.chat(message, max_tokens=1).first_token_seconds)

        together(ask, 2 * count)
        # Two at one replica would wait for each other: the quickest is at one of its own.
        pairs = [(ask(0), min(together(ask, count))) for _ in range(9)]
    return max(1.0, median([several / alone for alone, several in pairs]))


def _streams(endpoint: Endpoint) -> tuple[float, float]:
    """Seconds of a step, and of each reply in it."""
    rows, seconds = [], []
    for count in (1, 2, 4, 8):

        def ask(number: int) -> Any:
            message = [{"role": "user", "content": f"Count, {number}."}]
            return endpoint.chat(message, max_tokens=64, temperature=0, ignore_eos=True)

        replies = together(ask, count)
        each = median([(r.ended - r.first) / max(1, r.tokens - 1) for r in replies])
        rows.append((1.0, float(count)))
        seconds.append(each)
    found = _least_squares(np.array(rows), np.array(seconds))
    return found[0], found[1]


def _least_squares(rows: Any, values: Any) -> list[float]:
    """What fits best of what is not negative."""
    chosen = list(range(rows.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(rows[:, chosen], values, rcond=None)
        if not len(chosen) or min(found) >= 0:
            break
        chosen.pop(int(np.argmin(found)))
    result = [0.0] * rows.shape[1]
    for place, value in zip(chosen, found, strict=True):
        result[place] = float(value)
    return result


def _some(workload: Workload, chats: int) -> Workload:
    """A few of each kind, for how long their texts are in tokens."""
    agents = [each for each in workload.conversations if not each.grows][:1]
    some = [each for each in workload.conversations if each.grows][:chats]
    return Workload([*agents, *(replace(each, start=0.2 * n) for n, each in enumerate(some))])


def _lengths(
    workload: Workload, outcome: Outcome
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Tokens of a text, for agents and for chats: so many, and so many for each byte."""
    fits = []
    for grows in (False, True):
        pairs = [
            (size, reply.prompt_tokens)
            for each in workload.conversations
            if each.grows == grows
            for size, reply in _sizes_of(each, outcome)
        ]
        rows = np.array([(1.0, size) for size, _ in pairs])
        found = _least_squares(rows, np.array([float(count) for _, count in pairs]))
        fits.append((found[0], found[1]))
    return fits[0], fits[1]


def _sizes_of(conversation: Conversation, outcome: Outcome) -> list[tuple[int, Any]]:
    """Bytes of each request's text, with its reply."""
    said: list[Any] = []
    pairs = []
    replies = outcome.replies.get(conversation.name, ())
    for turn, reply in zip(conversation.turns, replies, strict=False):
        said = [*said, *turn.messages] if conversation.grows else [*turn.messages]
        body = {"messages": said, **({"tools": conversation.tools} if conversation.tools else {})}
        pairs.append((hint_of(body).size, reply))
        said.append({"role": "assistant", "content": reply.text})
    return pairs


# ---- beside what is real -----------------------------------------------------------------------


def _compare(
    report: Report,
    options: argparse.Namespace,
    workload: Workload,
    constants: Constants,
    taken: float,
) -> None:
    table = report.table(
        f"{options.replicas} replicas, measured and simulated",
        *("routing", "", "evaluated", "reused", "kept", "p50 ms", "p95 ms"),
    )
    for routing in ("prefix", "default"):
        with real.cluster(options, routing=routing) as running:
            running.endpoint.chat([{"role": "user", "content": "warm up"}], max_tokens=2)
            outcome = play(running.endpoint, workload)
        for failure in outcome.failures:
            report.fail(f"{routing}: {failure}")
        shape = Cluster(
            options.replicas,
            routing,
            _memory(options),
            options.n_ctx,
            processors=float(os.cpu_count() or 1),
            taken=taken,
            store=options.store,
        )
        # A moment earlier or later moves all that follows: the run in the middle counts, and how
        # far the outer ones are.
        results = [simulate(workload, shape, constants, seed) for seed in range(_SEEDS)]
        results.sort(key=lambda each: each.first_token(0.95))
        result = results[len(results) // 2]
        reals = (outcome.evaluated, outcome.hit_rate, outcome.kept)
        table.add(routing, "measured", *reals, *_times(outcome))
        table.add("", "simulated", result.evaluated, result.hit_rate, result.stays, *_times(result))
        least, most = (1e3 * each.first_token(0.95) for each in (results[0], results[-1]))
        report.notes.append(f"{routing}: p95 of {_SEEDS} simulations: {least:.0f} to {most:.0f} ms")
        for name, one, other in (
            ("evaluated", result.evaluated, outcome.evaluated),
            ("p95", result.first_token(0.95), outcome.first_token(0.95)),
        ):
            away = abs(one / other - 1)
            report.targets.append(Target(f"{routing}: {name}, away by", away, most=_WITHIN))


def _times(of: Outcome | Result) -> tuple[float, float]:
    return 1e3 * of.first_token(0.5), 1e3 * of.first_token(0.95)


def _memory(options: argparse.Namespace) -> int:
    """Tokens that a replica can give back: its cells, and what is parked in RAM of what was there.

    The default of ``parking_bytes`` holds far more than these conversations have.
    """
    count: int = options.memory if options.memory else 64 * options.n_ctx
    return count


# ---- beyond --------------------------------------------------------------------------------------


def _scaled(options: argparse.Namespace, replicas: int) -> Workload:
    """The conversations for so many replicas."""
    share = options.load * replicas / options.replicas
    agents = real.agents_of(options)
    count = max(1, round(len(agents) * share))
    more = [agents[number % len(agents)] for number in range(count)]
    chats = round(options.chats * share)
    return Workload.made(
        more,
        chats,
        seconds=options.seconds,
        agent_pause=options.agent_pause,
        max_tokens=options.max_tokens,
        seed=options.seed,
    )


_COLUMNS = ("requests", "evaluated", "reused", "kept", "p50 ms", "p95 ms")


def _row(workload: Workload, result: Result) -> tuple[Any, ...]:
    reuse = (result.evaluated, result.hit_rate, result.stays)
    return workload.requests, *reuse, *_times(result)


def _sizes(report: Report, options: argparse.Namespace, constants: Constants) -> None:
    table = report.table(
        "simulated: each replica has a processor of its own", "replicas", "routing", *_COLUMNS
    )
    for count in _numbers(options.sizes):
        workload = _scaled(options, count)
        for routing in ROUTINGS:
            result = simulate(workload, Cluster(count, routing, _memory(options)), constants)
            table.add(count, routing, *_row(workload, result))


def _memories(report: Report, options: argparse.Namespace, constants: Constants) -> None:
    count = min(16, max(_numbers(options.sizes)))
    workload = _scaled(options, count)
    table = report.table(
        f"simulated: {count} replicas, memories of other sizes", "tokens", "routing", *_COLUMNS
    )
    for memory in (2_048, 8_192, 32_768, 131_072):
        for routing in ("prefix", "session hash", "default"):
            result = simulate(workload, Cluster(count, routing, memory), constants)
            table.add(memory, routing, *_row(workload, result))


def _failures(report: Report, options: argparse.Namespace, constants: Constants) -> None:
    count = min(16, max(_numbers(options.sizes)))
    workload = _scaled(options, count)
    whens = [
        options.seconds * (number + 1) / (options.failures + 1)
        for number in range(options.failures)
    ]
    title = f"simulated: {count} replicas, of which {options.failures} die, one after the other"
    table = report.table(title, "store", "routing", *_COLUMNS, "sent again")
    for store in (False, True):
        for routing in ("prefix", "session hash", "default"):
            shape = Cluster(count, routing, _memory(options), store=store, failures=whens)
            result = simulate(workload, shape, constants)
            table.add("shared" if store else "none", routing, *_row(workload, result), result.again)


def _numbers(text: str) -> Sequence[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise ParameterError(f"--sizes {text}: expected numbers with commas") from None
