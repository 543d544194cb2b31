"""A draft model at our server and at llama-server: the same two files, requests and settings.

Both models say one token again and again (``models.write_model(repeats=True)``), so that drafts are
always right: what is compared is what drafting and verifying cost. Both servers run at once and
answer in turn, with drafts and without.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import ExitStack

from benchmarks.servers import ServerProcess, llama_server, our_server, settle
from llama_py.bench.http_load import Endpoint, Reply, together
from llama_py.bench.report import Report, median
from llama_py.bench.subject import resolve_model

__all__ = ["DRAFTED", "beside_llama_server"]

#: Tokens of a draft, on both sides.
DRAFTED = 4
_WORDS = "time year people way day man thing woman life child world school state family student "


def beside_llama_server(
    report: Report, options: argparse.Namespace, pair: tuple[str, str], n_ctx: int
) -> None:
    """Tokens per second of both servers with the draft model, at one stream and at several.

    Args:
        pair: names of the model and of its draft model.

    Raises:
        ParameterError: llama-server was not built.
    """
    own = argparse.Namespace(**{**vars(options), "model": pair[0]})
    draft, streams = resolve_model(pair[1]), options.streams
    more = ["-md", draft, "--spec-type", "draft-simple", "--spec-draft-n-max", str(DRAFTED)]
    more += ["-kvu"] if options.kv_unified == "on" else []
    table = report.table(
        f"repeat, drafted by a model of an eighth of the size, {DRAFTED} tokens at a time",
        *("streams", "llama_py plain", "drafts", "ratio", "llama-server plain", "drafts", "ratio"),
        "with drafts, llama_py by llama-server",
    )
    with ExitStack() as stack:
        ours = our_server(own, n_ctx, streams)
        drafting = our_server(own, n_ctx, streams, f"draft={draft}")
        theirs = llama_server(own, n_ctx, streams, more[6:])
        theirs_drafting = llama_server(own, n_ctx, streams, more)
        servers = {
            "plain": stack.enter_context(ours),
            "drafts": stack.enter_context(drafting),
            "their plain": stack.enter_context(theirs),
            "their drafts": stack.enter_context(theirs_drafting),
        }
        for count in sorted({1, streams}):
            speeds = _speeds(report, options, servers, count)
            a, b, c, d = (median(speeds[name]) for name in servers)
            paired = zip(speeds["drafts"], speeds["their drafts"], strict=True)
            ratio = median([mine / other for mine, other in paired])
            table.add(count, a, b, b / a, c, d, d / c, ratio)
            report.at_least(f"drafts beside llama-server's, {count} streams", ratio, 0.95)


def _speeds(
    report: Report, options: argparse.Namespace, servers: Mapping[str, ServerProcess], count: int
) -> dict[str, list[float]]:
    speeds: dict[str, list[float]] = {name: [] for name in servers}
    texts: set[str] = set()
    for turn in range(options.repeats + 1):
        for name, server in servers.items():
            settle()
            replies = together(lambda number, to=server: _ask(to.endpoint, options, number), count)  # type: ignore[misc]
            problem = next((each.error for each in replies if each.error), "")
            if problem:
                report.fail(f"{name}: {problem}")
                return {name: [float("nan")] for name in servers}
            texts |= {each.text[:20] for each in replies}
            if turn:  # the first one warms up
                speeds[name].append(_speed(replies))
    if len(texts) != 1:
        report.fail(f"the servers say different things: {sorted(texts)[:4]}")
    return speeds


def _ask(endpoint: Endpoint, options: argparse.Namespace, number: int) -> Reply:
    words = _WORDS.split()
    text = " ".join(words[(number + place) % len(words)] for place in range(options.prompt))
    return endpoint.complete(
        f"{text} time", max_tokens=options.generate, temperature=0.0, ignore_eos=True
    )


def _speed(replies: list[Reply]) -> float:
    """Tokens per second of all streams, from when all of them generate."""
    begin = max(each.first for each in replies)
    end = max(each.ended for each in replies)
    return sum(each.tokens - 1 for each in replies) / (end - begin)
