"""The command ``llama-py``: chat, serve and so on; ``llama-py --help`` lists its commands.

Errors print one sentence on standard error and exit with code 2, without a traceback. Modules of
the package are imported when a command needs them, so that ``--help`` is quick and loads no native
library.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from llama_py.cli.elsewhere import COMMANDS
from llama_py.cli.options import Parser, version_text
from llama_py.cli.terminal import sentence
from llama_py.cli.words import remedy
from llama_py.errors import LlamaError

__all__ = ["main"]

#: Exit codes: a mistake or a failure; Ctrl-C; the reader of our output went away.
FAILED, INTERRUPTED, BROKEN_PIPE = 2, 130, 141

#: Commands that have ``--verbose``.
_VERBOSE = ("chat", "generate", "embed")

_EPILOG = """\
examples:
  llama-py chat                           talk to the bundled model
  llama-py chat "What is 2 + 3?"          one question, one answer
  llama-py chat model.gguf                talk to another model
  llama-py chat Qwen/Qwen3-0.6B-GGUF:Q8_0 downloads a model first
  llama-py list                           the models of this machine
  git diff | llama-py chat model.gguf "Summarise this change."
  llama-py serve                          the bundled model behind HTTP
  llama-py inspect model.gguf             what is in a file
  llama-py inspect model.gguf --fit       how much memory it takes
  llama-py inspect                        what is installed
  llama-py devices                        what models can be loaded on
  llama-py rpc-server                     compute for models of other machines

Every command has its own --help. Tab completes commands and options after
  pip install 'llama-py[completion]'; eval "$(register-python-argcomplete llama-py)"
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit code."""
    arguments = [*(sys.argv[1:] if argv is None else argv)]
    # Let what the encoding of an output lacks be a question mark. Python raises by default, where
    # an output is a file or a pipe on Windows (cp1252), or the locale is C: half of a reply would
    # be lost for one character.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
    try:
        return _run(arguments)
    except SystemExit as end:  # argparse, after --help or a mistake
        return end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes standard output once more at exit: give it something to write to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return BROKEN_PIPE
    except (LlamaError, OSError, MemoryError) as error:
        return _fail(remedy(error) if arguments[:1] != ["serve"] else sentence(error))
    except Exception as error:
        if {"-v", "--verbose"} & {*arguments}:
            raise
        where = "; --verbose shows where" if {*arguments[:1]} & {*_VERBOSE} else ""
        return _fail(f"internal error ({type(error).__name__}: {sentence(error)}){where}")


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["bench"]:
        from llama_py.bench.cli import main as bench

        return bench(arguments[1:])
    parser = _parser()
    if "_ARGCOMPLETE" in os.environ:  # the shell asks what to complete
        import argcomplete

        argcomplete.autocomplete(parser)
    parsed = parser.parse_args(arguments)
    run = getattr(parsed, "run", None)
    if run is None:
        parser.print_help()
        return 0
    code: int = run(parsed)
    sys.stdout.flush()
    return code


def _fail(text: str) -> int:
    print(f"llama-py: {text}", file=sys.stderr)
    return FAILED


def _parser() -> argparse.ArgumentParser:
    from llama_py.cli import (
        chat,
        cluster,
        devices,
        embed,
        files,
        generate,
        inspect,
        models,
        rpc_server,
        serve,
    )

    parser = Parser(
        prog="llama-py",
        description="Run GGUF language models on this machine, with llama.cpp.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.elsewhere = COMMANDS
    parser.add_argument("--version", action="version", version=version_text())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    chat.add_parser(commands)
    generate.add_parser(commands)
    embed.add_parser(commands)
    serve.add_parser(commands)
    cluster.add_parser(commands)
    models.add_parsers(commands)
    files.add_parsers(commands)
    inspect.add_parser(commands)
    devices.add_parser(commands)
    rpc_server.add_parser(commands)
    commands.add_parser("bench", help="measure, and compare with and without reuse", add_help=False)
    return parser
