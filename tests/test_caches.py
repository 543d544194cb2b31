"""Everything that is remembered in the process is in a table of ARCHITECTURE.md: with its key, its
bound, and whose it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "llama_py"
#: What makes a function remember its results.
_DECORATORS = {"cache", "lru_cache", "remembering"}
#: What holds values by key, and is used for nothing but remembering where an object has one.
_MEMORIES = {"Remembered", "OrderedDict", "WeakKeyDictionary", "WeakValueDictionary"}
#: The same in a module: whatever it holds outlives every call.
_CONTAINERS = _MEMORIES | {"WeakSet", "defaultdict", "dict", "list", "set"}


def _name(node: ast.expr) -> str:
    """Of what is called, or of a decorator: its last part."""
    if isinstance(node, ast.Call):
        return _name(node.func)
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _assigned(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Names and attributes that a statement gives a value."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        yield _name(node.target), node.value
    if isinstance(node, ast.Assign):
        yield from ((_name(target), node.value) for target in node.targets)


def _is_empty(value: ast.expr) -> bool:
    """Whether it is a container that is filled later."""
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.List):
        return not value.elts
    return isinstance(value, ast.Call) and _name(value) in _CONTAINERS and not value.args


def remembered(tree: ast.Module) -> set[str]:
    """The names of everything in a module that remembers."""
    found = {name for node in tree.body for name, value in _assigned(node) if _is_empty(value)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and {*map(_name, node.decorator_list)} & _DECORATORS:
            found.add(node.name)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for name, value in _assigned(node):
                makes = {_name(value)} if isinstance(value, ast.Call) else set()
                makes |= {_name(key.value) for key in getattr(value, "keywords", ())}
                if makes & (_MEMORIES | _DECORATORS):
                    found.add(name)
    return found - {"__all__"}


def _found() -> set[str]:
    paths = [
        path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "bench"
    ]
    return {
        f"{path.relative_to(PACKAGE).as_posix()} {name}"
        for path in paths
        if not path.name.endswith("_h.py")
        for name in remembered(ast.parse(path.read_text(encoding="utf-8")))
    }


def _listed() -> list[str]:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.partition("## What is remembered")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    found, path = [], ""
    for name in (name for cell in cells for name in re.findall(r"`([^`]+)`", cell)):
        if name.endswith(".py"):
            path = name
        else:
            found.append(f"{path} {name}")
    return found


def test_every_memory_is_in_the_table() -> None:
    listed = _listed()
    assert len(listed) == len({*listed})
    assert {*listed} == _found()


def test_a_new_memory_would_be_found() -> None:
    text = """
@functools.lru_cache(maxsize=8)
def one(): ...
two = remembering(3)(one)
three: dict[str, int] = {}
four = set()
class C:
    @cache
    def five(self):
        self.six = Remembered(3)
        self.seven: OrderedDict[str, int] = OrderedDict()
        local = {}
"""
    assert remembered(ast.parse(text)) == {"one", "two", "three", "four", "five", "six", "seven"}
