"""``python -m llama_py.compat app.py ...``: run a program that imports ``llama_cpp`` on llama_py.

Processes that the program starts do not inherit it: they need the same line, or the shim
distribution (docs/migrating.md).
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_py.compat.finder import install

__all__ = ["main"]

_EPILOG = """\
examples:
  python -m llama_py.compat app.py --its-own-flags
  python -m llama_py.compat -m llama_cpp.server --model model.gguf
  python -m llama_py.compat -c "import llama_cpp; print(llama_cpp.__version__)"
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program that the command line names, as ``python`` itself would."""
    parser = _parser()
    given = parser.parse_args(arguments)
    install(defaults="llama_py" if given.native_defaults else "llama_cpp")
    if given.module:
        sys.argv = given.module
        sys.path.insert(0, "")
        runpy.run_module(given.module[0], run_name="__main__", alter_sys=True)
    elif given.code:
        sys.argv = ["-c", *given.code[1:]]
        sys.path.insert(0, "")
        exec(compile(given.code[0], "<string>", "exec"), {"__name__": "__main__"})
    elif given.script:
        sys.argv = given.script
        sys.path.insert(0, str(Path(given.script[0]).resolve().parent))
        runpy.run_path(given.script[0], run_name="__main__")
    else:
        parser.error("a script, -m MODULE or -c CODE is needed")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m llama_py.compat",
        usage="python -m llama_py.compat [--native-defaults] (SCRIPT | -m MODULE | -c CODE) ...",
        description="Run a Python program in which 'import llama_cpp' finds llama_py.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--native-defaults",
        action="store_true",
        help="the defaults of llama_py instead of those of llama-cpp-python",
    )
    rest: Any = {"nargs": argparse.REMAINDER}
    parser.add_argument("-m", dest="module", metavar="MODULE", help="a module", **rest)
    parser.add_argument("-c", dest="code", metavar="CODE", help="a program as text", **rest)
    parser.add_argument("script", metavar="SCRIPT", help="a file, and its arguments", **rest)
    return parser


if __name__ == "__main__":
    main()
