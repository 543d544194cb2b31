"""Completions to chat completions, for chat formats that are functions making a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["chat_logprobs", "completion_to_call", "completion_to_chat"]


def chat_logprobs(logprobs: Any) -> Any:
    """Log-probabilities of a completion in the form of those of a chat; None stays None."""
    if logprobs is None:
        return None
    rows = zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    )
    content = [
        {
            "token": token,
            "bytes": None,
            "logprob": logprob,
            "top_logprobs": [
                {"token": other, "logprob": value, "bytes": None}
                for other, value in (top or {}).items()
            ],
        }
        for token, logprob, top in rows
    ]
    return {"content": content, "refusal": None}


def completion_to_chat(found: Any, stream: bool = False) -> Any:
    """A completion, or the chunks of one, as a reply of the assistant."""
    return _chat_chunks(found) if stream else _chat_reply(found)


def _chat_reply(found: Any) -> Any:
    choice = found["choices"][0]
    message = {"role": "assistant", "content": choice["text"]}
    return _whole(found, message, choice, choice["finish_reason"])


def _whole(found: Any, message: Any, choice: Any, reason: Any) -> Any:
    return {
        "id": "chat" + found["id"],
        "object": "chat.completion",
        "created": found["created"],
        "model": found["model"],
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": chat_logprobs(choice["logprobs"]),
                "finish_reason": reason,
            }
        ],
        "usage": found["usage"],
    }


def _chunk(chunk: Any, delta: Any, logprobs: Any = None, reason: Any = None) -> Any:
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
    return {
        "id": "chat" + chunk["id"],
        "model": chunk["model"],
        "created": chunk["created"],
        "object": "chat.completion.chunk",
        "choices": [choice],
    }


def _chat_chunks(chunks: Iterator[Any]) -> Iterator[Any]:
    for index, chunk in enumerate(chunks):
        if index == 0:
            yield _chunk(chunk, {"role": "assistant"})
        choice = chunk["choices"][0]
        reason = choice["finish_reason"]
        delta = {"content": choice["text"]} if reason is None or choice["text"] else {}
        yield _chunk(chunk, delta, chat_logprobs(choice["logprobs"]), reason)


def completion_to_call(name: str, found: Any, stream: bool) -> Any:
    """A completion whose text is the arguments of a function, as a call of it."""
    if stream:
        return _call_chunks(name, found)
    choice = found["choices"][0]
    call = {"name": name, "arguments": choice["text"]}
    tool = {"id": f"call__0_{name}_{found['id']}", "type": "function", "function": dict(call)}
    message = {
        "role": "assistant",
        "content": None,
        "function_call": call,
        "tool_calls": [tool],
    }
    return _whole(found, message, choice, "tool_calls")


_NOTHING = {"content": None, "function_call": None, "tool_calls": None}


def _call_chunks(name: str, chunks: Iterator[Any]) -> Iterator[Any]:
    last = None
    for chunk in chunks:
        if last is None:
            yield _chunk(chunk, {"role": "assistant", **_NOTHING})
        last = chunk
        choice = chunk["choices"][0]
        call = {"name": name, "arguments": choice["text"]}
        tool = {
            "index": 0,
            "id": f"call__0_{name}_{chunk['id']}",
            "type": "function",
            "function": dict(call),
        }
        delta = {"role": None, "content": None, "function_call": call, "tool_calls": [tool]}
        yield _chunk(chunk, delta, chat_logprobs(choice["logprobs"]))
    if last is not None:
        yield _chunk(last, {"role": None, **_NOTHING}, None, "tool_calls")
