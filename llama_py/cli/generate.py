"""``llama-py generate``: continue a text."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from llama_py.cli import options
from llama_py.cli.asking import add_words, prompt_of, with_input
from llama_py.cli.elsewhere import LLAMA_CLI
from llama_py.cli.progress import ProgressLine

__all__ = ["add_parser"]

_MAX_TOKENS = 256


def add_parser(commands: Any) -> None:
    """Add ``generate`` to the subcommands of ``llama-py``."""
    parser = commands.add_parser(
        "generate",
        help="continue a text",
        usage="llama-py generate [MODEL.gguf] [PROMPT] [options]",
        description="Continue a text, without a chat template.",
        epilog='example: llama-py generate model.gguf -n 64 "Once upon a time"',
    )
    parser.elsewhere, parser.words = LLAMA_CLI, True
    add_words(
        parser, "PROMPT", 'the text to continue; text from a pipe comes before it; "-": alone'
    )
    parser.add_argument("--echo", action="store_true", help="print the prompt as well")
    options.add_model_options(parser)
    options.add_sampling_options(parser, _MAX_TOKENS)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    prompt = with_input(prompt_of(parsed), "type the text to continue")
    with options.load_model(parsed) as llm:
        progress = ProgressLine("processing the prompt", enabled=sys.stderr.isatty())
        sampling = options.sampling(parsed)
        with progress:
            stream: Any = llm.create_completion(
                prompt, stream=True, echo=parsed.echo, on_progress=progress.tokens, **sampling
            )
            text = ""
            for chunk in stream:
                text = chunk["choices"][0]["text"]
                if text:
                    progress.clear()
                    print(text, end="", flush=True)
        if not text.endswith("\n"):
            print()
    return 0
