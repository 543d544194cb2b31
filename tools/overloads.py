"""Write the overloads of ``AsyncLlama``'s calls from those of ``Llama``.

    python -m tools.overloads           write them
    python -m tools.overloads --check   fail if they are not up to date

An overload of a call of ``Llama`` is one of ``AsyncLlama`` as soon as it is awaited and its stream
is the asynchronous one. Their bodies are different, and are left as they are.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from pathlib import Path

__all__ = ["main", "written"]

_API = Path(__file__).resolve().parents[1] / "llama_py" / "api"
SYNC, ASYNC = _API / "llama.py", _API / "aio.py"


def written() -> str:
    """The text of ``api/aio.py`` with the overloads that it should have."""
    theirs = _overloads(SYNC.read_text(encoding="utf-8"))
    text = ASYNC.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    own = _overloads(text)
    for name, (start, end, _) in sorted(own.items(), key=lambda each: -each[1][0]):
        source = theirs[name][2]
        source = re.sub(r"^    def ", "    async def ", source, flags=re.MULTILINE)
        lines[start:end] = [re.sub(r"\bReplyStream\b", "AsyncReplyStream", source)]
    return "".join(lines)


def _overloads(text: str) -> dict[str, tuple[int, int, str]]:
    """By the name of each method: the lines of its overloads (from, to), and their text."""
    lines = text.splitlines(keepends=True)
    found: dict[str, tuple[int, int, str]] = {}
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if [ast.unparse(each) for each in node.decorator_list] == ["overload"]:
            start = min(found.get(node.name, (node.lineno - 2, 0, ""))[0], node.lineno - 2)
            end = node.end_lineno or node.lineno
            found[node.name] = start, end, "".join(lines[start:end])
    return found


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args()
    text = written()
    if text == ASYNC.read_text(encoding="utf-8"):
        return 0
    if given.check:
        sys.stderr.write(f"{ASYNC.name} is not up to date: run python -m tools.overloads\n")
        return 1
    ASYNC.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
