"""What a type checker, and so an editor, knows about the library."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from llama_py import (
    AsyncLlama,
    AsyncReplyStream,
    ChatSession,
    Llama,
    ModelCache,
    ModelStates,
    ReplyStream,
)
from tools import overloads

ROOT = Path(__file__).parent.parent
WRONG = ROOT / "tests" / "typing" / "wrong_calls.py"
PUBLIC = ROOT / "tests" / "typing" / "public_calls.py"
#: Public names that are for other parts of the library, or have no type of their own.
NOT_CALLED = {"create_chat_completion_openai_v1", "state_of", "bring_in"}


@cache
def findings() -> dict[tuple[str, int], str]:
    """What mypy says about the two files: file and line -> its messages."""
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context"]
    done = subprocess.run(
        [*command, str(WRONG), str(PUBLIC)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[tuple[str, int], str] = {}
    for line in done.stdout.splitlines():
        match = re.match(r"(.*?):(\d+): error: (.*)", line)
        if match is not None:
            key = (Path(match[1]).name, int(match[2]))
            found[key] = found.get(key, "") + match[3]
    return found


def expected() -> dict[int, str]:
    """The marked lines of the wrong calls, and what their messages have to name."""
    lines = WRONG.read_text(encoding="utf-8").splitlines()
    marks = (
        (number, re.search(r"  # E(?:: (\w+))?$", line)) for number, line in enumerate(lines, 1)
    )
    return {number: mark[1] or "" for number, mark in marks if mark is not None}


@pytest.mark.slow
def test_every_wrong_call_is_reported_and_no_other() -> None:
    found = {number: text for (file, number), text in findings().items() if file == WRONG.name}
    marked = expected()
    assert len(marked) >= 60
    assert found.keys() == marked.keys()
    for number, name in marked.items():
        assert name in found[number], f"line {number}: {found[number]}"


@pytest.mark.slow
def test_every_public_call_has_the_type_that_is_written_there() -> None:
    assert {key: text for key, text in findings().items() if key[0] == PUBLIC.name} == {}


@pytest.mark.parametrize(
    "face", [Llama, AsyncLlama, ChatSession, ModelCache, ModelStates, ReplyStream, AsyncReplyStream]
)
def test_nothing_public_is_missing_there(face: type) -> None:
    tree = ast.parse(PUBLIC.read_text(encoding="utf-8"))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names = {name for name in dir(face) if not name.startswith("_")}
    assert names - used <= NOT_CALLED


def test_the_overloads_of_calls_that_are_awaited_are_up_to_date() -> None:
    text = overloads.ASYNC.read_text(encoding="utf-8")
    assert text == overloads.written(), "run python -m tools.overloads"


def test_no_public_call_is_of_any_type() -> None:
    tree = ast.parse(PUBLIC.read_text(encoding="utf-8"))
    types = [
        ast.unparse(node.args[1])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "assert_type"
    ]
    assert len(types) > 100
    assert not [each for each in types if re.search(r"^Any$|(?<!str, )\bAny\b", each)]
