"""``llama-py bench NAME``: the command line of the benchmarks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from llama_py.bench.report import Report
from llama_py.errors import LlamaError

__all__ = ["BENCHMARKS", "main"]

#: Name -> module with ``add_arguments(parser)`` and ``run(options) -> Report``.
BENCHMARKS = {
    "chat-cache": "llama_py.bench.chat_cache",
    "sessions": "llama_py.bench.sessions",
    "throughput": "llama_py.bench.throughput",
    "rows": "llama_py.bench.rows",
    "quants": "llama_py.bench.quants",
    "serve": "llama_py.bench.serve",
    "replay": "llama_py.bench.replay",
    "empty-reply": "llama_py.bench.empty_reply",
}

#: What has to be asked of ``python -m benchmarks``.
_IN_A_CHECKOUT = (
    *("build-tools", "cluster", "cluster-simulation", "drafts", "embed", "hotpath", "isolation"),
    *("kv-memory", "loading", "make-model", "media", "models", "savings", "shared-prefix"),
    *("speculative", "store", "stream-gaps", "transcript"),
)


def main(
    arguments: Sequence[str] | None = None,
    *,
    prog: str = "llama-py bench",
    benchmarks: Mapping[str, str] = BENCHMARKS,
    commands: Mapping[str, tuple[str, str]] | None = None,
    models: Mapping[str, str] | None = None,
) -> int:
    """Run one benchmark.

    Args:
        prog, benchmarks: of another command line that offers these benchmarks and more.
        commands: what else that offers: name -> (module whose ``main`` takes arguments and returns
            an exit code, what it does).
        models: name of a benchmark -> another default of its ``--model``.

    Returns:
        0; 1 if a result was wrong (or a target was missed, with ``--strict``); 2 if the benchmark
        could not run.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    name, commands = given[0] if given else "", commands or {}
    if name in commands:
        command: Callable[[list[str]], int] = import_module(commands[name][0]).main
        return command(given[1:])
    if name in {*_IN_A_CHECKOUT} - benchmarks.keys():
        where = f"it is not in the package; in a checkout: python -m benchmarks {name}"
        print(f"{prog} {name}: {where}", file=sys.stderr)
        return 2
    options = _parser(prog, benchmarks, commands, models or {}).parse_args(given)
    if getattr(options, "clock", "") == "cpu":
        options.threads = 1
    try:
        report: Report = import_module(benchmarks[options.name]).run(options)
    except (LlamaError, OSError, RuntimeError) as error:
        print(f"{prog} {options.name}: {error}", file=sys.stderr)
        return 2
    print(report.as_json() if options.json else report.as_text())
    if options.output:
        with Path(options.output).open("a", encoding="utf-8") as file:
            file.write(report.as_json() + "\n")
    return report.exit_code(options.strict)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized"):
            message += "; comparisons with other programs: python -m benchmarks, in a checkout"
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser(
    prog: str,
    benchmarks: Mapping[str, str],
    commands: Mapping[str, tuple[str, str]],
    models: Mapping[str, str],
) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=prog,
        description="Measure this library, and check what is measured. Exit code: 0; 1 if a result "
        "was wrong; 2 if the benchmark could not run.",
    )
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, home in benchmarks.items():
        _add(names, name, import_module(home), models.get(name))
    for name, (_, what) in commands.items():
        names.add_parser(name, help=what, add_help=False)
    return parser


def _add(names: Any, name: str, module: Any, model: str | None) -> None:
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
    if model is not None:
        parser.set_defaults(model=model)


if __name__ == "__main__":
    sys.exit(main())
