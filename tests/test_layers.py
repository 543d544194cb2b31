"""Who may import whom: downwards only, and ctypes only at the bottom (see ARCHITECTURE.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from llama_py.api.isolation.isolated import IsolatedModel
from llama_py.api.port import LoadedModel, ModelPort
from tests.rules import holds_for_all

PACKAGE = Path(__file__).parent.parent / "llama_py"

LEAVES = {"errors", "forks", "options", "params", "regular_files", "tenants", "version"}
#: Part of the package -> the parts that it may import, besides itself.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "version": set(),
    "options": {"errors", "regular_files"},
    "params": {"errors", "options"},
    "forks": {"errors"},
    "regular_files": set(),
    "tenants": set(),
    "demo": {"errors"},
    "models": {"core", "errors", "regular_files", "version"},
    "_native": {"errors", "version"},
    "gguf": {"_native", "errors", "regular_files"},
    "core": {"_native", "gguf", *LEAVES},
    "states": {"errors", "forks", "regular_files"},
    "media": {"errors", "regular_files"},
    "memory": {"states", "errors", "forks"},
    "engine": {"core", "media", "memory", "states", *LEAVES},
    "chat": {"core", "gguf", *LEAVES},
    "embeddings": {"core", "media", *LEAVES},
    "dialects": {"chat", "embeddings", "engine", "media", *LEAVES},
    # "llama_cpp" for the types of the C pointers that it offers
    "api": {
        "llama_cpp",
        "core",
        "memory",
        "states",
        "engine",
        "chat",
        "dialects",
        "models",
        "functions",
        *LEAVES,
    }
    | {"embeddings", "gguf", "media"},
}
ALLOWED["rpc"] = {"core"}
ALLOWED["functions"] = {"errors", "options"}
ALLOWED["tools"] = {"core", "gguf", *LEAVES}
ALLOWED["server"] = {"api", "demo", *ALLOWED["api"]}
ALLOWED["cluster"] = {"server", *ALLOWED["server"]}
#: What a person starts: it may import everything.
TOP = {"__main__", "cli", "bench", "compat"}
#: Modules whose whole business is the layer below: the C names under llama-cpp-python's name.
RAW = {"llama_cpp"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """The absolute names that a module imports, in whatever place."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = absolute(path, node)
            yield module
            if module == "llama_py":
                yield from (f"llama_py.{alias.name}" for alias in node.names)


def absolute(path: Path, node: ast.ImportFrom) -> str:
    """The name of the module that is imported from."""
    if not node.level:
        return node.module or ""
    home = ["llama_py", *path.relative_to(PACKAGE).parts]
    return ".".join([*home[: -node.level], *filter(None, [node.module])])


def parts_imported(path: Path) -> set[str]:
    names = (name.split(".") for name in imports(path))
    return {name[1] for name in names if name[0] == "llama_py" and len(name) > 1}


def spelt(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def test_imports_point_downwards() -> None:
    holds_for_all(points_downwards, modules(), spelt)


def points_downwards(path: Path) -> None:
    part = part_of(path)
    if part in TOP or part == "__init__":
        return
    found = parts_imported(path) - {part}
    if part in ALLOWED:
        assert found <= ALLOWED[part], f"{part} imports {sorted(found - ALLOWED[part])}"
    else:
        assert part in RAW, f"{part} is a new part: say what it may import"


@pytest.mark.parametrize(
    "part", sorted({part_of(path) for path in modules()} - {"_native", "core", "compat"})
)
def test_ctypes_is_used_at_the_bottom_only(part: str) -> None:
    users = [
        path.name for path in modules() if part_of(path) == part and "ctypes" in set(imports(path))
    ]
    assert not users


def test_the_scheduler_and_the_memory_decide_and_touch_nothing() -> None:
    assert not parts_imported(PACKAGE / "engine" / "scheduler.py")
    for path in (PACKAGE / "memory").rglob("*.py"):
        assert parts_imported(path) <= {"memory", "states", "errors", "forks"}
        states = {name for name in imports(path) if name.startswith("llama_py.states")}
        assert states <= {f"llama_py.states.{each}" for each in ("state", "store", "prefix")}


def test_only_the_context_decodes() -> None:
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in modules()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr in ("llama_decode", "llama_encode")
    }
    others = {name for name in users if not name.startswith(("bench/", "compat/"))}
    assert others <= {"core/context.py"}


def test_native_code_gets_no_files_of_pictures_and_sounds() -> None:
    for path in modules():
        names = {node.attr for node in ast.walk(tree_of(path)) if isinstance(node, ast.Attribute)}
        assert not {name for name in names if name.startswith("mtmd_helper_bitmap_init")}, path


def test_ray_is_where_a_cluster_is() -> None:
    """Ray is an extra, and whatever decides for it can be tried without it."""
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in modules()
        if any(name.partition(".")[0] == "ray" for name in imports(path))
    }
    assert users == {"cluster/app.py", "cluster/router.py"}
    for path in modules():
        if part_of(path) not in {"cluster", "cli"}:
            assert "cluster" not in parts_imported(path)


def test_importing_the_package_imports_nothing_else() -> None:
    run_time = [
        node
        for node in ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom)
    ]
    names = {node.module for node in run_time}
    assert names <= {"__future__", "typing", "llama_py.version"}


# -- the wall around a model -----------------------------------------------------------------------

