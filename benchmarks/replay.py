"""The package's, drawn with ``--svg``."""

from __future__ import annotations

import argparse

from benchmarks import plots
from llama_py.bench import replay
from llama_py.bench.report import Report

__all__ = ["add_arguments", "run"]

__doc__ = replay.__doc__


def add_arguments(parser: argparse.ArgumentParser) -> None:
    replay.add_arguments(parser)
    parser.add_argument("--svg", metavar="FILE", help="draw the time to first token of each call")


def run(options: argparse.Namespace) -> Report:
    report = replay.run(options)
    if options.svg:
        rows = report.tables[0].as_dict()["rows"]
        kinds = ("warm",) if options.warm_only else ("warm", "cold")
        lines = [plots.Line(kind, [row[f"{kind} first ms"] for row in rows]) for kind in kinds]
        plots.write(options.svg, plots.line_chart("Time to first token", "call", "ms", lines))
    return report
