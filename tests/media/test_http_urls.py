"""Addresses of pictures: fetched only where that is switched on, and never from this machine or
its network, however the address is written."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llama_py.errors import MediaError
from llama_py.media.limits import MediaLimits
from llama_py.media.sources import read_url
from tests.media.pictures import disc, png

_PICTURE = png(disc())
_OPEN = MediaLimits(urls=True, seconds=2.0, most_bytes=100_000)


class _Handler(BaseHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path[4:])
            self.end_headers()
        elif self.path == "/slow":
            with contextlib.suppress(OSError):
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                for _ in range(100):
                    self.wfile.write(b"a")
                    time.sleep(0.1)
        else:
            size = 200_000 if self.path == "/large" else 0
            self.send_response(404 if self.path == "/none" else 200)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(bytes(size) or _PICTURE)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def site() -> Iterator[tuple[int, list[str]]]:
    """A server on this machine: its port, and the paths that it was asked for."""
    asked: list[str] = []
    handler = type("Handler", (_Handler,), {"asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server.server_port, asked
    server.shutdown()
    server.server_close()


@pytest.fixture
def as_if_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """``pictures.example`` is a public address, where this machine answers."""
    look_up, connect = socket.getaddrinfo, socket.create_connection

    def looked_up(host: str, port: int, *more: Any, **options: Any) -> Any:
        if host == "pictures.example":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", port))]
        return look_up(host, port, *more, **options)

    def connected(address: tuple[str, int], **options: Any) -> socket.socket:
        host, port = address
        return connect(("127.0.0.1" if host == "93.184.216.34" else host, port), **options)

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    monkeypatch.setattr(socket, "create_connection", connected)


def test_addresses_are_off_by_default() -> None:
    for url in ("http://example.com/a.png", "https://example.com/a.png"):
        with pytest.raises(MediaError, match="allow_urls"):
            read_url(url, "it", MediaLimits())


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "localhost", "0.0.0.0"),
        *("10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "224.0.0.1"),
        *("[::1]", "[::]", "[fe80::1]", "[fc00::1]", "[ff02::1]", "[::ffff:127.0.0.1]"),
        *("[::ffff:10.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::127.0.0.1]"),
        *("user:secret@127.0.0.1", "255.255.255.255"),
    ],
)
def test_this_machine_and_its_network_are_refused(site: tuple[int, list[str]], host: str) -> None:
    port, asked = site
    with pytest.raises(MediaError, match=r"private network|cannot be fetched"):
        read_url(f"http://{host}:{port}/a.png", "it", _OPEN)
    assert not asked


@pytest.mark.parametrize("inner", ["10.0.0.1", "127.0.0.1", "::1", "169.254.169.254"])
def test_names_that_lead_inside_are_refused(monkeypatch: pytest.MonkeyPatch, inner: str) -> None:
    found = [(0, 0, 0, "", ("93.184.216.34", 80)), (0, 0, 0, "", (inner, 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "create_connection", pytest.fail)
    with pytest.raises(MediaError, match="private network"):
        read_url("http://pictures.example/a.png", "it", _OPEN)


@pytest.mark.parametrize(
    "url",
    ["gopher://a/b", "ftp://a/b", "dict://a:1/b", "HTTPX://a/b", "javascript://a", "ldap://a/b"],
)
def test_other_kinds_are_refused(url: str) -> None:
    with pytest.raises(MediaError, match="kind"):
        read_url(url, "it", _OPEN)


@pytest.mark.parametrize("url", ["http://[::1/a.png", "file://[x/a.png", "x://]/a.png"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(MediaError, match="it has an address that cannot be read: "):
        read_url(url, "it", _OPEN)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "/etc/passwd", "etc/passwd", "file://x/y"])
def test_files_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="media_paths"):
        read_url(url, "it", _OPEN)
    with pytest.raises(MediaError, match=r"media_paths|cannot be read"):
        read_url(url, "it", MediaLimits(paths=(tmp_path,)))


def test_files_below_a_folder_are_read(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out.png"
    inside.mkdir()
    (inside / "a.png").write_bytes(_PICTURE)
    outside.write_bytes(_PICTURE)
    (inside / "link.png").symlink_to(outside)
    limits = MediaLimits(paths=(inside,))
    assert read_url((inside / "a.png").as_uri(), "it", limits) == _PICTURE
    for name in ("../out.png", "link.png", "%2e%2e/out.png"):
        with pytest.raises(MediaError):
            read_url(f"file://{inside}/{name}", "it", limits)


def test_links_that_lead_to_themselves(tmp_path: Path) -> None:
    (tmp_path / "a.png").symlink_to(tmp_path / "a.png")
    with pytest.raises(MediaError, match="it cannot be read: "):
        read_url(str(tmp_path / "a.png"), "it", MediaLimits(paths=(tmp_path,)))


def test_an_error_is_told_once(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match=r"^it is at an address of this machine"):
        read_url("http://127.0.0.1/a.png", "it", _OPEN)
    with pytest.raises(MediaError, match=r"^it is not below the folders"):
        read_url("/etc/passwd", "it", MediaLimits(paths=(tmp_path,)))


@pytest.mark.usefixtures("as_if_outside")
class TestFetched:
    """From an address that counts as one of the internet."""

    def test_a_picture(self, site: tuple[int, list[str]]) -> None:
        port, asked = site
        assert read_url(f"http://pictures.example:{port}/a.png?x=1", "it", _OPEN) == _PICTURE
        assert asked == ["/a.png?x=1"]

    @pytest.mark.parametrize(
        "target",
        ["http://127.0.0.1:{port}/a", "http://[::1]:{port}/a", "http://2130706433:{port}/a"],
    )
    def test_a_redirect_to_this_machine(self, site: tuple[int, list[str]], target: str) -> None:
        port, asked = site
        url = f"http://pictures.example:{port}/to/{target.format(port=port)}"
        with pytest.raises(MediaError, match="private network"):
            read_url(url, "it", _OPEN)
        assert len(asked) == 1

    @pytest.mark.parametrize("target", ["file:///etc/passwd", "gopher://a/b", "data:,a"])
    def test_a_redirect_to_another_kind(self, site: tuple[int, list[str]], target: str) -> None:
        with pytest.raises(MediaError, match="not fetched"):
            read_url(f"http://pictures.example:{site[0]}/to/{target}", "it", _OPEN)

    def test_a_redirect_to_no_address(self, site: tuple[int, list[str]]) -> None:
        with pytest.raises(MediaError, match="it cannot be fetched: "):
            read_url(f"http://pictures.example:{site[0]}/to/http://[::1/a", "it", _OPEN)

    def test_redirects_have_an_end(self, site: tuple[int, list[str]]) -> None:
        port, asked = site
        again = f"http://pictures.example:{port}/to/" * 9
        with pytest.raises(MediaError, match="redirects"):
            read_url(again, "it", _OPEN)
        assert len(asked) == _OPEN.redirects + 1

    def test_too_many_bytes(self, site: tuple[int, list[str]]) -> None:
        with pytest.raises(MediaError, match="100000 bytes"):
            read_url(f"http://pictures.example:{site[0]}/large", "it", _OPEN)

    def test_a_site_that_drips(self, site: tuple[int, list[str]]) -> None:
        began = time.monotonic()
        with pytest.raises(MediaError, match="cannot be fetched"):
            read_url(f"http://pictures.example:{site[0]}/slow", "it", _OPEN)
        assert time.monotonic() - began < 2 * _OPEN.seconds + 1

    def test_what_is_not_there(self, site: tuple[int, list[str]]) -> None:
        with pytest.raises(MediaError, match="404"):
            read_url(f"http://pictures.example:{site[0]}/none", "it", _OPEN)


def test_a_slow_name_server_takes_no_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer.wait(30) and [])
    start = time.monotonic()
    for _ in range(2):
        with pytest.raises(MediaError, match="not looked up within"):
            read_url("http://slow.example/a.png", "it", MediaLimits(urls=True, seconds=0.5))
    assert time.monotonic() - start < 5
    answer.set()
