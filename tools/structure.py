"""Figures of the structure of ``llama_py``: how big, how deep, and how far a call travels.

``python -m tools.structure`` measures this checkout. It asks nothing of module names (but where
the server's settings are), so ``python tools/structure.py --root DIR`` measures another one (with
its own environment), and two outputs can be laid side by side.

* *Code* is what is left of the lines without blank ones, comments and docstrings.
* *Floors* are the modules of the longest chain of imports within a package. *Later* are the
  imports that are left out there: they stand under ``TYPE_CHECKING`` or in a function. *Circles*
  are the sizes of the groups whose modules import each other, later imports included.
* *Once* are private functions and methods whose name occurs once in their module outside their
  own definition; *alone* are those among them whose name occurs nowhere else in the package.
* *Steps* are counted with ``sys.setprofile``: from one call of a function of the package to the
  next one in the same thread, if that is in another module. *Back* are those into a module that the
  thread has entered before. ``--trace`` counts while one token is generated on a warm context
  (the second turn of a conversation with the bundled model), ``--http`` while the server answers a
  chat that it has just answered, with one token.
* *Objects* of a chat over HTTP are those of classes of the package: made is how often ``__init__``
  was called, alive is what the garbage collector knows once the first token was sampled and did not
  know before the request.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import collections
import gc
import importlib
import importlib.util
import io
import itertools
import json
import re
import sys
import threading
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Graph = dict[str, set[str]]

#: Packages whose classes may have names of others: they copy an interface, or measure.
_APART = ("compat", "bench")

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)

#: How many of the commonest pairs of modules are printed.
_PAIRS = 15


# -- files -----------------------------------------------------------------------------------------


class Module:
    """One source file, read."""

    def __init__(self, package: Path, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        parts = path.relative_to(package.parent).with_suffix("").parts
        self.name = ".".join(parts).removesuffix(".__init__")
        self.part = parts[1] if len(parts) > 2 else f"{parts[-1]}.py"

    def imports(self, known: Iterable[str], *, later: bool) -> set[str]:
        """The modules among ``known`` that it imports when it is imported itself.

        Args:
            later: those under ``TYPE_CHECKING`` and within functions as well.
        """
        known = {*known}
        found: set[str] = set()
        for node in ast.walk(self.tree) if later else _at_import(self.tree.body):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = (f"{node.module}.{alias.name}" for alias in node.names)
                found |= {name if name in known else node.module for name in inner}
        return (found & known) - {self.name}

    def code(self) -> int:
        """How many of its lines are code."""
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in _NO_CODE and token.string:
                lines.update(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.Module, ast.ClassDef, *_Function)) and ast.get_docstring(node):
                text = node.body[0]
                lines.difference_update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
        return len(lines)

    def private(self) -> list[tuple[str, int]]:
        """Private functions and methods, and how often each is named outside its definition."""
        named = _named(self.tree)
        return [
            (node.name, named[node.name] - _named(node)[node.name])
            for node in ast.walk(self.tree)
            if isinstance(node, _Function) and re.fullmatch(r"_[^_]\w*", node.name)
        ]

    def classes(self) -> list[str]:
        """Names of its classes at the top level."""
        return [node.name for node in self.tree.body if isinstance(node, ast.ClassDef)]


def _at_import(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        for block in ("body", "orelse", "finalbody"):
            if not isinstance(node, (*_Function, ast.ClassDef)):
                yield from _at_import(getattr(node, block, ()))


def _named(tree: ast.AST) -> collections.Counter[str]:
    return collections.Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, (ast.Name, ast.Attribute))
    )


def read(root: Path) -> list[Module]:
    """All modules of the package in a checkout."""
    package = root / "llama_py"
    paths = sorted(package.rglob("*.py"))
    return [Module(package, path) for path in paths if "_native" not in path.parts]


# -- graphs ----------------------------------------------------------------------------------------


def reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """What can be reached from a node by one step or more."""
    found: set[str] = set()
    ahead = [start]
    while ahead:
        fresh = graph.get(ahead.pop(), set()) - found
        found |= fresh
        ahead += fresh
    return found


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that can all reach each other, the largest first."""
    far = {node: reached(graph, node) for node in graph}
    groups = {
        tuple(sorted(other for other in far[node] if node in far.get(other, ())))
        for node in graph
        if node in far[node]
    }
    return [list(group) for group in sorted(groups, key=lambda group: (-len(group), group))]


def floors(graph: Mapping[str, set[str]]) -> int:
    """Modules of the longest chain; 0 if there is a circle."""
    if circles(graph):
        return 0
    heights: dict[str, int] = {}

    def height(node: str) -> int:
        if node not in heights:
            heights[node] = 1 + max((height(other) for other in graph[node]), default=0)
        return heights[node]

    return max(map(height, graph), default=0)


