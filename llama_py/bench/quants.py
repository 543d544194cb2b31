"""Which quantization to take: size, loss and speed of a model in several types, made here.

The model is written as F16 first, whatever it is in: what it has lost already is not counted. Then
each type is made of that, and compared with it on a text: perplexity, divergence, how often both
find the same token the most probable, and the speed of a reply (one row) and of a prompt (512).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from llama_py.bench.report import Report, Table, median
from llama_py.bench.rows import Steps
from llama_py.bench.subject import add_model_arguments, conditions, resolve_model, whole_context
from llama_py.regular_files import read_short_text

__all__ = ["add_arguments", "run"]

_TYPES = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "IQ4_NL", "Q3_K_M", "Q2_K")
_PROMPT = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.set_defaults(flash_attn="on")
    parser.add_argument("text", metavar="FILE", help="the text to predict")
    parser.add_argument("--types", nargs="+", default=list(_TYPES), metavar="TYPE")
    parser.add_argument("--imatrix", metavar="FILE", help="an importance matrix for all types")
    parser.add_argument("--chunks", type=int, default=16, metavar="N", help="pieces of the text")
    parser.add_argument("--chunk", type=int, default=512, metavar="N", help="tokens of a piece")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")


def run(options: argparse.Namespace) -> Report:
    options.rows = [1, _PROMPT]
    report = Report("quants", conditions(options, whole_context(_PROMPT)))
    table = report.table(
        "", "type", "MB", "bits a weight", "perplexity", "KL", "same top", "reply t/s", "prompt t/s"
    )
    with tempfile.TemporaryDirectory(prefix="llama_py-quants-") as folder:
        _measure(options, Path(folder), table)
    return report


def _measure(options: argparse.Namespace, folder: Path, table: Table) -> None:
    from llama_py.tools.perplexity import kl_divergence, perplexity
    from llama_py.tools.quantize import quantize

    whole, logits, made = folder / "f16.gguf", folder / "logits", folder / "made.gguf"
    plan = quantize(resolve_model(options.model), whole, "F16", allow_requantize=True)
    first = perplexity(
        whole,
        read_short_text(options.text),
        n_ctx=options.chunk,
        n_batch=4 * options.chunk,
        chunks=options.chunks,
        base=logits,
        n_threads=options.threads,
    )
    table.add(
        "F16", plan.n_bytes / 1e6, 16.0, first.estimate.value, 0.0, 1.0, *_speeds(options, whole)
    )
    for name in options.types:
        plan = quantize(whole, made, name, imatrix=options.imatrix)
        found = kl_divergence(made, logits, n_threads=options.threads)
        table.add(
            name,
            plan.n_bytes / 1e6,
            plan.bits_per_weight,
            found.perplexity.value,
            found.mean.value,
            found.same_top.value,
            *_speeds(options, made),
        )


def _speeds(options: argparse.Namespace, path: Path) -> list[float]:
    given = argparse.Namespace(**{**vars(options), "model": str(path)})
    found: dict[int, list[float]] = {rows: [] for rows in options.rows}
    with Steps(given, whole_context(_PROMPT)) as steps:
        for _ in range(options.repeats):
            for rows in options.rows:
                found[rows].append(steps.speed(rows))
    return [median(found[rows]) for rows in options.rows]
