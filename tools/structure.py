"""Figures of the structure of ``llama_py``: how big, how deep, and how far a call travels.

``python -m tools.structure`` measures this checkout. It asks nothing of module names, so
``python tools/structure.py --root DIR`` measures another one (with its own environment), and
two outputs can be laid side by side.

* *Steps* are counted with ``sys.setprofile``, while one token is generated on a warm context (the
  second turn of a conversation with the bundled model): from one call of a function of the package
  to the next one in another module, and those among them that go back into a module entered before.
* *Floors* are the modules of the longest chain of imports within a package, without imports that
  stand under ``TYPE_CHECKING`` or in a function.
* *Used once* are private functions and methods whose name occurs once in its module beside the
  definition.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import collections
import gc
import importlib
import importlib.util
import itertools
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

Graph = dict[str, set[str]]

#: Packages whose classes may have names of others: they copy an interface, or measure.
_APART = ("compat", "bench")


class Module:
    """One source file, read."""

    def __init__(self, package: Path, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        parts = path.relative_to(package.parent).with_suffix("").parts
        self.name = ".".join(parts).removesuffix(".__init__")
        self.part = parts[1] if len(parts) > 2 else f"{parts[-1]}.py"

    def imports(self, known: Iterable[str], *, typing: bool) -> set[str]:
        """The modules among ``known`` that it imports when it is imported itself.

        Args:
            typing: those under ``TYPE_CHECKING`` and within functions as well.
        """
        found: set[str] = set()
        for node in ast.walk(self.tree) if typing else _at_import(self.tree.body):
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= (inner & {*known}) or {node.module}
        return (found & {*known}) - {self.name}

    def private(self) -> tuple[int, int]:
        """Private functions and methods, and how many of them are named once elsewhere."""
        named = collections.Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(self.tree)
            if isinstance(node, (ast.Name, ast.Attribute))
        )
        names = [
            node.name
            for node in ast.walk(self.tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and re.fullmatch(r"_[^_]\w*", node.name)
        ]
        return len(names), sum(named[name] <= 1 for name in names)

    def classes(self) -> list[str]:
        """Names of its classes at the top level."""
        return [node.name for node in self.tree.body if isinstance(node, ast.ClassDef)]


def _at_import(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        for block in ("body", "orelse", "finalbody"):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from _at_import(getattr(node, block, ()))


def read(root: Path) -> list[Module]:
    """All modules of the package in a checkout."""
    package = root / "llama_py"
    paths = sorted(package.rglob("*.py"))
    return [Module(package, path) for path in paths if "_native" not in path.parts]


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, or nothing."""
    done: set[str] = set()

    def visit(node: str, way: list[str]) -> list[str]:
        if node in way:
            return way[way.index(node) :]
        if node not in done:
            for other in sorted(graph.get(node, ())):
                if found := visit(other, [*way, node]):
                    return found
            done.add(node)
        return []

    return next((found for node in sorted(graph) if (found := visit(node, []))), [])


def floors(graph: Mapping[str, set[str]]) -> int:
    """Modules of the longest chain; 0 if there is a circle."""
    if circle(graph):
        return 0
    heights: dict[str, int] = {}

    def height(node: str) -> int:
        if node not in heights:
            heights[node] = 1 + max((height(other) for other in graph[node]), default=0)
        return heights[node]

    return max(map(height, graph), default=0)


def class_names(modules: Iterable[Module]) -> dict[str, list[str]]:
    """Class names that are used twice or more, and in which modules."""
    where: dict[str, list[str]] = collections.defaultdict(list)
    for module in modules:
        for name in module.classes() if module.part not in _APART else ():
            where[name].append(module.name)
    return {name: found for name, found in sorted(where.items()) if len(found) > 1}


def print_parts(modules: list[Module]) -> None:
    """A table of the packages."""
    print(
        f"{'package':12}{'files':>6}{'lines':>8}{'floors':>7}{'circle':>7}{'private':>8}{'once':>6}"
    )
    sums = [0, 0, 0, 0]
    for part in sorted({module.part for module in modules}):
        inside = {module.name: module for module in modules if module.part == part}
        graphs = [
            {name: module.imports(inside, typing=typing) for name, module in inside.items()}
            for typing in (False, True)
        ]
        lines = sum(module.text.count("\n") for module in inside.values())
        privates = [module.private() for module in inside.values()]
        private, once = (sum(each[at] for each in privates) for at in (0, 1))
        if part not in _APART:
            sums = [a + b for a, b in zip(sums, (len(inside), lines, private, once), strict=True)]
        bound = len(circle(graphs[1]))
        print(f"{part:12}{len(inside):6}{lines:8}{floors(graphs[0]):7}{bound:7}{private:8}{once:6}")
    share = sums[3] / sums[2]
    print(f"without {' and '.join(_APART)}: {sums[0]} files, {sums[1]} lines, ", end="")
    print(f"{sums[3]} of {sums[2]} private functions used once ({share:.0%})")


