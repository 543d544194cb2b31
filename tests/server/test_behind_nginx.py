"""``deploy/cluster/nginx.conf`` in front of two servers, really run."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from llama_py.server.lifecycle import Phase
from tests.patience import PATIENCE
from tests.server.leaving import until
from tests.server.serving import Server, demo_settings, serving

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="there is no nginx")

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "cluster" / "nginx.conf"
#: Around what stands in ``conf.d``. In the test's own directory, and without the user of a package.
MAIN = """\
daemon off;
pid {place}/nginx.pid;
error_log {place}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {place}/body;
    proxy_temp_path {place}/proxy;
    fastcgi_temp_path {place}/fastcgi;
    uwsgi_temp_path {place}/uwsgi;
    scgi_temp_path {place}/scgi;
    include {place}/llama.conf;
}}
"""


@dataclass
class Pair:
    """Two servers behind one address."""

    url: str
    servers: list[Server]

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE)

    def ask(self, session: str, **headers: str) -> int:
        """Which server answers a request of a session."""
        begun = [server.begun() for server in self.servers]
        named = {"X-Session-Id": session, **headers} if session else headers
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        with self.http() as client:
            client.post("/v1/chat/completions", json=body, headers=named).raise_for_status()
        counts = [len(each) for each in begun]
        assert sum(counts) == 1
        return counts.index(1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    place = tmp_path_factory.mktemp("nginx")
    settings = demo_settings({"ping_interval": 0.2}, n_ctx=8192, n_threads=1)
    with serving(settings) as one, serving(settings) as other, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
        text = CONFIGURATION.read_text(encoding="utf-8")
        ports = {
            "8080": port,
            "8081": one.url.rpartition(":")[2],
            "8082": other.url.rpartition(":")[2],
        }
        text = re.sub(r"127\.0\.0\.1:(808\d)", lambda found: f"127.0.0.1:{ports[found[1]]}", text)
        (place / "llama.conf").write_text(text, encoding="utf-8")
        (place / "main.conf").write_text(MAIN.format(place=place), encoding="utf-8")
        free.close()
        command = [str(NGINX), "-p", str(place), "-c", str(place / "main.conf")]
        command += ["-e", str(place / "error.log")]
        subprocess.run([*command, "-t"], check=True, capture_output=True)
        process = subprocess.Popen(command)
        try:
            pair = Pair(f"http://127.0.0.1:{port}", [one, other])
            until(lambda: _answers(pair), "nginx listens")
            yield pair
        finally:
            process.terminate()
            process.wait(PATIENCE)


def _answers(pair: Pair) -> bool:
    try:
        return httpx.get(f"{pair.url}/readyz", timeout=PATIENCE).status_code == 200
    except httpx.TransportError:
        return False


def test_a_conversation_keeps_its_server(pair: Pair) -> None:
    homes = {f"session {n}": pair.ask(f"session {n}") for n in range(12)}
    assert {*homes.values()} == {0, 1}
    for name, home in homes.items():
        assert pair.ask(name) == home


def test_the_headers_of_agents_are_known(pair: Pair) -> None:
    for header in ("X-Claude-Code-Session-Id", "session-id", "X-Prefix-Id"):
        homes = {n: pair.ask("", **{header: f"{n}"}) for n in range(8)}
        assert {*homes.values()} == {0, 1}
        assert all(pair.ask("", **{header: f"{n}"}) == home for n, home in homes.items())


def test_tokens_come_one_by_one(pair: Pair) -> None:
    with openai.OpenAI(base_url=f"{pair.url}/v1", api_key="none", timeout=PATIENCE) as client:
        stream = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "Count."}],
            max_tokens=6000,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(stream))
        assert sum(len(server.service.exchanges) for server in pair.servers) == 1
        stream.close()
    until(
        lambda: not any(server.service.exchanges for server in pair.servers),
        "the request of who left ends",
    )


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.LOADING])
def test_another_server_answers_for_one_that_takes_no_requests(pair: Pair, phase: Phase) -> None:
    homes: dict[str, Any] = {f"{n}": pair.ask(f"{n}") for n in range(8)}
    lifecycle = pair.servers[0].service.lifecycle
    try:
        lifecycle.phase = phase
        assert {pair.ask(name) for name in homes} == {1}
    finally:
        lifecycle.phase = Phase.READY

    def is_back() -> bool:  # after fail_timeout
        return {name: pair.ask(name) for name in homes} == homes

    until(is_back, "its conversations come back")


def test_metrics_are_those_of_a_server_itself(pair: Pair) -> None:
    with pair.http() as client:
        assert client.get("/metrics").status_code == 404
        assert client.get("/v1/models").status_code == 200
