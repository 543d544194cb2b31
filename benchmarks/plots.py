"""Line charts as SVG, for reports: readable in both themes, without a library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

__all__ = ["Line", "line_chart", "write"]

_WIDTH, _HEIGHT = 760, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 56, 58
#: Told apart by people who do not see colours alike (Okabe and Ito).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_DASHES = ("", "7 4", "2 4", "9 3 2 3")


@dataclass(frozen=True, slots=True)
class Line:
    """Values over 1, 2, 3, …, or over ``places``."""

    name: str
    values: Sequence[float]
    places: Sequence[float] = ()

    def points(self) -> list[tuple[float, float]]:
        """Places with finite values."""
        places = self.places or range(1, len(self.values) + 1)
        pairs = zip(map(float, places), map(float, self.values), strict=True)
        return [(x, y) for x, y in pairs if math.isfinite(y)]


def line_chart(title: str, across: str, up: str, lines: Sequence[Line]) -> str:
    """A chart.

    Args:
        across, up: what the axes show, with units.
    """
    points = [point for line in lines for point in line.points()]
    xs = [x for x, _ in points] or [0.0, 1.0]
    ticks = _ticks(max([y for _, y in points] or [1.0]))
    frame = _Frame(min(xs), max(xs), ticks[-1])
    parts = [_head(title), *_grid(frame, ticks, up), *_bottom(frame, xs, across)]
    for number, line in enumerate(lines):
        parts += _draw(frame, line, number, len(lines))
    return "\n".join([*parts, "</svg>", ""])


def write(path: str, chart: str) -> None:
    """Write a chart to a file."""
    Path(path).write_text(chart, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Frame:
    least: float
    most: float
    top: float

    def x(self, value: float) -> float:
        span = (self.most - self.least) or 1.0
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (value - self.least) / span

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / (self.top or 1.0)


def _ticks(most: float) -> list[float]:
    """Round numbers from 0 to at least ``most``."""
    rough = max(most, 1e-9) / 5
    base = 10.0 ** math.floor(math.log10(rough))
    step = next(base * factor for factor in (1, 2, 2.5, 5, 10) if base * factor >= rough)
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]


def _head(title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13">\n<title>{escape(title)}</title>\n'
        "<style>text{fill:#333}.grid{stroke:#9996;stroke-width:1}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>\n"
        f'<text x="{_LEFT}" y="24" font-size="16" font-weight="600">{escape(title)}</text>'
    )


def _grid(frame: _Frame, ticks: Sequence[float], up: str) -> list[str]:
    parts = []
    for tick in ticks:
        y = frame.y(tick)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    middle = (_HEIGHT + _TOP - _BOTTOM) / 2
    parts.append(
        f'<text transform="translate(18 {middle:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(up)}</text>"
    )
    return parts


def _bottom(frame: _Frame, xs: Sequence[float], across: str) -> list[str]:
    values = sorted(set(xs))
    shown = values[:: max(1, math.ceil(len(values) / 12))]
    y = _HEIGHT - _BOTTOM + 20
    parts = [
        f'<text x="{frame.x(value):.1f}" y="{y}" text-anchor="middle">{value:g}</text>'
        for value in shown
    ]
    middle = (_WIDTH + _LEFT - _RIGHT) / 2
    parts.append(
        f'<text x="{middle:.0f}" y="{_HEIGHT - 14}" text-anchor="middle">{escape(across)}</text>'
    )
    return parts


def _draw(frame: _Frame, line: Line, number: int, count: int) -> list[str]:
    colour, dash = _COLOURS[number % len(_COLOURS)], _DASHES[number % len(_DASHES)]
    style = f'stroke="{colour}" stroke-width="2.5" stroke-dasharray="{dash}" fill="none"'
    places = [(frame.x(x), frame.y(y)) for x, y in line.points()]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places)
    left = _LEFT + number * (_WIDTH - _LEFT - _RIGHT) / max(count, 1)
    legend = (
        f'<line x1="{left:.0f}" x2="{left + 26:.0f}" y1="42" y2="42" {style}/>'
        f'<text x="{left + 32:.0f}" y="46">{escape(line.name)}</text>'
    )
    return [f'<polyline points="{path}" {style}/>', dots, legend]
