"""The pages of the site: those of ``docs``, and those that lie elsewhere, in one folder.

The pages are read on a forge as well, where their links lead to files of the repository. In the
folder each of these files has a place, and links are turned towards it. A link to a file that has
none stays as it is, which the build then calls an error. Nothing of this is done by plug-ins, so
that whatever reads ``mkdocs.yml`` can make the site.
"""

from __future__ import annotations

import ast
import posixpath
import re
import shutil
from pathlib import Path

from tools.reference import reference

__all__ = ["FENCE", "ROOT", "SOURCES", "assemble", "examples", "turned"]

ROOT = Path(__file__).resolve().parents[2]
#: What ``mkdocs.yml`` calls ``docs_dir``.
SOURCES = ROOT / "build" / "site-pages"
#: File of the repository -> its place in the site.
PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "vendor/README.md": "vendor.md",
    **{
        path.relative_to(ROOT).as_posix(): f"upstream/{path.parent.name}.md"
        for path in sorted(ROOT.glob("native/kernels/*/UPSTREAM.md"))
    },
}
ASSETS = {
    "llama_py/server/page/icon.svg": "assets/icon.svg",
    "tools/site/site.css": "assets/site.css",
    "tools/site/site.js": "assets/site.js",
}
#: Files that pages link to, to be read or fetched as they are.
FILES = {
    path.relative_to(ROOT).as_posix(): path.relative_to(ROOT).as_posix()
    for path in sorted(ROOT.glob("deploy/cluster/*"))
}
SCRIPTS = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
#: Where links to files that are not below ``docs`` lead.
ADDRESSES = {
    **PAGES,
    **{f"examples/{name}": f"examples.md#{name[:-3]}" for name in SCRIPTS},
    "README.md": "index.md",
    "tools/reference.py": "reference.md",
    **FILES,
}
#: Pages that a search shows behind those that say how something is done.
_BEHIND = re.compile(
    r"(changes|decisions|benchmarks|reuse-savings|contributing|architecture|vendor"
    r"|reference|upstream-notes|upstream/.*)\.md"
)
#: Pages that it shows before others.
_FIRST = re.compile(r"(chat|errors|memory|ollama|options|structured-output)\.md")
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def assemble(folder: Path = SOURCES) -> None:
    """Fill the folder; what was in it before is gone."""
    if folder.exists():
        shutil.rmtree(folder)
    docs = ROOT / "docs"
    shutil.copytree(docs, folder, ignore=shutil.ignore_patterns("*.md"))
    pages = {f"docs/{page.relative_to(docs).as_posix()}": page.name for page in docs.glob("*.md")}
    for origin, place in {**pages, **PAGES}.items():
        text = (ROOT / origin).read_text(encoding="utf-8")
        _write(folder / place, _rank(place) + turned(text, origin, place))
    _write(folder / "reference.md", _rank("reference.md") + reference())
    _write(folder / "examples.md", examples())
    for origin, place in {**ASSETS, **FILES}.items():
        _write(folder / place, (ROOT / origin).read_text(encoding="utf-8"))


def _rank(place: str) -> str:
    """The head of a page that says where a search shows it."""
    boost = 0.1 if _BEHIND.fullmatch(place) else 2 if _FIRST.fullmatch(place) else 1
    return f"---\nsearch:\n  boost: {boost}\n---\n\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def turned(markdown: str, origin: str, place: str) -> str:
    """A page's text with links within the site.

    Args:
        origin: the page's file in the repository.
        place: where it lies in the site.
    """

    def turn(link: re.Match[str]) -> str:
        target, hash_, anchor = link[2].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return link[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        found = ADDRESSES.get(file) or (file[5:] if file.startswith("docs/") else None)
        if found is None:
            return link[0]
        relative = posixpath.relpath(found, posixpath.dirname(place) or ".")
        return f"{link[1]}{relative}{hash_}{anchor}{link[3]}"

    pieces, end = [], 0
    for fence in FENCE.finditer(markdown):
        pieces += [_LINK.sub(turn, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*pieces, _LINK.sub(turn, markdown[end:])])


def examples() -> str:
    """A page with all scripts of ``examples/``, each under its name."""
    parts = [
        "# Examples\n\nThe scripts of the folder `examples/`. Tests run each of them on the bundled"
        " model, or on tiny ones that see and hear, and compare what it prints.\n"
    ]
    for name in SCRIPTS:
        text = (ROOT / "examples" / name).read_text(encoding="utf-8")
        tree = ast.parse(text)
        code = "\n".join(text.splitlines()[tree.body[0].end_lineno :]).strip()
        about = _markdown(ast.get_docstring(tree) or "")
        parts.append(f"\n## {name[:-3]}\n\n{about}\n\n```python\n{code}\n```\n")
    return "".join(parts)


def _markdown(docstring: str) -> str:
    """A script's docstring: commands, which are indented or behind a colon, as blocks."""

    def block(lines: re.Match[str]) -> str:
        return "```text\n" + re.sub(r"(?m)^ {4}", "", lines[0].rstrip()) + "\n```\n"

    text = re.sub(r"``(.+?)``", r"`\1`", docstring, flags=re.DOTALL)
    text = re.sub(r"(?m)^(?: {4}.*\n?)+", block, text)
    return re.sub(r": (python .+\.py.*)", r":\n\n```text\n\1\n```", text, count=1)
