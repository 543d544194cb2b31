"""``ChatWireReply`` and ``CompletionWireReply``: OpenAI's chunks and responses as bytes.

The encoders make dictionaries, which is what callers in this process want. Nearly every event of a
stream adds one piece of text to one choice, and its chunk differs from the one before in that text
alone. So those are not made: the bytes around the text are kept, and the text goes in between.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from llama_py.dialects.failures import Failure, openai_error
from llama_py.dialects.openai.encode import CompletionEncoder
from llama_py.dialects.openai.encode_chat import ChatEncoder
from llama_py.dialects.usage import PromptProgress
from llama_py.dialects.wire_json import DONE, frame, json_bytes, text_bytes
from llama_py.engine.request import Event, TokenEvent

__all__ = ["ChatWireReply", "CompletionWireReply"]

E = TypeVar("E", ChatEncoder, CompletionEncoder)
#: The bytes of a chunk before and after its text.
Around = tuple[bytes, bytes]


class _WireReply(ABC, Generic[E]):
    """The part that both replies share (see ``dialects.wire.WireReply``).

    Args:
        encoder: takes the events.
        plain: most chunks are nothing but text: nobody asked for log-probabilities or an echo.
        token_ids: each choice says which tokens it consists of.
        timings: so does each chunk what the reply has taken by then.
    """

    def __init__(
        self, encoder: E, *, plain: bool = True, token_ids: bool = False, timings: bool = False
    ) -> None:
        self._encoder: E = encoder
        self._around: dict[tuple[int, str], Around] = {}
        self._timed = timings and encoder.head.stream
        self._quick = plain and encoder.head.stream and not token_ids and not timings
        self._unfinished = {*range(len(encoder.records))}
        #: The tokens of each choice, and how many of them chunks have carried.
        self._ids: list[list[int]] | None = [[] for _ in encoder.records] if token_ids else None
        self._told = [0] * len(encoder.records)

    def open(self) -> bytes:
        """Frames that come first."""
        return _frames(self._encoder.open())

    def feed(self, index: int, event: Event) -> bytes:
        """Frames for an event of a choice."""
        if type(event) is TokenEvent:
            if self._quick:
                return self._token(index, event)
            if self._ids is not None:
                self._ids[index].append(event.token)
        else:
            self._unfinished.discard(index)
        chunks: list[Any] = self._encoder.feed(index, event)
        for chunk in chunks:
            if self._timed:
                chunk["timings"] = self._encoder.timings()
            self._with_ids(chunk)
        return _frames(chunks)

    @abstractmethod
    def _token(self, index: int, event: TokenEvent) -> bytes:
        """Frames for a token, where most chunks are nothing but text."""

    @abstractmethod
    def _blank(self, index: int, field: str, text: str) -> Any:
        """A chunk that adds a text to a field of a choice."""

    def _text(self, index: int, field: str, text: str) -> bytes:
        around = self._around.get((index, field))
        if around is None:
            mark = secrets.token_hex(8)
            before, after = frame(self._blank(index, field, mark)).split(b'"%b"' % mark.encode())
            around = self._around[index, field] = (before, after)
        return around[0] + text_bytes(text) + around[1]

    def _with_ids(self, chunk: Any) -> Any:
        if self._ids is not None:
            for choice in chunk["choices"]:
                index = choice["index"]
                choice["token_ids"] = self._ids[index][self._told[index] :]
                self._told[index] = len(self._ids[index])
        return chunk

    def progress(self, progress: PromptProgress) -> bytes:
        """A chunk without choices that says how much of the prompt is done."""
        chunk: dict[str, Any] = self._encoder.head.chunk(self._encoder.kind, [])
        chunk["prompt_progress"] = progress.told()
        if self._timed:
            chunk["timings"] = progress.timings()
        return frame(chunk)

    def keep_alive(self) -> bytes:
        """A comment: clients of these streams skip it, and know that the connection lives."""
        return b": keep-alive\n\n"

    def close(self) -> bytes:
        """The usage, if it was asked for, and the end."""
        return _frames(self._encoder.close()) + DONE

    def fail(self, failure: Failure) -> bytes:
        """The choices that have not ended do, with ``"error"``; then the error, and the end."""
        chunks = [self._blank(index, "", "") for index in sorted(self._unfinished)]
        for chunk in chunks:
            chunk["choices"][0]["finish_reason"] = "error"
        _, body, _ = openai_error(failure)
        return _frames(chunks) + frame(body) + DONE

    def whole(self) -> dict[str, Any]:
        """The response without a stream."""
        response: dict[str, Any] = {**self._encoder.response()}
        if self._ids is not None:
            for choice, index in zip(response["choices"], self._encoder.kept(), strict=True):
                choice["token_ids"] = self._ids[index]
        return response


class ChatWireReply(_WireReply[ChatEncoder]):
    """Encodes a reply to ``/v1/chat/completions``."""

    def open(self) -> bytes:
        """The first chunk of each choice, with the role."""
        chunks = self._encoder.open()
        for chunk in chunks:
            chunk["choices"][0]["delta"]["content"] = None
        return _frames(map(self._with_ids, chunks))

    def _token(self, index: int, event: TokenEvent) -> bytes:
        frames = b""
        for delta in self._encoder.take(index, event):
            if delta.tool_call is not None:
                frames += _frames(self._encoder.chunks_of(index, [delta]))
            elif delta.content:
                frames += self._text(index, "content", delta.content)
            else:
                frames += self._text(index, "reasoning_content", delta.reasoning)
        return frames

    def _blank(self, index: int, field: str, text: str) -> Any:
        choice = {
            "index": index,
            "delta": {field: text} if field else {},
            "logprobs": None,
            "finish_reason": None,
        }
        return self._encoder.head.chunk(self._encoder.kind, [choice])


class CompletionWireReply(_WireReply[CompletionEncoder]):
    """Encodes a reply to ``/v1/completions``."""

    def _token(self, index: int, event: TokenEvent) -> bytes:
        text = self._encoder.take(index, event)
        return self._text(index, "text", text) if text else b""

    def _blank(self, index: int, field: str, text: str) -> Any:
        choice = {"text": text, "index": index, "logprobs": None, "finish_reason": None}
        return self._encoder.head.chunk(self._encoder.kind, [choice])


def _frames(chunks: Iterable[Any]) -> bytes:
    return b"".join([b"data: " + json_bytes(chunk) + b"\n\n" for chunk in chunks])
