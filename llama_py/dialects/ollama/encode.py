"""Engine events to Ollama's objects: a line each, or one whole."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from llama_py.dialects.failures import Failure, ollama_error
from llama_py.dialects.openai.encode import CompletionEncoder
from llama_py.dialects.openai.encode_chat import ChatEncoder
from llama_py.dialects.usage import PromptProgress
from llama_py.dialects.wire_json import json_bytes
from llama_py.engine.request import Event, FinishEvent

__all__ = ["ChatLines", "OllamaReply", "TextLines", "instant", "line"]


def line(value: Any) -> bytes:
    """An object of a stream."""
    return json_bytes(value) + b"\n"


def instant(seconds: float | None = None) -> str:
    """A point in time, in seconds since 1970, as Ollama writes it."""
    when = datetime.fromtimestamp(time.time() if seconds is None else seconds, timezone.utc)
    return when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class _Lines(ABC):
    """The form of the objects of a reply.

    Args:
        model: the name that they give.
    """

    def __init__(self, model: str) -> None:
        self._model = model

    def make(self, said: Mapping[str, Any], logprobs: Any = None, **more: Any) -> dict[str, Any]:
        """An object.

        Args:
            said: ``content``, ``thinking``, ``tool_calls``.
            logprobs: of its tokens, in OpenAI's form.
        """
        value = {"model": self._model, "created_at": instant(), **self._said(said), "done": False}
        if logprobs:
            value["logprobs"] = logprobs
        return {**value, **more}

    @abstractmethod
    def _said(self, said: Mapping[str, Any]) -> dict[str, Any]: ...


class ChatLines(_Lines):
    """Of ``/api/chat``."""

    def _said(self, said: Mapping[str, Any]) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": "", **said}}


class TextLines(_Lines):
    """Of ``/api/generate``."""

    def _said(self, said: Mapping[str, Any]) -> dict[str, Any]:
        rest = {name: value for name, value in said.items() if name != "content"}
        return {"response": said.get("content", ""), **rest}


class OllamaReply:
    """The ``WireReply`` of one call of ``/api/chat`` or ``/api/generate``.

    Args:
        encoder: takes the events; it makes chunks.
        lines: the form of the objects.
        came: when the request came, on the clock of ``time.perf_counter()``.
    """

    def __init__(self, encoder: ChatEncoder | CompletionEncoder, lines: _Lines, came: float):
        self._encoder = encoder
        self._lines = lines
        self._came = came
        self._calls: list[dict[str, str]] = []
        self._said: dict[str, list[str]] = {}
        self._logprobs: list[Any] = []
        self._reason = "stop"

    def open(self) -> bytes:
        """Nothing comes first."""
        return b""

    def feed(self, index: int, event: Event) -> bytes:
        """Lines for an event. Calls come whole, when the reply ends."""
        if isinstance(event, FinishEvent) and event.reason == "length":
            self._reason = "length"
        chunks: list[Any] = self._encoder.feed(index, event)
        lines = b"".join(filter(None, map(self._take, chunks)))
        if isinstance(event, FinishEvent) and self._calls:
            lines += line(self._lines.make({"tool_calls": self._tool_calls()}))
        return lines

    def _take(self, chunk: Mapping[str, Any]) -> bytes:
        choice = chunk["choices"][0]
        delta = choice.get("delta", choice)
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                self._calls.append({"id": call["id"], "name": call["function"]["name"], "text": ""})
            self._calls[-1]["text"] += call["function"]["arguments"]
        said = {
            "content": delta.get("content") or delta.get("text"),
            "thinking": delta.get("reasoning_content"),
        }
        said = {name: text for name, text in said.items() if text}
        for name, text in said.items():
            self._said.setdefault(name, []).append(text)
        logprobs = _logprobs(choice.get("logprobs"))
        self._logprobs += logprobs
        return line(self._lines.make(said, logprobs)) if said or logprobs else b""

    def _tool_calls(self) -> list[dict[str, Any]]:
        return [
            {
                "id": call["id"],
                "function": {
                    "index": index,
                    "name": call["name"],
                    "arguments": _arguments(call["text"]),
                },
            }
            for index, call in enumerate(self._calls)
        ]

    def progress(self, progress: PromptProgress) -> bytes:
        """Nothing: there is no such line."""
        return b""

    def keep_alive(self) -> bytes:
        """A line that says nothing: a blank one would not be JSON."""
        return line(self._lines.make({}))

    def close(self) -> bytes:
        """The last line."""
        return line(self._lines.make({}, **self._end()))

    def fail(self, failure: Failure) -> bytes:
        """The line of an error, which is the last one."""
        return line(ollama_error(failure)[1])

    def whole(self) -> dict[str, Any]:
        """The reply as one object."""
        said: dict[str, Any] = {name: "".join(texts) for name, texts in self._said.items()}
        if self._calls:
            said["tool_calls"] = self._tool_calls()
        return self._lines.make(said, self._logprobs, **self._end())

    def _end(self) -> dict[str, Any]:
        """Further members of the last object; durations are in nanoseconds."""
        record, took = self._encoder.records[0], self._encoder.timings()
        ended = record.ended or time.perf_counter()
        return {
            "done": True,
            "done_reason": self._reason,
            "total_duration": round((ended - self._came) * 1e9),
            "load_duration": round(max(0.0, record.submitted - self._came) * 1e9),
            "prompt_eval_count": record.n_prompt,
            "prompt_eval_duration": round(took["prompt_ms"] * 1e6),
            "eval_count": took["predicted_n"],
            "eval_duration": round(took["predicted_ms"] * 1e6),
        }


def _arguments(text: str) -> Any:
    """An object; a reply that was cut off within it has none."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def _logprobs(given: Any) -> list[Any]:
    """Of the tokens of a chunk: OpenAI's chats have Ollama's form, completions have columns."""
    if not given:
        return []
    if "content" in given:
        return [*given["content"]]
    columns = zip(given["tokens"], given["token_logprobs"], given["top_logprobs"], strict=True)
    return [
        {
            "token": token,
            "logprob": logprob,
            "top_logprobs": [
                {"token": other, "logprob": each} for other, each in (top or {}).items()
            ],
        }
        for token, logprob, top in columns
    ]
