"""The items of a reply of the Responses API while they are generated, and their events.

Every item has one id, from its first event to the finished response.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from llama_py.dialects.responses.custom import InputText
from llama_py.dialects.responses.items import sealed
from llama_py.dialects.responses.tools import DeclaredTool
from llama_py.dialects.wire_json import json_bytes, text_bytes

__all__ = [
    "CustomCallItem",
    "Frames",
    "FunctionCallItem",
    "MessageItem",
    "OutputItem",
    "ReasoningItem",
    "new_id",
]

#: ``in_progress``, ``completed`` or ``incomplete``.
Status = str


def new_id(prefix: str) -> str:
    """An id that nobody can guess."""
    return f"{prefix}_{secrets.token_hex(24)}"


class Frames:
    """Events on their way out, numbered from 0.

    Args:
        wanted: false if the reply is not a stream: nothing is made.
    """

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self._number = 0
        self._frames: list[bytes] = []

    def add(self, kind: str, members: Mapping[str, Any]) -> None:
        """Add an event."""
        if self.wanted:
            self.add_raw(kind.encode("ascii"), json_bytes(members)[1:-1])

    def add_raw(self, kind: bytes, members: bytes) -> None:
        """Add an event whose members are JSON already, without their braces."""
        self._frames.append(
            b'event: %b\ndata: {"type":"%b","sequence_number":%d,%b}\n\n'
            % (kind, kind, self._number, members)
        )
        self._number += 1

    def add_to_last(self, name: str, value: Any) -> None:
        """Add a member to the event that was added last, if one was."""
        if self._frames:
            member = b',"%b":%b}\n\n' % (name.encode("ascii"), json_bytes(value))
            self._frames[-1] = self._frames[-1].removesuffix(b"}\n\n") + member

    def take(self) -> bytes:
        """All that was added since the last time."""
        frames, self._frames = self._frames, []
        return b"".join(frames)


class OutputItem(ABC):
    """One entry of ``output``.

    Args:
        index: its place there.
    """

    prefix = ""

    def __init__(self, frames: Frames, index: int) -> None:
        self.id = new_id(self.prefix)
        self._frames = frames
        self._place = {"item_id": self.id, "output_index": index}
        self._index = index
        self._parts: list[str] = []
        self._text = ""
        self.status: Status = "in_progress"

    @abstractmethod
    def value(self) -> dict[str, Any]:
        """The item as it is now."""

    def begin(self) -> None:
        """Tell that the item has begun."""
        members = {"output_index": self._index, "item": self.value()}
        self._frames.add("response.output_item.added", members)

    def end(self, status: Status) -> None:
        """Tell that nothing more will come."""
        self.status = status
        self._text = "".join(self._parts)
        self._tell_end()
        members = {"output_index": self._index, "item": self.value()}
        self._frames.add("response.output_item.done", members)

    @abstractmethod
    def _tell_end(self) -> None:
        """Tell that its text is complete."""

    def so_far(self) -> str:
        """Its text until now."""
        return self._text or "".join(self._parts)

    def _around(self, *, after: bytes = b"", **place: int) -> tuple[bytes, bytes]:
        """The members of a delta's event before and after its text."""
        return json_bytes({**self._place, **place})[1:-1] + b',"delta":', after

    def _delta(self, kind: bytes, around: tuple[bytes, bytes], text: str) -> None:
        if self._frames.wanted:
            self._frames.add_raw(kind, around[0] + text_bytes(text) + around[1])


class ReasoningItem(OutputItem):
    """The model's reasoning.

    Args:
        summarised: a summary was asked for. There is no other than the text itself.
        seal: the client keeps reasoning only in encrypted form.
    """

    prefix = "rs"

    def __init__(self, frames: Frames, index: int, *, summarised: bool, seal: bool) -> None:
        super().__init__(frames, index)
        self._summarised, self._seal = summarised, seal
        self._of_text = self._around(content_index=0)
        self._of_summary = self._around(summary_index=0)

    def begin(self) -> None:
        super().begin()
        if self._summarised:
            members = {**self._place, "summary_index": 0, "part": _summary("")}
            self._frames.add("response.reasoning_summary_part.added", members)

    def add(self, text: str) -> None:
        """More of it."""
        self._parts.append(text)
        self._delta(b"response.reasoning_text.delta", self._of_text, text)
        if self._summarised:
            self._delta(b"response.reasoning_summary_text.delta", self._of_summary, text)

    def _tell_end(self) -> None:
        add, text = self._frames.add, self._text
        add("response.reasoning_text.done", {**self._place, "content_index": 0, "text": text})
        if self._summarised:
            place = {**self._place, "summary_index": 0}
            add("response.reasoning_summary_text.done", {**place, "text": text})
            add("response.reasoning_summary_part.done", {**place, "part": _summary(text)})

    def value(self) -> dict[str, Any]:
        text = self.so_far()
        item: dict[str, Any] = {
            "id": self.id,
            "type": "reasoning",
            "summary": [_summary(text)] if self._summarised and text else [],
            "content": [{"type": "reasoning_text", "text": text}] if text else [],
            "status": self.status,
        }
        if self._seal:
            item["encrypted_content"] = sealed(text) if text else None
        return item


