"""Input of a command: its model and prompt among the arguments, and standard input."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from llama_py.cli.terminal import is_terminal, note
from llama_py.errors import ModelNotFoundError, ParameterError
from llama_py.regular_files import open_regular

__all__ = ["add_words", "prompt_of", "standard_input", "with_input"]

_MAGIC = b"GGUF"


def add_words(parser: argparse.ArgumentParser, name: str, help: str) -> None:
    """Arguments without a flag: a model, and a prompt or a file, both optional."""
    parser.add_argument(
        "words", nargs="*", metavar=name, help=f"{help}; a GGUF file before it is the model"
    )


def prompt_of(parsed: argparse.Namespace, what: str = "the prompt") -> str | None:
    """The prompt, or None; a model that comes first becomes ``parsed.model``.

    Args:
        what: the name of the prompt in errors.

    Raises:
        ModelNotFoundError: the first argument has the name of a model, and there is none.
        ParameterError: there is more than a model and a prompt.
    """
    words = [*parsed.words]
    if (
        words
        and parsed.model is None
        and parsed.hf is None
        and _is_model(words[0], len(words) == 1)
    ):
        parsed.model = words.pop(0)
    if len(words) > 1:
        raise ParameterError(f'{what} is one argument; write it in quotes: "{" ".join(words)}"')
    return words[0] if words else None


def _is_model(word: str, alone: bool) -> bool:
    """Whether an argument is a model; one that is ``alone`` may be a prompt such as "and/or"."""
    if not word.split() or len(word.split()) > 1:
        return False
    from llama_py.models.references import reference_of

    named = reference_of(word)
    if named is not None and (not alone or named.quant or named.file or "gguf" in word.lower()):
        return True
    return _is_file(word) or (not alone and _is_stored(word))


def _is_stored(word: str) -> bool:
    from llama_py.models.stores.catalog import find, stored_models

    return find(word, stored_models()) is not None


def _is_file(word: str) -> bool:
    path = Path(word).expanduser()
    try:
        with open_regular(path) as file:
            return file.read(len(_MAGIC)) == _MAGIC or word.lower().endswith(".gguf")
    except (OSError, ValueError):
        if not word.lower().endswith(".gguf") or len(word.split()) > 1:
            return False
    raise ModelNotFoundError(
        f"there is no model file {word}; name a model here or with -m PATH, and put a prompt that "
        "ends in .gguf behind it"
    )


def with_input(prompt: str | None, waiting: str) -> str:
    """The prompt, behind the text of a pipe or file on standard input if there is one.

    Args:
        prompt: None or ``"-"`` for standard input alone.
        waiting: what is expected of somebody at the keyboard, who has to type it then.
    """
    if prompt is None or prompt == "-":
        return standard_input(waiting)
    if sys.stdin is None or sys.stdin.closed or is_terminal(sys.stdin):
        return prompt
    try:
        piped = standard_input(waiting).strip("\n")
    except OSError:  # it is closed
        return prompt
    return f"{piped}\n\n{prompt}" if piped.strip() else prompt


def standard_input(waiting: str) -> str:
    """All of standard input.

    Raises:
        ParameterError: it is not text.
    """
    if is_terminal(sys.stdin):
        note(f"{waiting}; Ctrl-D on an empty line ends it")
    try:
        text = sys.stdin.read()
        text.encode()  # in the locale C, bytes other than text come as halves of characters
    except UnicodeError as error:
        raise ParameterError(f"standard input is not UTF-8: {error}") from None
    return text
