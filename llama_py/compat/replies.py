"""Replies of llama_py in the form of llama-cpp-python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llama_py.compat.failures import translated

__all__ = ["chat_chunks", "chat_reply", "chunks", "reply"]

#: Members of replies that llama-cpp-python has not got.
_MORE = ("timings", "system_fingerprint")
_USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")


def reply(found: Any) -> Any:
    """A reply with those members only that llama-cpp-python has; changes it."""
    for name in _MORE:
        found.pop(name, None)
    usage = found.get("usage")
    if usage is not None:
        found["usage"] = {name: usage[name] for name in _USAGE}
    return found


def chunks(stream: Any) -> Iterator[Any]:
    """The chunks of a stream of text."""
    try:
        with translated():
            for chunk in stream:
                usage = chunk.pop("usage", None)
                for name in _MORE:
                    chunk.pop(name, None)
                if usage is not None and not chunk["choices"]:
                    continue
                yield chunk
    finally:
        stream.close()


def chat_reply(found: Any) -> Any:
    """A reply of a chat, in which calls have both forms, ``tool_calls`` and ``function_call``."""
    reply(found)
    for choice in found["choices"]:
        message = choice["message"]
        calls, call = message.get("tool_calls"), message.get("function_call")
        if calls and not call:
            function = calls[0]["function"]
            message["function_call"] = {
                "name": function["name"],
                "arguments": function["arguments"],
            }
        elif call and not calls:
            identity = f"call__0_{call['name']}_{found['id']}"
            message["tool_calls"] = [{"id": identity, "type": "function", "function": {**call}}]
            choice["finish_reason"] = "tool_calls"
    return found


def chat_chunks(stream: Any) -> Iterator[Any]:
    """The chunks of a chat; each part of a call says which one it is, and has both forms."""
    named: dict[tuple[int, int], tuple[str, str]] = {}
    for chunk in chunks(stream):
        for choice in chunk["choices"]:
            delta = choice["delta"]
            if delta.get("tool_calls"):
                _complete_calls(choice, delta, named)
            elif delta.get("function_call"):
                _complete_function(chunk, choice, delta, named)
            elif choice.get("finish_reason") == "function_call":
                choice["finish_reason"] = "tool_calls"
        yield chunk


def _complete_calls(choice: Any, delta: Any, named: dict[tuple[int, int], tuple[str, str]]) -> None:
    for call in delta["tool_calls"]:
        key = (choice["index"], call["index"])
        function = call["function"]
        if call.get("id"):
            named[key] = call["id"], function.get("name") or ""
        identity, name = named.get(key, ("", ""))
        call.update(id=identity, type="function")
        call["function"] = {"name": name, "arguments": function.get("arguments") or ""}
    first = delta["tool_calls"][0]["function"]
    delta["function_call"] = {"name": first["name"], "arguments": first["arguments"]}


def _complete_function(
    chunk: Any, choice: Any, delta: Any, named: dict[tuple[int, int], tuple[str, str]]
) -> None:
    key, call = (choice["index"], 0), delta["function_call"]
    if call.get("name"):
        named[key] = f"call__0_{call['name']}_{chunk['id']}", call["name"]
    identity, name = named.get(key, ("", ""))
    whole = {"name": name, "arguments": call.get("arguments") or ""}
    delta["function_call"] = whole
    delta["tool_calls"] = [
        {"index": 0, "id": identity, "type": "function", "function": dict(whole)}
    ]
