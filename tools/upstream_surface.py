"""The public surface of llama-cpp-python, read from its source archive and frozen as JSON.

    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36
    python -m tools.upstream_surface llama_cpp_python-0.3.36.tar.gz

Nothing is imported or built: names, parameters and defaults are read by ``ast``. Two files are
written: ``tests/data/llama-cpp-python-0.3.36.json``, which ``tests/compat/test_surface.py``
compares ``llama_py.compat`` with, and ``llama_py/compat/c_parameters.py``, the names of the
parameters of the C functions, which ``inspect.signature`` shows.

The JSON has for each module: ``callables`` (``Class.method`` or ``function`` -> a list of
``[name, kind, default]``, where the kind is that of ``inspect.Parameter`` and the default is source
text, absent if there is none), ``constants`` (name -> value, if it is a literal) and ``names``
(everything public that the module defines).
"""

from __future__ import annotations

import argparse
import ast
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parent.parent
Parameter = list[str]
Function = ast.FunctionDef | ast.AsyncFunctionDef

#: Modules whose functions are C functions, and whose parameter names are kept at run time.
C_MODULES = ("llama_cpp.llama_cpp", "llama_cpp.mtmd_cpp")


def main() -> None:
    """Read the archive that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", type=Path, help="the source archive from the package index")
    archive: Path = parser.parse_args().archive
    version = archive.name.removesuffix(".tar.gz").rpartition("-")[2]
    modules = {name: surface(tree) for name, tree in sources(archive)}
    table = {"version": version, "modules": modules}
    text = json.dumps(table, indent=1, sort_keys=True) + "\n"
    (ROOT / f"tests/data/llama-cpp-python-{version}.json").write_text(text, encoding="utf-8")
    path = ROOT / "llama_py/compat/c_parameters.py"
    path.write_text(c_parameters(modules), encoding="utf-8")


def sources(archive: Path) -> Iterator[tuple[str, ast.Module]]:
    """The modules of the package in the archive, by name."""
    with tarfile.open(archive) as packed:
        for member in packed:
            path = PurePosixPath(member.name)
            if path.suffix != ".py" or path.parts[1:2] != ("llama_cpp",):
                continue
            file = packed.extractfile(member)
            if file is not None:
                parts = [*path.with_suffix("").parts[1:]]
                name = ".".join(part for part in parts if part != "__init__")
                yield name, ast.parse(file.read())


def surface(module: ast.Module) -> dict[str, Any]:
    """What one module defines."""
    callables: dict[str, list[Parameter]] = {}
    constants: dict[str, Any] = {}
    names: set[str] = set()
    for node in module.body:
        if isinstance(node, Function):
            names.add(node.name)
            callables[node.name] = parameters(node.args)
        elif isinstance(node, ast.ClassDef):
            names.add(node.name)
            for name, found in methods(node):
                callables[f"{node.name}.{name}"] = found
        else:
            for target, value in assigned(node):
                names.add(target)
                literal = constant(value)
                if literal is not None:
                    constants[target] = literal
    return {
        "callables": {name: each for name, each in callables.items() if public(name)},
        "constants": {name: each for name, each in constants.items() if public(name)},
        "names": sorted(filter(public, names)),
    }


def public(name: str) -> bool:
    """Whether no part of a dotted name is private; ``__init__`` and ``__call__`` are not."""
    special = ("__init__", "__call__")
    return all(part in special or not part.startswith("_") for part in name.split("."))


def methods(node: ast.ClassDef) -> Iterator[tuple[str, list[Parameter]]]:
    """The methods that a class itself defines, without ``self``."""
    if any("dataclass" in ast.unparse(each) for each in node.decorator_list):
        yield "__init__", fields(node)
    for each in node.body:
        if not isinstance(each, Function):
            continue
        marks = [ast.unparse(mark) for mark in each.decorator_list]
        if any(mark == "property" or mark.endswith(".setter") for mark in marks):
            continue
        found = parameters(each.args)
        yield each.name, found if "staticmethod" in marks else found[1:]


def fields(node: ast.ClassDef) -> list[Parameter]:
    """The parameters of the ``__init__`` that a dataclass gets."""
    found = []
    for each in node.body:
        if isinstance(each, ast.AnnAssign):
            default = [] if each.value is None else [ast.unparse(each.value)]
            found.append([ast.unparse(each.target), "POSITIONAL_OR_KEYWORD", *default])
    return found


def parameters(node: ast.arguments) -> list[Parameter]:
    """Name, kind and default of each parameter, in order."""
    positional = [*node.posonlyargs, *node.args]
    defaults = [None] * (len(positional) - len(node.defaults)) + [*node.defaults]
    found: list[Parameter] = []
    for index, (each, default) in enumerate(zip(positional, defaults, strict=True)):
        only = index < len(node.posonlyargs)
        kind = "POSITIONAL_ONLY" if only else "POSITIONAL_OR_KEYWORD"
        found.append([each.arg, kind, *text(default)])
    if node.vararg is not None:
        found.append([node.vararg.arg, "VAR_POSITIONAL"])
    for each, default in zip(node.kwonlyargs, node.kw_defaults, strict=True):
        found.append([each.arg, "KEYWORD_ONLY", *text(default)])
    if node.kwarg is not None:
        found.append([node.kwarg.arg, "VAR_KEYWORD"])
    return found


def text(default: ast.expr | None) -> list[str]:
    """The source text of a default, in a list that is empty if there is none."""
    return [] if default is None else [ast.unparse(default)]


def assigned(node: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    """The names that a statement at the top of a module assigns, and their values."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, node.value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value


def constant(value: ast.expr | None) -> Any:
    """The number or text that an expression is, or None."""
    if value is None:
        return None
    try:
        found = ast.literal_eval(value)
    except ValueError:
        return None
    return found if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def c_parameters(modules: dict[str, Any]) -> str:
    """The module that keeps the parameter names of the C functions."""
    lines = [
        '"""GENERATED by \'python -m tools.upstream_surface\'; do not edit.',
        "",
        "The names of the parameters of each C function of llama-cpp-python; all positional.",
        '"""',
        "",
        "# ruff: noqa",
        "# fmt: off",
        "",
        "C_PARAMETERS = {",
    ]
    for module in C_MODULES:
        for name, found in sorted(modules[module]["callables"].items()):
            if name.startswith(("llama_", "ggml_", "gguf_", "mtmd_")) and "." not in name:
                lines.append(f"    {name!r}: {' '.join(each[0] for each in found)!r},")
    return "\n".join([*lines, "}", ""])


if __name__ == "__main__":
    main()
