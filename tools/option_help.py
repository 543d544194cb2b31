"""``llama_py/options/help_texts.py``, from the declarations in ``llama_py.options``.

python -m tools.option_help           write it
python -m tools.option_help --check   fail if it is not up to date
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from llama_py.options import CHAT, COMPLETION, GENERATE, LOAD, SAMPLE
from llama_py.options.describe import options_in_words

__all__ = ["main", "written"]

FILE = Path(__file__).resolve().parents[1] / "llama_py" / "options" / "help_texts.py"

_HEAD = '''\
"""The options of each call in words, for ``help()``. Generated: ``python -m tools.option_help``."""

from __future__ import annotations

from typing import Final

__all__ = ["HELP_TEXTS"]

#: By the name of the call.
HELP_TEXTS: Final[dict[str, str]] = {
'''


def written() -> str:
    """The text of the file."""
    tables = (LOAD, COMPLETION, CHAT, SAMPLE, GENERATE)
    texts = [
        f'    "{each.function}": """\\\n{_quoted(options_in_words(each))}""",\n' for each in tables
    ]
    return f"{_HEAD}{''.join(texts)}}}\n"


def _quoted(text: str) -> str:
    text = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return text.removesuffix('"') + '\\"' if text.endswith('"') else text


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args()
    text = written()
    if FILE.is_file() and text == FILE.read_text(encoding="utf-8"):
        return 0
    if given.check:
        sys.stderr.write(f"{FILE.name} is not up to date: run python -m tools.option_help\n")
        return 1
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
