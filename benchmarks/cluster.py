"""Replicas on Ray Serve, beside one server with all their memory and beside Ray's own routing.

The same conversations (agents that send the calls of a transcript, and chats that arrive at random
times) are played against one server that has the memory of all replicas together, against a cluster
whose router knows texts and sessions, and against one with Ray's default routing. Then a replica is
killed in the middle, and replicas come and go with the load. All of it runs on this machine, so the
replicas, Ray and the clients share its processors: times compare with each other, and with nothing
else.

Exit code 1 if a conversation was lost, or a request failed where none may.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.cluster_load import Outcome, Workload, play, synthetic_agents
from llama_py.bench.http_load import Endpoint
from llama_py.bench.report import Report, Target
from llama_py.bench.subject import resolve_model
from llama_py.bench.transcripts import Transcript, read_transcript
from llama_py.errors import LlamaError
from llama_py.version import LLAMA_CPP_COMMIT, __version__

__all__ = ["add_arguments", "run"]

#: Seconds until a cluster has to be there.
_PATIENCE = 240.0
#: Ray gives up when one of its processes does not start within seconds, as on a busy machine.
_TRIES = 5
_PARTS = ("one", "prefix", "default", "kill", "scale")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("transcripts", nargs="*", metavar="TRANSCRIPT", help="of agents")
    parser.add_argument("--model", default="demo", metavar="FILE")
    parser.add_argument("--replicas", type=int, default=3, metavar="N")
    parser.add_argument("--agents", type=int, default=3, metavar="N", help="if none is given")
    parser.add_argument("--characters", type=int, default=24_000, metavar="N", help="of each")
    parser.add_argument("--chats", type=int, default=200, metavar="N")
    parser.add_argument("--seconds", type=float, default=60.0, help="in which chats begin")
    parser.add_argument(
        "--agent-pause", type=float, default=1.0, metavar="SECONDS", help="what tools take, mean"
    )
    parser.add_argument("--n-ctx", type=int, default=24_576, metavar="N", help="of a replica")
    parser.add_argument("--n-seq-max", type=int, default=16, metavar="N", help="of a replica")
    parser.add_argument("--max-tokens", type=int, default=24, metavar="N")
    parser.add_argument("--store", action="store_true", help="replicas share a store on the disk")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument(
        "--parts", default=",".join(_PARTS), metavar="NAME,...", help="(default: %(default)s)"
    )


def run(options: argparse.Namespace) -> Report:
    parts = options.parts.split(",")
    for part in parts:
        if part not in _PARTS:
            raise LlamaError(f"--parts {part}: expected some of {', '.join(_PARTS)}")
    workload = workload_of(options)
    names = ("replicas", "n_ctx", "n_seq_max", "chats", "seconds", "agent_pause", "max_tokens")
    conditions = {"llama_py": __version__, "llama.cpp": LLAMA_CPP_COMMIT}
    conditions |= {name: getattr(options, name) for name in (*names, "store", "seed")}
    report = Report("cluster", {**conditions, "requests": workload.requests})
    report.conditions["processors"] = os.cpu_count()
    outcomes: dict[str, Outcome] = {}
    for part in parts:
        print(f"{time.strftime('%H:%M:%S')} {part}", file=sys.stderr, flush=True)
        try:
            _run_part(part, report, options, workload, outcomes)
        except LlamaError as error:  # the other figures are worth something
            report.fail(f"{part}: {error}")
    _show(report, outcomes)
    return report


def _run_part(
    part: str,
    report: Report,
    options: argparse.Namespace,
    workload: Workload,
    outcomes: dict[str, Outcome],
) -> None:
    if part == "one":
        with one_server(options) as endpoint:
            outcomes["one server"] = _played(endpoint, workload)
    elif part == "kill":
        _kill_one(report, options, workload)
    elif part == "scale":
        _scale(report, options)
    else:
        with cluster(options, routing=part) as running:
            outcomes[part] = _played(running.endpoint, workload)


def workload_of(options: argparse.Namespace) -> Workload:
    """The conversations that the options describe."""
    return Workload.made(
        agents_of(options),
        options.chats,
        seconds=options.seconds,
        agent_pause=options.agent_pause,
        max_tokens=options.max_tokens,
        seed=options.seed,
    )


def agents_of(options: argparse.Namespace) -> list[Transcript]:
    """The transcripts of the agents."""
    transcripts = [read_transcript(path) for path in options.transcripts]
    return transcripts or synthetic_agents(options.agents, options.characters)


def _played(endpoint: Endpoint, workload: Workload, attempts: int = 1) -> Outcome:
    endpoint.chat([{"role": "user", "content": "warm up"}], max_tokens=2)
    return play(endpoint, workload, attempts=attempts)


# ---- figures ------------------------------------------------------------------------------------


def _show(report: Report, outcomes: dict[str, Outcome]) -> None:
    if not outcomes:
        return
    table = report.table(
        "the same conversations",
        *("", "replies", "failed", "evaluated", "reused", "kept", "p50 ms", "p95 ms", "seconds"),
    )
    for name, each in outcomes.items():
        p50, p95 = 1e3 * each.first_token(0.5), 1e3 * each.first_token(0.95)
        row = (each.count, len(each.failures), each.evaluated, each.hit_rate, each.kept)
        table.add(name, *row, p50, p95, each.seconds)
        for failure in each.failures[:3]:
            report.fail(f"{name}: {failure}")
        if len(each.replicas) > 1:
            report.notes.append(f"{name}: replies of each replica {sorted(each.replicas.values())}")
    prefix, one, default = (outcomes.get(n) for n in ("prefix", "one server", "default"))
    if prefix is not None:
        report.targets.append(Target("sessions that kept their replica", prefix.kept, least=0.95))
    if prefix is not None and one is not None:
        ratio = prefix.evaluated / max(1, one.evaluated)
        report.targets.append(Target("evaluated / one server", ratio, most=1.1))
    if prefix is not None and default is not None:
        ratio = prefix.first_token(0.95) / default.first_token(0.95)
        report.targets.append(Target("p95 / Ray's default", ratio, most=0.6))


def _kill_one(report: Report, options: argparse.Namespace, workload: Workload) -> None:
    """A replica dies in the middle; clients send again what broke off, as they do."""
    with cluster(options, routing="prefix", store=True) as running:
        killed: list[int] = []

        def kill() -> None:
            time.sleep(options.seconds / 2)
            killed.append(running.replicas()[0])
            os.kill(killed[0], signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        outcome = _played(running.endpoint, workload, attempts=3)
        killer.join()
    table = report.table("a replica is killed", "replies", "broke off", "lost", "evaluated")
    table.add(outcome.count, outcome.again, len(outcome.failures), outcome.evaluated)
    for failure in outcome.failures:
        report.fail(f"a conversation was lost: {failure}")


def _scale(report: Report, options: argparse.Namespace) -> None:
    """Few clients, many, and few again; replicas come and go, and no request fails."""
    settings = {"replicas": 1, "max_replicas": options.replicas, "target_requests": 1.0}
    settings |= {"upscale_seconds": 2.0, "downscale_seconds": 5.0}
    seen: list[int] = []
    over = threading.Event()
    with cluster(options, routing="prefix", store=True, **settings) as running:

        def watch() -> None:
            while not over.is_set():
                seen.append(len(running.replicas()))
                over.wait(1.0)

        watcher = threading.Thread(target=watch)
        watcher.start()
        outcomes = [
            _played(running.endpoint, _steady(options, clients, seconds))
            for clients, seconds in ((1, 10.0), (24, 25.0), (1, 60.0))
        ]
        over.set()
        watcher.join()
    table = report.table("1 replica, more, and 1 again", "replies", "failed", "most", "at the end")
    failures = [failure for each in outcomes for failure in each.failures]
    table.add(sum(each.count for each in outcomes), len(failures), max(seen), seen[-1])
    report.targets.append(Target("replicas under load", max(seen), least=options.replicas))
    report.targets.append(Target("replicas afterwards", seen[-1], most=1))
    for failure in failures:
        report.fail(f"a request failed while replicas came and went: {failure}")


def _steady(options: argparse.Namespace, clients: int, seconds: float) -> Workload:
    """Chats that go on for some time, one after the other for each client."""
    turns = max(2, round(seconds))
    return Workload.made((), clients, seconds=1.0, pause=0.5, turns=turns, max_tokens=32)


# ---- servers ------------------------------------------------------------------------------------


class Running:
    """A cluster that runs.

    Attributes:
        endpoint: its address.
    """

    def __init__(self, endpoint: Endpoint, process: int) -> None:
        self.endpoint = endpoint
        self._process = process

    def processes(self) -> list[int]:
        """All its processes. (Linux only.)"""
        return [self._process, *_descendants(self._process)]

    def replicas(self) -> list[int]:
        """The processes of its replicas. (Linux only.)"""
        found = []
        for process in self.processes():
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{process}/cmdline").read_bytes()
                if re.match(rb"ray::ServeReplica:[^:]*:replica", name):
                    found.append(process)
        return sorted(found)


@contextlib.contextmanager
def one_server(options: argparse.Namespace, count: int | None = None) -> Iterator[Endpoint]:
    """A server with the memory of all replicas."""
    count = options.replicas if count is None else count
    port = free_port()
    with tempfile.TemporaryDirectory() as place:
        flags = ["--port", str(port), "-c", str(count * options.n_ctx), "--log-level", "warning"]
        flags += ["--parallel", str(count * options.n_seq_max), "-t", "1"]
        if options.store:
            flags += ["--session-dir", str(Path(place) / "sessions")]
        command = ["serve", resolve_model(options.model), *flags]
        with _program(command, Path(place)):
            yield Endpoint(f"http://127.0.0.1:{port}")


@contextlib.contextmanager
def cluster(
    options: argparse.Namespace,
    *,
    store: bool = False,
    server: Mapping[str, Any] | None = None,
    **given: Any,
) -> Iterator[Running]:
    """A cluster on this machine.

    Args:
        store: the replicas share one, whatever the options say.
        server: settings of the server.
        given: settings of the cluster.
    """
    port = free_port()
    model = {"path": resolve_model(options.model), "n_ctx": options.n_ctx}
    model |= {"n_seq_max": options.n_seq_max, "n_threads": 1, "n_threads_batch": 1}
    with tempfile.TemporaryDirectory() as place:
        own: dict[str, Any] = {"port": port, "log_level": "warning", "model": [model]}
        if store or options.store:
            own["session_dir"] = str(Path(place) / "sessions")
        settings = {"replicas": options.replicas, **given, "server": {**own, **(server or {})}}
        file = Path(place) / "cluster.yaml"
        file.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
        with _program(["cluster", "deploy", str(file)], Path(place)) as process:
            yield Running(Endpoint(f"http://127.0.0.1:{port}"), process)


@contextlib.contextmanager
def _program(arguments: list[str], place: Path) -> Iterator[int]:
    """``llama-py`` with these arguments, from when it says that it serves."""
    log = place / "log"
    process = None
    for _ in range(_TRIES):
        process = process or _started(arguments, log)
    if process is None:
        said = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise LlamaError(f"{' '.join(arguments)} does not serve: {said}")
    try:
        yield process.pid
    finally:
        _end(process)


def _started(arguments: list[str], log: Path) -> subprocess.Popen[bytes] | None:
    command = [sys.executable, "-m", "llama_py", *arguments]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    end = time.monotonic() + _PATIENCE
    try:
        while process.poll() is None and time.monotonic() < end:
            if b"llama-py serves" in log.read_bytes():
                return process
            time.sleep(0.2)
    except BaseException:
        _end(process)
        raise
    _end(process)
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _descendants(process: int) -> list[int]:
    """The processes that one has started, and those that these have."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            number, _, rest = stat.read_text(errors="replace").partition(" ")
            parents.setdefault(int(rest.rpartition(")")[2].split()[1]), []).append(int(number))
    found, rest_ = [], [process]
    while rest_:
        children = parents.get(rest_.pop(), [])
        found += children
        rest_ += children
    return found


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
