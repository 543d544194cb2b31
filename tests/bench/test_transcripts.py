"""Transcripts of agents: what is read from them, and what is said about odd ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.make_transcript import render
from llama_py.bench.synthetic import make
from llama_py.bench.transcripts import Transcript, read_transcript
from llama_py.errors import ParameterError

DATA = Path(__file__).parent.parent / "data"
ROOT = DATA.parent.parent


def read(tmp_path: Path, text: str) -> Transcript:
    path = tmp_path / "session.jsonl"
    path.write_text(text, encoding="utf-8")
    return read_transcript(str(path))


def lines(*records: Any) -> str:
    return "\n".join(json.dumps(record) for record in records) + "\n"


def said(role: str, *blocks: Any, **more: Any) -> dict[str, Any]:
    return {"type": role, "message": {"role": role, "content": list(blocks)}, **more}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def used(name: str, call_id: str | None, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def gave(call_id: str | None, content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def test_records_of_claude_code_become_messages(tmp_path: Path) -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    transcript = read(
        tmp_path,
        lines(
            {"type": "summary", "summary": "About a fix"},
            {"type": "user", "message": {"role": "user", "content": "Fix it."}},
            said("assistant", thinking),
            said("assistant", text("I look.")),
            said("assistant", used("read", "a", path="x.py"), used("lint", "b")),
            said("user", gave("b", [text("clean"), {"type": "image", "source": {}}])),
            said("user", gave("a", "1 + 1")),
            said("user", text("And faster.")),
            said("assistant", text("Done.")),
        ),
    )
    assert transcript.messages == [
        {"role": "user", "content": "Fix it."},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "function": {"name": "read", "arguments": '{"path": "x.py"}'},
                },
                {"id": "b", "type": "function", "function": {"name": "lint", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "b", "content": "clean\n[image]"},
        {"role": "tool", "tool_call_id": "a", "content": "1 + 1"},
        {"role": "user", "content": "And faster."},
        {"role": "assistant", "content": "Done."},
    ]
    assert transcript.left_out == {"record of type summary": 1}
    calls = list(transcript.calls())
    assert [len(call) for call in calls] == [1, 5]  # the exact prefix before each assistant turn
    assert calls[1] == transcript.messages[:5]


def test_side_conversations_are_left_out(tmp_path: Path) -> None:
    transcript = read(
        tmp_path,
        lines(
            said("user", text("One")),
            said("user", text("aside"), isSidechain=True),
            said("assistant", used("x", "side"), isSidechain=True),
            said("assistant", text("Two")),
        ),
    )
    assert [message["content"] for message in transcript.messages] == ["One", "Two"]
    assert transcript.left_out == {"side conversation": 2}


@pytest.mark.parametrize("form", ["list", "object", "lines"])
def test_forms_of_openai_messages(form: str, tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "Brief."},
        {"role": "user", "content": [text("a"), text("b")]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": [text("list"), text("content")]},
        {"role": "assistant", "content": "end"},
    ]
    tools = [{"type": "function", "function": {"name": "f"}}]
    written = {
        "list": json.dumps(messages, indent=1),
        "object": json.dumps({"tools": tools, "messages": messages}),
        "lines": lines(*messages),
    }[form]
    transcript = read(tmp_path, written)
    assert [m["content"] for m in transcript.messages] == [
        "Brief.",
        "a\nb",
        "",
        "list\ncontent",
        "end",
    ]
    assert transcript.messages[2]["tool_calls"] == [call]
    assert transcript.tools == (tools if form == "object" else [])


def test_missing_ids_are_given_where_only_one_call_is_open(tmp_path: Path) -> None:
    begin = [said("user", text("q")), said("assistant", used("f", None))]
    transcript = read(tmp_path, lines(*begin, said("user", gave(None, "r"))))
    assert transcript.messages[2]["tool_call_id"] == transcript.messages[1]["tool_calls"][0]["id"]
    two = said("assistant", used("f", None), used("g", None))
    with pytest.raises(ParameterError, match=r"line 3.*id None"):
        read(tmp_path, lines(begin[0], two, said("user", gave(None, "r"))))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", "is empty"),
        ("  \n\n", "is empty"),
        ("no JSON at all\n", "line 1: this is not JSON"),
        (lines(said("user", text("a"))) + "{broken\n", "line 2: this is not JSON"),
        ("3\n4\n", "line 1: expected an object"),
        (lines({"type": "unknown"}), "no assistant turn"),
        ('{"messages": 3}', "expected a list of messages"),
        (json.dumps([{"role": "user", "content": 3}]), r"messages\[0\]: content is 3"),
        (lines(said("user", 7)), "line 1: expected an object"),
        (lines(said("user", gave("x", "y"))), "'x'"),
        (lines(said("assistant", used("", "x"))), "has no name"),
        (lines({"role": "assistant", "tool_calls": "f"}), "tool_calls is 'f'"),
        (lines({"role": "assistant", "tool_calls": [3]}), "line 1: expected an object"),
        (lines({"role": "assistant", "tool_calls": [{"id": "1"}]}), "line 1: expected an object"),
        (lines({"role": "assistant", "tool_calls": [{"function": {}}]}), "has no name"),
        (lines({"role": "tool", "content": "x"}), "a tool result has the id None"),
        (json.dumps({"messages": [], "tools": 3}), "tools is 3"),
        (json.dumps({"messages": [], "tools": [{"type": "function"}]}), "a tool has no name"),
        (lines({"messages": []}, {"messages": []}), "line 2: one conversation per file"),
        ("[" * 100_000, "this is not JSON"),
        ('{"a":' * 100_000, "this is not JSON"),
        ("\0\0\0\0", "this is not JSON"),
        ("[1, 2]", r"messages\[0\]: expected an object"),
    ],
)
def test_what_is_no_transcript_is_refused_with_its_place(
    content: str, what: str, tmp_path: Path
) -> None:
    with pytest.raises(ParameterError, match=what):
        read(tmp_path, content)


HELLO = {"role": "user", "content": "Hello"}
BYE = {"role": "assistant", "content": "Bye"}
BODY = {
    "model": "any",
    "system": [text("Brief.")],
    "messages": [HELLO, BYE],
    "tools": [{"name": "f", "description": "does", "input_schema": {"type": "object"}}],
}
#: What is odd and readable: the file, its messages (role and text), and what was left out.
ODD: dict[str, tuple[str, list[tuple[str, str]], dict[str, int]]] = {
    "records of other kinds": (
        lines({"type": "progress"}, {"type": ["x"]}, HELLO, {"role": "robot"}, {}, BYE),
        [("user", "Hello"), ("assistant", "Bye")],
        {
            "record of type progress": 1,
            "record of type ['x']": 1,
            "record of type unknown": 2,
        },
    ),
    "side conversations in between": (
        lines(
            said("user", text("One")),
            said("assistant", used("f", "main")),
            said("user", text("aside"), isSidechain=True),
            said("assistant", used("g", "side"), isSidechain=True),
            said("user", gave("main", "found")),
            said("user", gave("side", "lost"), isSidechain=True),
            said("assistant", text("Two")),
        ),
        [("user", "One"), ("assistant", ""), ("tool", "found"), ("assistant", "Two")],
        {"side conversation": 3},
    ),
    "pictures and documents": (
        lines(
            said("user", text("See"), {"type": "image", "source": {}}, {"type": "document"}),
            said("assistant", text("Seen")),
        ),
        [("user", "See\n[image]"), ("assistant", "Seen")],
        {"block of type document": 1},
    ),
    "records that were written twice": (
        lines(*[said("user", text("Once"), uuid="1")] * 2, said("assistant", text("Yes"))),
        [("user", "Once"), ("assistant", "Yes")],
        {"record that was written twice": 1},
    ),
    "numbers as ids": (
        lines(
            HELLO,
            {"role": "assistant", "tool_calls": [{"id": 7, "function": {"name": "f"}}]},
            {"role": "tool", "tool_call_id": 7, "content": None},
            BYE,
        ),
        [("user", "Hello"), ("assistant", ""), ("tool", ""), ("assistant", "Bye")],
        {},
    ),
    "empty texts": (
        lines(said("user", text(""), text("a"), text("")), said("assistant", text(""), text("b"))),
        [("user", "a"), ("assistant", "b")],
        {},
    ),
    "a mark of the byte order": (
        "\ufeff" + lines(HELLO, BYE),
        [("user", "Hello"), ("assistant", "Bye")],
        {},
    ),
    "lines of Windows, and empty ones": (
        f"\r\n{json.dumps(HELLO)}\r\n \r\n{json.dumps(BYE)}\r\n",
        [("user", "Hello"), ("assistant", "Bye")],
        {},
    ),
    "the body of a request": (
        lines(BODY),
        [("system", "Brief."), ("user", "Hello"), ("assistant", "Bye")],
        {},
    ),
    "the same over several lines": (
        json.dumps(BODY, indent=2),
        [("system", "Brief."), ("user", "Hello"), ("assistant", "Bye")],
        {},
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_odd_has_its_documented_result(name: str, tmp_path: Path) -> None:
    content, expected, left_out = ODD[name]
    transcript = read(tmp_path, content)
    assert [(m["role"], m["content"]) for m in transcript.messages] == expected
    assert transcript.left_out == left_out


def test_tools_in_the_form_of_anthropic(tmp_path: Path) -> None:
    (tool,) = read(tmp_path, lines(BODY)).tools
    function = {"name": "f", "description": "does", "parameters": {"type": "object"}}
    assert tool == {"type": "function", "function": function}


def test_a_summary_is_where_a_conversation_begins_anew(tmp_path: Path) -> None:
    transcript = read(
        tmp_path,
        lines(
            said("user", text("Long")),
            said("assistant", used("f", "a")),
            said("user", text("Summary of what was"), isCompactSummary=True),
            said("user", text("Go on")),
            said("assistant", text("Done")),
            said("user", text("More")),
            said("assistant", text("Done again")),
        ),
    )
    calls = [[message["content"] for message in call] for call in transcript.calls()]
    summary = "Summary of what was\nGo on"
    assert calls == [["Long"], [summary], [summary, "Done", "More"]]


#: Reads a transcript with so much memory, and says what became of it.
LIMITED = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
from llama_py.bench.transcripts import read_transcript
from llama_py.errors import ParameterError
try:
    transcript = read_transcript(sys.argv[1])
    print(len(transcript.messages), transcript.characters)
except ParameterError as error:
    print(error)
"""


