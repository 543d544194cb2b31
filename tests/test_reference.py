"""The site's reference is made from signatures and docstrings, and has every public name."""

from __future__ import annotations

import inspect

import llama_py
from llama_py import errors
from tools import reference

DOC = """Do something with ``x``.

    Args:
        x: a number; what it
            means.
        y, z: two more.

    Returns:
        One thing.

    More words.
    """


def test_every_public_name_has_a_heading() -> None:
    headings = {line for line in reference.reference().splitlines() if line.startswith("#")}
    names = [name for name in llama_py.__all__ if not name.startswith("__")]
    names += [name for name in errors.__all__ if inspect.isclass(getattr(errors, name))]
    assert {f"### {name}" for name in names} <= headings
    for method in ("Llama.create_chat_completion", "AsyncLlama.load", "ChatSession.send"):
        assert f"#### {method}" in headings


def test_docstrings_become_markdown() -> None:
    assert reference._markdown(inspect.cleandoc(DOC)).splitlines() == [
        "Do something with `x`.",
        "",
        "**Args**",
        "",
        "* `x`: a number; what it",
        "  means.",
        "* `y`, `z`: two more.",
        "",
        "**Returns**",
        "",
        "One thing.",
        "",
        "More words.",
    ]
