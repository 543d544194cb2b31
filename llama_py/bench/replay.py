"""A recorded agent session, call by call: with everything evaluated again, and with reuse.

For each assistant turn of TRANSCRIPT (Claude Code's JSONL or OpenAI messages), the recorded
messages before it are sent, and a reply of --max-tokens tokens is read. In a cold run each call
begins with a text that the server has never seen (or, with --model, in an empty context); in a warm
run only the first one does. A call before the first run is discarded. Runs alternate; figures are
medians over --repeats.

Several transcripts are replayed in turn, one call of each after the other, as by agents that work
side by side; with --model their warm replies are compared with cold ones.

Exit code 1 if a reply was empty or a request failed, 2 for bad input.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from llama_py.bench.http_load import Reply
from llama_py.bench.report import Report, median
from llama_py.bench.targets import Target, add_target_arguments, open_target
from llama_py.bench.transcripts import Transcript, read_transcript
from llama_py.version import LLAMA_CPP_COMMIT, __version__

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("transcripts", nargs="+", metavar="TRANSCRIPT")
    add_target_arguments(parser)
    parser.add_argument("--max-tokens", type=int, default=24, metavar="N")
    parser.add_argument(
        "--calls", type=int, default=0, metavar="N", help="only the first N of each"
    )
    parser.add_argument("--system", metavar="FILE", help="a system prompt to put first")
    parser.add_argument("--repeats", type=int, default=1, metavar="N")
    parser.add_argument("--warm-only", action="store_true", help="no cold runs")


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]


def run(options: argparse.Namespace) -> Report:
    transcripts = [read_transcript(path) for path in options.transcripts]
    if options.system:
        text = Path(options.system).read_text(encoding="utf-8")
        for transcript in transcripts:
            transcript.preamble = [{"role": "system", "content": text}]
    report = Report("replay", _conditions(options, transcripts))
    with open_target(options) as target:
        report.conditions["target"] = target.name
        target.ask([{"role": "user", "content": "warm up"}], (), 4)
        runs: dict[str, list[list[Reply]]] = {"warm": [], "cold": []}
        calls = list(_calls(transcripts, options.calls))
        kinds = ["warm"] if options.warm_only else ["cold", "warm"]
        for repeat in range(options.repeats):
            for kind in kinds if repeat % 2 == 0 else kinds[::-1]:
                runs[kind].append(_play(target, calls, options.max_tokens, cold=kind == "cold"))
    _judge(report, calls, runs, compare=bool(options.model))
    _show(report, calls, runs)
    return report


def _conditions(options: argparse.Namespace, transcripts: Sequence[Transcript]) -> dict[str, Any]:
    shown = ("base_url", "dialect", "model", "n_ctx", "threads", "max_tokens", "repeats")
    sizes = {transcript.name: transcript.characters for transcript in transcripts}
    left_out = {transcript.name: transcript.left_out for transcript in transcripts}
    return {
        "llama_py": __version__,
        "llama.cpp": LLAMA_CPP_COMMIT,
        **{name: getattr(options, name) for name in shown},
        "characters": sizes,
        "left out": {name: counts for name, counts in left_out.items() if counts},
    }


def _calls(transcripts: Sequence[Transcript], most: int) -> Iterator[_Call]:
    """One call of each transcript after the other, until all are at their end."""
    queues = [[*islice(transcript.calls(), most or None)] for transcript in transcripts]
    for number in range(max(map(len, queues))):
        for transcript, queue in zip(transcripts, queues, strict=True):
            if number < len(queue):
                name = f"{transcript.name} {number + 1}" if len(queues) > 1 else f"{number + 1}"
                yield _Call(name, queue[number], transcript.tools)


def _play(target: Target, calls: Sequence[_Call], max_tokens: int, *, cold: bool) -> list[Reply]:
    """The replies to all calls; with ``cold`` none of them reuses anything."""
    mark = target.forget()
    replies = []
    for call in calls:
        replies.append(target.ask(_marked(call.messages, mark), call.tools, max_tokens))
        if cold:
            mark = target.forget()
    return replies


def _marked(messages: Sequence[Mapping[str, Any]], mark: str) -> list[Mapping[str, Any]]:
    return [{**messages[0], "content": mark + messages[0]["content"]}, *messages[1:]]


# ---- the report -------------------------------------------------------------------------------

_Runs = dict[str, list[list[Reply]]]


def _judge(report: Report, calls: Sequence[_Call], runs: _Runs, *, compare: bool) -> None:
    """Empty replies and errors; with ``compare`` also replies that reuse has changed."""
    for kind, plays in runs.items():
        for replies in plays:
            for call, reply in zip(calls, replies, strict=True):
                if reply.error:
                    report.fail(f"{kind} call {call.name} failed: {reply.error}")
                elif not reply.text:
                    report.fail(f"{kind} call {call.name}: the reply is empty")
    if compare:
        for cold, warm in zip(runs["cold"], runs["warm"], strict=False):
            for call, one, other in zip(calls, cold, warm, strict=True):
                if one.text != other.text:
                    report.fail(f"call {call.name}: the warm reply differs from the cold one")


def _show(report: Report, calls: Sequence[_Call], runs: _Runs) -> None:
    columns = ("call", "prompt", "cached", "cold first ms", "warm first ms", "warm ms", "finish")
    table = report.table("", *columns)
    firsts = {kind: _medians(plays) for kind, plays in runs.items()}
    warm = runs["warm"][-1]
    for number, (call, reply) in enumerate(zip(calls, warm, strict=True)):
        cold = firsts["cold"][number] if firsts["cold"] else float("nan")
        tokens = reply.prompt_tokens, reply.cached_tokens
        first, whole = firsts["warm"][number], 1e3 * reply.seconds
        table.add(call.name, *tokens, cold, first, whole, reply.finish_reason)
    _total(report, warm, firsts)


def _medians(plays: Sequence[Sequence[Reply]]) -> list[float]:
    """Milliseconds to the first token of each call."""
    return [
        1e3 * median([reply.first_token_seconds for reply in replies])
        for replies in zip(*plays, strict=True)
    ]


def _total(report: Report, warm: Sequence[Reply], firsts: Mapping[str, Sequence[float]]) -> None:
    cold, reused = sum(firsts["cold"]), sum(firsts["warm"])
    prompt = sum(reply.prompt_tokens for reply in warm)
    cached = sum(reply.cached_tokens for reply in warm)
    table = report.table(
        "in total", "calls", "prompt", "cached", "cold first s", "warm first s", "warm / cold"
    )
    share = reused / cold if cold else float("nan")
    table.add(len(warm), prompt, cached, cold / 1e3, reused / 1e3, share)
    empty = sum(not reply.text for reply in warm)
    report.notes.append(f"{empty} of {len(warm)} warm replies were empty")
