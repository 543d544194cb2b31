"""Prompt and generation speed, one stream and many, compared with llama.cpp's own benchmarks.

Four figures in tokens per second: a prompt of --prompt tokens; one greedy stream of --generate
tokens after a prompt of one token (``create_completion``, whole call); --streams greedy streams of
64 tokens after 32-token prompts, called from as many threads; and the same streams as one call.
Beside them ``llama-bench`` and ``llama-batched-bench``, built from the same source and linked to
the same libraries (``python -m benchmarks build-tools``, in a checkout), or as llama.cpp builds
them (--tools-build default), under the same settings.
``llama-bench`` makes its context just large enough for its tokens, so a prompt and a single stream
have a context of that size as well (without flash attention, values lie further apart in a larger
one). The tools never sample. In each repeat, our figure and the tool's are taken right after each
other, each with a model that was just loaded and a short warm-up; figures are medians, and ratios
are medians of the ratios within a repeat. Without the tools, only our own figures are shown. With
--clock cpu, the tools' figures are differences between two runs, and those of many streams leave
prompts out.

Always exit code 0.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llama_py.bench.http_load import in_threads
from llama_py.bench.native_tools import NativeTools
from llama_py.bench.report import Report, median, ratios
from llama_py.bench.subject import add_model_arguments, clock_of, conditions, load, whole_context
from llama_py.errors import ParameterError

if TYPE_CHECKING:
    from llama_py.api.llama import Llama

__all__ = ["add_arguments", "run"]

#: Prompt and reply of one of many streams.
_STREAM_PROMPT, _STREAM_REPLY = 32, 64
_Measure = Callable[[], dict[str, float]]
#: Completes prompts with replies of a length; gives the tokens of all replies.
_Run = Callable[["Llama", list[list[int]], int], int]
#: The shorter of two replies, with --clock cpu.
_SHORT_REPLY = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--prompt", type=int, default=512, metavar="N")
    parser.add_argument("--generate", type=int, default=128, metavar="N")
    parser.add_argument("--streams", type=int, default=8, metavar="N")
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    parser.add_argument("--no-tools", action="store_true", help="leave llama.cpp's tools out")
    parser.add_argument(
        "--tools-build",
        choices=["same", "default"],
        default="same",
        help="the tools with the libraries of this package, or with those that llama.cpp's default "
        "build makes (python -m benchmarks build-tools --plain)",
    )


def run(options: argparse.Namespace) -> Report:
    streams = options.streams
    n_ctx = max(options.prompt + 64, streams * (_STREAM_PROMPT + _STREAM_REPLY + 8), 256)
    n_ctx = whole_context(n_ctx)
    report = Report("throughput", conditions(options, n_ctx))
    tools = _Theirs(options, n_ctx, report)
    figures: dict[str, list[float]] = {}
    ours = _Ours(options, n_ctx)
    for repeat in range(options.repeats):
        for pair in zip(ours.figures(), tools.figures(), strict=True):
            # Who goes first alternates: the machine is not the same a second later.
            for measure in pair if repeat % 2 == 0 else reversed(pair):
                for name, value in measure().items():
                    figures.setdefault(name, []).append(value)
    _show(report, figures, streams)
    return report


class _Ours:
    """Figures of this library.

    The model is loaded for each of them, as the tools do: where in memory it comes to lie makes a
    difference, on virtual machines of a fifth, which would be that of all figures otherwise.
    """

    def __init__(self, options: argparse.Namespace, n_ctx: int) -> None:
        self._options = options
        self._n_ctx = n_ctx
        self._random = random.Random(1)
        self._clock = clock_of(options)

    def figures(self) -> list[_Measure]:
        """The quantities measured, in the order of ``_Theirs.figures``."""
        return [
            lambda: {"prompt": self._prompt(whole_context(self._options.prompt))},
            lambda: {"one": self._one(whole_context(self._options.generate))},
            lambda: {
                "many": self._streams(self._threads),
                "many, one call": self._streams(self._complete_all),
            },
        ]

    def _tokens(self, llm: Llama, count: int) -> list[int]:
        """Random tokens, as llama.cpp's tools use, without special ones."""
        most = min(llm.n_vocab() - 16, 100_000)
        return [self._random.randrange(16, most) for _ in range(count)]

    def _complete(self, llm: Llama, prompt: Any, count: int) -> Any:
        return llm.create_completion(prompt, max_tokens=count, temperature=0.0)

    def _warm_up(self, llm: Llama, prompt: int) -> None:
        """Evaluate a prompt and generate eight tokens: the tools warm up as well."""
        self._complete(llm, self._tokens(llm, prompt), 8)
        llm.reset()

    def _prompt(self, n_ctx: int) -> float:
        count = self._options.prompt
        with load(self._options, n_ctx) as llm:
            self._warm_up(llm, count - 8)
            tokens = self._tokens(llm, count)
            start = self._clock()
            self._complete(llm, tokens, 1)
            return float(count / (self._clock() - start))

    def _one(self, n_ctx: int) -> float:
        with load(self._options, n_ctx) as llm:
            self._warm_up(llm, 1)
            prompt = self._tokens(llm, 1)
            start = self._clock()
            answer = self._complete(llm, prompt, self._options.generate)
            seconds = self._clock() - start
        return float(answer["usage"]["completion_tokens"] / seconds)

    def _streams(self, run: _Run) -> float:
        """Tokens per second; with --clock cpu those of generating only, as for the tool."""
        with load(self._options, self._n_ctx, n_seq_max=self._options.streams) as llm:
            if self._options.clock == "wall":
                seconds, count = self._timed(llm, run, _STREAM_REPLY)
                return count / seconds
            short, few = self._timed(llm, run, _SHORT_REPLY)
            long, many = self._timed(llm, run, _STREAM_REPLY)
            return (many - few) / (long - short)

    def _timed(self, llm: Llama, run: _Run, reply: int) -> tuple[float, int]:
        self._warm_up(llm, 16)
        streams = range(self._options.streams)
        prompts = [self._tokens(llm, _STREAM_PROMPT) for _ in streams]
        start = self._clock()
        count = run(llm, prompts, reply)
        return self._clock() - start, count

    def _complete_all(self, llm: Llama, prompts: Any, reply: int) -> int:
        return int(self._complete(llm, prompts, reply)["usage"]["completion_tokens"])

    def _threads(self, llm: Llama, prompts: list[list[int]], reply: int) -> int:
        return sum(in_threads(lambda n: self._complete_all(llm, prompts[n], reply), len(prompts)))


