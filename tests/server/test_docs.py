"""What the pages say about the server works: their Python, their curl, their settings.

A block of Python that needs a server is marked ``<!-- not run: it needs a server -->``. The comment
right below a ``print`` is what it prints.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import llama_py
from llama_py.cli import main
from tests.patience import PATIENCE
from tests.server.serving import Server
from tests.test_readme import PAGES, ROOT, first_broken, name_of, promised

_NEEDS_SERVER = re.compile(
    r"<!-- not run: (?:it )?needs a server -->\n```python\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_CONSOLE = re.compile(r"^```console\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_TOML = re.compile(r"^```toml\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_HERE = "127.0.0.1:8080"


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def at(server: Server, text: str) -> str:
    """A text in which the address of that server stands."""
    return text.replace(_HERE, server.url.removeprefix("http://"))


def commands(block: str) -> Iterator[str]:
    """The commands behind ``$`` of a block, also those of several lines."""
    command = ""
    for line in block.splitlines():
        if not command and not line.startswith("$ "):
            continue
        command += line if command else line[2:]
        if is_whole(command):
            yield command
            command = ""
        else:
            command += "\n"


def is_whole(command: str) -> bool:
    try:
        shlex.split(command)
    except ValueError:  # a quotation is open
        return False
    return not command.endswith("\\")


def test_commands_are_found() -> None:
    block = "$ a 'x\n  y' # z\nprinted\n$ b \\\n  c\n"
    assert [*commands(block)] == ["a 'x\n  y' # z", "b \\\n  c"]


def steps(page: Path) -> list[re.Match[str]]:
    """The blocks of a page that talk to a server, in its order."""
    text = text_of(page)
    asking = (block for block in _CONSOLE.finditer(text) if "$ curl " in block["text"])
    return sorted([*_NEEDS_SERVER.finditer(text), *asking], key=lambda block: block.start())


@pytest.mark.parametrize("page", [page for page in PAGES if steps(page)], ids=name_of)
def test_what_talks_to_a_server(server: Server, page: Path) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    for block in steps(page):
        if block.re is _NEEDS_SERVER:
            run_python(at(server, block["code"]), name_of(page), names)
        elif shutil.which("curl") is not None:
            for command in commands(at(server, block["text"])):
                run_curl(command)


def run_python(code: str, place: str, names: dict[str, object]) -> None:
    """In this process, which has imported the clients already."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, place, "exec"), names)
    assert first_broken(promised(code), printed.getvalue()) is None, printed.getvalue()


def run_curl(command: str) -> None:
    words = [*shlex.split(command, comments=True), "-sS"]
    if words[0] == "curl":
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr
        if done.stdout.startswith("{"):
            assert "error" not in json.loads(done.stdout), f"{command}: {done.stdout}"


@pytest.mark.parametrize("page", ["docs/server.md", "docs/server-settings.md"])
def test_settings(page: str, tmp_path: Path) -> None:
    found = [
        block["text"]
        for block in _TOML.finditer(text_of(ROOT / page))
        if "[[model]]" in block["text"]
    ]
    assert found
    for text in found:
        for path in re.findall(r'^path = "(.*)"', text, re.MULTILINE):
            model = tmp_path / path
            model.parent.mkdir(exist_ok=True)
            model.unlink(missing_ok=True)
            model.symlink_to(llama_py.demo_model_path())
        file = tmp_path / "server.toml"
        file.write_text(
            text.replace('"…"', '"secret"', 1).replace('"…"', '"other"'), encoding="utf-8"
        )
        assert main(["serve", "--config", str(file), "--check"]) == 0
