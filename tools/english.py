"""Turns of phrase that a native engineer would not write, counted: ``python -m tools.english``.

The limits are in ``tests/test_english.py``, and may only fall.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATTERNS = {
    "whoever": re.compile(r"\bwhoever\b", re.IGNORECASE),
    "is no": re.compile(r"(?<!there )(?<!There )\b(?:is|are) no (?!longer\b|more\b|such\b)[a-z]+"),
    "so many": re.compile(r"\b[Ss]o many\b"),
}
#: Of a docstring: a noun says more than a clause.
WHAT = re.compile(r"What\b")


def pages() -> Iterator[Path]:
    """The pages that users and maintainers read."""
    yield from (ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"))
    # Made from what Python files say.
    generated = {"reference.md", "options.md"}
    yield from (path for path in (ROOT / "docs").rglob("*.md") if path.name not in generated)


def modules() -> Iterator[Path]:
    """The Python files of the package that are written by hand."""
    for path in sorted((ROOT / "llama_py").rglob("*.py")):
        if not path.name.endswith("_h.py") and path.name != "help_texts.py":
            yield path


def found() -> dict[str, list[str]]:
    """Where each pattern stands: "path:line: text"."""
    places: dict[str, list[str]] = {name: [] for name in [*PATTERNS, "what"]}
    for path in [*pages(), *modules()]:
        where, text = path.relative_to(ROOT), path.read_text(encoding="utf-8")
        for number, line in enumerate(text.splitlines(), 1):
            for name, pattern in PATTERNS.items():
                places[name] += [f"{where}:{number}: {line.strip()}"] * len(pattern.findall(line))
        if path.suffix == ".py":
            places["what"] += [f"{where}:{line}" for line in _what(ast.parse(text))]
    return places


def _what(tree: ast.AST) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds):
            text = ast.get_docstring(node)
            if text and WHAT.match(text):
                yield f"{node.body[0].lineno}: {text.splitlines()[0]}"


def main() -> None:
    """Print them all."""
    for name, places in found().items():
        print(f"{name}: {len(places)}", *places, sep="\n    ")


if __name__ == "__main__":
    main()
