"""``describe_options``: the options of a call in its docstring, where ``help()`` shows them."""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc
from typing import Any

from llama_py.options.help_texts import HELP_TEXTS
from llama_py.options.table import Table

__all__ = ["describe_options"]


def describe_options(function: Callable[..., Any], table: Table[Any]) -> None:
    """Add the options to the docstring of a call, whose signature only has the name of their class.

    The texts are made beforehand (``python -m tools.option_help``): to make them takes a fifth of
    the time that importing ``Llama`` does.
    """
    if function.__doc__ is not None:  # python -OO
        function.__doc__ = f"{cleandoc(function.__doc__)}\n\n{HELP_TEXTS[table.function]}"
