"""``python -m tools.site.check``: look at the site that ``make site`` has built.

Its links lead to pages and headings that are there, and it has nothing from other hosts; the words
of its prose are known; and axe finds nothing to complain about in a browser, at three widths, light
and dark.
"""

from __future__ import annotations

import argparse
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from tests.page.browsers import ARGUMENTS, chromium
from tools.site import spelling
from tools.site.pages import ROOT

__all__ = ["SITE", "broken_links", "complaints", "fetched_from_elsewhere"]

SITE = ROOT / "site"
WIDTHS = (390, 820, 1440)
SCHEMES = ("light", "dark")
#: The front page, guides, the largest tables, the reference, the page of what is not there.
LOOKED_AT = (
    "index.html",
    "chat.html",
    "reuse.html",
    "deploy.html",
    "benchmarks.html",
    "examples.html",
    "reference.html",
    "404.html",
)


class _Links(HTMLParser):
    """What a page leads to, what it fetches, and what can be led to in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.fetched: set[str] = set()
        self.anchors = {"", "__skip"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.fetched.add(given.get("href", ""))
        elif "src" in given:
            self.fetched.add(given["src"])


def broken_links(site: Path = SITE) -> Iterator[str]:
    """Links, pictures, scripts and styles that lead nowhere."""
    read = functools.cache(_Links)
    for path in sorted(site.rglob("*.html")):
        if path.name == "404.html":  # its links begin at the root of the host
            continue
        page = read(path)
        for link in sorted(page.links | page.fetched):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            name = path.relative_to(site)
            if not target.is_file():
                yield f"{name}: {link} is not there"
            elif target.suffix == ".html" and unquote(parts.fragment) not in read(target).anchors:
                yield f"{name}: {link} has no such heading"


def fetched_from_elsewhere(site: Path = SITE) -> Iterator[str]:
    """What a browser would fetch from other hosts when it shows a page."""
    for path in sorted(site.rglob("*.html")):
        for link in sorted(_Links(path).fetched):
            if urlsplit(link).netloc:
                yield f"{path.relative_to(site)}: {link}"
    for path in sorted(site.rglob("*.css")):
        text = path.read_text(encoding="utf-8")
        if "url(http" in text or "@import" in text:
            yield f"{path.relative_to(site)}: url(http…) or @import"


# -- in a browser ----------------------------------------------------------------------------------


@contextmanager
def _served(site: Path) -> Iterator[str]:
    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(site))  # type: ignore[arg-type]

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def complaints(folder: Path | None = None, site: Path = SITE) -> Iterator[str]:
    """What axe finds, what is fetched from elsewhere or fails, what is wider than the window.

    Args:
        folder: where pictures of what was looked at are put.
    """
    with _served(site) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        for width in WIDTHS:
            for scheme in SCHEMES:
                yield from _seen(browser, url, width, scheme, folder)
        browser.close()


def _seen(
    browser: Browser, url: str, width: int, scheme: str, folder: Path | None
) -> Iterator[str]:
    page = browser.new_page(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    wrong: list[str] = []
    page.on("request", lambda r: None if r.url.startswith((url, "data:")) else wrong.append(r.url))
    page.on("response", lambda r: wrong.append(r.url) if r.status >= 400 else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    visits: dict[str, Callable[[Page], None]] = dict.fromkeys(LOOKED_AT, _plain)
    visits["index.html "] = _search
    for name, do in visits.items():
        page.goto(f"{url}/{name.strip()}", wait_until="networkidle")
        do(page)
        where = f"{name.strip()}{' (search)' if do is _search else ''}, {width}, {scheme}"
        if folder is not None:
            stem = "search" if do is _search else Path(name).stem
            page.screenshot(path=folder / f"{stem}-{width}-{scheme}.png")
        if page.evaluate("document.documentElement.scrollWidth") > width:
            yield f"{where}: wider than the window"
        for violation in Axe().run(page).response["violations"]:
            nodes = [node["html"][:120] for node in violation["nodes"][:3]]
            yield f"{where}: {violation['id']}: {nodes}"
    page.close()
    yield from (f"{width}, {scheme}: {each}" for each in wrong)


def _plain(page: Page) -> None:
    """Nothing is done to it."""


def _search(page: Page) -> None:
    button = page.locator(".md-header__button[for=__search]")
    if button.is_visible():
        button.click()
    page.locator(".md-search__input").focus()
    page.keyboard.type("session_dir", delay=30)
    page.locator(".md-search-result__item").first.wait_for()


def main(arguments: list[str] | None = None) -> int:
    """Print what is wrong; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.site.check", description=__doc__)
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="keep pictures of the pages")
    folder = parser.parse_args(arguments).pictures
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    wrong = [*broken_links(), *fetched_from_elsewhere()]
    print(f"links: {len(wrong)} wrong")
    if spelling.available():
        words = [f"{page}: {word}" for page, word in spelling.unknown()]
        print(f"spelling: {len(words)} unknown words (tools/site/words.txt has those of the trade)")
        wrong += words
    else:
        print("spelling: not checked; it needs hunspell with its British dictionary")
    if chromium() is None:
        print("pages: not looked at; it needs Chromium")
    else:
        seen = [*complaints(folder)]
        print(f"pages: {len(seen)} complaints")
        wrong += seen
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
