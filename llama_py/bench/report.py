"""``Report``: the results of a benchmark, as tables for people and as JSON.

A report has two kinds of verdict. A *failure* is a wrong result (another conversation's text, a
history that was evaluated again); the exit code is then 1. A *target* is a figure to reach. Missing
it is shown, but affects the exit code only with ``--strict``, because it depends as much on the
machine's other work as on this library.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Report", "Table", "Target", "median", "ratios"]

Cell = str | int | float | bool | None


@dataclass(slots=True)
class Table:
    """Rows under column names; each cell is a text, a number or None."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[Cell]] = field(default_factory=list)

    def add(self, *cells: Cell) -> None:
        """Append a row."""
        self.rows.append(cells)

    def as_dict(self) -> dict[str, Any]:
        rows = [dict(zip(self.columns, map(_known, row), strict=True)) for row in self.rows]
        return {"title": self.title, "rows": rows}

    def lines(self) -> list[str]:
        """The table as text, numbers to the right."""
        texts = [[*self.columns], *([_text(cell) for cell in row] for row in self.rows)]
        widths = [max(len(row[i]) for row in texts) for i in range(len(self.columns))]
        right = [
            all(not isinstance(row[i], str) for row in self.rows) for i in range(len(self.columns))
        ]
        lines = [f"{self.title}"] if self.title else []
        for row in texts:
            cells = [
                text.rjust(width) if number else text.ljust(width)
                for text, width, number in zip(row, widths, right, strict=True)
            ]
            lines.append("  " + "  ".join(cells).rstrip())
        return lines


@dataclass(frozen=True, slots=True)
class Target:
    """A figure and what it should be: at least ``least``, or at most ``most``."""

    name: str
    value: float
    least: float | None = None
    most: float | None = None

    @property
    def met(self) -> bool:
        return (self.least is None or self.value >= self.least) and (
            self.most is None or self.value <= self.most
        )

    def as_dict(self) -> dict[str, Any]:
        limits = {"least": self.least, "most": self.most}
        given = {name: limit for name, limit in limits.items() if limit is not None}
        return {"name": self.name, "value": _known(self.value), **given, "met": self.met}

    def line(self) -> str:
        sign, limit = (">=", self.least) if self.least is not None else ("<=", self.most)
        verdict = "met   " if self.met else "MISSED"
        return f"  {verdict}  {self.name}: {_text(self.value)} (target {sign} {_text(limit)})"


@dataclass(slots=True)
class Report:
    """The results of one benchmark.

    Attributes:
        name: the benchmark.
        conditions: everything that is needed to repeat the measurement.
        failures: wrong results, a sentence for each.
        code: an exit code that has another meaning than failures; None if it follows from them.
    """

    name: str
    conditions: dict[str, Any] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    code: int | None = None

    def table(self, title: str, *columns: str) -> Table:
        """Begin a table."""
        table = Table(title, columns)
        self.tables.append(table)
        return table

    def at_most(self, name: str, value: float, limit: float) -> None:
        """Record a figure that should not exceed ``limit``."""
        self.targets.append(Target(name, value, most=limit))

    def at_least(self, name: str, value: float, limit: float) -> None:
        """Record a figure that should reach ``limit``."""
        self.targets.append(Target(name, value, least=limit))

    def fail(self, sentence: str) -> None:
        """Record a wrong result."""
        self.failures.append(sentence)

    def exit_code(self, strict: bool = False) -> int:
        """``code``; else 1 if a result was wrong, or with ``strict`` if a target was missed."""
        if self.code is not None:
            return self.code
        missed = strict and not all(target.met for target in self.targets)
        return 1 if self.failures or missed else 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ok": not self.failures,
            "conditions": self.conditions,
            "tables": [table.as_dict() for table in self.tables],
            "targets": [target.as_dict() for target in self.targets],
            "failures": self.failures,
            "notes": self.notes,
        }

    def as_json(self) -> str:
        """One JSON object. What could not be measured is null."""
        return json.dumps(self.as_dict(), indent=1, allow_nan=False)

    def as_text(self) -> str:
        """Everything, for people."""
        lines = [f"{self.name}: " + ", ".join(f"{k}={v}" for k, v in self.conditions.items())]
        for table in self.tables:
            lines += ["", *table.lines()]
        if self.targets:
            lines += ["", "targets", *(target.line() for target in self.targets)]
        lines += ["", *(f"note: {note}" for note in self.notes)] if self.notes else []
        lines += ["", *(f"WRONG: {failure}" for failure in self.failures)] if self.failures else []
        return "\n".join(lines)


def median(values: Sequence[float]) -> float:
    """The median; NaN if there are no values."""
    return statistics.median(values) if values else float("nan")


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Pairwise quotients of values that were measured right after each other."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def _known(cell: Cell) -> Cell:
    """The figure, or None for NaN, which JSON cannot express."""
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        if cell != cell:
            return "-"
        digits = ".3g" if abs(cell) < 1 else ".2f" if abs(cell) < 100 else ".0f"
        return format(cell, digits)
    return str(cell)
