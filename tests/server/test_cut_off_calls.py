"""Tool calls that a limit has cut off are part of conversations like others, in every dialect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.server.serving import Server

ASKED = {"role": "user", "content": "What is the weather in Paris?"}
AGAIN = {"role": "user", "content": "What is 2 + 3?"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Get the weather of a city"}
MOST = 40


def chat(server: Server, limit: int) -> str | None:
    """Two turns with OpenAI's client: the arguments of the call in the first one."""
    with server.openai() as client:
        options: dict[str, Any] = {
            "model": "demo",
            "temperature": 0,
            "tools": [{"type": "function", "function": {**FUNCTION, "parameters": SCHEMA}}],
        }
        first = client.chat.completions.create(
            messages=[ASKED], tool_choice="required", max_tokens=limit, **options
        )
        message = first.choices[0].message
        calls = message.tool_calls or []
        results = [{"role": "tool", "tool_call_id": each.id, "content": "cut"} for each in calls]
        for turns in ([*results, AGAIN], [AGAIN]):
            messages = [ASKED, message.model_dump(exclude_none=True), *turns]
            if calls or message.content:
                client.chat.completions.create(messages=messages, max_tokens=2, **options)
        return calls[0].function.arguments if calls else None


def responses(server: Server, limit: int) -> str | None:
    """The same with the other API."""
    with server.openai() as client:
        options: dict[str, Any] = {
            "model": "demo",
            "temperature": 0,
            "tools": [{"type": "function", **FUNCTION, "parameters": SCHEMA}],
        }
        first = client.responses.create(
            input=[ASKED], tool_choice="required", max_output_tokens=limit, **options
        )
        calls = [each for each in first.output if each.type == "function_call"]
        results = [
            {"type": "function_call_output", "call_id": each.call_id, "output": "cut"}
            for each in calls
        ]
        items = [each.model_dump(exclude_none=True) for each in first.output]
        for turns in ([*results, AGAIN], [AGAIN]):
            client.responses.create(input=[ASKED, *items, *turns], max_output_tokens=2, **options)
        return calls[0].arguments if calls else None


def messages(server: Server, limit: int) -> str | None:
    """The same with Anthropic's client."""
    with server.anthropic() as client:
        options: dict[str, Any] = {
            "model": "demo",
            "tools": [{**FUNCTION, "input_schema": SCHEMA}],
            "extra_body": {"temperature": 0},
        }
        first = client.messages.create(
            messages=[ASKED], tool_choice={"type": "any"}, max_tokens=limit, **options
        )
        calls = [each for each in first.content if each.type == "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": each.id, "content": "cut"} for each in calls
        ]
        content = [each.model_dump(exclude_none=True) for each in first.content]
        if content:
            for turn in ([*results, {"type": "text", "text": AGAIN["content"]}], AGAIN["content"]):
                said = {"role": "assistant", "content": content}
                client.messages.create(
                    messages=[ASKED, said, {"role": "user", "content": turn}],
                    max_tokens=2,
                    **options,
                )
        return str(calls[0].input) if calls else None


@pytest.mark.parametrize("converse", [chat, responses, messages])
def test_the_conversation_goes_on(
    server: Server, converse: Callable[[Server, int], str | None]
) -> None:
    found = {converse(server, limit) for limit in range(1, MOST)}
    assert any(each is not None and "Paris" in each for each in found)  # it came to its end
    assert len(found) > (2 if converse is messages else 4)