def read_with(path: Path, memory: int) -> str:
    """What a process with ``memory`` bytes says about a file."""
    command = [sys.executable, "-c", LIMITED, str(path), str(memory)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by RLIMIT_AS")
@pytest.mark.parametrize("form", ["lines", "one turn", "list"])
def test_a_hundred_megabytes(form: str, tmp_path: Path) -> None:
    """Read within 400 MB where they come line by line; what does not fit is refused."""
    path = tmp_path / "long.jsonl"
    count, words = 5000, "word " * 4000
    question, answer = json.dumps(said("user", text(words))), json.dumps(BYE)
    with path.open("w", encoding="utf-8") as file:
        if form == "list":
            file.write(json.dumps([{"role": "user", "content": words}] * count + [BYE]))
        else:
            for _ in range(count):
                file.write(question + "\n")
                if form == "lines":
                    file.write(answer + "\n")
            if form == "one turn":
                file.write(answer + "\n")
    assert path.stat().st_size > 100_000_000
    one_turn = f"2 {count * 20_001 - 1 + 3}"
    expected = f"{2 * count} {count * 20_003}" if form == "lines" else one_turn
    assert read_with(path, (1 << 30) if form == "list" else 400 << 20) == expected
    too_little = read_with(path, 90 << 20)
    assert f"{path.stat().st_size} bytes, more than there is memory for" in too_little


@pytest.mark.parametrize("form", ["openai", "claude"])
def test_a_synthetic_transcript_reads_as_what_was_made(form: str, tmp_path: Path) -> None:
    made = make(6000, 3)
    again = make(6000, 3)
    assert made == again
    transcript = read(tmp_path, render(made, form))
    kept = made if form == "openai" else [m for m in made if m["role"] != "system"]
    merged = [message for message in kept if message["role"] != "system"]
    assert [m for m in transcript.messages if m["role"] != "system"] == merged
    assert 6000 <= sum(len(m["content"]) for m in made) < 10_000
    assert any(len(m.get("tool_calls", ())) == 2 for m in make(20_000, 3))


@pytest.mark.parametrize("name", ["agent-openai.json", "agent-claude.jsonl"])
def test_the_transcripts_that_come_along(name: str) -> None:
    transcript = read_transcript(str(DATA / name))
    calls = list(transcript.calls())
    assert len(calls) >= 3
    assert transcript.left_out.keys() <= {"record of type summary"}


def test_a_made_transcript_needs_no_file() -> None:
    assert read_transcript("synthetic:6000:3").messages == make(6000, 3)
    for name in ("synthetic:5", "synthetic:x", "synthetic:6000:y"):
        with pytest.raises(ParameterError, match=name):
            read_transcript(name)
