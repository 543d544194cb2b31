"""Additions that ARCHITECTURE.md describes, made to a copy of the package, in the named files."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[1]
#: File below ``llama_py`` -> (a text, the text in its place).
Edits: TypeAlias = Mapping[str, tuple[str, str]]
Add: TypeAlias = Callable[[str, Edits, str], list[str]]


def files_of(what: str) -> set[str]:
    """The files of the package that the row of a table names."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## How to add")[2]
    (row,) = re.findall(rf"^\| {re.escape(what)} \| (.*?) \|", text, re.MULTILINE)
    return set(re.findall(r"`([\w/]+\.py)`", row))


@pytest.fixture
def add(tmp_path: Path) -> Add:
    """Edits a copy of the package, and returns what a program that uses it prints."""

    def edit_and_run(what: str, edits: Edits, program: str) -> list[str]:
        assert {*edits} <= files_of(what)
        copy = tmp_path / "llama_py"
        shutil.copytree(
            ROOT / "llama_py", copy, ignore=shutil.ignore_patterns("lib", "__pycache__")
        )
        (copy / "lib").symlink_to(ROOT / "llama_py" / "lib")
        for name, (old, new) in edits.items():
            text = (copy / name).read_text(encoding="utf-8")
            assert text.count(old) == 1, name
            (copy / name).write_text(text.replace(old, new), encoding="utf-8")
        # Imports of an editable installation would come before the copy.
        start = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.meta_path[:] = ["
        start += "f for f in sys.meta_path if not type(f).__module__.startswith('_editable')]\n"
        done = subprocess.run(
            [sys.executable, "-c", start + program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return edit_and_run


def test_a_route(add: Add) -> None:
    pytest.importorskip("starlette")
    new = (
        '@ROUTES.get("/v1/hour", operation=Operation(ADMIN, "The hour", reply="Status"))\n'
        "async def _hour(request: Request) -> Response:\n"
        '    return JSONResponse({"status": "noon"})\n\n\n'
    )
    above = '@ROUTES.get("/health"'
    printed = add(
        "an HTTP route",
        {"server/routes/health.py": (above, new + above)},
        """
import asyncio, httpx
from llama_py.server.access.keys import ApiKey
from llama_py.server.app import create_app
from llama_py.server.config.settings import Settings

keys = (ApiKey("me", "mine"), ApiKey("boss", "his", frozenset({"admin"})))
app = create_app(Settings(api_keys=keys), load=False)

async def main():
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")
    for key in ("", "mine", "his"):
        answer = await client.get("/v1/hour", headers={"x-api-key": key} if key else {})
        print(answer.status_code, answer.json().get("status"))
    described = (await client.get("/openapi.json")).json()["paths"]["/v1/hour"]["get"]
    print(described["summary"], *described["tags"])

asyncio.run(main())
""",
    )
    assert printed == ["401 None", "403 None", "200 noon", "The hour Operation"]


def test_an_option(add: Add) -> None:
    above = "    ignore_eos: Annotated[\n        bool | None,\n        Default(False),\n"
    new = '    loudness: Annotated[int | None, Range(1, 11), Doc("How loud it is.")]\n'
    printed = add(
        "an option",
        {"options/calls.py": (above, new + above)},
        """
import inspect
from llama_py import Llama, demo_model_path

llm = Llama(demo_model_path(), n_ctx=64)
print(len(llm.create_completion("Hello", loudness=11, max_tokens=1)["choices"]))
try:
    llm.create_completion("Hello", loudness=12, max_tokens=1)
except ValueError as error:
    print(error)
""",
    )
    assert printed == ["1", "loudness=12 is out of range: allowed is 1 to 11"]


def test_a_chat_format(add: Add) -> None:
    text = (ROOT / "llama_py/chat/formats/named.py").read_text(encoding="utf-8")
    (first,) = re.findall(r"^FORMATS: .*\n", text, re.MULTILINE)
    new = first + '    "parrot": NamedFormat(("<", ">"), ("[", "]")),\n'
    printed = add(
        "a chat format of fixed texts",
        {"chat/formats/named.py": (first, new)},
        """
from llama_py import Llama, demo_model_path

llm = Llama(demo_model_path(), n_ctx=64, chat_format="parrot")
print(llm.render_chat([{"role": "user", "content": "Hello"}]).prompt)
""",
    )
    assert printed == ["<Hello>["]
