"""The package's, and with a draft model.

With smollm2-135m, ``repeat`` is a model that says one token again and again, and is drafted for by
a model of an eighth of its size that says the same, and so is always right. ``--server`` compares
that with llama-server, with the same draft model, over HTTP.
"""

from __future__ import annotations

import argparse

from benchmarks.draft_servers import DRAFTED, beside_llama_server
from llama_py.bench import speculative as package
from llama_py.bench.report import Report
from llama_py.bench.speculative import PARTS, Task, compare, context_size
from llama_py.bench.subject import conditions, load, prose_tokens, resolve_model
from llama_py.options.drafters import DraftModel, Speculative

__all__ = ["add_arguments", "run"]

__doc__ = f"{package.__doc__}\n{__doc__.partition(chr(10))[2].strip()}\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    package.add_arguments(parser, (*PARTS, "model", "server"))
    parser.add_argument(
        "--server", action="store_true", help="also beside llama-server, with the same draft model"
    )


def run(options: argparse.Namespace) -> Report:
    n_ctx, pair = context_size(options), _pair(options.model)
    if options.only in ("all", *PARTS):
        report = package.run(options)
    else:
        report = Report("speculative", conditions(options, n_ctx))
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
        compare(report, llm, [Task("repeat", prompt, reply, speculative, forced=False)], options)
