"""Transcripts of agents: what is read from them, and what is said about odd ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llama_py.bench import make_transcript
from llama_py.bench.transcripts import Transcript, read_transcript
from llama_py.errors import ParameterError

DATA = Path(__file__).parent.parent / "data"


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
    ],
)
def test_what_is_no_transcript_is_refused_with_its_place(
    content: str, what: str, tmp_path: Path
) -> None:
    with pytest.raises(ParameterError, match=what):
        read(tmp_path, content)


@pytest.mark.long
def test_a_hundred_megabytes(tmp_path: Path) -> None:
    record = said("user", text("word " * 2000))
    path = tmp_path / "long.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for _ in range(10_000):
            file.write(lines(record, said("assistant", text("ok"))))
    transcript = read_transcript(str(path))
    assert transcript.characters == 10_000 * (10_000 + 2)


@pytest.mark.parametrize("form", ["openai", "claude"])
def test_a_synthetic_transcript_reads_as_what_was_made(form: str, tmp_path: Path) -> None:
    made = make_transcript.make(6000, 3)
    again = make_transcript.make(6000, 3)
    assert made == again
    transcript = read(tmp_path, make_transcript.render(made, form))
    kept = made if form == "openai" else [m for m in made if m["role"] != "system"]
    merged = [message for message in kept if message["role"] != "system"]
    assert [m for m in transcript.messages if m["role"] != "system"] == merged
    assert 6000 <= sum(len(m["content"]) for m in made) < 10_000
    assert any(len(m.get("tool_calls", ())) == 2 for m in make_transcript.make(20_000, 3))


@pytest.mark.parametrize("name", ["agent-openai.json", "agent-claude.jsonl"])
def test_the_transcripts_that_come_along(name: str) -> None:
    transcript = read_transcript(str(DATA / name))
    calls = list(transcript.calls())
    assert len(calls) >= 3
    assert transcript.left_out.keys() <= {"record of type summary"}
