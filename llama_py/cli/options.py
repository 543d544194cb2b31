"""Options that several commands share, and what is made of them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from llama_py.errors import ParameterError
from llama_py.version import LLAMA_CPP_COMMIT, __version__

if TYPE_CHECKING:
    from llama_py.api.llama import Llama

__all__ = [
    "Parser",
    "add_model_options",
    "add_sampling_options",
    "load_model",
    "model_path",
    "read_argument",
    "sampling",
    "version_text",
]


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def version_text() -> str:
    """What ``--version`` prints."""
    return f"llama-py {__version__} (llama.cpp {LLAMA_CPP_COMMIT})"


# ---- the options -----------------------------------------------------------------------------


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which model, and how it is loaded."""
    group = parser.add_argument_group("model")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "-m", "--model", metavar="PATH", help="a GGUF file (default: the bundled demonstration)"
    )
    which.add_argument(
        "--hf",
        metavar="REPO[:QUANT]",
        help="download from the Hugging Face hub, for example Qwen/Qwen3-0.6B-GGUF:Q8_0",
    )
    group.add_argument(
        "-c", "--n-ctx", type=int, metavar="N", help="tokens of context (default: the model's own)"
    )
    group.add_argument(
        "-ngl", "--n-gpu-layers", type=int, metavar="N", help="layers on the GPU (default: all)"
    )
    group.add_argument("-t", "--threads", type=int, metavar="N", help="threads (default: cores)")
    group.add_argument(
        "--chat-template", metavar="FILE", help="a Jinja template, in place of the model's own"
    )
    group.add_argument("-v", "--verbose", action="store_true", help="print llama.cpp's log")


def add_sampling_options(parser: argparse.ArgumentParser, max_tokens: int | None) -> None:
    """How a reply is chosen, and when it ends."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--temp", type=float, metavar="T", help="temperature; 0 is greedy")
    group.add_argument("--top-k", type=int, metavar="K", help="only the K most likely tokens")
    group.add_argument("--top-p", type=float, metavar="P", help="only the most likely P of 1.0")
    group.add_argument(
        "--min-p", type=float, metavar="P", help="at least P times as likely as the most likely"
    )
    group.add_argument("--repeat-penalty", type=float, metavar="X", help="1.0 is no penalty")
    group.add_argument("--seed", type=int, metavar="N", help="of the random numbers")
    limit = "until it ends" if max_tokens is None else str(max_tokens)
    group.add_argument(
        "-n",
        "--max-tokens",
        type=int,
        default=max_tokens,
        metavar="N",
        help=f"most tokens to write (default: {limit})",
    )
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be repeated"
    )
    group.add_argument("--grammar", metavar="FILE", help="GBNF rules that the reply has to follow")


# ---- what is made of them --------------------------------------------------------------------


def sampling(parsed: argparse.Namespace) -> dict[str, Any]:
    """The options of ``create_completion`` and ``create_chat_completion`` that were given."""
    options = {
        "temperature": parsed.temp,
        "top_k": parsed.top_k,
        "top_p": parsed.top_p,
        "min_p": parsed.min_p,
        "repeat_penalty": parsed.repeat_penalty,
        "seed": parsed.seed,
        "max_tokens": parsed.max_tokens,
        "stop": parsed.stop,
        "grammar": read_argument(parsed.grammar, "--grammar"),
    }
    return {name: value for name, value in options.items() if value is not None}


def read_argument(path: str | None, option: str) -> str | None:
    """The text of a file that an option names."""
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"{option}: cannot read {path}: {error}") from None


def read_schema(given: str) -> Any:
    """A JSON schema, given as text or as the name of a file."""
    text = given if given.lstrip().startswith("{") else read_argument(given, "--json-schema")
    try:
        return json.loads(text or "")
    except (ValueError, RecursionError) as error:
        raise ParameterError(f"--json-schema is not JSON: {error}") from None


def model_path(model: str | None, hf: str | None) -> str:
    """The file of the model that was asked for; downloads it if it has to be."""
    if hf is not None:
        from llama_py.hub import download

        return download(hf)
    if model is not None:
        return model
    from llama_py.demo import demo_model_path

    return demo_model_path()


def load_model(parsed: argparse.Namespace) -> Llama:
    """Load the model, with a progress bar if it takes long and somebody is looking."""
    from llama_py.api.llama import Llama
    from llama_py.cli.progress import Progress

    path = model_path(parsed.model, parsed.hf)
    options: dict[str, Any] = {}
    for name, value in (
        ("n_ctx", parsed.n_ctx),
        ("n_gpu_layers", parsed.n_gpu_layers),
        ("n_threads", parsed.threads),
        ("n_threads_batch", parsed.threads),
        ("chat_template", read_argument(parsed.chat_template, "--chat-template")),
    ):
        if value is not None:
            options[name] = value
    progress = Progress("loading the model", enabled=sys.stderr.isatty() and not parsed.verbose)
    with progress:
        return Llama(path, verbose=parsed.verbose, progress=progress.fraction, **options)
