"""A server under load: any OpenAI-compatible one, or ours beside llama-server.

With --base-url, --requests streamed chats are asked of that server, as ``llama-py bench serve``
does.

Without it, ``llama-py serve`` and llama-server of the same llama.cpp (``python -m benchmarks
build-tools``) are started with the same model, threads, batch sizes and tokens of context per
stream, and asked in turn (--parts). llama-server gives each stream a part of the context; ours has
one buffer for all, as by default, unless --kv-unified off.

  one       a stream of --generate tokens alone, beside create_completion in this process; the
            servers are started, and the model is loaded, anew in each repeat
  many      --parallel streams at once: tokens per second; servers as above
  sessions  --parallel / 2 conversations that take turns: time to the first token of turn 5
  shared    --parallel requests at once with one prefix of --shared-tokens tokens: time to the last
            first token, relative to the time of one alone
  begin     --parallel requests with prompts of --each tokens that have nothing in common: when the
            first and the last of them, and they on average, have their first token, and the longest
            gap in a reply; all at the same moment, and all behind one that has just begun
  fair      --clients streams at once of the bundled model: errors, the slowest by the fastest
  cpu       processor time of our server's event loop in the part before: for each streamed event,
            and beside that for each request (from replies of two lengths)

Figures are medians over --repeats; ratios are medians of the ratios within a repeat.

Exit code 1 if a request failed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count as numbers
from time import sleep
from typing import Any

from benchmarks import plots
from benchmarks.servers import (
    ServerProcess,
    add_llama_server_arguments,
    llama_server,
    our_server,
    settle,
)
from llama_py.bench import serve as package
from llama_py.bench.http_load import Reply, percentile, together
from llama_py.bench.report import Report, median, ratios
from llama_py.bench.serve import first_tokens, without_errors
from llama_py.bench.subject import (
    add_model_arguments,
    conditions,
    counter,
    load,
    resolve_model,
    whole_context,
)
from llama_py.bench.workloads import prose, system_message, user_message

__all__ = ["add_arguments", "run"]

_PARTS = ("one", "many", "sessions", "shared", "begin", "fair", "cpu")
#: Tokens of a prompt of the parts "one" and "many", and of a question elsewhere.
_PROMPT, _QUESTION = 32, 40
#: The sessions' system prompts, new tokens per turn, and replies; as in ``bench sessions``.
_SYSTEM, _USER, _REPLY, _TURNS = 400, 140, 16, 5
#: Tokens of each reply of the part "begin", and seconds by which its first request comes before the
#: others where it "has begun": its step runs, and nothing of it has arrived.
_BEGINNING, _AHEAD = 24, 0.1
_GREEDY = {"temperature": 0.0, "ignore_eos": True}
#: What the bundled model continues at length, and tokens of a long and of a short reply.
_COUNT = "1, 2, 3, 4, 5, 6,"
_LONG, _SHORT = 56, 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser, "smollm2-135m")
    package.add_arguments(parser)
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument("--parallel", type=int, default=8, metavar="N")
    parser.add_argument("--context", type=int, default=2560, metavar="N", help="tokens per stream")
    parser.add_argument("--generate", type=int, default=128, metavar="N")
    parser.add_argument("--shared-tokens", type=int, default=2100, metavar="N")
    parser.add_argument("--each", type=int, default=85, metavar="N")
    parser.add_argument("--clients", type=int, default=64, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    add_llama_server_arguments(parser)
    parser.add_argument("--svg", metavar="FILE", help="draw a chart: gaps, or first tokens by turn")


def run(options: argparse.Namespace) -> Report:
    if options.base_url:
        report, good = package.load_server(options)
        if options.svg and good:
            _draw(options.svg, good)
        return report
    n_ctx = whole_context(options.context) * options.parallel
    report = Report("serve", conditions(options, n_ctx))
    report.conditions["llama_server_build"] = options.llama_server_build
    for part in options.parts:
        if part in _SPEEDS:
            _SPEEDS[part](options, n_ctx, report)
    parts = [part for part in options.parts if part in _COMPARISONS]
    if parts:
        with _both(options, n_ctx) as servers:
            for part in parts:
                _COMPARISONS[part](options, servers, report)
    if {"fair", "cpu"} & {*options.parts}:
        _fair(options, report)
    return report


def _draw(path: str, replies: list[Reply]) -> None:
    shares = [number / 100 for number in range(1, 100)]
    gaps = [gap for reply in replies for gap in reply.gaps]
    lines = [
        plots.Line("first token", [1e3 * percentile(first_tokens(replies), s) for s in shares]),
        plots.Line("between events", [1e3 * percentile(gaps, s) for s in shares]),
    ]
    plots.write(path, plots.line_chart("Latency", "percentile", "ms", lines))


# ---- two servers -----------------------------------------------------------------------------

_Servers = list[ServerProcess]


@contextmanager
def _both(options: argparse.Namespace, n_ctx: int) -> Iterator[_Servers]:
    with ExitStack() as stack:
        servers = [stack.enter_context(our_server(options, n_ctx, options.parallel))]
        if not options.no_llama_server:
            servers.append(stack.enter_context(llama_server(options, n_ctx, options.parallel)))
        for server in servers:  # a first request has buffers to make
            server.endpoint.complete("warm up", max_tokens=4, **_GREEDY)
        yield servers


def _in_turn(servers: _Servers, repeat: int) -> Iterator[ServerProcess]:
    """Who goes first alternates: the machine is not the same a second later."""
    for server in servers if repeat % 2 == 0 else servers[::-1]:
        settle()
        yield server


#: Texts that no server has seen before.
_fresh = numbers()


def _prompt(tokens: int, count: Callable[[str], int]) -> str:
    return prose(f"prompt {next(_fresh)}", tokens, count)


def _rates(replies: list[Reply]) -> float:
    """Tokens per second, from the first request to the last byte."""
    wall = max(reply.ended for reply in replies) - min(reply.begun for reply in replies)
    return sum(reply.tokens for reply in replies) / wall


def _one(options: argparse.Namespace, n_ctx: int, report: Report) -> None:
    figures: dict[str, list[float]] = {}
    for repeat in range(options.repeats):
        with _both(options, n_ctx) as servers:
            for name, speed in _each_alone(options, n_ctx, servers, repeat, report):
                figures.setdefault(name, []).append(speed)
    table = report.table("one stream, tokens per second", "who", "tokens/s", "by create_completion")
    inside = figures["create_completion"]
    for name, values in figures.items():
        table.add(name, median(values), median(ratios(values, inside)))
    share = median(ratios(figures["llama_py"], inside))
    report.at_least("one stream by create_completion in process", share, 0.98)


def _each_alone(
    options: argparse.Namespace, n_ctx: int, servers: _Servers, repeat: int, report: Report
) -> Iterator[tuple[str, float]]:
    """Tokens per second of one stream, of this process and of the servers."""
    settings: Any = {"max_tokens": options.generate, **_GREEDY}
    with load(options, n_ctx, n_seq_max=options.parallel) as llm:
        count = counter(llm)
        llm.create_completion("warm up", max_tokens=4)
        if repeat % 2 == 0:
            yield "create_completion", _rate_inside(llm, _prompt(_PROMPT, count), settings)
        for server in _in_turn(servers, repeat):
            reply = server.endpoint.complete(_prompt(_PROMPT, count), **settings)
            good = without_errors([reply], report)
            yield server.name, _rates(good) if good else float("nan")
        if repeat % 2:
            yield "create_completion", _rate_inside(llm, _prompt(_PROMPT, count), settings)


def _rate_inside(llm: Any, prompt: str, settings: dict[str, Any]) -> float:
    from time import perf_counter

    settle()
    start = perf_counter()
    response = llm.create_completion(prompt, **settings)
    return float(response["usage"]["completion_tokens"] / (perf_counter() - start))


def _many(options: argparse.Namespace, n_ctx: int, report: Report) -> None:
    figures: dict[str, list[float]] = {}
    words = _counter(options)
    for repeat in range(options.repeats):
        with _both(options, n_ctx) as servers:
            for server in _in_turn(servers, repeat):
                prompts = [_prompt(_PROMPT, words) for _ in range(options.parallel)]
                replies = together(
                    lambda n, server=server, prompts=prompts: server.endpoint.complete(  # type: ignore[misc]
                        prompts[n], max_tokens=options.generate, **_GREEDY
                    ),
                    options.parallel,
                )
                good = without_errors(replies, report)
                speed = _rates(good) if good else float("nan")
                figures.setdefault(server.name, []).append(speed)
    title = f"{options.parallel} streams, tokens per second"
    _compare(report, title, "tokens/s", figures, least=1.1)


def _compare(
    report: Report,
    title: str,
    unit: str,
    figures: dict[str, list[float]],
    *,
    least: float | None = None,
    most: float | None = None,
) -> None:
    table = report.table(title, "who", unit, "least", "most")
    for name, values in figures.items():
        table.add(name, median(values), min(values), max(values))
    if len(figures) < 2:
        return
    ours, theirs = figures["llama_py"], figures["llama-server"]
    share = median(ratios(ours, theirs))
    if least is not None:
        report.at_least(f"{title}: ours by llama-server's", share, least)
    if most is not None:
        report.at_most(f"{title}: ours by llama-server's", share, most)


def _sessions(options: argparse.Namespace, servers: _Servers, report: Report) -> None:
    words = _counter(options)
    figures: dict[str, list[float]] = {server.name: [] for server in servers}
    turns: dict[str, list[list[float]]] = {server.name: [] for server in servers}
    for repeat in range(options.repeats):
        for server in _in_turn(servers, repeat):
            firsts = _talk(server, options.parallel // 2 or 1, words, report)
            figures[server.name].append(1e3 * firsts[-1])
            turns[server.name].append(firsts)
    _compare(report, f"turn {_TURNS}, time to first token", "ms", figures, most=1.0)
    if options.svg:
        lines = [
            plots.Line(name, [1e3 * median(list(turn)) for turn in zip(*rounds, strict=True)])
            for name, rounds in turns.items()
        ]
        chart = plots.line_chart("Conversations that take turns", "turn", "first token, ms", lines)
        plots.write(options.svg, chart)


def _talk(
    server: ServerProcess, sessions: int, words: Callable[[str], int], report: Report
) -> list[float]:
    """Mean seconds to the first token of each turn."""
    talks = [[system_message(f"{next(_fresh)}", _SYSTEM, words)] for _ in range(sessions)]
    means = []
    for _ in range(_TURNS):
        replies = []
        for talk in talks:
            talk.append(user_message(f"{next(_fresh)}", _USER, words))
            reply = server.endpoint.chat(talk, max_tokens=_REPLY, temperature=0.0)
            talk.append({"role": "assistant", "content": reply.text})
            replies.append(reply)
        good = without_errors(replies, report)
        means.append(sum(first_tokens(good)) / len(good) if good else float("nan"))
    return means


def _shared(options: argparse.Namespace, servers: _Servers, report: Report) -> None:
    words = _counter(options)
    figures: dict[str, list[float]] = {server.name: [] for server in servers}
    for repeat in range(options.repeats):
        for server in _in_turn(servers, repeat):
            alone = _prefixed(server, 1, options.shared_tokens, words, report)
            last = _prefixed(server, options.parallel, options.shared_tokens, words, report)
            figures[server.name].append(last / alone)
    title = f"{options.parallel} at once with a prefix of {options.shared_tokens} tokens"
    table = report.table(title, "who", "last first token / one alone")
    for name, values in figures.items():
        table.add(name, median(values))
    report.at_most(f"{title}: last first token / one alone", median(figures["llama_py"]), 1.3)


def _prefixed(
    server: ServerProcess, count: int, shared: int, words: Callable[[str], int], report: Report
) -> float:
    """Seconds until the last of ``count`` requests with one new prefix has its first token."""
    system = system_message(f"{next(_fresh)}", shared, words)
    questions = [user_message(f"{next(_fresh)}", _QUESTION, words) for _ in range(count)]
    replies = together(
        lambda n: server.endpoint.chat([system, questions[n]], max_tokens=4, **_GREEDY), count
    )
    good = without_errors(replies, report)
    return max((reply.first for reply in good), default=float("nan")) - replies[0].begun


def _begin(options: argparse.Namespace, servers: _Servers, report: Report) -> None:
    words = _counter(options)
    for ahead, found in ((0.0, "together"), (_AHEAD, "behind the first")):
        rounds: dict[str, list[list[Reply]]] = {server.name: [] for server in servers}
        for repeat in range(options.repeats):
            for server in _in_turn(servers, repeat):
                prompts = [_prompt(options.each, words) for _ in range(options.parallel)]
                replies = _begun(server, prompts, ahead)
                rounds[server.name].append(without_errors(replies, report))
        _show_begin(f"{options.parallel} that come {found}", rounds, report)


def _begun(server: ServerProcess, prompts: list[str], ahead: float) -> list[Reply]:
    """Replies to all of the prompts; the first one is asked for ``ahead`` seconds before."""

    def ask(number: int) -> Reply:
        if number:
            sleep(ahead)
        return server.endpoint.complete(prompts[number], max_tokens=_BEGINNING, **_GREEDY)

    return together(ask, len(prompts))


def _show_begin(title: str, rounds: dict[str, list[list[Reply]]], report: Report) -> None:
    table = report.table(
        f"{title}, seconds to the first token",
        *("who", "first", "mean", "last", "last: least", "last: most", "longest gap, s"),
    )
    figures: dict[str, tuple[list[float], list[float]]] = {}
    for name, replies in rounds.items():
        firsts = [first_tokens(each) for each in replies if each]
        means, lasts = [sum(each) / len(each) for each in firsts], [max(each) for each in firsts]
        gaps = [gap for each in replies for reply in each for gap in reply.gaps]
        first = median([min(each) for each in firsts])
        spread = min(lasts, default=float("nan")), max(lasts, default=float("nan"))
        longest = max(gaps, default=float("nan"))
        table.add(name, first, median(means), median(lasts), *spread, longest)
        figures[name] = means, lasts
    if len(figures) == 2:
        ours, theirs = figures["llama_py"], figures["llama-server"]
        for number, what in enumerate(("mean", "last")):
            share = median(ratios(ours[number], theirs[number]))
            report.at_most(f"{title}: {what} first token by llama-server's", share, 1.0)


#: Parts that start servers of their own in each repeat: where in memory the weights come to lie
#: makes a fifth of a difference in speed on virtual machines.
_SPEEDS: dict[str, Callable[[argparse.Namespace, int, Report], None]] = {
    "one": _one,
    "many": _many,
}
_COMPARISONS: dict[str, Callable[[argparse.Namespace, _Servers, Report], None]] = {
    "sessions": _sessions,
    "shared": _shared,
    "begin": _begin,
}


def _counter(options: argparse.Namespace) -> Callable[[str], int]:
    """Counts tokens, with the model's vocabulary alone."""
    from llama_py.api.llama import Llama

    return counter(Llama(resolve_model(options.model), vocab_only=True))  # type: ignore[no-any-return]


