"""Recorded conversations of agents: read, and cut into the calls that led to them.

Two forms are read: the JSONL that Claude Code writes (one record per line, with a ``message`` of
role and content blocks), and OpenAI messages (a JSON list, an object with ``messages`` and
``tools``, or one message per line). What comes out are OpenAI messages:

* records of one role that follow each other are one turn;
* texts are content, ``tool_use`` blocks are ``tool_calls``, a ``tool_result`` is a message of the
  role ``tool`` with the id of its call, thinking is left out;
* pictures become the text ``[image]``; blocks and records of other kinds are left out and counted,
  and so are side conversations (``isSidechain``), which were calls of their own.

The calls of a transcript are its prefixes: for each assistant turn, everything before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llama_py.errors import ParameterError, shown

__all__ = ["Transcript", "read_transcript"]

Message = dict[str, Any]

_ROLES = ("system", "developer", "user", "assistant", "tool")
#: What separates texts of one turn.
_BETWEEN = "\n"
_IMAGE = "[image]"


@dataclass(slots=True)
class Transcript:
    """A recorded conversation.

    Attributes:
        name: of the file.
        messages: in OpenAI's form.
        tools: definitions in OpenAI's form, where they were recorded.
        left_out: how many records or blocks of each kind were not used.
    """

    name: str
    messages: list[Message]
    tools: list[Mapping[str, Any]] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def calls(self) -> Iterator[list[Message]]:
        """For each assistant turn, the messages before it."""
        for index, message in enumerate(self.messages):
            if message["role"] == "assistant" and index:
                yield self.messages[:index]

    @property
    def characters(self) -> int:
        """Of all its texts and arguments."""
        return sum(_size(message) for message in self.messages)


def read_transcript(path: str) -> Transcript:
    """Read a file.

    Raises:
        ParameterError: it is no transcript; the message names the place.
        OSError: it cannot be read.
    """
    reader = _Reader(Path(path).name)
    for place, record in _records(Path(path)):
        reader.take(record, place)
    return reader.finish()


# ---- files ------------------------------------------------------------------------------------


def _records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The records of a file with their places."""
    with path.open(encoding="utf-8", errors="replace") as file:
        start = file.read(4096).lstrip("\ufeff \t\r\n")
        file.seek(0)
        if not start:
            raise ParameterError(f"{path.name} is empty")
        if start.startswith("[") or _spans_lines(start):
            yield from _whole(path.name, file.read())
        else:
            yield from _by_lines(path.name, file)


def _spans_lines(start: str) -> bool:
    """Whether the file is one object with the messages in it, and not a record on each line."""
    return re.match(r'\{\s*(\n|"(messages|tools)"\s*:)', start) is not None


