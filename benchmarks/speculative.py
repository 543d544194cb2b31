"""Speculative decoding: replies with drafts beside the same replies without, and what rows cost.

Two tasks, whose replies are forced, so that the weights may be random: ``edit`` returns the prompt
with a word changed here and there, and ``free`` is a text that the prompt does not contain. Both
are drafted by prompt lookup, and ``edit`` also by somebody who knows the reply (``known``). Runs
with and without drafts take turns; the figures are medians of tokens per second.

With smollm2-135m, ``repeat`` is a model that says one token again and again, and is drafted for by
a model of an eighth of its size that says the same, and so is always right. ``--server`` compares
that with llama-server, with the same draft model, over HTTP.

Exit code 1 if a reply with drafts is not the forced one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.draft_servers import DRAFTED, beside_llama_server
from llama_py.bench.report import Report, Table, median
from llama_py.bench.subject import (
    add_model_arguments,
    conditions,
    load,
    prose_tokens,
    resolve_model,
)
from llama_py.bench.workloads import Scripted
from llama_py.engine.events import Events
from llama_py.engine.request import GenerationRequest, Prompt, Record
from llama_py.options.drafters import DraftModel, PromptLookup, Speculative
from llama_py.params import GenerationParams, SamplingParams

if TYPE_CHECKING:
    from llama_py.api.llama import Llama

__all__ = ["add_arguments", "run"]

_PARTS = ("rows", "lookup", "model", "server")

#: Rows of a step whose cost is measured.
_ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 64)
#: One token in so many is another one in the edited text.
_CHANGED = 29


@dataclass(frozen=True, slots=True)
class _Task:
    """A prompt, its reply, which is forced unless the model gives it, and who drafts it."""

    name: str
    prompt: Sequence[int]
    reply: Sequence[int]
    speculative: Speculative
    forced: bool = True

    @property
    def drafter(self) -> str:
        first = self.speculative.drafters[0]
        if isinstance(first, DraftModel):
            return "model"
        return "lookup" if isinstance(first, PromptLookup) else "known"

    @property
    def least(self) -> float:
        """What one stream is to gain."""
        if self.drafter == "model":
            return 1.3
        return 1.8 if self.name == "edit" and self.drafter == "lookup" else 0.97


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--prompt", type=int, default=300, metavar="N", help="tokens of the prompt")
    parser.add_argument("--generate", type=int, default=200, metavar="N", help="tokens of a reply")
    parser.add_argument("--streams", type=int, default=8, metavar="N", help="the most at once")
    parser.add_argument("--n-draft", type=int, default=15, metavar="N", help="tokens of a draft")
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    parser.add_argument(
        "--only",
        choices=("all", *_PARTS),
        default="all",
        metavar="PART",
        help=" or ".join(_PARTS) + " (default: %(default)s)",
    )
    parser.add_argument(
        "--always", action="store_true", help="draft whenever there is a guess, also if it costs"
    )
    parser.add_argument(
        "--server", action="store_true", help="also beside llama-server, with the same draft model"
    )


def run(options: argparse.Namespace) -> Report:
    n_ctx = int(options.prompt + options.generate + 80) * int(options.streams)
    report = Report("speculative", conditions(options, n_ctx))
    if options.only in ("all", "rows", "lookup"):
        with load(options, n_ctx, n_seq_max=options.streams) as llm:
            if options.only in ("all", "rows"):
                _rows(report, llm, options.repeats)
            if options.only in ("all", "lookup"):
                _compare_all(report, llm, _tasks(llm, options), options)
    pair = _pair(options.model)
    if pair is not None and options.only in ("all", "model"):
        _draft_model(report, options, pair, n_ctx)
    if pair is not None and (options.server or options.only == "server"):
        beside_llama_server(report, options, pair, n_ctx)
    return report


def _pair(model: str) -> tuple[str, str] | None:
    """A model that repeats itself, and one of an eighth of its size; None for other models."""
    shape, *rest = model.split(":")
    if shape != "smollm2-135m":
        return None
    return ":".join((shape, *rest, "repeats=yes")), ":".join(("smollm2-17m", *rest, "repeats=yes"))


def _draft_model(
    report: Report, options: argparse.Namespace, pair: tuple[str, str], n_ctx: int
) -> None:
    own = argparse.Namespace(**{**vars(options), "model": pair[0]})
    drafter = DraftModel(resolve_model(pair[1]), n_draft=DRAFTED)
    speculative = Speculative((drafter,), adaptive=not options.always)
    with load(own, n_ctx, n_seq_max=options.streams, speculative=speculative) as llm:
        prompt = prose_tokens(llm, "draft", options.prompt, add_bos=False)
        reply = prompt[-1:] * options.generate
        task = _Task("repeat", prompt, reply, speculative, forced=False)
        _compare_all(report, llm, [task], options)


def _compare_all(
    report: Report, llm: Llama, tasks: Sequence[_Task], options: argparse.Namespace
) -> None:
    """Add a table of tokens per second of one stream and of several, with drafts and without."""
    table = report.table(
        "tokens per second",
        *("task", "drafter", "streams", "plain", "drafts", "ratio", "accepted", "left out"),
    )
    for task in tasks:
        for streams in sorted({1, options.streams}):
            _compare(report, table, llm, task, streams, options.repeats)


def _tasks(llm: Llama, options: argparse.Namespace) -> list[_Task]:
    prompt = prose_tokens(llm, "document", options.prompt, add_bos=False)
    other = prose_tokens(llm, "other", options.generate, add_bos=False)
    edited = [
        other[index % len(other)] if index % _CHANGED == _CHANGED - 1 else token
        for index, token in enumerate(prompt[: options.generate])
    ]

    def known(seen: Any) -> Sequence[int]:
        done = len(seen) - len(prompt)
        return edited[done : done + options.n_draft]

    lookup = PromptLookup(n_draft=options.n_draft)
    adaptive = not options.always
    return [
        _Task("edit", prompt, edited, Speculative((lookup,), adaptive=adaptive)),
        _Task("edit", prompt, edited, Speculative((known,), adaptive=adaptive)),
        _Task("free", prompt, other, Speculative((lookup,), adaptive=adaptive)),
    ]


def _compare(
    report: Report, table: Table, llm: Llama, task: _Task, streams: int, repeats: int
) -> None:
    plain: list[float] = []
    drafts: list[float] = []
    records: list[Record] = []
    left_out = 0
    for turn in range(repeats + 1):
        for speculative, speeds in ((Speculative(), plain), (task.speculative, drafts)):
            before = llm.metrics["drafts_skipped"]
            speed, found = _speed(report, llm, task, speculative, streams)
            if turn:  # the first one warms up
                speeds.append(speed)
            if speeds is drafts:
                records, left_out = found, llm.metrics["drafts_skipped"] - before
    drafted = sum(record.drafted for record in records)
    accepted = sum(record.accepted for record in records) / drafted if drafted else 0.0
    ratio = median([a / b for a, b in zip(drafts, plain, strict=True)])
    drafter = task.drafter
    table.add(
        *(task.name, drafter, streams, median(plain), median(drafts), ratio, accepted, left_out)
    )
    name = f"{task.name}, {drafter}, {streams} streams: with drafts by without"
    report.at_least(name, ratio, task.least if streams == 1 else 0.97)


def _speed(
    report: Report, llm: Llama, task: _Task, speculative: Speculative, streams: int
) -> tuple[float, list[Record]]:
    """Tokens per second of all streams together, from when all of them generate."""
    # A draft model belongs to the model, and cannot be named in a request.
    own = None if task.drafter == "model" and speculative.drafters else speculative
    requests = [
        GenerationRequest(
            Prompt(tokens=task.prompt),
            SamplingParams(
                temperature=0.0,
                logits_processors=(Scripted(task.reply),) if task.forced else (),
            ),
            GenerationParams(max_tokens=len(task.reply), ignore_eos=True),
            choice=number,
            speculative=own,
        )
        for number in range(streams)
    ]
    with Events(llm.runtime.loaded.driver, requests, whole=True) as events:
        for _, event in events:
            error = getattr(event, "error", None)
            if error is not None:
                raise error
        records = [*events.records]
    for record in records:
        if record.generated != [*task.reply]:
            report.fail(f"{task.name}: a reply is not the one that was forced")
    begin = max(record.first_token for record in records)
    end = max(record.last_token for record in records)
    return sum(len(record.generated) - 1 for record in records) / (end - begin), records


def _rows(report: Report, llm: Llama, repeats: int) -> None:
    """What a step costs by its number of rows, all of them outputs."""
    table = report.table("one step", "rows", "ms", "by one row", "rows per second")
    engine = llm.runtime.loaded.driver.engine
    tokens = prose_tokens(llm, "rows", 300, add_bos=False)
    seconds: dict[int, list[float]] = {rows: [] for rows in _ROWS}

    def measure() -> None:
        sequence = engine.cache.take()
        if sequence is None:
            raise RuntimeError("every sequence is busy")
        try:
            engine.evaluate(sequence, tokens[:200])
            for _ in range(max(3, repeats)):
                for rows in _ROWS:
                    start = time.perf_counter()
                    engine.evaluate(sequence, tokens[200 : 200 + rows], every=True)
                    seconds[rows].append(time.perf_counter() - start)
                    del sequence.tokens[200:]
                    engine.cache.live.trim(sequence)
                    if not sequence.tokens:  # it cannot be cut
                        engine.evaluate(sequence, tokens[:200])
        finally:
            engine.cache.live.drop(sequence)

    llm.runtime.loaded.driver.run(measure)
    one = float(np.median(seconds[1]))
    for rows, measured in seconds.items():
        took = float(np.median(measured))
        table.add(rows, 1e3 * took, took / one, rows / took)
