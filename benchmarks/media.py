"""Pictures: what the first question about one costs, and the next one; beside llama-server.

A picture of 512 by 512 pixels, an encoder in the shape of SigLIP-base with random weights. Times
to the first token: of the first question; of a second one; of one after its cells made room for
others, when a copy of them is loaded, and when there is none (its vectors are known: nothing is
encoded); of one after a restart, from disk. Then the gaps of a running stream while a picture
comes. Over HTTP, with one conversation in memory: the first question, and a second one after
another conversation.

Exit code 1 if a reply failed.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.projectors import PROJECTORS, made_projector
from benchmarks.servers import ServerProcess, llama_server, our_server, settle
from llama_py.bench.report import Report, median, ratios
from llama_py.bench.subject import add_model_arguments, conditions, resolve_model
from llama_py.bench.workloads import prose
from llama_py.errors import ParameterError

__all__ = ["add_arguments", "run"]

_CONTEXT, _REPLY = 4096, 8
_QUESTIONS = ("What is this?", "Which colours has it?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.set_defaults(model="smollm2-135m", flash_attn="default")
    parser.add_argument("--projector", choices=PROJECTORS, default="pooled")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--no-llama-server", action="store_true", help="measure ours only")


def run(options: argparse.Namespace) -> Report:
    report = Report("media", conditions(options, _CONTEXT))
    _in_process(options, report)
    _over_http(options, report)
    return report


def _pictures() -> Iterator[Any]:
    """Ever new ones."""
    from llama_py import Image

    random = np.random.default_rng(7)
    while True:
        small = random.integers(0, 255, (16, 16, 3), np.uint8)
        yield Image(np.kron(small, np.ones((32, 32, 1), np.uint8)))


def _projector(options: argparse.Namespace) -> str:
    from llama_py.core.model import Model
    from llama_py.params import ModelParams

    with Model(resolve_model(options.model), ModelParams(vocab_only=True)) as model:
        width = int(model.metadata[f"{model.architecture}.embedding_length"])
    return str(made_projector(options.projector, width))


@contextmanager
def _loaded(options: argparse.Namespace) -> Iterator[Any]:
    from llama_py import Llama

    with Llama(
        resolve_model(options.model),
        mmproj=_projector(options),
        n_ctx=_CONTEXT,
        n_threads=options.threads,
        flash_attn=None if options.flash_attn == "default" else options.flash_attn == "on",
    ) as llm:
        yield llm


def _first_token(llm: Any, picture: Any, question: str) -> float:
    start = time.perf_counter()
    message = {"role": "user", "content": ["Look at this: ", picture, question]}
    stream = llm.create_chat_completion(
        [message], max_tokens=_REPLY, temperature=0.0, ignore_eos=True, stream=True
    )
    seconds = float("nan")
    for chunk in stream:
        said = chunk["choices"] and chunk["choices"][0]["delta"].get("content") is not None
        if said and seconds != seconds:
            seconds = time.perf_counter() - start
    return seconds


def _in_process(options: argparse.Namespace, report: Report) -> None:
    from llama_py import LlamaDiskCache

    names = ("first", "second", "loaded again", "without a copy", "after a restart")
    times: dict[str, list[float]] = {name: [] for name in names}
    pictures = _pictures()
    with _loaded(options) as llm:
        _first_token(llm, next(pictures), _QUESTIONS[0])
        cells = llm.runtime.last.record.n_prompt
        gaps = _gaps(llm, next(pictures))
    for _ in range(options.repeats):
        picture = next(pictures)
        with tempfile.TemporaryDirectory() as folder:
            with _loaded(options) as llm:
                _first_token(llm, next(pictures), _QUESTIONS[0])
                llm.set_cache(LlamaDiskCache(folder))
                times["first"].append(_first_token(llm, picture, _QUESTIONS[0]))
                times["second"].append(_first_token(llm, picture, _QUESTIONS[1]))
                _make_room(llm)
                times["loaded again"].append(_first_token(llm, picture, "And its shape?"))
                llm.set_cache(None)
                llm.reset()
                times["without a copy"].append(_first_token(llm, picture, "And its size?"))
            with _loaded(options) as llm:
                _first_token(llm, next(pictures), _QUESTIONS[0])
                llm.set_cache(LlamaDiskCache(folder))
                times["after a restart"].append(_first_token(llm, picture, "And its place?"))
    table = report.table(
        f"ms to the first token, prompts of {cells} tokens", "question", "ms", "by the first"
    )
    for name in names:
        share = median(ratios(times[name], times["first"]))
        table.add(name, 1e3 * median(times[name]), share)
        if name != "first":
            report.at_most(f"{name}, by the first", share, 0.1)
    usual, longest, waited = gaps
    report.notes.append(
        f"a stream beside a new picture: usually {1e3 * usual:.1f} ms between tokens, at most "
        f"{1e3 * longest:.1f}; the picture's answer began after {1e3 * waited:.0f} ms"
    )
    report.at_most("longest gap by two usual ones and 50 ms", longest / (2 * usual + 0.05), 1.0)


def _make_room(llm: Any) -> None:
    def empty() -> None:
        while llm.runtime.loaded.cache.live.make_room():
            pass

    llm.runtime.loaded.driver.run(empty)


def _gaps(llm: Any, picture: Any) -> tuple[float, float, float]:
    """Seconds between two tokens of a stream: usually, and at most while a picture comes; and to
    the first token of who asks about it."""
    message = {"role": "user", "content": "Tell a long story."}
    stream = llm.create_chat_completion(
        [message], max_tokens=1500, temperature=0.0, ignore_eos=True, stream=True
    )
    asking: threading.Thread | None = None
    times: list[float] = []
    waited: list[float] = []
    begun = ended = 0
    for _ in stream:
        times.append(time.perf_counter())
        if len(times) == 60:
            begun = len(times)
            asking = threading.Thread(
                target=lambda: waited.append(_first_token(llm, picture, _QUESTIONS[0]))
            )
            asking.start()
        elif asking is not None and not ended and not asking.is_alive():
            ended = len(times)
    if asking is not None:
        asking.join()
    gaps = np.diff(np.array(times))
    usual = float(np.mean(gaps[8 : begun - 1]))  # several may come at once
    return usual, float(gaps[begun - 1 : ended or None].max()), waited[0]


def _over_http(options: argparse.Namespace, report: Report) -> None:
    projector = _projector(options)
    figures: dict[str, list[float]] = {}
    pictures = _pictures()
    for _ in range(options.repeats):
        picture = next(pictures)
        with our_server(options, _CONTEXT, 1, more=[f'mmproj = "{projector}"']) as server:
            _ask_server(server, "ours", pictures, picture, figures, report)
        if options.no_llama_server:
            continue
        try:
            with llama_server(options, _CONTEXT, 1, ["--mmproj", projector]) as server:
                _ask_server(server, "llama-server", pictures, picture, figures, report)
        except ParameterError as error:
            report.notes.append(str(error))
            options.no_llama_server = True
    table = report.table("over HTTP, ms to the first token", "server", "first", "second, later")
    servers = ["ours"] if "llama-server first" not in figures else ["ours", "llama-server"]
    for name in servers:
        table.add(name, *(1e3 * median(figures[f"{name} {what}"]) for what in ("first", "second")))
    if len(servers) > 1:
        for what, most in (("first", 1.0), ("second", 0.5)):
            share = median(ratios(figures[f"ours {what}"], figures[f"llama-server {what}"]))
            report.at_most(f"{what} question, by llama-server's", share, most)


def _ask_server(
    server: ServerProcess,
    name: str,
    pictures: Iterator[Any],
    picture: Any,
    figures: dict[str, list[float]],
    report: Report,
) -> None:
    words = prose("another conversation", 200, lambda text: len(text.split()))
    _http(server, _about(next(pictures), _QUESTIONS[0]), report)
    settle()
    asked = (
        ("first", _about(picture, _QUESTIONS[0])),
        ("", [{"role": "user", "content": words}]),
        ("second", _about(picture, _QUESTIONS[1])),
    )
    for what, messages in asked:
        seconds = _http(server, messages, report)
        settle()
        if what:
            figures.setdefault(f"{name} {what}", []).append(seconds)


def _about(picture: Any, question: str) -> Sequence[Any]:
    parts = [
        {"type": "text", "text": "Look at this: "},
        {"type": "image_url", "image_url": {"url": picture.data_url()}},
        {"type": "text", "text": question},
    ]
    return [{"role": "user", "content": parts}]


def _http(server: ServerProcess, messages: Sequence[Any], report: Report) -> float:
    reply = server.endpoint.chat(messages, max_tokens=_REPLY, temperature=0.0)
    if reply.error:
        report.fail(f"{server.name}: {reply.error}")
    return reply.first_token_seconds
