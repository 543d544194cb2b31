"""llama.cpp's tests of its server, run against ours: where they are, how they run, what came of it.

They are read from the pinned source (``vendor/resolve.py``), put into a folder for this run with
softened assertions, and run by pytest in a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from tests.chat.families import template_folder
from tests.conformance.softening import soften

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["KINDS", "Outcome", "Row", "documented_rows", "quick", "run", "stated", "table"]

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_DOCS = _ROOT / "docs" / "llama-server.md"

#: What can come of a test. "unexplained" is what must not be.
KINDS = ("passed", "text", "skipped", "documented", "unexplained")


@dataclass(frozen=True)
class Row:
    """Tests that fail for a reason that docs/llama-server.md states.

    Attributes:
        row: words of the docs that state it.
        tests: names of tests, with ``*`` for any text.
    """

    row: str
    tests: tuple[str, ...]

    def covers(self, test: str) -> bool:
        """Whether it is about this test (with parameters in brackets)."""
        return any(fnmatchcase(_plain(test), _plain(pattern)) for pattern in self.tests)


@dataclass(frozen=True)
class Outcome:
    """One test, and what came of it.

    Attributes:
        test: ``file::name[parameters]``.
        kind: one of ``KINDS``.
        why: of a failure, its message; of text, the assertions that did not hold.
        row: the words of the docs that state it, or "".
        seconds: how long it took.
    """

    test: str
    kind: str
    why: str = ""
    row: str = ""
    seconds: float = field(default=0.0, compare=False)

    @property
    def file(self) -> str:
        """The test file, without its ending."""
        return self.test.partition(".py::")[0].removeprefix("test_")


def _plain(name: str) -> str:
    """Brackets have a meaning in patterns."""
    return name.replace("[", "(").replace("]", ")")


@cache
def _expectations() -> dict[str, Any]:
    text = (_HERE / "expectations.toml").read_text(encoding="utf-8")
    return {**tomllib.loads(text)}


@cache
def documented_rows() -> tuple[Row, ...]:
    """All rows of the table of what is different on purpose."""
    return tuple(Row(each["row"], tuple(each["tests"])) for each in _expectations()["documented"])


def quick() -> tuple[str, ...]:
    """Tests for every run: they take a minute of a machine that does nothing else."""
    return tuple(_expectations()["quick"])


def stated(row: Row) -> bool:
    """Whether the docs say so."""
    text = " ".join(_DOCS.read_text(encoding="utf-8").split())
    return " ".join(row.row.split()) in text


# ---- running -----------------------------------------------------------------------------------


def tests_folder() -> Path:
    """Their tests, in the pinned source."""
    return template_folder().parents[1] / "tools" / "server" / "tests"


def stage(folder: Path) -> Path:
    """Put their tests there, as deep as they look for templates; returns where they are."""
    source = tests_folder()
    target = folder / "tools" / "server" / "tests"
    shutil.copytree(source, target)
    (folder / "models").mkdir()
    (folder / "models" / "templates").symlink_to(template_folder(), target_is_directory=True)
    expected = _expectations()["text"]
    for path in sorted(target.glob("unit/test_*.py")):
        text = path.read_text(encoding="utf-8")
        softened = soften(text, path.name, expected["everywhere"], expected["tests"])
        path.write_text(softened, encoding="utf-8")
    return target


def run(selection: Sequence[str] = (), *, more: Sequence[str] = ()) -> list[Outcome]:
    """Run tests, and say what came of each.

    Args:
        selection: ``file.py`` or ``file.py::test``; all that llama.cpp runs by default if empty.
        more: further arguments of pytest's.

    Raises:
        RuntimeError: pytest ran no test; with what it said.
    """
    with tempfile.TemporaryDirectory(prefix="llama-py-conformance-") as name:
        tests = stage(Path(name))
        results = Path(os.environ.get("CONFORMANCE_RESULTS") or Path(name) / "results.jsonl")
        chosen = [f"unit/{each}" for each in selection] or _all_files(tests)
        command = [sys.executable, "-m", "pytest", "-p", "tests.conformance.plugin", *_QUIET]
        environment = _environment(tests, results)
        done = subprocess.run(
            [*command, *more, *chosen], cwd=tests, env=environment, capture_output=True, text=True
        )
        if not results.exists():
            raise RuntimeError(f"no test ran:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        lines = results.read_text(encoding="utf-8").splitlines()
    return [_outcome(json.loads(line)) for line in lines]


_QUIET = (
    "-q",
    "--no-header",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-W",
    "ignore",
    "--timeout=600",
)


def _all_files(tests: Path) -> list[str]:
    left_out = _expectations()["files_left_out"]
    return [
        f"unit/{path.name}"
        for path in sorted(tests.glob("unit/test_*.py"))
        if path.name not in left_out
    ]


def _environment(tests: Path, results: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "LLAMA_PY_M"))}
    paths = [str(tests), str(_ROOT)]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "CONFORMANCE_RESULTS": str(results)}


def _outcome(line: dict[str, Any]) -> Outcome:
    test, why = line["id"], line["why"]
    row = next((each for each in documented_rows() if each.covers(test)), None)
    kind, said = "unexplained", ""
    if line["outcome"] == "passed":
        kind = "text" if line["text"] else "passed"
        why = "; ".join(line["text"])
    elif line["outcome"] == "skipped":
        kind = "skipped"
    elif row is not None and stated(row):
        kind, said = "documented", row.row
    return Outcome(test, kind, why, said, line["seconds"])


# ---- showing -----------------------------------------------------------------------------------


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Lines of a table with a row for each file."""
    files = list(dict.fromkeys(each.file for each in outcomes))
    yield "| file | tests | " + " | ".join(KINDS) + " |"
    yield "| --- | --- |" + " --- |" * len(KINDS)
    for file in files:
        yield _line(file, [each for each in outcomes if each.file == file])
    yield _line("**all**", outcomes)


def _line(name: str, outcomes: Sequence[Outcome]) -> str:
    counts = [sum(each.kind == kind for each in outcomes) for kind in KINDS]
    return f"| {name} | {len(outcomes)} | " + " | ".join(str(n or "") for n in counts) + " |"