#: Where a model's context, cache and engine are used: nobody else may tell where it computes.
INSIDE = {"api"}
INNER = {"cache", "context", "driver", "engine"}


def inner_parts(tree: ast.Module) -> set[str]:
    """What a module takes from within a model, rather than from its port."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            home = node.value.attr if isinstance(node.value, ast.Attribute) else None
            home = node.value.id if isinstance(node.value, ast.Name) else home
            if (home, node.attr) == ("runtime", "loaded") or node.attr == "here":
                found.add(node.attr)
            if home == "port" and node.attr in INNER:
                found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and node.module == "llama_py.api.port":
            found |= {alias.name for alias in node.names} - {"ModelPort"}
    return found


def test_a_part_from_within_a_model_is_found() -> None:
    for taken in ("x = a.runtime.loaded", "port.driver", "a.port.here()", "a.runtime.port.cache"):
        assert inner_parts(ast.parse(taken)), taken
    assert inner_parts(ast.parse("from llama_py.api.port import LoadedModel"))
    assert not inner_parts(ast.parse("a.runtime.port.report(); a.cache.report(); port.media"))


def test_a_model_is_asked_by_its_port() -> None:
    holds_for_all(asks_the_port, modules(), spelt)


def asks_the_port(path: Path) -> None:
    if part_of(path) not in INSIDE:
        assert not inner_parts(tree_of(path))


def test_a_model_elsewhere_has_whatever_a_port_has() -> None:
    """And it has no attribute that only says no: what it has not, it does not offer."""
    for each in (LoadedModel, IsolatedModel):
        assert not each.__abstractmethods__
    offered = {name for name in vars(LoadedModel) if not name.startswith("_")}
    inner = offered - {*dir(ModelPort)}
    assert inner >= INNER
    assert not inner & {*dir(IsolatedModel)}


# -- circles ---------------------------------------------------------------------------------------


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_imported(path: Path, known: set[str]) -> set[str]:
    """Modules of the package that one imports anywhere, also for its types or within a function."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            home = absolute(path, node)
            members = {f"{home}.{alias.name}" for alias in node.names}
            found |= (members & known) or {home}
    return found & known


def circle(graph: dict[str, set[str]]) -> list[str]:
    """One way from a node back to itself, or nothing."""
    done: set[str] = set()

    def visit(node: str, way: list[str]) -> list[str]:
        if node in way:
            return [*way[way.index(node) :], node]
        if node in done:
            return []
        for other in sorted(graph.get(node, ())):
            if found := visit(other, [*way, node]):
                return found
        done.add(node)
        return []

    return next((found for node in sorted(graph) if (found := visit(node, []))), [])


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize(
    "part", sorted({part_of(path) for path in modules() if path.parent != PACKAGE})
)
def test_modules_of_a_part_have_no_circles(part: str) -> None:
    paths = {module_name(path): path for path in modules() if part_of(path) == part}
    known = {*paths}
    graph = {name: modules_imported(path, known) - {name} for name, path in paths.items()}
    assert len(graph) > 3
    assert circle(graph) == []


def test_parts_of_the_package_have_no_circles() -> None:
    """What stands at the top level is a part as well: a folder, or a module by itself."""
    graph: dict[str, set[str]] = {}
    for path in modules():
        part = part_of(path)
        if part != "__init__":  # the names of everything; imported when they are used
            graph.setdefault(part, set()).update(parts_imported(path) - {part, "__init__"})
    assert {"api", "core", "errors", "llama_cpp"} <= {*graph}
    assert circle(graph) == []


# -- private names ---------------------------------------------------------------------------------

#: Private names that are used where they are not defined, and why.
REACHED = {
    "_replace": "a method of named tuples",
    "_fields_": "ctypes",
    "_anonymous_": "ctypes",
    "_name": "ctypes: the path of a library",
    "_exit": "os",
    "_getframe": "sys",
    "_ActionsContainer": "argparse has no other name for the type",
    "_Pointer": "ctypes has no other name for the type",
    "_send": "starlette: a stream goes out while its request is still handled",
    "_Namespace__attrs": "jinja2 has no other name for what a namespace holds",
    "_undefined_name": "jinja2: which variable is missing",
    "_undefined_obj": "jinja2: of what it is missing",
}
#: Reaches further: the names of ``llama_cpp.Llama`` that are not llama-cpp-python's are private, so
#: that programs cannot take them for those.
REACHING = {"compat"}


def private_names(tree: ast.Module) -> set[str]:
    """The private names that the classes of a module define: methods, attributes, slots."""
    found: set[str] = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.ClassDef):
            for node in ast.walk(each):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    found.add(node.name)
                elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    found.add(node.attr)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    found.add(node.target.id)
    return found


def reached(tree: ast.Module) -> set[str]:
    """Private names of objects that a module uses, and that no class in it defines."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    } - private_names(tree)


def test_a_private_name_from_outside_is_found() -> None:
    own = "class A:\n    def __init__(self, a):\n        self._x = 1\n        a._x = a._z\n"
    assert reached(ast.parse(own)) == {"_z"}
    assert reached(ast.parse("a._x")) == {"_x"}


def test_nobody_reaches_into_what_is_private() -> None:
    holds_for_all(uses_public_names, modules(), spelt)


def uses_public_names(path: Path) -> None:
    if part_of(path) not in REACHING:
        assert reached(tree_of(path)) <= {*REACHED}
