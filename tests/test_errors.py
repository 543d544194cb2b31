"""The errors of the package are all in one place, in one tree, and survive a pickle."""

from __future__ import annotations

import builtins
import importlib
import pickle
import pkgutil
import re
from contextlib import suppress

import pytest

import llama_py
from llama_py import errors
from llama_py.errors import LlamaError
from tests.rules import holds_for_all

#: A line of the tree in the module's docstring: indentation, class, builtin parent.
_LINE = re.compile(r"^    ([│ ├└─]*)(\w+) *\((\w+)\)", re.MULTILINE)


def all_errors() -> set[type[LlamaError]]:
    """Every subclass of ``LlamaError`` in any module of the package."""
    for module in pkgutil.walk_packages(llama_py.__path__, "llama_py."):
        if not module.name.endswith("__main__"):
            # Those of a cluster need Ray, which is not always there.
            with suppress(*[ImportError] if ".cluster" in module.name else []):
                importlib.import_module(module.name)
    found: set[type[LlamaError]] = set()
    left = [LlamaError]
    while left:
        kind = left.pop()
        found.add(kind)
        left += kind.__subclasses__()
    # Those of ``compat`` are llama-cpp-python's words for errors that are here.
    return {
        kind
        for kind in found
        if kind.__module__.startswith("llama_py.")
        and not kind.__module__.startswith("llama_py.compat.")
    }


def tree() -> dict[str, tuple[str | None, str]]:
    """What the docstring says of each class: its parent in the tree, and its builtin parent."""
    out: dict[str, tuple[str | None, str]] = {}
    above: dict[int, str] = {}
    for indentation, name, builtin in _LINE.findall(errors.__doc__ or ""):
        depth = len(indentation) // 4
        above[depth] = name
        out[name] = above[depth - 1] if depth else None, builtin
    return out


def test_every_error_is_where_they_are_looked_for() -> None:
    names = {kind.__name__ for kind in all_errors()}
    assert names == {*errors.__all__}
    assert names == {*tree()}
    assert all(kind.__module__ == "llama_py.errors" for kind in all_errors())


def test_the_tree_is_true() -> None:
    holds_for_all(stands_where_the_tree_says, {*errors.__all__} - {"LlamaError"})


def stands_where_the_tree_says(name: str) -> None:
    parent, builtin = tree()[name]
    kind = getattr(errors, name)
    assert issubclass(kind, getattr(builtins, builtin))
    assert parent is not None
    assert getattr(errors, parent) in kind.__bases__


def test_who_loads_finds_them_too() -> None:
    from llama_py._native import loader

    assert loader.LibraryNotFoundError is errors.LibraryNotFoundError


def test_the_package_itself_has_what_a_program_catches() -> None:
    """Apart from kinds of those, and what only the hub's and the command line's callers meet."""
    elsewhere = {"DownloadError"}
    elsewhere |= {"LibraryLoadError", "LibraryNotFoundError", "SymbolNotFoundError"}
    for name in {*errors.__all__} - elsewhere:
        assert name in llama_py.__all__, name
        assert getattr(llama_py, name) is getattr(errors, name)


@pytest.mark.parametrize("name", ["DownloadError", "LibraryLoadError", "SymbolNotFoundError"])
def test_they_survive_a_pickle(name: str) -> None:
    kind = getattr(errors, name)
    again = pickle.loads(pickle.dumps(kind("why")))
    assert type(again) is kind
    assert str(again) == "why"
