"""A server under load: any OpenAI-compatible one.

--requests streamed chats are asked of the server at --base-url: by --concurrency clients that ask
again when they have their reply (closed loop), or with --rate at random moments, so many per second
on average, whether or not others have ended (open loop).

Exit code 1 if a request failed.
"""

from __future__ import annotations

import argparse

from llama_py.bench.http_load import Endpoint, Reply, closed_loop, open_loop, percentile
from llama_py.bench.report import Report
from llama_py.bench.workloads import prose
from llama_py.errors import ParameterError
from llama_py.version import __version__

__all__ = ["add_arguments", "first_tokens", "load_server", "run", "without_errors"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--base-url", metavar="URL", help="the server")
    parser.add_argument("--api-key", default="", metavar="KEY")
    parser.add_argument("--served-model", default="default", metavar="NAME")
    parser.add_argument("--requests", type=int, default=64, metavar="N")
    parser.add_argument("--concurrency", type=int, default=8, metavar="N")
    parser.add_argument(
        "--rate", type=float, default=0.0, metavar="R", help="open loop, per second"
    )
    parser.add_argument("--prompt-words", type=int, default=200, metavar="N")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N")


def run(options: argparse.Namespace) -> Report:
    if not options.base_url:
        raise ParameterError(
            "give --base-url URL; beside llama-server: python -m benchmarks serve, in a checkout"
        )
    return load_server(options)[0]


def load_server(options: argparse.Namespace) -> tuple[Report, list[Reply]]:
    """Ask the server of ``options``; returns the report, and the replies that ended well."""
    names = ("requests", "concurrency", "rate", "prompt_words", "max_tokens")
    conditions = {name: getattr(options, name) for name in names}
    report = Report("serve", {"llama_py": __version__, "server": options.base_url, **conditions})
    endpoint = Endpoint(options.base_url, options.api_key, options.served_model)

    def ask(number: int) -> Reply:
        words = prose(f"load {number}", options.prompt_words, lambda text: len(text.split()))
        message = {"role": "user", "content": words}
        return endpoint.chat([message], max_tokens=options.max_tokens, temperature=0.0)

    ask(-1)  # a connection, a warm processor
    if options.rate > 0:
        replies = open_loop(ask, options.requests, options.rate)
    else:
        replies = closed_loop(ask, options.requests, options.concurrency)
    good = without_errors(replies, report)
    if good:
        _summarise(good, report)
    return report, good


def without_errors(replies: list[Reply], report: Report) -> list[Reply]:
    """Those that ended well; the others are failures of the report."""
    for reply in replies:
        if reply.error:
            report.fail(f"a request failed: {reply.error}")
    return [reply for reply in replies if not reply.error]


def first_tokens(replies: list[Reply]) -> list[float]:
    """Seconds to the first token of each."""
    return [reply.first_token_seconds for reply in replies]


def _summarise(replies: list[Reply], report: Report) -> None:
    wall = max(reply.ended for reply in replies) - min(reply.begun for reply in replies)
    tokens = sum(reply.tokens for reply in replies)
    prompt = sum(reply.prompt_tokens for reply in replies)
    cached = sum(reply.cached_tokens for reply in replies)
    table = report.table("", "requests", "seconds", "requests/s", "tokens/s", "prompt reused")
    share = cached / prompt if prompt else float("nan")
    table.add(len(replies), wall, len(replies) / wall, tokens / wall, share)
    times = report.table("ms", "what", "p50", "p95", "p99", "most")
    for name, values in (
        ("first token", first_tokens(replies)),
        ("between events", [gap for reply in replies for gap in reply.gaps]),
        ("whole reply", [reply.seconds for reply in replies]),
    ):
        marks = [1e3 * percentile(values, share) for share in (0.5, 0.95, 0.99)]
        times.add(name, *marks, 1e3 * max(values, default=float("nan")))