def _by_lines(name: str, lines: Iterable[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            place = f"{name}, line {number}"
            yield place, _an_object(_parse(line, place), place)


def _whole(name: str, text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    content = _parse(text.lstrip("\ufeff"), name)
    if isinstance(content, dict):
        if isinstance(content.get("tools"), list):
            yield name, {"tools": content["tools"]}
        content = content.get("messages")
    if not isinstance(content, list):
        raise ParameterError(f'{name}: expected a list of messages, or an object with "messages"')
    for index, record in enumerate(content):
        place = f"{name}, messages[{index}]"
        yield place, _an_object(record, place)


def _parse(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParameterError(f"{place}: this is not JSON ({error})") from None


def _an_object(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ParameterError(f"{place}: expected an object, not {shown(value)}")
    return value


# ---- records ----------------------------------------------------------------------------------


class _Reader:
    """Adds records up to turns."""

    def __init__(self, name: str) -> None:
        self._transcript = Transcript(name, [])
        #: Ids of calls that have no result yet, in order.
        self._open: list[str] = []
        self._calls = 0

    def take(self, record: Mapping[str, Any], place: str) -> None:
        """Read one record."""
        message = record.get("message", record)
        if "tools" in record and "role" not in record:
            self._transcript.tools = [*record["tools"]]
        elif record.get("isSidechain"):
            self._leave_out("side conversation")
        elif not isinstance(message, dict) or message.get("role") not in _ROLES:
            self._leave_out(f"record of type {record.get('type', 'unknown')}")
        elif message["role"] == "tool":
            result = self._text(message.get("content"), place)
            self._add_result(message.get("tool_call_id"), result, place)
        else:
            self._read(message, place)

    def finish(self) -> Transcript:
        """The conversation.

        Raises:
            ParameterError: there is none.
        """
        transcript = self._transcript
        if not any(message["role"] == "assistant" for message in transcript.messages):
            raise ParameterError(
                f"{transcript.name} has no assistant turn, so there is nothing to replay; expected "
                "Claude Code's JSONL or OpenAI messages"
            )
        return transcript

    def _leave_out(self, kind: str) -> None:
        counts = self._transcript.left_out
        counts[kind] = counts.get(kind, 0) + 1

    def _read(self, message: Mapping[str, Any], place: str) -> None:
        role: str = message["role"]
        texts: list[str] = []
        for block in self._blocks(message.get("content"), place):
            kind = block.get("type")
            if kind == "tool_use":
                self._add_texts(role, texts)
                self._add_call(block.get("id"), block.get("name"), block.get("input"), place)
            elif kind == "tool_result":
                self._add_texts(role, texts)
                result = self._text(block.get("content"), place)
                self._add_result(block.get("tool_use_id"), result, place)
            else:
                texts += self._texts_of(block)
        self._add_texts(role, texts)
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            self._add_call(call.get("id"), function.get("name"), function.get("arguments"), place)

    def _blocks(self, content: Any, place: str) -> Sequence[Mapping[str, Any]]:
        if content is None:
            return ()
        if isinstance(content, str):
            return ({"type": "text", "text": content},)
        if isinstance(content, list):
            blocks = [{"type": "text", "text": b} if isinstance(b, str) else b for b in content]
            return [_an_object(block, place) for block in blocks]
        raise ParameterError(f"{place}: content is {shown(content)}; expected text or a list")

    def _texts_of(self, block: Mapping[str, Any]) -> list[str]:
        kind = str(block.get("type"))
        if kind in ("text", "input_text", "output_text") and isinstance(block.get("text"), str):
            return [block["text"]]
        if kind in ("image", "image_url", "input_image"):
            return [_IMAGE]
        if kind not in ("thinking", "redacted_thinking"):
            self._leave_out(f"block of type {kind}")
        return []

    def _text(self, content: Any, place: str) -> str:
        texts = [text for block in self._blocks(content, place) for text in self._texts_of(block)]
        return _BETWEEN.join(texts)

    # -- turns ----------------------------------------------------------------------------------

    def _add_texts(self, role: str, texts: list[str]) -> None:
        """Append texts to the turn of a role; ``texts`` is emptied."""
        if not texts:
            return
        turn = self._turn(role)
        before = [turn["content"]] if turn["content"] else []
        turn["content"] = _BETWEEN.join([*before, *texts])
        texts.clear()

    def _turn(self, role: str) -> Message:
        messages = self._transcript.messages
        if not messages or messages[-1]["role"] != role:
            messages.append({"role": role, "content": ""})
        return messages[-1]

    def _add_call(self, call_id: Any, name: Any, arguments: Any, place: str) -> None:
        if not isinstance(name, str) or not name:
            raise ParameterError(f"{place}: a tool call has no name")
        self._calls += 1
        call_id = str(call_id or f"call_{self._calls}")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments or {}, ensure_ascii=False)
        function = {"name": name, "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        self._turn("assistant").setdefault("tool_calls", []).append(call)
        self._open.append(call_id)

    def _add_result(self, call_id: Any, text: str, place: str) -> None:
        if call_id is None and len(self._open) == 1:
            call_id = self._open[0]
        if call_id not in self._open:
            raise ParameterError(
                f"{place}: a tool result has the id {shown(call_id)}; the calls without a result "
                f"before it are {shown(self._open)}"
            )
        self._open.remove(call_id)
        message = {"role": "tool", "tool_call_id": call_id, "content": text}
        self._transcript.messages.append(message)


def _size(message: Message) -> int:
    calls = message.get("tool_calls", ())
    return len(message["content"]) + sum(len(call["function"]["arguments"]) for call in calls)
