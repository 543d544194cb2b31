"""From the start of a process to its first token: importing, loading, a prompt of four tokens.

Each measurement is a process of its own, that of llama-cpp-python (``--peer-python``) in turn with
ours; the first of each is discarded, as it reads the files from disk and writes Python's bytecode.
The table shows the medians, in milliseconds; processor time is what a busy machine changes least.
Another one shows the most memory that each process had (Linux): all of it, and what it has at the
end that is not pages of files, which other processes share.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers import add_peer_arguments
from llama_py.bench.report import Report, median, ratios
from llama_py.bench.subject import (
    add_model_arguments,
    conditions,
    flash_attention,
    resolve_model,
)

__all__ = ["add_arguments", "run"]

_STEPS = ("import", "load", "first token")
#: Step -> seconds of wall-clock time and of processor time.
_Times = dict[str, tuple[float, float]]
#: Megabytes: at most, and at the end without pages of files; None where the system does not tell.
_Memory = tuple[float, float] | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser, "smollm2-135m:vocab=152000")
    add_peer_arguments(parser)
    parser.add_argument("--n-ctx", type=int, default=2048, metavar="N")
    parser.add_argument("--repeats", type=int, default=5, metavar="N")


def run(options: argparse.Namespace) -> Report:
    report = Report("loading", conditions(options, options.n_ctx))
    subjects = {"llama_py": (sys.executable, "llama_py")}
    if options.peer_python:
        subjects["llama-cpp-python"] = (options.peer_python, "llama_cpp")
    arguments = _arguments(options)
    found: dict[str, list[_Times]] = {name: [] for name in subjects}
    memory: dict[str, list[_Memory]] = {name: [] for name in subjects}
    for turn in range(options.repeats + 1):
        for name, (python, module) in subjects.items():
            times, megabytes = _start(python, module, arguments)
            if turn:
                found[name].append(times)
                memory[name].append(megabytes)
    _show(report, found)
    _show_memory(report, memory)
    return report


def _arguments(options: argparse.Namespace) -> str:
    return json.dumps(
        {
            "model_path": str(resolve_model(options.model)),
            "n_ctx": options.n_ctx,
            "n_threads": options.threads,
            "n_threads_batch": options.threads,
            **flash_attention(options),
        }
    )


def _start(python: str, module: str, arguments: str) -> tuple[_Times, _Memory]:
    """One process from its start to its end."""
    # An installed package has its bytecode; without it both would compile themselves each time.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    worker = str(Path(__file__).with_name("loading_worker.py"))
    done = subprocess.run(
        [python, worker, module, arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{module} in {python} failed: {done.stderr[-500:]}")
    said: dict[str, Any] = json.loads(done.stdout)
    times = {step: (wall, cpu) for step, (wall, cpu) in said["steps"].items()}
    return times, tuple(said["peak"]) if said["peak"] else None


def _show(report: Report, found: dict[str, list[_Times]]) -> None:
    table = report.table("ms", "library", "clock", *_STEPS, "together")
    for name, runs in found.items():
        for clock, what in enumerate(("wall", "processor")):
            steps = [[times[step][clock] for step in _STEPS] for times in runs]
            laps = (1e3 * median(column) for column in zip(*steps, strict=True))
            table.add(name, what, *laps, 1e3 * median([sum(each) for each in steps]))
    if len(found) == 2:
        for clock, what in enumerate(("time", "processor time")):
            ours, theirs = ([sum(t[clock] for t in r.values()) for r in v] for v in found.values())
            report.at_most(f"{what} by llama-cpp-python's", median(ratios(ours, theirs)), 1.0)


def _show_memory(report: Report, found: dict[str, list[_Memory]]) -> None:
    table = report.table("MB", "library", "at most", "at the end, without files")
    for name, runs in found.items():
        known = [each for each in runs if each is not None]
        if known:
            table.add(name, *(median(list(column)) for column in zip(*known, strict=True)))
