"""How the page is served: headers, caching, and what is in its files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect
from starlette.applications import Starlette
from starlette.routing import Mount

from llama_py.server.access.keys import ApiKey
from llama_py.server.routes.page import HEADERS
from tests.page.conftest import Open
from tests.page.scripted import Scripted, running
from tests.rules import holds_for_all
from tests.server.serving import demo_settings, serving

FOLDER = Path(__file__).parents[2] / "llama_py" / "server" / "page"
FILES = sorted(path for path in FOLDER.rglob("*") if path.is_file())


def name_of(path: Path) -> str:
    return path.relative_to(FOLDER).as_posix()


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A client of a server that wants a key; the client has none."""
    settings = demo_settings({"api_keys": (ApiKey("me", "secret-key-0123456789"),)})
    with serving(settings) as server, server.http() as client:
        yield client


def test_every_file_is_served_to_everybody(client: httpx.Client) -> None:
    holds_for_all(partial(is_served, client), FILES, name_of)


def is_served(client: httpx.Client, path: Path) -> None:
    response = client.get("/" if path.name == "index.html" else f"/page/{name_of(path)}")
    assert response.status_code == 200
    assert response.content == path.read_bytes()
    for name, value in HEADERS.items():
        assert response.headers[name] == value
    assert response.headers["x-content-type-options"] == "nosniff"
    types = {
        "html": "text/html",
        "css": "text/css",
        "js": "text/javascript",
        "svg": "image/svg+xml",
    }
    assert response.headers["content-type"].startswith(types[path.suffix[1:]])


def test_the_rest_needs_the_key(client: httpx.Client) -> None:
    assert client.get("/v1/models").status_code == 401
    assert client.get("/props").status_code in (401, 404)


def test_what_a_browser_has_is_not_sent_again(client: httpx.Client) -> None:
    first = client.get("/page/js/app.js")
    tag = first.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        again = client.get("/page/js/app.js", headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
    other = client.get("/page/js/app.js", headers={"If-None-Match": '"other"'})
    assert other.status_code == 200
    assert first.headers["cache-control"] == "no-cache"


def test_the_policy_lets_nothing_in() -> None:
    parts = HEADERS["Content-Security-Policy"].split("; ")
    policy = {name: sources for name, *sources in map(str.split, parts)}
    assert policy["default-src"] == policy["script-src"] == policy["style-src"] == ["'self'"]
    assert policy["connect-src"] == ["'self'"]
    assert policy["img-src"] == ["'self'", "data:", "blob:"]
    assert policy["frame-ancestors"] == policy["object-src"] == policy["base-uri"] == ["'none'"]
    assert policy["require-trusted-types-for"] == ["'script'"]
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


@pytest.mark.parametrize("path", ["/page/%2e%2e/app.py", "/page/js", "/page/", "/page/nothing.js"])
def test_nothing_else_is_served(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 404


def test_probes_of_the_root_are_answered(client: httpx.Client) -> None:
    response = client.head("/")
    assert (response.status_code, response.content) == (200, b"")


def test_scripts_write_no_html_and_load_only_each_other() -> None:
    holds_for_all(is_harmless, [path for path in FILES if path.suffix == ".js"], name_of)


def is_harmless(path: Path) -> None:
    code = path.read_text(encoding="utf-8")
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert forbidden not in code
    for imported in re.findall(r'^(?:import|export).* from "(.+)";$', code, re.MULTILINE):
        assert (path.parent / imported).resolve() in FILES, imported
    addresses = re.findall(r"https?://[\w.]+", code)
    assert set(addresses) <= {"http://www.w3.org"}


def test_the_document_names_every_file_and_nothing_from_elsewhere() -> None:
    document = (FOLDER / "index.html").read_text(encoding="utf-8")
    named = set(re.findall(r'(?:href|src)="page/([^"]+)"', document))
    assert named == {name_of(path) for path in FILES} - {"index.html"}
    assert "://" not in document.replace("http://www.w3.org", "")
    assert not re.search(r"<script(?![^>]*src=)|<style| style=| on\w+=", document)


def test_it_works_below_a_path(visit: Open) -> None:
    """As behind a proxy that serves it at /llm/ and strips that."""
    inner = Scripted()
    proxy = Starlette(routes=[Mount("/llm", routes=inner.routes())])
    with running(proxy) as url:
        chat = visit(f"{url}/llm")
        chat.say("Hello")
        expect(chat.reply).to_contain_text("OK.")
        assert inner.requests
