"""Engine events to Anthropic's messages: as a stream of named events, or whole."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llama_py.chat.rendered import RenderedChat
from llama_py.chat.stream import ChatStream, Delta
from llama_py.dialects.anthropic.blocks import HIDDEN, TOOL_USE_ID
from llama_py.dialects.anthropic.tool_input import ToolInput
from llama_py.dialects.failures import Failure, anthropic_error
from llama_py.dialects.usage import PromptProgress
from llama_py.dialects.wire_json import event, text_bytes
from llama_py.engine.request import Event, FinishEvent, Record

__all__ = ["MessageHead", "MessageReply"]

#: The signature of thinking that is shown: we need none, but clients want one.
_SIGNATURE = "llama-py"
_PING = event("ping", {"type": "ping"})

#: Kind of a block -> its delta: type, and the field that grows.
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


@dataclass(slots=True)
class MessageHead:
    """The fields that are the same in every event of a reply.

    Attributes:
        model: the name that the reply gives.
        stops: the client's own stop sequences.
        shows_thinking: otherwise thinking is hidden in its signature.
        request_id: for the event of an error.
    """

    model: str
    stops: Collection[str] = ()
    shows_thinking: bool = True
    request_id: str | None = None
    id: str = field(default_factory=lambda: f"msg_{secrets.token_hex(12)}")


#: Blocks before anything was said.
_EMPTY: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}


class _ContentBlock:
    """A block of content: its frames, and at the end its whole.

    Args:
        head: it, before anything was said.
        hidden: it is thinking that is not shown, but kept in the signature.
    """

    def __init__(self, index: int, head: Mapping[str, Any], *, hidden: bool = False) -> None:
        self.kind: str = head["type"]
        self._index = index
        self._head = head
        self._hidden = hidden
        self._parts: list[str] = []
        self._input = ToolInput()
        kind, self._field = _DELTAS[self.kind]
        # A frame for each token: only its text is encoded then.
        self._prefix = (
            f'event: content_block_delta\ndata: {{"type":"content_block_delta","index":{index},'
            f'"delta":{{"type":"{kind}","{self._field}":'
        ).encode("ascii")

    def start(self) -> bytes:
        start = {"type": "content_block_start", "index": self._index, "content_block": self._head}
        return event("content_block_start", start)

    def add(self, text: str) -> bytes:
        """A frame for more of it."""
        if self.kind == "tool_use":
            return self._delta(self._input.feed(text))
        self._parts.append(text)
        return b"" if self._hidden else self._delta(text)

    def _delta(self, text: str) -> bytes:
        return self._prefix + text_bytes(text) + b"}}\n\n" if text else b""

    def stop(self) -> bytes:
        """The frames that close it."""
        frames = b""
        if self.kind == "tool_use":
            frames = self._delta(self._input.end())
        elif self.kind == "thinking":
            delta = {"type": "signature_delta", "signature": self._signature()}
            last = {"type": "content_block_delta", "index": self._index, "delta": delta}
            frames = event("content_block_delta", last)
        return frames + event(
            "content_block_stop", {"type": "content_block_stop", "index": self._index}
        )

    def _signature(self) -> str:
        if not self._hidden:
            return _SIGNATURE
        thoughts = "".join(self._parts).encode("utf-8", "replace")
        return HIDDEN + base64.b64encode(thoughts).decode("ascii")

    def whole(self) -> dict[str, Any]:
        if self.kind == "tool_use":
            return {**self._head, "input": self._input.value}
        whole = {**self._head, self._field: "" if self._hidden else "".join(self._parts)}
        if self.kind == "thinking":
            whole["signature"] = self._signature()
        return whole


class MessageReply:
    """The ``WireReply`` of one call of ``/v1/messages``.

    A block begins with its first character that is no white space: models write line breaks around
    reasoning and calls, and a block of nothing else is refused by some who get it back.

    Args:
        record: what is known of the request.
        rendered: the prompt that it continues.
    """

    def __init__(self, head: MessageHead, record: Record, rendered: RenderedChat) -> None:
        self._head = head
        self._record = record
        self._own_ids: set[str] = set()
        self._stream = ChatStream(rendered, new_id=self._new_id)
        self._blocks: list[_ContentBlock] = []
        self._open: _ContentBlock | None = None
        self._blank = ("", "")
        self._tokens = 0
        self._thinking_tokens = 0
        self._reason: str | None = None
        self._stop: str | None = None

    # ---- a stream ------------------------------------------------------------------------------

    def open(self) -> bytes:
        """Frames that come first, before the request waits for its turn."""
        # How much will be reused is not known yet. Clients cannot do without the numbers.
        usage = self._usage(reused=0)
        message = {**self._message(), "content": [], "usage": usage}
        return event("message_start", {"type": "message_start", "message": message}) + _PING

    def feed(self, index: int, event: Event) -> bytes:
        """Frames for an event of the request."""
        if not isinstance(event, FinishEvent):
            self._tokens += 1
            frames = self._tell(self._stream.feed(event.text)) if event.text else b""
            self._thinking_tokens += self._stream.thinks
            return frames
        if event.error is not None:
            self._close()  # the whole of what there is may be asked for, and nobody gets the frames
            return b""
        frames = self._tell(self._stream.feed(event.text) + self._stream.flush())
        held, blank = self._blank
        if held == "text" and blank and not self._blocks:  # it is all that was said
            frames += self._begin(_EMPTY["text"]) + self._blocks[-1].add(blank)
        if event.reason == "length":
            self._reason = "max_tokens"
        elif event.stop is not None and event.stop in self._head.stops:
            self._reason, self._stop = "stop_sequence", event.stop
        else:
            self._reason = "tool_use" if self._stream.has_tool_calls else "end_turn"
        return frames + self._close()

    def progress(self, progress: PromptProgress) -> bytes:
        """Nothing: there is no such event."""
        return b""

    def keep_alive(self) -> bytes:
        """A frame that says that the server is still there."""
        return _PING

    def close(self) -> bytes:
        """Frames after the last event of a reply that ended well."""
        delta = {"stop_reason": self._reason, "stop_sequence": self._stop}
        last = {"type": "message_delta", "delta": delta, "usage": self._usage()}
        return event("message_delta", last) + event("message_stop", {"type": "message_stop"})

    def fail(self, failure: Failure) -> bytes:
        """Frames that end a stream with an error."""
        _, body, _ = anthropic_error(failure, self._head.request_id)
        return event("error", body)

    # ---- the whole -----------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        """The reply without a stream, when its last event was fed."""
        content = [block.whole() for block in self._blocks]
        return {**self._message(), "content": content, "usage": self._usage()}

    def _message(self) -> dict[str, Any]:
        return {
            "id": self._head.id,
            "type": "message",
            "role": "assistant",
            "model": self._head.model,
            "stop_reason": self._reason,
            "stop_sequence": self._stop,
        }

    def _usage(self, reused: int | None = None) -> dict[str, Any]:
        cached = self._record.reused if reused is None else reused
        usage: dict[str, Any] = {
            "input_tokens": self._record.n_prompt - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": self._tokens,
        }
        if self._thinking_tokens:
            usage["output_tokens_details"] = {"thinking_tokens": self._thinking_tokens}
        return usage

    # ---- deltas --------------------------------------------------------------------------------

    def _tell(self, deltas: Sequence[Delta]) -> bytes:
        frames = b""
        for delta in deltas:
            call = delta.tool_call
            if call is None:
                kind = "thinking" if delta.reasoning else "text"
                frames += self._say(kind, delta.reasoning or delta.content)
                continue
            if call.name is not None:
                call_id = call.id or ""
                letters = "" if call_id in self._own_ids else f"{secrets.token_hex(6)}_"
                head = {"type": "tool_use", "id": f"{TOOL_USE_ID}{letters}{call_id}"}
                frames += self._begin({**head, "name": call.name, "input": {}})
            frames += self._blocks[-1].add(call.arguments)
        return frames

    def _say(self, kind: str, text: str) -> bytes:
        """More text of a kind. White space at its end is held back until more follows."""
        held, blank = self._blank
        text = blank + text if held == kind else text
        said = text.rstrip()
        if not said:
            self._blank = (kind, text)
            return b""
        frames = b""
        if self._open is None or self._open.kind != kind:
            frames = self._begin(_EMPTY[kind])
        self._blank = (kind, text[len(said) :])
        return frames + self._blocks[-1].add(said)

    def _begin(self, head: Mapping[str, Any]) -> bytes:
        closed = self._close(before_call=head["type"] == "tool_use")
        hidden = head["type"] == "thinking" and not self._head.shows_thinking
        self._open = _ContentBlock(len(self._blocks), head, hidden=hidden)
        self._blocks.append(self._open)
        return closed + self._open.start()

    def _close(self, *, before_call: bool = False) -> bytes:
        (kind, blank), self._blank = self._blank, ("", "")
        block, self._open = self._open, None
        if block is None:
            return b""
        # Templates write the line break between a text and a call themselves.
        rest = blank if kind == block.kind and not (before_call and kind == "text") else ""
        return (block.add(rest) if rest else b"") + block.stop()

    def _new_id(self) -> str:
        """An id for a model that writes none: nine letters, as Mistral's templates want."""
        new = secrets.token_hex(5)[:9]
        self._own_ids.add(new)
        return new