def graphs(modules: Iterable[Module], *, later: bool) -> dict[str, Graph]:
    """The imports within each package; see ``Module.imports``."""
    parts: dict[str, dict[str, Module]] = collections.defaultdict(dict)
    for module in modules:
        parts[module.part][module.name] = module
    return {
        part: {name: module.imports(inside, later=later) for name, module in inside.items()}
        for part, inside in parts.items()
    }


def class_names(modules: Iterable[Module]) -> dict[str, list[str]]:
    """Class names that are used twice or more, and in which modules."""
    where: dict[str, list[str]] = collections.defaultdict(list)
    for module in modules:
        for name in module.classes() if module.part not in _APART else ():
            where[name].append(module.name)
    return {name: found for name, found in sorted(where.items()) if len(found) > 1}


# -- the table of packages -------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Figures of a package, or of a module at the top level."""

    name: str
    files: int
    lines: int
    code: int
    floors: int
    later: int
    circles: list[list[str]]
    private: int
    once: int
    alone: int


def parts_of(modules: list[Module]) -> list[Part]:
    """Figures of all packages."""
    everywhere = sum((_named(module.tree) for module in modules), collections.Counter[str]())
    at_once, in_all = (graphs(modules, later=later) for later in (False, True))
    parts = []
    for name in sorted(at_once):
        inside = [module for module in modules if module.part == name]
        private = [each for module in inside for each in module.private()]
        once = [function for function, named in private if named == 1]
        edges = [sum(map(len, graph[name].values())) for graph in (at_once, in_all)]
        parts.append(
            Part(
                name=name,
                files=len(inside),
                lines=sum(module.text.count("\n") for module in inside),
                code=sum(module.code() for module in inside),
                floors=floors(at_once[name]),
                later=edges[1] - edges[0],
                circles=circles(in_all[name]),
                private=len(private),
                once=len(once),
                alone=sum(everywhere[function] == 1 for function in once),
            )
        )
    return parts


def dependencies(root: Path) -> list[str]:
    """What the package needs when it runs."""
    with (root / "pyproject.toml").open("rb") as file:
        return [*tomllib.load(file)["project"]["dependencies"]]


def print_parts(parts: list[Part]) -> None:
    """A table of the packages, with a sum of those that are not apart."""
    columns = ("files", "lines", "code", "floors", "later", "private", "once", "alone")
    print(f"{'package':12}", *(f"{column:>7}" for column in columns), " circles")
    for part in parts:
        figures = (f"{getattr(part, column):7}" for column in columns)
        print(f"{part.name:12}", *figures, "", *(len(group) for group in part.circles))
    counted = [part for part in parts if part.name not in _APART]
    sums = {name: sum(getattr(part, name) for part in counted) for name in columns}
    sums["floors"] = max(part.floors for part in counted)
    print(f"{'sum':12}", *(f"{sums[column]:7}" for column in columns))
    once, alone = (sums[name] / sums["private"] for name in ("once", "alone"))
    print(f"(without {' and '.join(_APART)}; used once {once:.0%}, alone {alone:.0%})")


# -- the way of a call -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """How far a call travelled.

    Attributes:
        pairs: steps between two modules, both ways together, the commonest first.
    """

    modules: int
    steps: int
    back: int
    calls: int
    pairs: dict[str, int]

    def __str__(self) -> str:
        head = f"{self.modules} modules, {self.steps} steps ({self.back} back), {self.calls} calls"
        return "\n".join((head, *(f"    {count:4} {pair}" for pair, count in self.pairs.items())))


class Travel:
    """Counts calls of functions of the package, and objects that are made, while it is ``on``.

    Threads have to begin after ``threading.setprofile(travel.note)`` to be seen.
    """

    def __init__(self, root: Path) -> None:
        self._package = f"{root / 'llama_py'}/"
        self._ways: dict[int, list[str]] = collections.defaultdict(list)
        self.made = collections.Counter[str]()
        self._on = False

    def __enter__(self) -> None:
        self._on = True
        sys.setprofile(self.note)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        self._on = False

    def note(self, frame: FrameType, event: str, _arg: Any) -> None:
        """For ``sys.setprofile``."""
        if not self._on or event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(self._package):
            module = code.co_filename.removeprefix(self._package)
            self._ways[threading.get_ident()].append(module)
        if code.co_name == "__init__" and code.co_argcount:
            kind = type(frame.f_locals[code.co_varnames[0]])
            # A base class's is called by the class's own: one object.
            if _is_ours(kind) and getattr(kind.__init__, "__code__", None) is code:
                self.made[kind.__name__] += 1

    def way(self, thread: int | None = None) -> Way:
        """What was counted, in one thread or in all."""
        ways = [way for ident, way in self._ways.items() if thread in (None, ident)]
        pairs = collections.Counter[str]()
        back = 0
        for way in ways:
            seen = {*way[:1]}
            for step in itertools.pairwise(way):
                if step[0] != step[1]:
                    pairs[" <-> ".join(sorted(step))] += 1
                    back += step[1] in seen
                    seen.add(step[1])
        return Way(
            modules=len({module for way in ways for module in way}),
            steps=sum(pairs.values()),
            back=back,
            calls=sum(map(len, ways)),
            pairs=dict(pairs.most_common(_PAIRS)),
        )


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("llama_py.")


def trace_chat(root: Path) -> dict[str, Way]:
    """The way of one token in a chat call, in the caller's thread and in all."""
    llama_py = importlib.import_module("llama_py")
    travel = Travel(root)
    threading.setprofile(travel.note)  # the engine's thread begins with the model
    with llama_py.Llama(llama_py.demo_model_path()) as llm:
        messages = [{"role": "user", "content": "What is 2 + 3?"}]
        reply = llm.create_chat_completion(messages, temperature=0, max_tokens=12)
        messages += [reply["choices"][0]["message"], {"role": "user", "content": "Hello!"}]
        with travel:
            llm.create_chat_completion(messages, temperature=0, max_tokens=1)
    return {
        "a token of a chat, caller's thread": travel.way(threading.get_ident()),
        "a token of a chat, all threads": travel.way(),
    }


