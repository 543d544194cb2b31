"""The tool that measures the structure of the package, on the package."""

from __future__ import annotations

from pathlib import Path

from tools.structure import circle, class_names, floors, read

ROOT = Path(__file__).parents[1]


def test_no_class_has_the_name_of_another_one() -> None:
    assert class_names(read(ROOT)) == {}


def test_floors_are_those_of_the_longest_chain_of_imports() -> None:
    assert floors({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == 3
    assert circle({"a": {"b"}, "b": {"a"}}) == ["a", "b"]
    assert floors({"a": {"b"}, "b": {"a"}}) == 0
