"""One browser for all tests, a new page for each, and the servers that it talks to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.page.scripted import Scripted, scripted
from tests.page.site import Site
from tests.server.serving import Server, demo_settings, serving

playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright for Python")

_ARGUMENTS = (
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def _chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    given = os.environ.get("LLAMA_PY_CHROMIUM")
    return given or next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The machine's own Chromium."""
    path = _chromium()
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium, or name one in LLAMA_PY_CHROMIUM")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(_ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def obedient() -> Iterator[Scripted]:
    """A server that does as it is told, for all tests."""
    with scripted() as server:
        yield server


@pytest.fixture
def told(obedient: Scripted) -> Iterator[Scripted]:
    """The same, as if it had just been started."""
    yield obedient
    obedient.reset()


@pytest.fixture(scope="module")
def real() -> Iterator[Server]:
    """The server, with the bundled model."""
    with serving(demo_settings()) as server:
        yield server


Open = Callable[..., Site]


@pytest.fixture
def visit(browser: Any) -> Iterator[Open]:
    """Opens the page of a server in a window of its own: ``visit(url, **options of the window)``.

    At the end, none of them may have thrown an error or asked anything of another origin.
    """
    sites: list[Site] = []

    def visit(url: str, **options: Any) -> Site:
        window = {"viewport": {"width": 1100, "height": 800}, **options}
        sites.append(Site(browser.new_context(**window), url))
        return sites[-1]

    yield visit
    for site in sites:
        site.context.close()
    for site in sites:
        assert not site.errors
        assert not site.strangers


@pytest.fixture
def chat(visit: Open, told: Scripted) -> Site:
    """The page of the scripted server."""
    return visit(told.url)
