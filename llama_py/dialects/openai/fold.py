"""Chunks of a stream to the response that the same call gives without ``stream``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from llama_py.dialects.logprobs import empty_completion_logprobs, extend_completion_logprobs
from llama_py.dialects.openai.types import (
    ChatCompletionDelta,
    CreateChatCompletionResponse,
    CreateChatCompletionStreamResponse,
    CreateCompletionResponse,
)

__all__ = ["fold_chat", "fold_completion"]


def fold_completion(chunks: Iterable[CreateCompletionResponse]) -> CreateCompletionResponse:
    """Add up the chunks of ``create_completion(..., stream=True)``."""
    response: Any = {}
    texts: dict[int, list[str]] = {}
    for chunk in chunks:
        _take_head(response, chunk)
        for news in chunk["choices"]:
            index = news["index"]
            choice = _choice(response, index, {"text": "", "index": index, "logprobs": None})
            texts.setdefault(index, []).append(news["text"])
            if news["logprobs"] is not None:
                choice["logprobs"] = choice["logprobs"] or empty_completion_logprobs()
                extend_completion_logprobs(choice["logprobs"], news["logprobs"])
            choice["finish_reason"] = news["finish_reason"]
    for index, choice in response.get("choices", {}).items():
        choice["text"] = "".join(texts[index])
    return cast("CreateCompletionResponse", _whole(response, "text_completion"))


def fold_chat(
    chunks: Iterable[CreateChatCompletionStreamResponse],
) -> CreateChatCompletionResponse:
    """Add up the chunks of ``create_chat_completion(..., stream=True)``."""
    response: Any = {}
    for chunk in chunks:
        _take_head(response, chunk)
        for news in chunk["choices"]:
            index = news["index"]
            empty = {"index": index, "message": {"parts": {}, "calls": []}, "logprobs": None}
            choice = _choice(response, index, empty)
            _add_delta(choice["message"], news["delta"])
            if news["logprobs"] is not None:
                choice["logprobs"] = choice["logprobs"] or {"content": [], "refusal": None}
                choice["logprobs"]["content"] += news["logprobs"]["content"] or []
            choice["finish_reason"] = news["finish_reason"]
    for choice in response.get("choices", {}).values():
        choice["message"] = _join_message(choice["message"])
    return cast("CreateChatCompletionResponse", _whole(response, "chat.completion"))


def _take_head(response: dict[str, Any], chunk: Any) -> None:
    for key in ("id", "created", "model", "system_fingerprint"):
        response.setdefault(key, chunk[key])
    for key in ("usage", "timings"):
        if chunk.get(key) is not None:
            response[key] = chunk[key]


def _choice(response: dict[str, Any], index: int, empty: dict[str, Any]) -> dict[str, Any]:
    choices: dict[int, dict[str, Any]] = response.setdefault("choices", {})
    return choices.setdefault(index, empty)


def _whole(response: dict[str, Any], kind: str) -> dict[str, Any]:
    choices = [choice for _, choice in sorted(response.get("choices", {}).items())]
    return {**response, "object": kind, "choices": choices}


# ---- messages --------------------------------------------------------------------------------


def _add_delta(message: dict[str, Any], delta: ChatCompletionDelta) -> None:
    parts: dict[str, list[str]] = message["parts"]
    for key in ("content", "reasoning_content"):
        text: Any = delta.get(key)
        if text:
            parts.setdefault(key, []).append(text)
    calls: list[dict[str, Any]] = message["calls"]
    for call in delta.get("tool_calls", []):
        if "id" in call:
            calls.append({"id": call["id"], "name": call["function"]["name"], "parts": []})
        calls[call["index"]]["parts"].append(call["function"]["arguments"])
    function = delta.get("function_call")
    if function is not None:
        if "name" in function:
            message["function"] = {"name": function["name"], "parts": []}
        message["function"]["parts"].append(function["arguments"])


def _join_message(news: dict[str, Any]) -> dict[str, Any]:
    parts, calls, function = news["parts"], news["calls"], news.get("function")
    content = "".join(parts.get("content", ()))
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if "reasoning_content" in parts:
        message["reasoning_content"] = "".join(parts["reasoning_content"])
    if calls or function:
        message["content"] = content or None
    if calls:
        message["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": _join_function(call)}
            for call in calls
        ]
    if function:
        message["function_call"] = _join_function(function)
    return message


def _join_function(call: dict[str, Any]) -> dict[str, str]:
    return {"name": call["name"], "arguments": "".join(call["parts"])}
