"""nginx with the file of the deployment, in front of a real server."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from llama_py.server.config.settings import SETTINGS
from tests.deploy.files import DEPLOY, seconds
from tests.patience import PATIENCE
from tests.server.leaving import until
from tests.server.test_serve import SLOWLY, Process, Stream, body, running, stream_while

CHATS = "/v1/chat/completions"
CONFIG = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
FEW = 12
QUESTION = {"messages": body()["messages"]}
VERY_SLOWLY = "tests.deploy.very_slowly"
#: What nginx needs around the file, without root and away from the machine's own.
AROUND = """\
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/llama-py.conf;
}}
"""

needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="no nginx here")


@contextlib.contextmanager
def proxied(server: Process, folder: Path) -> Iterator[str]:
    """The address of an nginx in front of a server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = CONFIG.replace("llama-py:8080", server.address.removeprefix("http://"))
    config = config.replace("listen 8080", f"listen 127.0.0.1:{port}")
    (folder / "llama-py.conf").write_text(config)
    (folder / "nginx.conf").write_text(AROUND.format(folder=folder))
    command = ["nginx", "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        address = f"http://127.0.0.1:{port}"
        until(lambda: process.poll() is not None or answers(address), "nginx answers")
        if process.poll() is not None:
            raise AssertionError(process.communicate()[1])
        yield address
    finally:
        process.terminate()
        process.communicate()


def answers(address: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{address}/health", timeout=PATIENCE).status_code == 200
    return False


def busy(server: Process) -> int:
    """Requests that the server computes."""
    page = httpx.get(f"{server.address}/metrics", timeout=PATIENCE).text
    found = re.search(r"^llamacpp:requests_processing (\d+)", page, re.MULTILINE)
    assert found
    return int(found[1])


def pieces(address: str) -> int:
    """In how many pieces a stream of ``FEW`` tokens arrives, half a second between two of them."""
    content = json.dumps(body(stream=True, max_tokens=FEW))
    host = address.removeprefix("http://")
    head = f"POST {CHATS} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    name, _, port = host.partition(":")
    with socket.create_connection((name, int(port)), PATIENCE) as connection:
        connection.sendall((head + content).encode())
        got = [*iter(lambda: connection.recv(1 << 16), b"")]
    assert b"data: [DONE]" in b"".join(got)
    return len(got)


@needs_nginx
def test_tokens_come_as_they_are_generated(tmp_path: Path) -> None:
    with running(program=VERY_SLOWLY) as server, proxied(server, tmp_path) as address:
        stream = Stream(address, max_tokens=FEW)
        seen: list[int] = []
        stream_while([stream], lambda: seen.append(busy(server)))
        assert seen == [1], "the first token came when the last one was there"
        assert stream.events[-1] == "[DONE]"
        assert pieces(address) > FEW / 2


@needs_nginx
def test_a_client_that_leaves_ends_its_request(tmp_path: Path) -> None:
    options = body(stream=True, max_tokens=100_000)
    with (
        running("-c", "16384", program=SLOWLY) as server,
        proxied(server, tmp_path) as address,
    ):
        with httpx.stream("POST", address + CHATS, json=options, timeout=PATIENCE) as answer:
            lines = answer.iter_lines()
            next(lines)
            until(lambda: busy(server) == 1, "one request is computed")
        until(lambda: busy(server) == 0, "none is computed")


@needs_nginx
def test_a_server_that_is_told_to_stop_ends_its_replies(tmp_path: Path) -> None:
    with running(program=SLOWLY) as server, proxied(server, tmp_path) as address:
        streams = [Stream(address, max_tokens=200, seed=seed) for seed in range(3)]

        def act() -> None:
            server.stop()
            until(lambda: httpx.get(f"{address}/readyz").status_code == 503, "it drains")
            assert httpx.get(f"{address}/health").status_code == 200
            refused = httpx.post(address + CHATS, json=body(max_tokens=1))
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")

        stream_while(streams, act)
        for stream in streams:
            assert (stream.finish, stream.events[-1]) == ("length", "[DONE]")
        assert server.end()[0] == 0


@needs_nginx
def test_what_is_not_for_the_world(tmp_path: Path) -> None:
    with running() as server, proxied(server, tmp_path) as address:
        assert httpx.get(f"{address}/metrics").status_code == 404
        assert httpx.get(f"{server.address}/metrics").status_code == 200
        assert "<title>" in httpx.get(address).text  # the chat page
        answer = httpx.post(address + CHATS, json=QUESTION, timeout=PATIENCE)
        assert json.loads(answer.text)["choices"][0]["message"]["content"]


def setting(name: str) -> str:
    """The value of a line of the file."""
    found = re.search(rf"^ *{name} (\S+);", CONFIG, re.MULTILINE)
    assert found, name
    return found[1]


def test_the_proxy_allows_what_the_server_allows() -> None:
    default = {name: option.default() for name, option in SETTINGS.options.items()}
    assert int(setting("client_max_body_size").removesuffix("m")) << 20 == default["max_body_bytes"]
    assert seconds(setting("keepalive_timeout")) < default["keep_alive_seconds"]
    assert seconds(setting("proxy_read_timeout")) > 10 * default["ping_interval"]
    assert setting("proxy_buffering") == "off"
