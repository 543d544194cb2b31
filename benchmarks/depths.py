"""Prompts and replies deep in a context, with flash attention and without (part of ``throughput``).

For each depth and each setting: ``create_completion`` (a whole call, its prompt in memory), and
``llama-bench`` of our build and of llama.cpp's default build for replies and prompts. Within a
repeat all figures are taken right after each other; ratios are medians of those within a repeat.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable

from llama_py.bench.native_tools import NativeTools
from llama_py.bench.report import Report, Table, median, ratios
from llama_py.bench.subject import clock_of, load, whole_context
from llama_py.errors import ParameterError

__all__ = ["run_depths"]

Figures = dict[str, list[float]]

#: The least that a figure should be of another one: tools of two builds, and our calls by our tool.
_LEAST_BUILD, _LEAST_CALL = 1.0, 0.985


def run_depths(report: Report, options: argparse.Namespace) -> None:
    """Add a table of speeds by depth, and its targets."""
    table = report.table(
        "tokens a second, by depth",
        "flash attention",
        "depth",
        "reply",
        "llama-bench",
        "ratio",
        "default build",
        "by default",
        "prompt",
        "default build's prompt",
        "by default's",
    )
    for flash in ("on", "off"):
        settings = argparse.Namespace(**{**vars(options), "flash_attn": flash})
        for depth in options.depths:
            _add(report, table, settings, depth, _measure(report, settings, depth))


def _measure(report: Report, options: argparse.Namespace, depth: int) -> Figures:
    n_ctx = whole_context(depth + options.generate + 16)
    ours, plain = _tools(report, options, n_ctx), _tools(report, options, n_ctx, plain=True)
    figures: Figures = {}
    measures: list[Callable[[], dict[str, float]]] = [
        lambda: {"call": _speed(options, n_ctx, depth)},
        lambda: _speeds("ours", ours, options, depth),
        lambda: _speeds("plain", plain, options, depth),
    ]
    for repeat in range(options.repeats):
        for measure in measures if repeat % 2 == 0 else reversed(measures):
            for name, speed in measure().items():
                figures.setdefault(name, []).append(speed)
    return figures


def _speed(options: argparse.Namespace, n_ctx: int, depth: int) -> float:
    """Tokens a second of ``create_completion`` with a prompt of so many tokens, which is in memory.

    The model is loaded anew, as the tools do: where the weights come to lie in memory makes a fifth
    of a difference on virtual machines.
    """
    clock, dice = clock_of(options), random.Random(1)
    with load(options, n_ctx, n_seq_max=1) as llm:
        most = min(llm.n_vocab() - 16, 100_000)
        prompt = [dice.randrange(16, most) for _ in range(depth + 1)]

        def call(count: int) -> int:
            answer = llm.create_completion(prompt, max_tokens=count, temperature=0.0)
            return int(answer["usage"]["completion_tokens"])

        call(8)  # evaluates the prompt
        start = clock()
        count = call(options.generate)
        return count / (clock() - start)


def _tools(
    report: Report, options: argparse.Namespace, n_ctx: int, *, plain: bool = False
) -> NativeTools | None:
    if options.no_tools or options.clock == "cpu":
        return None
    try:
        return NativeTools(options, n_ctx, plain=plain)
    except ParameterError as error:
        if str(error) not in report.notes:
            report.notes.append(str(error))
        return None


def _speeds(
    name: str, tools: NativeTools | None, options: argparse.Namespace, depth: int
) -> dict[str, float]:
    if tools is None:
        return {}
    records = tools.bench(options.prompt, options.generate, 1, depth)
    kinds = {f"{name} prompt": "n_prompt", f"{name} reply": "n_gen"}
    return {
        kind: float(record["avg_ts"])
        for kind, field in kinds.items()
        for record in records
        if record[field]
    }


def _add(
    report: Report, table: Table, options: argparse.Namespace, depth: int, figures: Figures
) -> None:
    def speed(name: str) -> float | None:
        return median(figures[name]) if name in figures else None

    def share(one: str, other: str) -> float | None:
        both = one in figures and other in figures
        return median(ratios(figures[one], figures[other])) if both else None

    call = share("call", "ours reply")
    reply, prompt = share("ours reply", "plain reply"), share("ours prompt", "plain prompt")
    table.add(
        *(options.flash_attn, depth, speed("call"), speed("ours reply"), call),
        *(speed("plain reply"), reply, speed("ours prompt"), speed("plain prompt"), prompt),
    )
    where = f"flash attention {options.flash_attn}, depth {depth}"
    if call is not None:
        report.at_least(f"{where}: create_completion by llama-bench", call, _LEAST_CALL)
    for what, figure in (("reply", reply), ("prompt", prompt)):
        if figure is not None:
            report.at_least(f"{where}: {what} by the default build's", figure, _LEAST_BUILD)
