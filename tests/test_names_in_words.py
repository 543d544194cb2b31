"""What docstrings and comments of the package call ``Class.member`` exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "llama_py"
_NAMED = re.compile(r"``([A-Z]\w+)\.(_?[a-z]\w*)(?:\([^`]*\))?``")


def members(node: ast.ClassDef) -> set[str]:
    """What a class has: methods, fields, and attributes that any of its methods sets."""
    found: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(each.name)
        elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
            found.add(each.attr)
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            found.add(each.id)
    return found


def missing(texts: dict[str, str]) -> tuple[int, list[str]]:
    """How many members of classes of these modules are named in them, and which do not exist."""
    classes: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for text in texts.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, set()).update(members(node))
                names = {each.id for base in node.bases for each in ast.walk(base)
                         if isinstance(each, ast.Name)}  # fmt: skip
                bases.setdefault(node.name, set()).update(names - {node.name})

    def has(kind: str, member: str) -> bool:
        if kind not in classes:  # another package's class, about which nothing is known
            return True
        return member in classes[kind] or any(has(base, member) for base in known(kind))

    def known(kind: str) -> set[str]:
        return bases[kind] & {*classes}

    named = [
        (name, *match)
        for name, text in texts.items()
        for match in _NAMED.findall(text)
        if match[0] in classes
    ]
    wrong = [f"{name}: {kind}.{member}" for name, kind, member in named if not has(kind, member)]
    return len(named), wrong


def test_members_that_are_named_exist() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if "_native" not in path.parts]
    texts = {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in modules}
    count, wrong = missing(texts)
    assert count > 40
    assert wrong == []


def test_one_that_does_not_exist_is_found() -> None:
    text = 'class Base:\n    def go(self): ...\nclass Engine(Base):\n    """``Engine.{}``"""\n'
    assert missing({"a": text.format("go")}) == (1, [])
    assert missing({"a": text.format("resume")}) == (1, ["a: Engine.resume"])
