"""The Python blocks of the README and of the pages in ``docs`` run, in order, on the bundled model.

A block after the comment ``<!-- not run: REASON -->`` is only compiled. A comment right below a
``print`` is what it prints, ``...`` standing for any text. Links lead to files.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.rules import holds_for_all

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]
#: Lines that a page's blocks print, where a person would know the right answer.
PRINTED = {
    "README.md": ["{'name': 'Alice', 'age': 30}"],
    "docs/structured-output.md": ["{'name': 'Alice', 'age': 30}"],
}
#: Fences of blocks, whatever their indentation.
_FENCE = re.compile(r"^ *```python", re.MULTILINE)
_BLOCK = re.compile(
    r"(?P<skip><!-- not run: [^\n]+ -->\n)?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def program(page: Path) -> str:
    """All blocks that are to be run, at the lines where they stand in the page."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * (text.count("\n") + 1)
    for block in _BLOCK.finditer(text):
        start = text[: block.start("code")].count("\n")
        code = block["code"].splitlines()
        compile("\n" * start + block["code"], name_of(page), "exec")
        if not block["skip"]:
            lines[start : start + len(code)] = code
    return "\n".join(lines).rstrip()


def promised(code: str) -> list[str]:
    """What the comments below ``print`` say it prints, in order."""
    return re.findall(r"^ *print\(.*\)\n *# (.+)$", code, re.MULTILINE)


def first_broken(promises: list[str], printed: str) -> str | None:
    """The first promise that no line keeps which comes after those of the promises before it."""
    lines = iter(printed.splitlines())
    for promise in promises:
        pattern = ".*".join(map(re.escape, promise.split("...")))
        if not any(re.fullmatch(pattern, line) for line in lines):
            return promise
    return None


def test_promises_are_found_and_compared() -> None:
    code = (
        "x = 1\n# no print\nprint(x)\n# 1\nfor _ in y:\n    print(f(2))\n    # {'a': ..., 'b': 2}\n"
    )
    assert promised(code) == ["1", "{'a': ..., 'b': 2}"]
    assert first_broken(promised(code), "0\n1\n{'a': [3], 'b': 2}\n") is None
    assert first_broken(promised(code), "1\n{'a': [3], 'b': 25}\n") == "{'a': ..., 'b': 2}"
    assert first_broken(promised(code), "{'a': 1, 'b': 2}\n1\n") == "{'a': ..., 'b': 2}"


@pytest.mark.parametrize("page", [page for page in PAGES if program(page)], ids=name_of)
def test_its_blocks_run(page: Path, tmp_path: Path) -> None:
    code = program(page)
    script = tmp_path / f"{page.stem}.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_THREAD_LIMIT": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert first_broken(promised(code), done.stdout) is None, done.stdout
    for printed in PRINTED.get(name_of(page), ()):
        assert printed in done.stdout.splitlines()


def test_every_block_is_found() -> None:
    holds_for_all(has_no_hidden_block, PAGES, name_of)


def has_no_hidden_block(page: Path) -> None:
    """One that is indented, or not closed, would be passed over by the test above."""
    text = page.read_text(encoding="utf-8")
    assert len(list(_BLOCK.finditer(text))) == len(_FENCE.findall(text))


def test_the_readme_has_blocks_that_run() -> None:
    blocks = _BLOCK.finditer((ROOT / "README.md").read_text(encoding="utf-8"))
    assert sum(not block["skip"] for block in blocks) >= 6


def links(page: Path) -> list[str]:
    """The targets of the links of a page that lead into the repository."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", link)]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    holds_for_all(its_links_lead_somewhere, [*PAGES, ROOT / "CONTRIBUTING.md"], name_of)


def its_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_linked_to() -> None:
    found = {ROOT / "README.md"}
    new = list(found)
    while new:
        page = new.pop()
        targets = {(page.parent / link.partition("#")[0]).resolve() for link in links(page)}
        further = {t for t in targets if t.suffix == ".md"} - found
        found |= further
        new += further
    assert not [name_of(page) for page in PAGES if page not in found]


def test_the_first_screen_shows_how_to_begin() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40])
    for expected in ("$ make chat", "$ make test", "pip install", "from llama_py import", "compat"):
        assert expected in first_screen
