"""Claude Code's requests: each turn evaluates only what is new, whatever else moves."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chat import families
from tests.server.claude_code import FAMILIAR, PICTURE, Session
from tests.server.serving import Server, demo_settings, serving

#: Tokens behind the cached reply that the template writes, and the next question.
ENDS = 4


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(demo_settings(n_ctx=8192, n_seq_max=4)) as server:
        yield server


def send(server: Server, session: Session, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """A streamed turn: the reply as blocks, why it ended, and the usage."""
    with server.http(headers=session.headers) as http:
        response = http.post("/v1/messages?beta=true", json=body or session.body())
    assert response.status_code == 200, response.text
    blocks: list[dict[str, Any]] = []
    grown: list[str] = []
    out: dict[str, Any] = {"content": blocks}
    for frame in response.text.split("\n\n")[:-1]:
        data = json.loads(frame.partition("data: ")[2])
        if data["type"] == "content_block_start":
            blocks.append(data["content_block"])
            grown = []
        elif data["type"] == "content_block_delta":
            kind = data["delta"].pop("type")
            (value,) = data["delta"].values()
            if kind == "signature_delta":
                blocks[-1]["signature"] = value
            else:
                grown.append(value)
        elif data["type"] == "content_block_stop":
            text, kind = "".join(grown), blocks[-1]["type"]
            blocks[-1]["input" if kind == "tool_use" else kind] = (
                json.loads(text) if kind == "tool_use" else text
            )
        elif data["type"] == "message_delta":
            out |= {"stop": data["delta"]["stop_reason"], **data["usage"]}
        elif data["type"] == "error":
            raise AssertionError(data)
    out["prompt"] = out["input_tokens"] + out["cache_read_input_tokens"]
    return out


def turn(server: Server, session: Session, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """A turn whose reply goes into the history."""
    reply = send(server, session, body)
    session.answered(reply["content"])
    return reply


def test_each_turn_evaluates_what_is_new(server: Server) -> None:
    session = Session()
    session.ask("What is 2 + 3?")
    before = turn(server, session)
    for question in ("What is 4 + 4?", "And what is your name?", "Thank you.", "What is 1 + 1?"):
        session.ask(question)
        reply = turn(server, session)
        known = before["prompt"] + before["output_tokens"]
        assert reply["cache_read_input_tokens"] >= known - ENDS
        before = reply


def test_turns_with_tools_evaluate_what_is_new(server: Server) -> None:
    """Calls, results with and without a picture, and the words about them."""
    session = Session(tools=FAMILIAR)
    known = 0
    for city in ("Paris", "Rome", "Oslo"):
        session.ask(f"What is the weather in {city}?")
        choice = {"type": "tool", "name": "get_weather"}
        asked = turn(server, session, session.body(tool_choice=choice))
        assert asked["stop"] == "tool_use"
        assert asked["content"][-1]["input"].keys() == {"city"}
        assert asked["cache_read_input_tokens"] >= known - ENDS
        known = asked["prompt"] + asked["output_tokens"]
        weather = json.dumps({"temperature": 21, "condition": "sunny"})
        session.results([{"type": "text", "text": weather}, PICTURE] if known % 2 else weather)
        told = turn(server, session)
        assert told["cache_read_input_tokens"] >= known - ENDS
        known = told["prompt"] + told["output_tokens"]


def test_side_requests_of_a_session_cost_it_nothing(server: Server) -> None:
    session = Session()
    session.ask("What is 3 + 3?")
    before = turn(server, session)
    threads = [threading.Thread(target=send, args=(server, session, session.title()))] * 1
    others = [
        threading.Thread(target=send, args=(server, session, {**session.title(), "system": f"{i}"}))
        for i in range(6)
    ]
    for thread in (*threads, *others):
        thread.start()
    session.ask("What is 5 + 3?")
    reply = turn(server, session)
    for thread in (*threads, *others):
        thread.join()
    known = before["prompt"] + before["output_tokens"]
    assert reply["cache_read_input_tokens"] >= known - ENDS


def test_the_session_is_named_by_the_agent(server: Server) -> None:
    """By a header; where there is none, by the user's id, which contains it as well."""
    for number, name in enumerate(("x-claude-code-session-id", "anthropic-version")):
        session = Session(session_id=f"session-{number}", tools=[])
        session.ask("Hello.")
        body = session.body(stream=False, max_tokens=2)
        with server.http() as http:
            headers = {name: session.headers[name]}
            assert http.post("/v1/messages", json=body, headers=headers).status_code == 200
            known = [each["id"] for each in http.get("/v1/sessions").json()["data"]]
        assert session.session_id in known


def test_what_is_sent_again_without_a_stream_finds_its_prompt(server: Server) -> None:
    session = Session()
    session.ask("Tell me a story about a dog and a cat, please.")
    body = session.body(max_tokens=200)
    with (
        server.http(headers=session.headers) as http,
        http.stream("POST", "/v1/messages?beta=true", json=body) as response,
    ):
        for line in response.iter_lines():
            if "content_block_delta" in line:
                break  # the connection breaks in the middle
    with server.http(headers=session.headers) as http:
        again = http.post("/v1/messages?beta=true", json={**body, "stream": False}).json()
    assert again["usage"]["input_tokens"] == 1
    assert again["content"]


@pytest.mark.parametrize(
    "family", ["Apertus-8B-Instruct", "google-gemma-2-2b-it", "Mistral-Small-3.2-24B-Instruct-2506"]
)
def test_templates_that_want_system_messages_first_or_not_at_all(family: str) -> None:
    """What the agent says in the middle stays there, and so does what was cached."""
    template = families.source(family)
    with serving(demo_settings(chat_template=template, n_ctx=4096)) as server:
        session = Session(tools=[])
        session.ask("What is 2 + 3?")
        before = turn(server, session, session.body(max_tokens=20))
        for question in ("What is 4 + 4?", "Thank you."):
            session.ask(question)
            reply = turn(server, session, session.body(max_tokens=20))
            known = before["prompt"] + before["output_tokens"]
            assert reply["cache_read_input_tokens"] >= known - ENDS
            before = reply


def test_hidden_thinking_is_reused() -> None:
    """Within a turn templates show what was thought: it has to come back, hidden or not."""
    template = families.source("Qwen-Qwen3-0.6B")
    with serving(demo_settings(chat_template=template, n_ctx=4096)) as server:
        session = Session()
        session.ask("What is 2 + 3?")
        thought = [{"type": "thinking", "thinking": "Hm. Read it.", "signature": "x"}]
        call = {"type": "tool_use", "id": "toolu_abcdefghi", "name": "Read", "input": {}}
        session.answered([*thought, call])
        session.results("five")
        shown = send(server, session, session.body(max_tokens=0))
        session.messages[2]["content"][0] = {
            "type": "thinking",
            "thinking": "",
            "signature": "llama-py:SG0uIFJlYWQgaXQu",
        }
        hidden = send(server, session, session.body(max_tokens=0))
        assert hidden["prompt"] == shown["prompt"]
        assert hidden["input_tokens"] == 1
