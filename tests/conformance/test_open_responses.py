"""What Open Responses' compliance tests ask, and five forms more.

The bundled model answers where any text will do; where a model must decide to call a tool, a real
one does.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from llama_py.server.config.settings import ModelSettings, Settings
from tests.conformance.open_responses import EVENTS, Response
from tests.real.conftest import real_path
from tests.responses_streams import Event, events_of
from tests.server.serving import Server, demo_settings, serving

_WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {
            "location": {
                "type": "string",
                "description": "The city and state, e.g. San Francisco, CA",
            }
        },
        "required": ["location"],
    },
}
_QUESTION = "What's the weather like in San Francisco?"


@pytest.fixture(scope="module")
def bundled() -> Iterator[Server]:
    with serving(demo_settings(n_ctx=4096)) as server:
        yield server


@pytest.fixture(scope="module")
def capable() -> Iterator[Server]:
    """A server with a model that calls tools by itself."""
    path = real_path("qwen05")
    options = {"verbose": False, "n_ctx": 4096, "n_threads": 1}
    model = ModelSettings("real", str(path), options=options)
    with serving(Settings(models=(model,))) as server:
        yield server


def said(role: str, text: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


def ask(server: Server, given: Any, **fields: Any) -> Response:
    """The whole response, which must be one of the published form."""
    body = {"model": "any", "input": given, "temperature": 0, "max_output_tokens": 200, **fields}
    with server.http() as http:
        reply = http.post("/v1/responses", json=body, timeout=600)
    assert reply.status_code == 200, reply.text
    return Response.model_validate(reply.json())


def stream(server: Server, given: Any, **fields: Any) -> tuple[Response, list[Event]]:
    """The last response of a stream, and its events: all of the published form, and numbered."""
    body = {"model": "any", "input": given, "temperature": 0, "max_output_tokens": 200, **fields}
    with server.http() as http:
        reply = http.post("/v1/responses", json={**body, "stream": True}, timeout=600)
    assert reply.status_code == 200, reply.text
    events = events_of(reply.content)
    for event in events:
        EVENTS.validate_python(event)
    assert [each["sequence_number"] for each in events] == [*range(len(events))]
    return Response.model_validate(events[-1]["response"]), events


def kinds(response: Response) -> list[str]:
    return [each.type for each in response.output]


def png() -> str:
    """A white picture of 8 by 8 points, as a URL."""
    rows = (b"\0" + b"\xff" * 24) * 8
    chunks = (
        (b"IHDR", struct.pack(">2I5B", 8, 8, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )
    return "data:image/png;base64," + base64.b64encode(data).decode()


# ---- with any model ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        [said("user", "Say hello in exactly 3 words.")],
        [
            said("system", "You are a pirate. Always respond in pirate speak."),
            said("user", "Say hello."),
        ],
        [
            said("user", "My name is Alice."),
            said("assistant", "Hello Alice! Nice to meet you. How can I help you today?"),
            said("user", "What is my name?"),
        ],
        [
            said(
                "user",
                [
                    {"type": "input_text", "text": "What do you see in this image?"},
                    {"type": "input_image", "image_url": png()},
                ],
            )
        ],
    ],
    ids=["basic", "system prompt", "several turns", "picture"],
)
def test_a_text_is_complete(bundled: Server, given: Any) -> None:
    response = ask(bundled, given)
    assert response.status == "completed"
    assert kinds(response) == ["message"]


def test_a_stream_of_text(bundled: Server) -> None:
    response, events = stream(bundled, [said("user", "Count from 1 to 5.")])
    assert response.status == "completed"
    assert "response.output_text.delta" in [each["type"] for each in events]


def test_a_response_goes_on_with_the_previous_one(bundled: Server) -> None:
    first = ask(bundled, "Remember this code word: papaya. Reply with only OK.", store=True)
    second = ask(bundled, "Which word?", previous_response_id=first.id)
    assert (second.status, second.previous_response_id) == ("completed", first.id)
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens


def test_a_call_and_its_result(bundled: Server) -> None:
    choice = {"type": "function", "name": "get_weather"}
    first = ask(bundled, "Use the weather tool.", tools=[_WEATHER], tool_choice=choice)
    call = first.output[0]
    assert call.type == "function_call"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "64 degrees"}
    second = ask(bundled, [result], previous_response_id=first.id)
    assert second.status == "completed"
    assert kinds(second) == ["message"]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_a_call_that_is_required(bundled: Server, streamed: bool) -> None:
    options: dict[str, Any] = {"tools": [_WEATHER], "tool_choice": "required"}
    if streamed:
        response, events = stream(bundled, [said("user", _QUESTION)], **options)
        check_call_events(events)
    else:
        response = ask(bundled, [said("user", _QUESTION)], **options)
    check_call(response)


def test_a_json_schema(bundled: Server) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["n"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "number", "schema": schema}
    response = ask(bundled, "What is 3 + 4?", text={"format": form})
    message = response.output[0]
    assert message.type == "message"
    part = message.content[0]
    assert part.type == "output_text"
    assert isinstance(json.loads(part.text)["n"], int)


def test_a_response_that_is_cut_off(bundled: Server) -> None:
    response = ask(bundled, "Count from 1 to 100.", max_output_tokens=16, ignore_eos=True)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_what_was_asked_is_repeated(bundled: Server) -> None:
    fields: dict[str, Any] = {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "top_p": 0.5,
        "presence_penalty": 0.25,
        "frequency_penalty": 0.5,
        "max_tool_calls": 3,
        "parallel_tool_calls": False,
        "tools": [_WEATHER],
        "tool_choice": "none",
        "truncation": "auto",
        "store": False,
        "safety_identifier": "someone",
        "prompt_cache_key": "key",
    }
    repeated = ask(bundled, "Hi", **fields).model_dump()
    tool = {**_WEATHER, "strict": repeated["tools"][0]["strict"]}
    assert {name: repeated[name] for name in fields} == {**fields, "tools": [tool]}


# ---- with a model that decides -----------------------------------------------------------------


@pytest.mark.real
def test_a_call_by_choice(capable: Server) -> None:
    check_call(ask(capable, [said("user", _QUESTION)], tools=[_WEATHER]))


@pytest.mark.real
def test_a_call_by_choice_in_a_stream(capable: Server) -> None:
    response, events = stream(capable, [said("user", _QUESTION)], tools=[_WEATHER])
    check_call(response)
    check_call_events(events)


def check_call(response: Response) -> None:
    calls = [each for each in response.output if each.type == "function_call"]
    assert [each.name for each in calls] == ["get_weather"]
    assert isinstance(json.loads(calls[0].arguments)["location"], str)


def check_call_events(events: Sequence[Event]) -> None:
    added, done = (
        [e["item"]["type"] for e in events if e["type"] == f"response.output_item.{end}"]
        for end in ("added", "done")
    )
    assert "function_call" in added
    assert "function_call" in done
    seen = {each["type"] for each in events}
    assert "response.function_call_arguments.delta" in seen
    assert "response.function_call_arguments.done" in seen
