"""The tool that measures the structure of the package, on the package."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

from tools.structure import (
    Module,
    Travel,
    circles,
    class_names,
    dependencies,
    floors,
    graphs,
    read,
)

ROOT = Path(__file__).parents[1]


@cache
def modules() -> list[Module]:
    return read(ROOT)


def test_no_class_has_the_name_of_another_one() -> None:
    assert class_names(modules()) == {}


def test_no_package_has_a_circle_of_imports() -> None:
    """Those for types and those within functions included."""
    found = {part: circles(graph) for part, graph in graphs(modules(), later=True).items()}
    assert len(found) > 10
    assert {part: groups for part, groups in found.items() if groups} == {}


def test_floors_are_those_of_the_longest_chain_of_imports() -> None:
    assert floors({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == 3
    assert circles({"a": {"b"}, "b": {"a"}, "c": {"a"}}) == [["a", "b"]]
    assert floors({"a": {"b"}, "b": {"a"}}) == 0


def written(folder: Path, text: str) -> Module:
    package = folder / "llama_py"
    package.mkdir(exist_ok=True)
    (package / "a.py").write_text(text, encoding="utf-8")
    return Module(package, package / "a.py")


def test_code_is_without_blank_lines_comments_and_docstrings(tmp_path: Path) -> None:
    text = (
        '"""Two\nlines."""\n\n# a comment\nA = """\ntext"""  # three\n\n\ndef f():\n    """No."""\n'
    )
    assert written(tmp_path, text).code() == 3


def test_imports_for_types_are_told_apart(tmp_path: Path) -> None:
    module = written(tmp_path, "import b\nfrom c import d\nif TYPE_CHECKING:\n    import e\n")
    known = {"b", "c", "c.d", "e"}
    assert module.imports(known, later=False) == {"b", "c.d"}
    assert module.imports(known, later=True) == {"b", "c.d", "e"}


def test_a_private_function_is_not_used_by_itself(tmp_path: Path) -> None:
    module = written(
        tmp_path, "def _f(): _f()\ndef _g(): ...\ndef __x__(): ...\n_f(); _g(); _g()\n"
    )
    assert module.private() == [("_f", 1), ("_g", 2)]


def test_steps_are_those_into_another_module(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    for name, text in {"a": "def f(): g(); g(); h()\ndef h(): ...", "b": "def g(): ..."}.items():
        path = tmp_path / "llama_py" / f"{name}.py"
        exec(compile(ast.parse(text), str(path), "exec"), names)
    travel = Travel(tmp_path)
    with travel:
        names["f"]()
    way = travel.way()
    assert (way.modules, way.steps, way.back, way.calls) == (2, 2, 1, 4)
    assert way.pairs == {"a.py <-> b.py": 2}


def test_what_is_needed_is_read() -> None:
    assert any(each.startswith("numpy") for each in dependencies(ROOT))
