"""Errors in the words of the command line: flags, where the library names arguments."""

from __future__ import annotations

import re

from llama_py.cli.terminal import sentence
from llama_py.options import COMPLETION, LOAD
from llama_py.options.marks import Flag

__all__ = ["remedy"]

_SAID = {
    "pass overflow=TrimMessages(), or load the model with a larger n_ctx": "or give a larger -c N",
    "load the model with a larger n_ctx": "give a larger -c N",
    "pass a smaller n_ctx": "give a smaller -c N",
    "try a smaller n_ctx": "give a smaller -c N",
    ", keep use_mmap": "",
    "mmproj=FILE": "--mmproj FILE",
}


def remedy(error: BaseException) -> str:
    """The message of an error on one line, with what to do about it on a command line."""
    text = sentence(error)
    for said, ours in _SAID.items():
        text = text.replace(said, ours)
    for option in (*LOAD, *COMPLETION):
        flag = option.mark(Flag)
        if flag is not None and "_" in option.name:  # others are words
            long = next(name for name in flag.flags if name.startswith("--"))
            text = re.sub(rf"(?<![\w/.-]){option.name}(?![\w/.-])", long, text)
    return text
