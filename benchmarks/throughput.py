"""The package's, and with --depths also deep in a context.

--depths adds a table: prompts and replies that begin so many tokens deep, with flash attention and
without it, beside llama-bench of our build and, where it was built (``python -m benchmarks
build-tools --plain``), of llama.cpp's default build.
"""

from __future__ import annotations

import argparse

from benchmarks.depths import run_depths
from llama_py.bench import throughput
from llama_py.bench.report import Report

__all__ = ["add_arguments", "run"]

__doc__ = f"{throughput.__doc__}\n{__doc__.partition(chr(10))[2].strip()}\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    throughput.add_arguments(parser)
    parser.add_argument(
        "--depths", type=int, nargs="*", default=[], metavar="N", help="for example 0 1024 4096"
    )


def run(options: argparse.Namespace) -> Report:
    report = throughput.run(options)
    if options.depths:
        run_depths(report, options)
    return report
