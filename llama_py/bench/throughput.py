"""Prompt and generation speed, one stream and many, beside llama.cpp's own benchmarks.

Four figures in tokens a second: a prompt of --prompt tokens; one greedy stream of --generate tokens
after a prompt of one token (``create_completion``, whole call); --streams greedy streams of 64
tokens after 32-token prompts, called from as many threads; and the same streams as one call. Beside
them ``llama-bench`` and ``llama-batched-bench``, built from the same source and linked to the same
libraries (``llama-py bench build-tools``), under the same settings. They evaluate and never sample.
Each repeat runs everything once, one after the other; figures are medians, and ratios are medians
of the ratios within a repeat. Without the tools, only our own figures are shown.

Always exit code 0.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from llama_py.bench.build_tools import find_tool
from llama_py.bench.files import resolve_model
from llama_py.bench.report import Report, median, ratios
from llama_py.bench.subject import add_model_arguments, conditions, load
from llama_py.errors import ParameterError

__all__ = ["add_arguments", "run"]

#: Prompt and reply of one of many streams.
_STREAM_PROMPT, _STREAM_REPLY = 32, 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--prompt", type=int, default=512, metavar="N")
    parser.add_argument("--generate", type=int, default=64, metavar="N")
    parser.add_argument("--streams", type=int, default=8, metavar="N")
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    parser.add_argument("--no-tools", action="store_true", help="leave llama.cpp's tools out")


def run(options: argparse.Namespace) -> Report:
    streams = options.streams
    n_ctx = max(options.prompt + 64, streams * (_STREAM_PROMPT + _STREAM_REPLY + 8), 256)
    n_ctx = (n_ctx + 255) // 256 * 256
    report = Report("throughput", conditions(options, n_ctx, repeats=options.repeats))
    tools = _Tools(options, n_ctx, report)
    figures: dict[str, list[float]] = {}
    with load(options, n_ctx, n_seq_max=streams) as llm:
        ours = _Ours(llm, options)
        ours.warm_up()
        for repeat in range(options.repeats):
            # Who goes first alternates: the machine is not the same at the end of a repeat.
            sides = [ours.all, tools.all] if repeat % 2 == 0 else [tools.all, ours.all]
            for side in sides:
                for name, value in side().items():
                    figures.setdefault(name, []).append(value)
    _show(report, figures, streams)
    return report


class _Ours:
    """What this library does."""

    def __init__(self, llm: Any, options: argparse.Namespace) -> None:
        self._llm = llm
        self._options = options
        self._random = random.Random(1)

    def warm_up(self) -> None:
        self._prompt()
        self._complete(self._tokens(1), 8)

    def all(self) -> dict[str, float]:
        return {
            "prompt": self._prompt(),
            "one": self._one(),
            "many": self._many(),
            "many, one call": self._batch(),
        }

    def _tokens(self, count: int) -> list[int]:
        """Random ones, as llama.cpp's tools use; none that could be special."""
        most = min(self._llm.n_vocab() - 16, 100_000)
        return [self._random.randrange(16, most) for _ in range(count)]

    def _complete(self, prompt: list[int], count: int) -> Any:
        return self._llm.create_completion(prompt, max_tokens=count, temperature=0.0)

    def _prompt(self) -> float:
        self._llm.reset()
        count = self._options.prompt
        tokens = self._tokens(count)
        start = time.perf_counter()
        self._complete(tokens, 1)
        return float(count / (time.perf_counter() - start))

    def _one(self) -> float:
        self._llm.reset()
        prompt = self._tokens(1)
        start = time.perf_counter()
        answer = self._complete(prompt, self._options.generate)
        seconds = time.perf_counter() - start
        return float(answer["usage"]["completion_tokens"] / seconds)

    def _many(self) -> float:
        self._llm.reset()
        prompts = [self._tokens(_STREAM_PROMPT) for _ in range(self._options.streams)]
        counts: list[int] = [0] * len(prompts)

        def ask(number: int) -> None:
            answer = self._complete(prompts[number], _STREAM_REPLY)
            counts[number] = answer["usage"]["completion_tokens"]

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(prompts))]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) / (time.perf_counter() - start)

    def _batch(self) -> float:
        self._llm.reset()
        prompts: Any = [self._tokens(_STREAM_PROMPT) for _ in range(self._options.streams)]
        start = time.perf_counter()
        answer = self._complete(prompts, _STREAM_REPLY)
        return float(answer["usage"]["completion_tokens"] / (time.perf_counter() - start))


