"""Transcripts to requests of a dialect, and what a server answers, as the same record for each.

A call is OpenAI messages, as ``transcripts`` reads them. For the other dialects they are written as
an agent would send them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llama_py.bench.http_load import Endpoint, Reply

__all__ = ["DIALECTS", "ask"]

Message = Mapping[str, Any]


def ask(
    endpoint: Endpoint,
    dialect: str,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    max_tokens: int,
    **extra: Any,
) -> Reply:
    """Send a call as an agent that speaks ``dialect`` would, and read the streamed reply.

    Args:
        extra: further fields of the body.
    """
    path, encode = DIALECTS[dialect]
    body = {"model": endpoint.model, "stream": True, "temperature": 0.0}
    return endpoint.stream(path, {**body, **encode(messages, tools, max_tokens), **extra})


def _chat(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], max_tokens: int
) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": list(messages), "max_tokens": max_tokens}
    body["stream_options"] = {"include_usage": True}
    return {**body, "tools": list(tools)} if tools else body


# ---- Anthropic's ------------------------------------------------------------------------------


def _anthropic(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], max_tokens: int
) -> dict[str, Any]:
    system = [m["content"] for m in messages if m["role"] in ("system", "developer")]
    turns: list[dict[str, Any]] = []
    for message in messages:
        role = {"assistant": "assistant", "user": "user", "tool": "user"}.get(message["role"])
        if role is None:
            continue
        if not turns or turns[-1]["role"] != role:
            turns.append({"role": role, "content": []})
        turns[-1]["content"] += _blocks(message)
    body: dict[str, Any] = {"messages": turns, "max_tokens": max_tokens}
    if system:
        body["system"] = [{"type": "text", "text": text} for text in system]
    if tools:
        body["tools"] = [_anthropic_tool(tool["function"]) for tool in tools]
    return body


def _blocks(message: Message) -> list[dict[str, Any]]:
    if message["role"] == "tool":
        result = {"tool_use_id": message["tool_call_id"], "content": message["content"]}
        return [{"type": "tool_result", **result}]
    blocks = [{"type": "text", "text": message["content"]}] if message["content"] else []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        given = _given(function["arguments"])
        blocks.append(
            {"type": "tool_use", "id": call["id"], "name": function["name"], "input": given}
        )
    return blocks


def _given(arguments: str) -> dict[str, Any]:
    """The arguments of a call; a model may have written what is not a JSON object."""
    try:
        given = json.loads(arguments)
    except (ValueError, RecursionError):
        given = None
    return given if isinstance(given, dict) else {"arguments": arguments}


def _anthropic_tool(function: Mapping[str, Any]) -> dict[str, Any]:
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    description = function.get("description", "")
    return {"name": function["name"], "description": description, "input_schema": schema}


# ---- Responses --------------------------------------------------------------------------------


def _responses(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], max_tokens: int
) -> dict[str, Any]:
    items = [item for message in messages for item in _items(message)]
    body: dict[str, Any] = {"input": items, "max_output_tokens": max_tokens, "store": False}
    if tools:
        body["tools"] = [{"type": "function", **tool["function"]} for tool in tools]
    return body


def _items(message: Message) -> list[dict[str, Any]]:
    role, content = message["role"], message["content"]
    if role == "tool":
        call_id = message["tool_call_id"]
        return [{"type": "function_call_output", "call_id": call_id, "output": content}]
    kind = "output_text" if role == "assistant" else "input_text"
    part = {"type": kind, "text": content}
    items = [{"type": "message", "role": role, "content": [part]}] if content else []
    for call in message.get("tool_calls", ()):
        items.append({"type": "function_call", "call_id": call["id"], **call["function"]})
    return items


Encode = Callable[[Sequence[Message], Sequence[Mapping[str, Any]], int], dict[str, Any]]

#: Name -> path, and how the body is written.
DIALECTS: dict[str, tuple[str, Encode]] = {
    "openai": ("/v1/chat/completions", _chat),
    "anthropic": ("/v1/messages", _anthropic),
    "responses": ("/v1/responses", _responses),
}
