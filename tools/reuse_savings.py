"""The figures of ``docs/reuse-savings.md``, from what ``python -m benchmarks savings`` has written.

    python -m benchmarks savings tests/data/agent-openai.json tests/data/agent-claude.jsonl \\
        synthetic:70000:1 --results savings.json
    python -m tools.reuse_savings savings.json

writes the tables between the two comments of the page, and the charts beside it.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import savings

__all__ = ["PAGE", "figures", "main"]

PAGE = Path(__file__).parent.parent / "docs" / "reuse-savings.md"
IMAGES = PAGE.parent / "images"
_BEGIN, _END = "<!-- figures -->\n", "<!-- end of figures -->\n"

Piece = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; returns the exit code."""
    (path,) = sys.argv[1:] if arguments is None else arguments
    pieces: list[Piece] = json.loads(Path(path).read_text(encoding="utf-8"))["pieces"]
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(_BEGIN)
    PAGE.write_text(before + figures(pieces) + rest.split(_END)[1], encoding="utf-8")
    savings.draw(pieces, IMAGES)
    return 0


def figures(pieces: Sequence[Piece]) -> str:
    """The part of the page between the comments, with them."""
    parts = [_BEGIN, "## Figures\n", _conditions(pieces), _table(pieces)]
    models = dict.fromkeys(Path(piece["model"]).stem.partition(":")[0] for piece in pieces)
    parts += [
        f"![Time to the first token of each call, {model}](images/reuse-{model}.svg)"
        for model in models
    ]
    return "\n".join([*parts, "", _END])


def _conditions(pieces: Sequence[Piece]) -> str:
    one = pieces[-1]["conditions"]
    return (
        f"llama_py {one['llama_py']}, llama.cpp {one['llama.cpp'][:9]}, {one['threads']} threads "
        f"of {platform.machine()}, weights in Q8_0, cells in F16, {one['max_tokens']} tokens per "
        "reply. Seconds are those to the first token of all calls together; *evaluated* is what "
        "was not reused of all prompts of the warm pass.\n"
    )


_COLUMNS = "model, session, server, calls, tokens sent, evaluated, cold, warm, warm / cold"


def _table(pieces: Sequence[Piece]) -> str:
    names = _COLUMNS.split(", ")
    lines = [_line(names), _line(["---"] * 3 + ["---:"] * (len(names) - 3))]
    for piece in pieces:
        lines += [_line(_cells(piece, who)) for who in savings.servers_of(piece)]
    return "\n".join([*lines, ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(piece: Piece, who: str) -> list[str]:
    cold, warm = (savings.total(piece, who, kind) for kind in ("cold", "warm"))
    if cold != cold:  # its flags change nothing there
        cold = savings.total(piece, savings.THEIRS, "cold")
    calls = savings.notes(piece, who, "warm")
    sent = sum(call["prompt"] for call in calls)
    evaluated = sent - sum(call["cached"] for call in calls)
    session = f"{piece['characters']:,} characters"
    counts = [f"{count:,}" for count in (len(calls), sent, evaluated)]
    seconds = [_said(cold, ".1f", " s"), f"{warm:.1f} s", _said(warm / cold, ".2f")]
    return [piece["model"], session, who, *counts, *seconds]


def _said(figure: float, form: str, unit: str = "") -> str:
    """A figure; a dash where nothing was measured."""
    return "-" if figure != figure else f"{figure:{form}}{unit}"


if __name__ == "__main__":
    sys.exit(main())
