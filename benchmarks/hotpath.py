"""The cost of a token: single operations, options compared with plain greedy decoding, overhead.

Three parts (--parts):
  micro     set_batch, log-probabilities, logit_bias, detokenizing and a grammar, each beside a
            naive way to do the same; what they return is compared
  variants  log-probabilities, a JSON schema, biases, sampling and streaming, as a share of plain
            greedy decoding in the same process; pairs of calls, medians
  overhead  microseconds a token outside of llama_decode and of choosing the token, with the parts
            that they go to (on --overhead-model)

Exit code 1 if an operation does not return the same as the naive way.
"""

from __future__ import annotations

import argparse

from benchmarks.micro import run_micro
from benchmarks.overhead import run_overhead
from benchmarks.variants import run_variants
from llama_py.bench.report import Report
from llama_py.bench.subject import add_model_arguments, conditions, load

__all__ = ["add_arguments", "run"]

PARTS = ("micro", "variants", "overhead")
_CONTEXT = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--overhead-model", default="demo", metavar="NAME")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--repeats", type=int, default=9, metavar="N", help="pairs of calls")
    parser.add_argument("--tokens", type=int, default=48, metavar="N", help="of each reply")
    parser.add_argument("--runs", type=int, default=100, metavar="N", help="of a single step")


def run(options: argparse.Namespace) -> Report:
    report = Report("hotpath", conditions(options, _CONTEXT))
    if "micro" in options.parts or "variants" in options.parts:
        with load(options, _CONTEXT, n_seq_max=2) as llm:
            report.conditions["n_vocab"] = llm.n_vocab()
            if "micro" in options.parts:
                run_micro(report, llm, options)
            if "variants" in options.parts:
                run_variants(report, llm, options)
    if "overhead" in options.parts:
        other = argparse.Namespace(**{**vars(options), "model": options.overhead_model})
        with load(other, _CONTEXT, n_seq_max=2) as llm:
            run_overhead(report, llm, options)
    return report