@dataclass(frozen=True)
class OverHttp:
    """How far a chat over HTTP travelled, and of which classes objects were made and alive."""

    way: Way
    made: dict[str, int]
    alive: dict[str, int]


def trace_http(root: Path) -> OverHttp:
    """One token of a chat over HTTP, without a socket: the app is called as uvicorn calls it."""
    travel = Travel(root)
    threading.setprofile(travel.note)
    alive = asyncio.run(_over_http(travel))
    return OverHttp(travel.way(), {**travel.made}, alive)


async def _over_http(travel: Travel) -> dict[str, int]:
    httpx = importlib.import_module("httpx")
    app = importlib.import_module("llama_py.server.app").create_app(_settings())
    transport, url = httpx.ASGITransport(app), "http://127.0.0.1:8080"
    content = [{"role": "user", "content": "Tell me a long story about the sea and a small boat."}]
    path, body = "/v1/chat/completions", {"messages": content, "temperature": 0}
    client = httpx.AsyncClient(transport=transport, base_url=url)
    async with app.router.lifespan_context(app), client:

        async def chat(tokens: int) -> None:
            reply = await client.post(path, json={**body, "max_tokens": tokens})
            reply.raise_for_status()

        async def sampled() -> bool:
            slots = (await client.get("/slots")).json()
            return any(
                slot["is_processing"] and slot["next_token"][0]["n_decoded"] for slot in slots
            )

        await chat(8)
        await sampled()
        await asyncio.sleep(2)  # what goes on behind the first chat has ended by then
        with travel:
            await chat(1)
        before = _objects()  # kept, so that no later object has the id of one of them
        known = {id(each) for each in before}
        pending = asyncio.ensure_future(chat(300))
        while not await sampled():
            if pending.done():
                await pending
                raise SystemExit("the reply had ended before a token of it was seen")
        names = [type(each).__name__ for each in _objects() if id(each) not in known]
        await pending
    return dict(sorted(collections.Counter(names).items()))


def _objects() -> list[Any]:
    return [each for each in gc.get_objects() if _is_ours(type(each))]


def _settings() -> Any:
    """The server's settings, whose module has had two names."""
    for name in ("llama_py.server.config.settings", "llama_py.server.settings"):
        if importlib.util.find_spec(name.rpartition(".")[0]) and importlib.util.find_spec(name):
            return importlib.import_module(name).Settings()
    raise SystemExit("this checkout has no server")


# -- the command -----------------------------------------------------------------------------------


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--trace", action="store_true", help="also trace a chat call")
    parser.add_argument("--http", action="store_true", help="also trace a chat over HTTP")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    root = options.root.resolve()
    sys.path.insert(0, str(root))
    modules = read(root)
    parts, names, needed = parts_of(modules), class_names(modules), dependencies(root)
    chat = trace_chat(root) if options.trace else {}
    http = trace_http(root) if options.http else None
    if options.json:
        figures: dict[str, Any] = {
            "parts": [asdict(part) for part in parts],
            "class_names": names,
            "dependencies": needed,
            "chat": {title: asdict(way) for title, way in chat.items()},
            "http": asdict(http) if http else None,
        }
        print(json.dumps(figures, indent=1))
        return
    print_parts(parts)
    for part in parts:
        for group in part.circles:
            print(f"circle in {part.name}: {', '.join(group)}")
    print(f"dependencies: {', '.join(needed)}")
    print(f"class names used twice: {len(names)}")
    for name, found in names.items():
        print(f"    {name}: {', '.join(found)}")
    for title, way in chat.items():
        print(f"{title}: {way}")
    if http:
        print(f"a token over HTTP, all threads: {http.way}")
        for title, counted in (("made", http.made), ("alive", http.alive)):
            print(f"objects {title}: {sum(counted.values())}, of {len(counted)} classes")
            each = (f"{name} {many}" if many > 1 else name for name, many in counted.items())
            print("   ", ", ".join(sorted(each)))


if __name__ == "__main__":
    main()
