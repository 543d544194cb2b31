"""``llama-py embed``: vectors of lines or pictures, as lines of JSON or as a file of numpy's."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from llama_py.cli import options
from llama_py.cli.asking import add_words, prompt_of, standard_input
from llama_py.cli.elsewhere import LLAMA_CLI
from llama_py.cli.progress import ProgressLine
from llama_py.errors import InputTooLongError, ParameterError, TokenizationError
from llama_py.options import EMBEDDER
from llama_py.options.marks import Flag

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


__all__ = ["add_parser"]

#: How errors begin that are about one input: its index, and what is wrong.
_INPUT = re.compile(r"inputs\[(\d+)\]:?([\s\S]*)")
_FLAGGED = [option for option in EMBEDDER if option.mark(Flag)]


def add_parser(commands: Any) -> None:
    """Add ``embed`` to the subcommands of ``llama-py``."""
    parser = commands.add_parser(
        "embed",
        help="vectors of lines of text, or of pictures",
        usage="llama-py embed [MODEL.gguf] [FILE] [options]",
        description="Embed each line of a text, or each picture: one line of JSON for each, or an "
        "array in a file.",
        epilog="example: llama-py embed all-MiniLM-L6-v2.gguf notes.txt -o notes.npy",
    )
    parser.elsewhere, parser.words = LLAMA_CLI, True
    add_words(
        parser, "FILE", 'a text file; standard input if absent or "-"; empty lines count as lines'
    )
    parser.add_argument(
        "--image",
        metavar="FILE",
        action="append",
        default=[],
        help="embed this picture, and no text; may be given several times",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write there instead; .npy: a float32 array of shape (lines, dimensions)",
    )
    parser.add_argument(
        "--dimensions", metavar="N", type=int, help="keep the first N only (default: all)"
    )
    parser.add_argument(
        "--raw", action="store_true", help="vectors as they are; otherwise they have length 1"
    )
    parser.add_argument(
        "--truncate", action="store_true", help="leave out the end of lines that are too long"
    )
    group = parser.add_argument_group("model")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "-m",
        "--model",
        metavar="MODEL",
        help="a GGUF file, OWNER/NAME:QUANT of the hub, or a name of llama-py list (default: "
        "LLAMA_PY_MODEL, or the bundled one)",
    )
    which.add_argument("--hf", metavar="REPO[:QUANT]", help="download from the Hugging Face hub")
    for option in _FLAGGED:
        options.add_flag(group, option, EMBEDDER)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    parsed.file = prompt_of(parsed, "the file")
    if parsed.image and parsed.file is not None:
        raise ParameterError(f"--image: {parsed.file} is embedded in a call of its own")
    from llama_py.media.objects import Image

    lines = [] if parsed.image else _lines(parsed.file)
    from llama_py.api.embedding.embedder import Embedder

    path = options.model_path(parsed.model, parsed.hf)
    given: dict[str, Any] = {each.name: getattr(parsed, each.name) for each in _FLAGGED}
    given = {name: value for name, value in given.items() if value is not None}
    progress = ProgressLine("loading the model", enabled=sys.stderr.isatty() and not parsed.verbose)
    with progress:
        embedder = Embedder(path, progress=progress.fraction, **given)
    with embedder:
        progress = ProgressLine("embedding", enabled=sys.stderr.isatty())
        with progress, _naming_lines(lines, parsed.file):
            vectors = embedder.embed(
                [Image(name) for name in parsed.image] or lines,
                normalize=not parsed.raw,
                dimensions=parsed.dimensions,
                truncate=parsed.truncate,
                progress=progress.inputs,
            )
    if parsed.output is None:
        sys.stdout.flush()
        _write_lines(vectors, sys.stdout.buffer)
    elif parsed.output.endswith(".npy"):
        import numpy as np

        np.save(parsed.output, vectors)
    else:
        with Path(parsed.output).open("wb") as file:
            _write_lines(vectors, file)
    return 0


def _lines(name: str | None) -> list[str]:
    try:
        if name is None or name == "-":
            text = standard_input("type the lines to embed")
        else:
            text = Path(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ParameterError(
            f"there is no file {name}; a text itself comes through a pipe: "
            f"echo {shlex.quote(str(name))} | llama-py embed"
        ) from None
    except UnicodeDecodeError as error:
        raise ParameterError(f"{_source(name)} is not UTF-8: {error}") from None
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


@contextlib.contextmanager
def _naming_lines(lines: list[str], name: str | None) -> Iterator[None]:
    """Errors about an input name the line that it is."""
    try:
        yield
    except (InputTooLongError, ParameterError, TokenizationError) as error:
        found = _INPUT.match(str(error))
        if found is None or not lines:
            raise
        number, words = int(found[1]), found[2]
        where = f"line {number + 1} of {_source(name)}"
        # With the remedy on a command line.
        if not lines[number].strip():
            words = (
                " is empty, and this model has no vector for that: leave empty lines out (grep .)"
            )
        elif isinstance(error, InputTooLongError):
            words = (
                f" has {error.prompt_tokens} tokens, and this model embeds at most {error.limit} "
                "at once: shorten it, or leave its end out with --truncate"
            )
        raise ParameterError(where + words) from None


def _source(name: str | None) -> str:
    return "standard input" if name is None or name == "-" else name


def _write_lines(vectors: NDArray[np.float32], file: BinaryIO) -> None:
    from llama_py.dialects.wire_json import vector_bytes

    for index, vector in enumerate(vectors):
        file.write(b'{"index":%d,"embedding":%b}\n' % (index, vector_bytes(vector)))
    file.flush()
