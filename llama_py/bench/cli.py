"""``llama-py bench NAME``: the command line of the benchmarks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from llama_py.bench.report import Report
from llama_py.errors import LlamaError

__all__ = ["BENCHMARKS", "main"]

#: Name -> module of this package, with ``add_arguments(parser)`` and ``run(options) -> Report``.
BENCHMARKS = {
    "chat-cache": "chat_cache",
    "sessions": "sessions",
    "shared-prefix": "shared_prefix",
    "throughput": "throughput",
    "loading": "loading",
    "hotpath": "hotpath",
    "stream-gaps": "stream_gaps",
    "models": "rounds",
    "kv-memory": "kv_memory",
    "speculative": "speculative",
    "serve": "serve",
    "embed": "embed",
    "replay": "replay",
    "savings": "savings",
}

#: Further commands: name -> (module, function that takes arguments and returns an exit code, what).
COMMANDS = {
    "store": ("store", "main", "What saving and restoring states costs beside a plain copy."),
    "empty-reply": ("empty_reply", "main", "Does reuse ever end in an empty reply?"),
    "transcript": ("make_transcript", "main", "Write a synthetic transcript of an agent."),
    "make-model": ("models", "main", "Write a model with random weights and a realistic shape."),
    "build-tools": ("build_tools", "main", "Build llama-bench, llama-batched-bench, llama-server."),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark.

    Returns:
        0; 1 if a result was wrong (or a target was missed, with ``--strict``); 2 if the benchmark
        could not run.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] and given[0] in COMMANDS:
        module, function, _ = COMMANDS[given[0]]
        command: Callable[[list[str]], int] = getattr(_module(module), function)
        return command(given[1:])
    options = _parser().parse_args(given)
    if getattr(options, "clock", "") == "cpu":
        options.threads = 1
    try:
        report: Report = _module(BENCHMARKS[options.name]).run(options)
    except (LlamaError, OSError, RuntimeError) as error:
        print(f"llama-py bench {options.name}: {error}", file=sys.stderr)
        return 2
    _print(report, options)
    return report.exit_code(options.strict)


def _print(report: Report, options: argparse.Namespace) -> None:
    print(report.as_json() if options.json else report.as_text())
    if options.output:
        with Path(options.output).open("a", encoding="utf-8") as file:
            file.write(report.as_json() + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="llama-py bench",
        description="Measure this library, and check what is measured. Exit code: 0; 1 if a result "
        "was wrong; 2 if the benchmark could not run.",
    )
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, home in BENCHMARKS.items():
        _add(names, name, _module(home))
    for name, (_, _, what) in COMMANDS.items():
        names.add_parser(name, help=what, add_help=False)
    return parser


def _add(names: Any, name: str, module: Any) -> None:
    text = module.__doc__ or ""
    parser = names.add_parser(
        name,
        help=text.partition("\n")[0],
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--output", metavar="FILE", help="append the JSON to a file as well")
    parser.add_argument("--strict", action="store_true", help="a missed target is an error")


def _module(name: str) -> Any:
    return import_module(f"llama_py.bench.{name}")


if __name__ == "__main__":
    sys.exit(main())
