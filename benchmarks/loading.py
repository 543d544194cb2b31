"""From the start of a process to its first token: importing, loading, a prompt of four tokens.

Each measurement is a process of its own, that of llama-cpp-python (``--peer-python``) in turn with
ours; the first of each is discarded, as it reads the files from disk and writes Python's bytecode.
The table shows the medians, in milliseconds; processor time is what a busy machine changes least.
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
    for turn in range(options.repeats + 1):
        for name, (python, module) in subjects.items():
            times = _start(python, module, arguments)
            if turn:
                found[name].append(times)
    _show(report, found)
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


def _start(python: str, module: str, arguments: str) -> _Times:
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
    times: dict[str, Any] = json.loads(done.stdout)
    return {step: (wall, cpu) for step, (wall, cpu) in times.items()}


def _show(report: Report, found: dict[str, list[_Times]]) -> None:
    table = report.table("ms", "library", "clock", *_STEPS, "together")
    for name, runs in found.items():
        for clock, what in enumerate(("wall", "processor")):
            steps = [[times[step][clock] for step in _STEPS] for times in runs]
            laps = (1e3 * median(column) for column in zip(*steps, strict=True))
            table.add(name, what, *laps, 1e3 * median([sum(each) for each in steps]))
    if len(found) == 2:
        ours, theirs = ([sum(t[1] for t in times.values()) for times in r] for r in found.values())
        name = "processor time by llama-cpp-python's"
        report.at_most(name, median(ratios(ours, theirs)), 1.0)