def _summary(text: str) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}


class MessageItem(OutputItem):
    """The model's answer; with log-probabilities, if they were asked for."""

    prefix = "msg"

    def __init__(self, frames: Frames, index: int) -> None:
        super().__init__(frames, index)
        self._logprobs: list[Any] = []
        self._plain = self._around(content_index=0, after=b',"logprobs":[]')

    def begin(self) -> None:
        super().begin()
        self._frames.add(
            "response.content_part.added",
            {**self._place, "content_index": 0, "part": self._part("")},
        )

    def add(self, text: str, logprobs: list[Any]) -> None:
        """More of it."""
        self._parts.append(text)
        self._logprobs += logprobs
        around = self._plain
        if logprobs:
            around = around[0], b',"logprobs":' + json_bytes(logprobs)
        self._delta(b"response.output_text.delta", around, text)

    def _tell_end(self) -> None:
        add, place, text = self._frames.add, {**self._place, "content_index": 0}, self._text
        add("response.output_text.done", {**place, "text": text, "logprobs": self._logprobs})
        add("response.content_part.done", {**place, "part": self._part(text)})

    def _part(self, text: str) -> dict[str, Any]:
        return {
            "type": "output_text",
            "text": text,
            "annotations": [],
            "logprobs": self._logprobs,
        }

    def value(self) -> dict[str, Any]:
        begun = self.status != "in_progress" or self._parts
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "status": self.status,
            "content": [self._part(self.so_far())] if begun else [],
        }


class _CallItem(OutputItem):
    """A call of a tool.

    Args:
        target: the tool, as the client knows it.
        call_id: what its result refers to.
    """

    def __init__(self, frames: Frames, index: int, target: DeclaredTool, call_id: str) -> None:
        super().__init__(frames, index)
        self._target, self._call_id = target, call_id
        self._of_arguments = self._around()

    @abstractmethod
    def add(self, arguments: str) -> None:
        """More of its arguments, as the model writes them."""

    def _value(self, kind: str, **content: str) -> dict[str, Any]:
        item = {
            "id": self.id,
            "type": kind,
            "status": self.status,
            "call_id": self._call_id,
            "name": self._target.name,
            **content,
        }
        namespace = self._target.namespace
        return {**item, "namespace": namespace} if namespace else item


class FunctionCallItem(_CallItem):
    """A call of a function, whose arguments are JSON."""

    prefix = "fc"

    def add(self, arguments: str) -> None:
        if arguments:
            self._parts.append(arguments)
            kind = b"response.function_call_arguments.delta"
            self._delta(kind, self._of_arguments, arguments)

    def _tell_end(self) -> None:
        members = {**self._place, "name": self._target.name, "arguments": self._text}
        self._frames.add("response.function_call_arguments.done", members)

    def value(self) -> dict[str, Any]:
        return self._value("function_call", arguments=self.so_far())


class CustomCallItem(_CallItem):
    """A call of a custom tool, whose input is text."""

    prefix = "ctc"

    def __init__(self, frames: Frames, index: int, target: DeclaredTool, call_id: str) -> None:
        super().__init__(frames, index, target, call_id)
        self._input = InputText()

    def add(self, arguments: str) -> None:
        self._tell(self._input.feed(arguments))

    def _tell(self, text: str) -> None:
        if text:
            self._parts.append(text)
            kind = b"response.custom_tool_call_input.delta"
            self._delta(kind, self._of_arguments, text)

    def end(self, status: Status) -> None:
        self._tell(self._input.finish())
        super().end(status)

    def _tell_end(self) -> None:
        members = {**self._place, "input": self._text}
        self._frames.add("response.custom_tool_call_input.done", members)

    def value(self) -> dict[str, Any]:
        return self._value("custom_tool_call", input=self.so_far())
