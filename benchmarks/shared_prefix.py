"""Requests that come together and begin with one long prompt, which is to be evaluated once.

--requests threads ask at the same moment, each with its own question after a shared system prompt
of --system-tokens tokens. The benchmark counts the prompt tokens that were evaluated in all, and
measures the time until the last request has its first token, relative to the time of one such
request alone in an empty context (both in each repeat; medians).

Exit code 1 if a token of a reply is not the likeliest when the same tokens are evaluated alone, by
more than batches of different sizes explain.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from llama_py.bench.http_load import together
from llama_py.bench.report import Report, median, ratios
from llama_py.bench.subject import (
    add_model_arguments,
    clock_of,
    conditions,
    counter,
    load,
    tolerance,
    whole_context,
)
from llama_py.bench.workloads import Message, system_message, user_message

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--requests", type=int, default=8, metavar="N")
    parser.add_argument("--system-tokens", type=int, default=2000, metavar="N")
    parser.add_argument("--user-tokens", type=int, default=20, metavar="N")
    parser.add_argument("--max-tokens", type=int, default=8, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument(
        "--n-ctx",
        type=int,
        default=8192,
        metavar="N",
        help="tokens in memory; a sliding window needs room for one window of each request "
        "(default: %(default)s)",
    )


def run(options: argparse.Namespace) -> Report:
    own = options.user_tokens + options.max_tokens + 64
    least = whole_context(options.system_tokens + options.requests * (own + 32) + 64)
    n_ctx = max(options.n_ctx, least)
    report = Report("shared-prefix", conditions(options, n_ctx))
    with load(options, n_ctx, n_seq_max=options.requests) as llm:
        report.conditions["memory"] = llm.memory_report()["kind"]
        measured = [_once(llm, options, repeat, report) for repeat in range(options.repeats)]
    _show(report, measured, options)
    return report


def _once(llm: Any, options: argparse.Namespace, repeat: int, report: Report) -> dict[str, Any]:
    count = counter(llm)
    system = system_message(f"{repeat}", options.system_tokens, count)
    talks = [
        [system, user_message(f"{repeat}/{number}", options.user_tokens, count)]
        for number in range(options.requests)
    ]
    llm.reset()
    clock, most = clock_of(options), 1 if options.clock == "cpu" else options.max_tokens
    start = clock()
    alone = _ask(llm, talks[0], most)
    alone_seconds = clock() - start
    llm.reset()
    start = clock()
    evaluated, replies = _together(llm, talks, most)
    seconds = clock() - start
    requests = [reply["request"] for reply in replies]
    for number, request in enumerate(requests):
        # Twice the noise of one logit.
        if _largest_gap(llm, request) > 2 * tolerance(llm) ** 0.5:
            report.fail(f"repeat {repeat + 1}: reply {number + 1} is not what the model says alone")
    begun = min(request.submitted for request in requests)
    shared = _common([request.tokens for request in requests])
    # With one token each, the first tokens are the end of all the work.
    last = max(request.first_token for request in requests) - begun
    return {
        "alone": alone_seconds if options.clock == "cpu" else alone["first"],
        "last": seconds if options.clock == "cpu" else last,
        "evaluated": evaluated,
        "shared": shared,
        "own": sum(len(request.tokens) - shared for request in requests),
    }


def _largest_gap(llm: Any, request: Any) -> float:
    """How far the tokens of a greedy reply are from being the likeliest, evaluated alone.

    The difference of two logits, by the root mean square of all.
    """
    gaps = []
    llm.reset()
    llm.eval(request.tokens)
    for token in request.generated:
        row = llm.last_logits
        gaps.append((row.max() - row[token]) / np.sqrt(np.mean(row**2)))
        llm.eval([token])
    return float(max(gaps, default=0.0))


def _ask(llm: Any, messages: list[Message], max_tokens: int) -> dict[str, Any]:
    call = llm.runtime.calls.chat(messages, False, {"temperature": 0.0, "max_tokens": max_tokens})
    llm.runtime.respond(call)
    record = call.outcome.records[0]
    return {"request": record, "first": record.first_token - record.submitted}


def _together(
    llm: Any, talks: list[list[Message]], max_tokens: int
) -> tuple[int, list[dict[str, Any]]]:
    """Ask all at once; returns the prompt tokens that were evaluated, and the replies."""
    before = llm.metrics["evaluated"]
    replies = together(lambda number: _ask(llm, talks[number], max_tokens), len(talks))
    return llm.metrics["evaluated"] - before, replies


def _common(prompts: list[list[int]]) -> int:
    """Tokens that all prompts begin with."""
    length = min(map(len, prompts))
    for position in range(length):
        if len({prompt[position] for prompt in prompts}) > 1:
            return position
    return length


def _show(report: Report, measured: list[dict[str, Any]], options: argparse.Namespace) -> None:
    table = report.table(
        "",
        *("repeat", "shared", "own", "evaluated", "allowed"),
        *("one alone ms", "last first token ms", "ratio"),
    )
    for number, once in enumerate(measured, 1):
        once["allowed"] = once["shared"] + once["own"] + options.requests
        counts = (once[name] for name in ("shared", "own", "evaluated", "allowed"))
        alone, last = once["alone"], once["last"]
        table.add(number, *counts, 1e3 * alone, 1e3 * last, last / alone)
    most = max(once["evaluated"] / once["allowed"] for once in measured)
    report.at_most("evaluated / (shared + own tokens + 1 each)", most, 1.0)
    share = ratios([o["last"] for o in measured], [o["alone"] for o in measured])
    hybrid = "hybrid" in report.conditions["memory"] or "recurrent" in report.conditions["memory"]
    report.at_most("time to the last first token / one alone", median(share), 2 if hybrid else 1.3)
