"""The site: its pages, links and words. ``make site-check`` looks at it in a browser as well."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.site import spelling
from tools.site.check import broken_links, fetched_from_elsewhere
from tools.site.pages import ADDRESSES, PAGES, ROOT, SCRIPTS, assemble, examples, turned

MKDOCS = ROOT / "mkdocs.yml"


class Loader(yaml.SafeLoader):
    """Knows the tags of ``mkdocs.yml``, and does not care for them."""


Loader.add_multi_constructor("!ENV", lambda loader, suffix, node: None)
Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def settings() -> dict[str, Any]:
    found: dict[str, Any] = yaml.load(MKDOCS.read_text(encoding="utf-8"), Loader)
    return found


def pages_in(nav: Any) -> Iterator[str]:
    """The pages of a part of the navigation, in order."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_in(part)


def test_every_page_is_in_the_navigation() -> None:
    listed = [*pages_in(settings()["nav"])]
    docs = {page.name for page in (ROOT / "docs").glob("*.md")}
    elsewhere = {place for place in PAGES.values() if "/" not in place} | {
        "examples.md",
        "reference.md",
    }
    missing = sorted(docs - {*listed})
    assert not missing, f"put these pages into the nav of mkdocs.yml: {missing}"
    assert {*listed} == docs | elsewhere
    assert len(listed) == len({*listed})


def test_every_page_is_on_the_front_page() -> None:
    """For those who read on a forge, where there is no navigation."""
    front = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    linked = {*re.findall(r"\]\(([\w-]+\.md)[)#]", front)}
    docs = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert not docs - linked, "name these pages in docs/index.md"


def test_links_lead_into_the_site() -> None:
    text = (
        "[a](../ARCHITECTURE.md#x) [b](chat.md) [c](#d) [e](https://f.org/g.md)\n"
        "[h](../examples/chat.py) [i](../LICENSE) [j](../tools/reference.py#llama)\n"
        "```\n[a](../ARCHITECTURE.md)\n```\n"
    )
    assert turned(text, "docs/reuse.md", "reuse.md") == (
        "[a](architecture.md#x) [b](chat.md) [c](#d) [e](https://f.org/g.md)\n"
        "[h](examples.md#chat) [i](../LICENSE) [j](reference.md#llama)\n"
        "```\n[a](../ARCHITECTURE.md)\n```\n"
    )
    note = "native/kernels/gelu/UPSTREAM.md"
    assert turned("[a](../../../docs/chat.md)", note, PAGES[note]) == "[a](../chat.md)"
    assert turned("[a](docs/chat.md)", "CHANGELOG.md", "changes.md") == "[a](chat.md)"


def test_every_example_has_its_place() -> None:
    page = examples()
    for name in SCRIPTS:
        assert f"\n## {name[:-3]}\n" in page
        assert ADDRESSES[f"examples/{name}"] == f"examples.md#{name[:-3]}"
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(code) == len(SCRIPTS)
    for each in code:
        compile(each, "examples.md", "exec")


# ---- built -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="needs llama-py[docs]")
    from tools.site.__main__ import build

    folder = tmp_path_factory.mktemp("site")
    assert build(folder / "site", pages=folder / "pages") == 0
    return folder / "site"


def test_it_is_built_without_a_warning_and_its_links_lead_somewhere(site: Path) -> None:
    assert [*broken_links(site)] == []
    assert len([*site.rglob("*.html")]) > 50


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    assert [*fetched_from_elsewhere(site)] == []


def test_commands_are_copied_without_prompts_and_output() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    source = (ROOT / "tools/site/site.js").read_text(encoding="utf-8")
    (function,) = re.findall(r"^function commands.*?^}", source, re.MULTILINE | re.DOTALL)
    shown = "$ pip install \\\n    '.[server]'\n$ llama-py serve\nllama-py serves x\n"
    script = f"{function}\nprocess.stdout.write(commands({json.dumps(shown)}))"
    copied = subprocess.run([node, "-e", script], capture_output=True, text=True, check=True)
    assert copied.stdout == "pip install \\\n    '.[server]'\nllama-py serve"


def test_a_search_leads_to_guides_first(tmp_path: Path) -> None:
    assemble(tmp_path / "pages")
    boost = {
        page.stem: float(re.findall(r"boost: ([\d.]+)", page.read_text(encoding="utf-8"))[0])
        for page in (tmp_path / "pages").glob("*.md")
        if page.stem in ("chat", "structured-output", "ollama", "functions", "reference", "changes")
    }
    assert boost["chat"] > boost["functions"] > boost["reference"] == boost["changes"]


def test_links_that_lead_nowhere_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#c">1</a><a href="b.html#d">2</a><a href="e.html">3</a>'
        '<script src="https://x.org/y.js"></script><img src="z.png">'
    )
    (tmp_path / "b.html").write_text('<h1 id="c"></h1>')
    assert [*broken_links(tmp_path)] == [
        "a.html: b.html#d has no such heading",
        "a.html: e.html is not there",
        "a.html: z.png is not there",
    ]
    assert [*fetched_from_elsewhere(tmp_path)] == ["a.html: https://x.org/y.js"]


# ---- words -------------------------------------------------------------------------------------


def test_prose_is_told_from_code() -> None:
    text = "A *word*, `code` [link](to.md) Llama.eval n_ctx\n```\nblock\n```\nit's b11549"
    assert spelling.words_of(text) == {"A", "word", "link", "it's"}


@pytest.mark.skipif(not spelling.available(), reason="no hunspell with a British dictionary here")
def test_words_are_spelled_right() -> None:
    assert [*spelling.unknown()] == []


def test_common_mistakes_are_not_made() -> None:
    pytest.importorskip("codespell_lib", reason="needs llama-py[docs]")
    done = subprocess.run(
        [sys.executable, "-m", "codespell_lib"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