class _Theirs:
    """Figures of llama.cpp's tools; none if they were not built."""

    def __init__(self, options: argparse.Namespace, n_ctx: int, report: Report) -> None:
        self._options = options
        self._tools: NativeTools | None = None
        try:
            plain = options.tools_build == "default"
            self._tools = None if options.no_tools else NativeTools(options, n_ctx, plain=plain)
        except ParameterError as error:
            report.notes.append(str(error))

    def figures(self) -> list[_Measure]:
        """The quantities measured, in the order of ``_Ours.figures``."""
        tools = self._tools
        if tools is None:
            return [dict, dict, dict]
        prompt, one = self._options.prompt, self._options.generate
        return [
            lambda: {"llama-bench prompt": self._speed(tools, prompt, 0)},
            lambda: {"llama-bench one": self._speed(tools, 0, one)},
            lambda: {"llama-batched-bench": self._many(tools)},
        ]

    def _speed(self, tools: NativeTools, prompt: int, generate: int) -> float:
        if self._options.clock == "wall":
            return float(tools.bench(prompt, generate)[0]["avg_ts"])
        seconds = self._difference(lambda n: tools.bench(prompt, generate, n), tools, 1, 4)
        return (prompt or generate) / seconds

    def _many(self, tools: NativeTools) -> float:
        streams = self._options.streams
        if self._options.clock == "wall":
            many = tools.batched(_STREAM_PROMPT, _STREAM_REPLY, streams)
            # Prompts and replies together, as ours are timed.
            return float(many["pl"] * many["tg"] / (many["t_pp"] + many["t_tg"]))

        def run(reply: int) -> object:
            return tools.batched(_STREAM_PROMPT, reply, streams)

        seconds = self._difference(run, tools, _SHORT_REPLY, _STREAM_REPLY)
        return float(streams / seconds)

    @staticmethod
    def _difference(
        run: Callable[[int], object], tools: NativeTools, less: int, more: int
    ) -> float:
        """Processor seconds of one unit: runs that differ in their number and in nothing else."""
        run(less)
        seconds = -tools.cpu_seconds
        run(more)
        return (seconds + tools.cpu_seconds) / (more - less)


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
