"""Ollama's messages and durations, as other dialects have them."""

from __future__ import annotations

from typing import Any

import pytest

from llama_py.dialects.durations import seconds_of
from llama_py.dialects.failures import RequestError
from llama_py.dialects.fields import Fields
from llama_py.dialects.ollama.bodies import check_options, messages_of


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (0, 0.0),
        (90, 90.0),
        (-1, None),
        ("-1", None),
        ("-1m", None),
        ("30", 30.0),
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        (float("inf"), None),
        (10**400, None),
    ],
)
def test_durations(given: Any, seconds: float | None) -> None:
    assert seconds_of(given) == seconds


@pytest.mark.parametrize("given", ["soon", "", True, [], "10 m", "m", "nan"])
def test_no_durations(given: Any) -> None:
    with pytest.raises(RequestError, match="keep_alive"):
        seconds_of(given)


def call(name: str, **more: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": {}}, **more}


def test_results_find_their_calls() -> None:
    asked = {"role": "assistant", "tool_calls": [call("a"), call("b"), call("a", id="own")]}
    results = [
        {"role": "tool", "tool_name": "b", "content": "1"},
        {"role": "tool", "tool_name": "a", "content": "2"},
        {"role": "tool", "content": "3"},
        {"role": "tool", "tool_call_id": "mine", "content": "4"},
    ]
    found = messages_of(Fields({"messages": [asked, *results]}))
    first, second, third = (each["id"] for each in found[0]["tool_calls"])
    assert third == "own"
    assert [each["tool_call_id"] for each in found[1:]] == [second, first, third, "mine"]


def test_thoughts_and_pictures() -> None:
    message = {"role": "user", "content": "?", "images": ["AAAA"], "thinking": "hm"}
    (found,) = messages_of(Fields({"messages": [message]}))
    assert found["reasoning_content"] == "hm"
    picture, text = found["content"]
    assert picture["image_url"]["url"] == "data:image/png;base64,AAAA"
    assert text == {"type": "text", "text": "?"}


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, "messages"),
        ({"messages": ["x"]}, r"messages\[0\]"),
        ({"messages": [{"role": "user", "images": [1]}]}, r"messages\[0\]\.images\[0\]"),
        ({"messages": [{"role": "user", "tool_calls": [1]}]}, r"messages\[0\]\.tool_calls\[0\]"),
    ],
)
def test_mistakes_have_a_place(body: Any, place: str) -> None:
    with pytest.raises(RequestError, match=place):
        messages_of(Fields(body))


def test_the_context_is_honoured_or_refused() -> None:
    assert check_options({"options": {"num_ctx": 2048, "seed": None}}, 2048) == {"num_ctx": 2048}
    for wrong in ({"num_ctx": 2049}, {"num_ctx": "big"}, {"num_ctx": 0}, [1]):
        with pytest.raises(RequestError, match="options"):
            check_options({"options": wrong}, 2048)
