"""``llama-py tune``: finds out what is fastest on this machine, and keeps it."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from llama_py.cli import options
from llama_py.cli.progress import ProgressLine

if TYPE_CHECKING:
    from llama_py.api.tuning import Tuning

__all__ = ["add_parser"]

_SECONDS = 120.0
_WHAT = {
    "flash_attn": "flash attention",
    "n_threads": "threads, one token at a time",
    "n_threads_batch": "threads, prompts",
    "n_ubatch": "tokens at once",
}


def add_parser(commands: Any) -> None:
    """Add ``tune`` to the subcommands of ``llama-py``."""
    parser = commands.add_parser(
        "tune",
        help="find out what is fastest on this machine, and keep it",
        description="Measure a model on this machine: flash attention, threads, and how many "
        "tokens are computed at once. What is clearly faster than the default is kept as a "
        "profile, which every program that loads such a model uses for parameters that it leaves "
        "at their defaults. Takes less than two minutes; the machine should do nothing else "
        "meanwhile. Exit code 2, and no change, if it is too busy.",
    )
    options.add_model_file(parser)
    parser.add_argument(
        "--seconds",
        type=float,
        default=_SECONDS,
        metavar="N",
        help="the time limit (default: %(default)g)",
    )
    parser.add_argument("--dry-run", action="store_true", help="measure, and keep nothing")
    parser.add_argument("--forget", action="store_true", help="remove the profile instead")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    path = options.model_path(parsed.file or parsed.model, parsed.hf)
    if parsed.forget:
        from llama_py.core.host import profiles
        from llama_py.gguf.check import check_model_file

        file = profiles.path_of(profiles.key_of(check_model_file(path)))
        there = file.exists()
        file.unlink(missing_ok=True)
        print(f"removed {file}" if there else "there was no profile")
        return 0
    from llama_py.api.tuning import tune

    with ProgressLine("measuring", enabled=sys.stderr.isatty()) as progress:
        tuning = tune(
            path, seconds=parsed.seconds, keep=not parsed.dry_run, progress=progress.fraction
        )
    if parsed.json:
        print(json.dumps(_as_dict(tuning), indent=2))
    else:
        print("\n".join(_lines(tuning)))
    return 0


def _as_dict(tuning: Tuning) -> dict[str, Any]:
    return {
        "seconds": round(tuning.seconds, 1),
        "values": tuning.values,
        "profile": None if tuning.profile is None else str(tuning.profile.path),
        "contests": [
            {
                "parameter": contest.name,
                "default": contest.default,
                "best": contest.winner,
                "seconds": contest.rounds,
            }
            for contest in tuning.contests
        ],
    }


def _lines(tuning: Tuning) -> Iterator[str]:
    for contest in tuning.contests:
        yield f"{_WHAT[contest.name]} ({contest.name})"
        usual = statistics.median(contest.rounds[contest.default])
        for label, times in contest.rounds.items():
            median = statistics.median(times)
            notes = [
                *(["default"] if label == contest.default else []),
                *(["best"] if label == contest.winner else []),
            ]
            speed = f"{usual / median:5.2f} x the default's speed"
            yield f"  {label:>5}  {1e3 * median:8.0f} ms  {speed}  {', '.join(notes)}".rstrip()
        yield ""
    changed = ", ".join(f"{name}={value}" for name, value in tuning.values.items())
    yield f"changed: {changed or 'nothing; the defaults are the fastest'}"
    yield f"measured in {tuning.seconds:.0f} s"
    if tuning.profile is not None:
        yield f"kept in {tuning.profile.path}"
