"""Settings as flags of a command line: ``--n_ctx 4096``."""

from __future__ import annotations

import argparse
from typing import Any, TypeVar, get_origin

from llama_py.compat.llama_cpp.server.settings import from_text

__all__ = ["T", "add_args_from_model", "parse_model_from_args"]

T = TypeVar("T")


def add_args_from_model(parser: argparse.ArgumentParser, model: Any) -> None:
    """Add a flag for each setting of a class of settings."""
    for name, (kind, default) in model.model_fields.items():
        several = "list" in str(kind) and get_origin(kind) is not dict
        parser.add_argument(
            f"--{name}",
            dest=name,
            nargs="*" if several else None,
            type=_reader(kind) if not several else str if "str" in str(kind) else float,
            help=None if default in (None, "") else f"(default: {default})",
        )


def _reader(kind: Any) -> Any:
    def read(text: str) -> Any:
        return from_text(kind, text)

    read.__name__ = getattr(kind, "__name__", str(kind))
    return read


def parse_model_from_args(model: Any, args: argparse.Namespace) -> Any:
    """Settings of the flags that were given."""
    given = {name: value for name, value in vars(args).items() if value is not None}
    return model.model_validate(given)