# ---- ours alone ------------------------------------------------------------------------------


def _fair(options: argparse.Namespace, report: Report) -> None:
    """Many clients at once, of the bundled model: who is slow is so for everybody."""
    own = argparse.Namespace(**{**vars(options), "model": "demo"})
    rounds: list[tuple[list[Reply], float, float]] = []
    with our_server(own, whole_context(320) * options.clients, options.clients) as server:
        for _ in range(options.repeats + 1):
            short, before = _counted(server, options.clients, _SHORT, report)
            good, used = _counted(server, options.clients, _LONG, report)
            events = _events(good) - _events(short)
            per_event = (used - before) / max(1, events)
            beginning = (before - per_event * _events(short)) / options.clients
            rounds.append((good, 1e6 * per_event, 1e6 * beginning))
    _show_fair(options, report, rounds[1:])  # the first one warms up


def _counted(
    server: ServerProcess, clients: int, tokens: int, report: Report
) -> tuple[list[Reply], float]:
    """Replies of that length, and the processor time of the event loop for all of them."""
    before = server.main_thread_seconds()
    replies = together(
        lambda _: server.endpoint.complete(_COUNT, max_tokens=tokens, **_GREEDY), clients
    )
    return without_errors(replies, report), server.main_thread_seconds() - before


def _events(replies: list[Reply]) -> int:
    return sum(len(reply.times) for reply in replies)


def _show_fair(
    options: argparse.Namespace, report: Report, rounds: list[tuple[list[Reply], float, float]]
) -> None:
    title = f"{options.clients} streams of the bundled model"
    loop = "event loop, us per"
    table = report.table(
        title, "tokens/s", "slowest / fastest", f"{loop} event", f"{loop} request beside"
    )
    shares = []
    for good, per_event, beginning in rounds:
        seconds = [reply.seconds for reply in good] or [float("nan")]
        shares.append(max(seconds) / min(seconds))
        table.add(_rates(good) if good else float("nan"), shares[-1], per_event, beginning)
    if "fair" in options.parts:
        report.at_most(f"{title}: slowest by fastest", median(shares), 1.5)
    if "cpu" in options.parts:
        report.at_most(f"{loop} event", median([each for _, each, _ in rounds]), 25.0)
