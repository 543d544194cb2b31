"""What a test says about the text that a model writes does not end it.

llama.cpp's tests compare replies with what one small model says, and count tokens of its
vocabulary. Such an assertion is rewritten so that the test goes on when it fails, and says so: what
comes after it is tested all the same, and the outcome is "text" instead of "failed". Which
assertions these are is a list of fragments of their source, in ``expectations.toml``.

Times that a busy machine misses become longer.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

__all__ = ["soften"]

#: By how much their times are too short for a machine that does other things.
_SLOWER = 15
#: Seconds: what is shorter is meant to be missed.
_SHORT = 5


def soften(
    source: str, file: str, everywhere: Sequence[str], where: Mapping[str, Sequence[str]]
) -> str:
    """The test file with soft assertions.

    Args:
        source: the text of the file.
        file: its name.
        everywhere: fragments of assertions that are about text in every test.
        where: the same for tests of one name, as ``file::test``; ``*`` stands for any text.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            named = f"{file}::{node.name}"
            fragments = [*everywhere]
            for pattern, more in where.items():
                if fnmatchcase(named, pattern):
                    fragments += more
            _Softener(fragments).visit(node)
    _Slower().visit(tree)
    return ast.unparse(ast.fix_missing_locations(tree))


class _Softener(ast.NodeTransformer):
    def __init__(self, fragments: Sequence[str]) -> None:
        self._fragments = fragments

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        text = ast.unparse(node.test)
        if not any(fragment in text for fragment in self._fragments):
            return node
        handler = ast.ExceptHandler(
            type=ast.Name("AssertionError", ast.Load()),
            name=None,
            body=[ast.parse(f"about_text({text!r})").body[0]],
        )
        return ast.copy_location(
            ast.Try(body=[node], handlers=[handler], orelse=[], finalbody=[]), node
        )


class _Slower(ast.NodeTransformer):
    """Longer times in ``timeout=``, in defaults of parameters of that name, and in ``join``."""

    def visit_arguments(self, node: ast.arguments) -> ast.arguments:
        named = node.args[len(node.args) - len(node.defaults) :]
        node.defaults = [
            _longer(default) if "timeout" in each.arg else default
            for each, default in zip(named, node.defaults, strict=True)
        ]
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        for keyword in node.keywords:
            if keyword.arg is not None and "timeout" in keyword.arg:
                keyword.value = _longer(keyword.value)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "join":
            node.args = [_longer(each) for each in node.args]
        return node


def _longer(value: ast.expr) -> ast.expr:
    if not isinstance(value, ast.Constant):
        return value
    seconds = value.value
    if isinstance(seconds, int | float) and seconds >= _SHORT:
        return ast.copy_location(ast.Constant(seconds * _SLOWER), value)
    return value