class _Tools:
    """What llama.cpp's tools do. ``all`` returns nothing if they were not built."""

    def __init__(self, options: argparse.Namespace, n_ctx: int, report: Report) -> None:
        self._options = options
        self._n_ctx = n_ctx
        self._model = resolve_model(options.model)
        self._bench: Path | None = None
        if options.no_tools:
            return
        try:
            self._bench, self._batched = find_tool("llama-bench"), find_tool("llama-batched-bench")
        except ParameterError as error:
            report.notes.append(str(error))

    def all(self) -> dict[str, float]:
        if self._bench is None:
            return {}
        return {**self._run_bench(self._bench), **self._run_batched()}

    def _common(self) -> list[str]:
        options = self._options
        threads, flash = str(options.threads), "on" if options.flash_attn else "off"
        return ["-m", self._model, "-t", threads, "-b", str(options.n_batch), "-ub",
                str(min(options.n_batch, 512)), "-fa", flash, "-ngl", "99"]

    def _run_bench(self, tool: Path) -> dict[str, float]:
        options = self._options
        output = _output([
            str(tool), *self._common(), "-p", str(options.prompt), "-n", str(options.generate),
            "-r", "1", "-o", "json",
        ])
        results = json.loads(output)
        names = {True: "llama-bench prompt", False: "llama-bench one"}
        return {names[result["n_gen"] == 0]: float(result["avg_ts"]) for result in results}

    def _run_batched(self) -> dict[str, float]:
        output = _output([
            str(self._batched), *self._common(), "-c", str(self._n_ctx), "-tb",
            str(self._options.threads), "-npp", str(_STREAM_PROMPT), "-ntg", str(_STREAM_REPLY),
            "-npl", str(self._options.streams), "--kv-unified", "--output-format", "jsonl",
        ])
        line = next(line for line in output.splitlines() if line.startswith("{"))
        result = json.loads(line)
        # Prompts and replies together, as ours are timed.
        count = result["pl"] * result["tg"]
        return {
            "llama-batched-bench": count / (result["t_pp"] + result["t_tg"]),
            "llama-batched-bench, generation only": float(result["speed_tg"]),
        }


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise RuntimeError(f"{Path(command[0]).name} failed: {last[0]}")
    return done.stdout


_PAIRS = {
    "prompt": "llama-bench prompt",
    "one": "llama-bench one",
    "many": "llama-batched-bench",
    "many, one call": "llama-batched-bench",
}


def _show(report: Report, figures: dict[str, list[float]], streams: int) -> None:
    table = report.table("tokens a second", "what", "llama_py", "llama.cpp", "ratio", "runs")
    for name, tool in _PAIRS.items():
        ours, theirs = figures[name], figures.get(tool)
        share = median(ratios(ours, theirs)) if theirs else None
        table.add(name, median(ours), median(theirs) if theirs else None, share, len(ours))
    if "llama-bench one" in figures:
        for name, least in (("one", 0.98), ("many", 0.95)):
            share = median(ratios(figures[name], figures[_PAIRS[name]]))
            report.at_least(f"{name}: llama_py by {_PAIRS[name]}", share, least)
    many = median(ratios(figures["many"], figures["one"]))
    report.at_least(f"{streams} streams by one stream", many, 2.5)