class Travel:
    """Counts the calls of functions of the package while it is ``on``."""

    def __init__(self, package: Path) -> None:
        self._package = f"{package}/"
        self._calls: list[tuple[int, str]] = []
        self.on = False

    def note(self, frame: FrameType, event: str, _arg: Any) -> None:
        """For ``sys.setprofile``."""
        path = frame.f_code.co_filename
        if self.on and event == "call" and path.startswith(self._package):
            self._calls.append((threading.get_ident(), path[len(self._package) :]))

    def report(self, title: str, thread: int | None = None, pairs: int = 0) -> None:
        """Print what was counted, in one thread or in all, and the commonest steps."""
        way = [module for ident, module in self._calls if thread in (None, ident)]
        steps = [(a, b) for a, b in itertools.pairwise(way) if a != b]
        seen: set[str] = set(way[:1])
        back = 0
        for _, module in steps:
            back += module in seen
            seen.add(module)
        modules = f"{len({*way})} modules, {len(steps)} steps, {back} of them back"
        print(f"{title}: {modules}, {len(way)} calls")
        for (a, b), count in collections.Counter(steps).most_common(pairs):
            print(f"    {count:4} {a} -> {b}")


def trace_chat(root: Path) -> None:
    """The way of one token in a chat call, in the caller's thread and in all."""
    llama_py = importlib.import_module("llama_py")
    travel = Travel(root / "llama_py")
    threading.setprofile(travel.note)  # the engine's thread begins with the model
    with llama_py.Llama(llama_py.demo_model_path()) as llm:
        messages = [{"role": "user", "content": "What is 2 + 3?"}]
        reply = llm.create_chat_completion(messages, temperature=0, max_tokens=12)
        messages += [reply["choices"][0]["message"], {"role": "user", "content": "Hello!"}]
        travel.on = True
        sys.setprofile(travel.note)
        llm.create_chat_completion(messages, temperature=0, max_tokens=1)
        sys.setprofile(None)
        travel.on = False
    travel.report("a token of a chat, caller's thread", threading.get_ident(), pairs=12)
    travel.report("a token of a chat, all threads")


def trace_http(root: Path) -> None:
    """The way of one token over HTTP, and the objects that live while a stream goes on."""
    travel = Travel(root / "llama_py")
    threading.setprofile(travel.note)
    asyncio.run(_over_http(travel))
    travel.report("a token over HTTP, all threads")


async def _over_http(travel: Travel) -> None:
    httpx = importlib.import_module("httpx")
    app = importlib.import_module("llama_py.server.app").create_app(_settings())
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0}
    lifespan = app.router.lifespan_context(app)
    async with (
        lifespan,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8080"
        ) as client,
    ):
        path = "/v1/chat/completions"
        await client.post(path, json={**body, "max_tokens": 8})
        travel.on = True
        sys.setprofile(travel.note)
        (await client.post(path, json={**body, "max_tokens": 1})).raise_for_status()
        sys.setprofile(None)
        travel.on = False
        before = {id(each) for each in _objects()}
        pending = asyncio.ensure_future(client.post(path, json={**body, "max_tokens": 300}))
        service = app.state.service
        while not any(each.records and each.records[0].generated for each in service.exchanges):
            await asyncio.sleep(0)
        names = [type(each).__name__ for each in _objects() if id(each) not in before]
        await pending
    counted = collections.Counter(names)
    print(f"objects of one HTTP chat: {len(names)}, classes: {len(counted)}")
    print("   ", ", ".join(sorted(counted)))


def _objects() -> list[Any]:
    return [each for each in gc.get_objects() if type(each).__module__.startswith("llama_py.")]


def _settings() -> Any:
    """The server's settings, whose module has had two names."""
    for name in ("llama_py.server.config.settings", "llama_py.server.settings"):
        if importlib.util.find_spec(name.rpartition(".")[0]) and importlib.util.find_spec(name):
            return importlib.import_module(name).Settings()
    raise SystemExit("this checkout has no server")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--trace", action="store_true", help="also trace calls")
    options = parser.parse_args()
    root = options.root.resolve()
    modules = read(root)
    print_parts(modules)
    names = class_names(modules)
    print(f"class names used twice: {len(names)}")
    for name, found in names.items():
        print(f"    {name}: {', '.join(found)}")
    if options.trace:
        sys.path.insert(0, str(root))
        trace_chat(root)
        trace_http(root)


if __name__ == "__main__":
    main()
