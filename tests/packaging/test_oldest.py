"""The oldest and the newest versions of libraries that are allowed: a server of each answers.

It fetches them from the package index that pip is configured for.
"""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.packaging, pytest.mark.long, pytest.mark.timeout(3600)]

#: Of these, others among them ask for newer ones than this project does.
_FOLLOWS = {"typing-extensions"}
_BOUND = re.compile(r'^ *"([A-Za-z0-9_-]+)>=([0-9.]+)[^"]*",?$', re.MULTILINE)
_ALLOWED = re.compile(r'^ *"([A-Za-z0-9_-]+>=[^";]*)[^"]*",?$', re.MULTILINE)
_SECTIONS = ("dependencies", "server", "server-fast")

#: Prints one line for each thing that is as it should be.
_SMOKE = r"""
import json, socket, sys, threading, time, urllib.request
import uvicorn
from llama_py import demo_model_path
from llama_py.chat.templates.formatter import Jinja2ChatFormatter
from llama_py.errors import TemplateError
from llama_py.server.app import create_app
from llama_py.server.config.settings import ModelSettings, Settings
from llama_py.server.transport.connection import connection_class

payload = "{{ ('{0.__globals__[jinja2].utils.os.environ}'|attr('format'))(raise_exception) }}"
try:
    Jinja2ChatFormatter(payload, "", "")(messages=[])
except TemplateError:
    print("sandbox")

options = {"verbose": False, "n_ctx": 512}
settings = Settings(models=(ModelSettings("demo", demo_model_path(), options=options),))
config = uvicorn.Config(
    create_app(settings), "127.0.0.1", 0, lifespan="on", log_config=None,
    http=connection_class(settings),
)
server = uvicorn.Server(config)
thread = threading.Thread(target=server.run)
thread.start()
while not server.started:
    assert thread.is_alive()
    time.sleep(0.01)
port = server.servers[0].sockets[0].getsockname()[1]
for stream in (False, True):
    messages = [{"role": "user", "content": "Hello"}]
    body = {"messages": messages, "max_tokens": 4, "stream": stream}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    text = urllib.request.urlopen(request).read().decode()
    assert "[DONE]" in text if stream else json.loads(text)["choices"][0]["message"]
print("chat")
with socket.create_connection(("127.0.0.1", port)) as client:
    client.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    )
    said = b""
    while data := client.recv(65536):
        said += data
assert said.startswith(b"HTTP/1.1 400"), said
print("framing")
server.should_exit = True
thread.join()
"""


def _sections() -> str:
    """What pyproject.toml says of the requirements of the project and of its server."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = (text.partition(f"\n{section} = [\n")[2] for section in _SECTIONS)
    return "\n".join(rest.partition("\n]")[0] for rest in found)


def _bounds() -> list[str]:
    """The requirements, with ``==`` in place of ``>=``."""
    found = _BOUND.findall(_sections())
    return [f"{name}=={bound}" for name, bound in found if name not in _FOLLOWS]


def _allowed() -> list[str]:
    """The requirements as they are: pip takes the newest versions."""
    return _ALLOWED.findall(_sections())


def test_the_bounds_are_found() -> None:
    names = {bound.partition("==")[0] for bound in _bounds()}
    assert {"numpy", "jinja2", "starlette", "uvicorn", "httptools", "orjson"} <= names


def test_versions_with_known_holes_are_not_let_in() -> None:
    """Each of these is the first without one that pyproject.toml names, or that reaches us."""
    found = dict(bound.split("==") for bound in _bounds())
    first = {"jinja2": "3.1.6", "starlette": "0.49.1", "orjson": "3.11.6"}
    for name, version in first.items():
        assert _numbers(found[name]) >= _numbers(version), name


@pytest.mark.parametrize("name", ["httptools", "starlette", "uvicorn"])
def test_versions_that_were_not_tried_are_not_let_in(name: str) -> None:
    """The limits on connections rely on private parts of these, or of what they are made for."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(rf'^ *"{name}>=[0-9.]+,<[0-9.]+",$', text, re.MULTILINE)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@pytest.mark.skipif(sys.version_info[:2] not in ((3, 10), (3, 11)), reason="numpy 1.24 is of then")
def test_a_server_of_the_oldest_versions(tmp_path: Path) -> None:
    assert _smoke(tmp_path, _bounds()) == ["sandbox", "chat", "framing"]


def test_a_server_of_the_newest_versions(tmp_path: Path) -> None:
    allowed = _allowed()
    assert {each.partition(">=")[0] for each in allowed} >= {"numpy", "jinja2", "uvicorn", "uvloop"}
    assert _smoke(tmp_path, allowed) == ["sandbox", "chat", "framing"]


def _smoke(folder: Path, requirements: list[str]) -> list[str]:
    """What is as it should be with these; the versions are printed (``-s``)."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-q", *requirements], check=True, capture_output=True)
    frozen = subprocess.run([*pip, "freeze"], check=True, capture_output=True, text=True).stdout
    print(sys.version.split()[0], *frozen.split())
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "llama_py_here.pth").write_text(f"{ROOT}\n", encoding="utf-8")
    smoke = [python, "-W", "error::DeprecationWarning:llama_py", "-c", _SMOKE]
    done = subprocess.run(smoke, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.split()
