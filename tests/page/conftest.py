"""One browser for all tests, a new page for each, and the servers that it talks to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.page.browsers import ARGUMENTS, chromium
from tests.page.scripted import Scripted, scripted
from tests.page.site import Site
from tests.server.serving import Server, demo_settings, serving


# Playwright keeps an event loop in the main thread, where other tests run their own.
@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """The machine's own Chromium."""
    path = chromium()
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium, or name one in LLAMA_PY_CHROMIUM")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
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


def window(browser: Any, script: str = "", **options: Any) -> Site:
    """A window of the browser, which shares nothing with the others.

    Args:
        script: what runs before the scripts of every page.
    """
    permissions = ["clipboard-read", "clipboard-write"]
    look = {"viewport": {"width": 1100, "height": 800}, "permissions": permissions}
    context = browser.new_context(**{**look, **options})
    if script:
        context.add_init_script(script)
    return Site(context)


@pytest.fixture(scope="package")
def usual(browser: Any) -> Site:
    """The window of all tests that want nothing special: it takes a while to open one."""
    return window(browser)


@pytest.fixture
def visit(browser: Any, usual: Site) -> Iterator[Open]:
    """Opens the page of a server as one who is there for the first time.

    ``visit(url, **options)``; every further call, and one with options, opens a window of its own.
    At the end, none of them may have thrown an error or asked anything of another origin.
    """
    sites: list[Site] = []

    def visit(url: str, **options: Any) -> Site:
        site = window(browser, **options) if options or sites else usual
        sites.append(site)
        return site.visit(url)

    yield visit
    for site in sites:
        if site is not usual:
            site.context.close()
    for site in sites:
        assert not site.errors
        assert not site.strangers


@pytest.fixture
def chat(visit: Open, told: Scripted) -> Site:
    """The page of the scripted server, which has answered."""
    site = visit(told.url)
    expect(site.page.locator("#model-name")).to_have_text("model")
    return site


@pytest.fixture
def seeing(visit: Open, told: Scripted) -> Site:
    """The page of a scripted server whose model sees and hears."""
    told.modalities = {"vision": True, "audio": True}
    site = visit(told.url)
    expect(site.button("Attach pictures")).to_be_visible()
    return site
