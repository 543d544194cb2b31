"""Streams of the Responses API, read and checked: what holds for every one of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent

Event = dict[str, Any]

#: Type of an event -> the SDK's class for it.
_CLASSES = {
    get_args(each.model_fields["type"].annotation)[0]: each
    for each in get_args(get_args(ResponseStreamEvent)[0])
}
#: Kind of event that adds to a text -> (kind that has all of it, the text's name there).
_DELTAS = {
    "response.output_text.delta": ("response.output_text.done", "text"),
    "response.reasoning_text.delta": ("response.reasoning_text.done", "text"),
    "response.reasoning_summary_text.delta": ("response.reasoning_summary_text.done", "text"),
    "response.function_call_arguments.delta": (
        "response.function_call_arguments.done",
        "arguments",
    ),
    "response.custom_tool_call_input.delta": ("response.custom_tool_call_input.done", "input"),
}
ENDS = ("response.completed", "response.incomplete", "response.failed")
#: What clients and other servers have stumbled over when it was missing.
_REQUIRED = {
    "id", "object", "created_at", "status", "error", "incomplete_details", "instructions", "model",
    "output", "parallel_tool_calls", "tool_choice", "tools", "usage", "metadata", "temperature",
    "top_p", "max_output_tokens", "previous_response_id", "reasoning", "store", "text",
    "truncation", "user", "presence_penalty", "frequency_penalty", "top_logprobs",
}  # fmt: skip


def events_of(data: bytes) -> list[Event]:
    """The events of a stream, which must be framed as the API does, and end as it should."""
    frames = data.decode("utf-8").split("\n\n")
    assert frames.pop() == ""
    assert frames.pop() == "data: [DONE]"
    return [_event(frame) for frame in frames]


def _event(frame: str) -> Event:
    name, _, rest = frame.partition("\n")
    assert (name[:7], rest[:6], rest.count("\n")) == ("event: ", "data: ", 0)
    event: Event = json.loads(rest.removeprefix("data: "))
    assert event["type"] == name.removeprefix("event: ")
    return event


def kinds(events: Iterable[Event]) -> list[str]:
    """The types without ``response.``, each once where it comes several times in a row."""
    out: list[str] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if not out or out[-1] != kind:
            out.append(kind)
    return out


def check(events: Sequence[Event]) -> Event:
    """Check a whole stream, and let the SDK read it. Returns the last ``response``."""
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0]["response"]["output"] == []
    assert [event["type"] in ENDS for event in events].index(True) == len(events) - 1
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in events:
        state.handle_event(_CLASSES[event["type"]].model_validate(_with_a_known_code(event)))
    responses = [event["response"] for event in events if "response" in event]
    assert all(response.keys() >= _REQUIRED for response in responses)
    assert len({(response["id"], response["created_at"]) for response in responses}) == 1
    last: Event = responses[-1]
    _check_items(events, last)
    return last


def _with_a_known_code(event: Event) -> Event:
    """The SDK's types know few codes of errors; its clients are told any."""
    error = event.get("response", {}).get("error")
    if error is None:
        return event
    return {**event, "response": {**event["response"], "error": {**error, "code": "server_error"}}}


def _check_items(events: Sequence[Event], last: Event) -> None:
    begun = [e for e in events if e["type"] == "response.output_item.added"]
    ended = [e for e in events if e["type"] == "response.output_item.done"]
    assert [e["output_index"] for e in begun] == [*range(len(begun))]
    assert [e["item"]["id"] for e in begun] == [item["id"] for item in last["output"]]
    assert len({item["id"] for item in last["output"]}) == len(last["output"])
    if last["status"] != "failed":
        assert [e["item"] for e in ended] == last["output"]
        assert [e["output_index"] for e in ended] == [*range(len(ended))]
    for index, item in enumerate(last["output"]):
        _check_item([e for e in events if e.get("output_index") == index], item, last["status"])


def _check_item(events: Sequence[Event], item: Mapping[str, Any], status: str) -> None:
    assert events[0]["type"] == "response.output_item.added"
    assert {event.get("item_id", item["id"]) for event in events} == {item["id"]}
    if status == "failed":
        return
    assert events[-1]["type"] == "response.output_item.done"
    for kind, (done, name) in _DELTAS.items():
        text = "".join(event["delta"] for event in events if event["type"] == kind)
        whole = [event[name] for event in events if event["type"] == done]
        assert whole == [text] if whole else not text


def text_of(response: Mapping[str, Any]) -> str:
    """All that was said in a response."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for item in messages for part in item["content"])


def calls_of(response: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """(name, arguments) of the calls in a response."""
    return [
        (item["name"], json.loads(item["arguments"]))
        for item in response["output"]
        if item["type"] == "function_call"
    ]
