"""The command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.declarations.parse import ParseError
from tools.move_pin import applying, archives, checks
from tools.move_pin.archives import MoveError, Tree
from tools.move_pin.checks import Result
from tools.move_pin.page import compared, page, results


def main(arguments: list[str] | None = None) -> int:
    """Print the page; the exit status is 1 if a check says no, 2 if there is no page."""
    options = _parser().parse_args(arguments)
    if options.archive is None and not options.checks:
        _parser().error("give an archive, or --checks")
    try:
        text, answers = _made(options)
    except (MoveError, ParseError, SystemExit) as error:
        print(f"move_pin: {error}", file=sys.stderr)
        return 2
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    print(text)
    return 1 if any(each.answer == "no" for each in answers) else 0


def _made(options: argparse.Namespace) -> tuple[str, list[Result]]:
    if options.archive is None:
        answers = checks.run_checks()
        return "\n".join(results(answers)[1:]), answers
    new = archives.tree_of(options.archive, options.commit, options.sha256)
    old = archives.directory(options.old) if options.old else archives.pinned()
    _say(f"comparing {old.path} with {new.path}")
    found = compared(old.path, new.path)
    done = _applied(new, options)
    answers = checks.run_checks() if options.apply or options.checks else []
    return page(old, new, found, done, answers), answers


def _applied(new: Tree, options: argparse.Namespace) -> list[str]:
    if not options.apply:
        return []
    _say("writing the pin, the declarations, and building (minutes)")
    return applying.apply(new, options.build)


def _say(text: str) -> None:
    print(f"move_pin: {text}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.move_pin", description="Move the pin of llama.cpp (vendor/README.md)."
    )
    add = parser.add_argument
    add("archive", nargs="?", metavar="ARCHIVE", help="package==version, a .tar.gz, or a tree")
    add("--old", type=Path, metavar="DIR", help="compare with this tree, not with the pinned one")
    add("--commit", help="which llama.cpp it is, if its version does not end in a build's number")
    add("--sha256", help="what the archive has to be")
    add("--apply", action="store_true", help="write the pin, build, and run the checks")
    add("--build", default=applying.BUILD, metavar="COMMAND", help="default: %(default)s")
    add("--checks", action="store_true", help="run the checks on the libraries that are installed")
    add("--output", type=Path, metavar="FILE", help="write the page there, too")
    return parser
