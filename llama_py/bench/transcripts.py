"""Recorded conversations of agents: read, and cut into the calls that led to them.

Two forms are read: the JSONL that Claude Code writes (one record per line, with a ``message`` of
role and content blocks), and OpenAI messages (a JSON list, an object with ``messages`` and
``tools`` such as the body of a request, or one message per line). What comes out are OpenAI
messages:

* records of one role that follow each other are one turn;
* texts are content, ``tool_use`` blocks are ``tool_calls``, a ``tool_result`` is a message of the
  role ``tool`` with the id of its call, thinking is left out;
* pictures become the text ``[image]``; blocks and records of other kinds are left out and counted,
  and so are side conversations (``isSidechain``), which were calls of their own, and records that
  were written twice (with one ``uuid``).

The calls of a transcript are its prefixes: for each assistant turn, everything before it, from
where the agent summarised the conversation last (``isCompactSummary``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llama_py.bench.synthetic import TOOLS, make
from llama_py.errors import ParameterError, shown

__all__ = ["Message", "Transcript", "read_transcript"]

Message = dict[str, Any]

_ROLES = ("system", "developer", "user", "assistant", "tool")
#: What separates texts of one turn.
_BETWEEN = "\n"
_IMAGE = "[image]"
#: What the name of a made one begins with.
_SYNTHETIC = "synthetic:"


@dataclass(slots=True)
class Transcript:
    """A recorded conversation.

    Attributes:
        name: of the file.
        messages: in OpenAI's form.
        tools: definitions in OpenAI's form, where they were recorded.
        left_out: how many records or blocks of each kind were not used.
        restarts: indexes of messages with which the conversation began anew.
        preamble: messages that every call begins with.
    """

    name: str
    messages: list[Message]
    tools: list[Mapping[str, Any]] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    restarts: set[int] = field(default_factory=set)
    preamble: list[Message] = field(default_factory=list)

    def calls(self) -> Iterator[list[Message]]:
        """For each assistant turn, the messages before it."""
        start = 0
        for index, message in enumerate(self.messages):
            if index in self.restarts:
                start = index
            if message["role"] == "assistant" and index > start:
                yield [*self.preamble, *self.messages[start:index]]

    @property
    def characters(self) -> int:
        """Of all its texts and arguments."""
        return sum(_size(message) for message in self.messages)


def read_transcript(path: str) -> Transcript:
    """Read a file, or make the conversation that ``synthetic:CHARACTERS[:SEED]`` names.

    Raises:
        ParameterError: it is not a transcript; the message names the place.
        OSError: it cannot be read.
    """
    if path.startswith(_SYNTHETIC):
        return _synthetic(path)
    name = Path(path).name
    reader = _Reader(name)
    try:
        for place, record in _records(Path(path)):
            reader.take(record, place)
        return reader.finish()
    except MemoryError:
        size = Path(path).stat().st_size
        raise ParameterError(
            f"{name} has {size} bytes, more than there is memory for; give a part of it"
        ) from None


def _synthetic(name: str) -> Transcript:
    size, _, seed = name.removeprefix(_SYNTHETIC).partition(":")
    if not size.isdecimal() or not (seed or "1").isdecimal() or int(size) < 1000:
        raise ParameterError(f"{name}: expected synthetic:CHARACTERS[:SEED], with 1000 at least")
    return Transcript(name, make(int(size), int(seed or 1)), list(TOOLS))


# ---- files ------------------------------------------------------------------------------------


def _records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The records of a file with their places."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        start = file.read(4096).lstrip()
        file.seek(0)
        if not start:
            raise ParameterError(f"{path.name} is empty")
        whole = start.startswith("[") or (_may_span_lines(start) and not _is_json(file))
        file.seek(0)
        if whole:
            yield from _whole(path.name, file.read())
        else:
            yield from _by_lines(path.name, file)


def _may_span_lines(start: str) -> bool:
    """Whether the file may be one object with the messages in it, and no record on each line."""
    return re.match(r'\{\s*(\n|"(messages|model|system|tools)"\s*:)', start) is not None


def _is_json(lines: Iterable[str]) -> bool:
    """Whether the first line is complete."""
    try:
        json.loads(next(line for line in lines if line.strip()))
    except (ValueError, RecursionError):
        return False
    return True


def _by_lines(name: str, lines: Iterable[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    whole = False
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{name}, line {number}"
        if whole:
            raise ParameterError(f"{place}: one conversation per file, which ended before this")
        record = _an_object(_parse(line, place), place)
        whole = "messages" in record and "message" not in record and "role" not in record
        if whole:
            yield from _of_body(place, record)
        else:
            yield place, record


def _whole(name: str, text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    content = _parse(text, name)
    yield from _of_body(name, content if isinstance(content, dict) else {"messages": content})


def _of_body(name: str, body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The records in a body as a client sends it."""
    if body.get("tools") is not None:
        yield name, {"tools": body["tools"]}
    if body.get("system") is not None:
        yield name, {"role": "system", "content": body["system"]}
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise ParameterError(f'{name}: expected a list of messages, or an object with "messages"')
    for index, record in enumerate(messages):
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
        #: ``uuid`` of the records that were read.
        self._seen: set[str] = set()

    def take(self, record: Mapping[str, Any], place: str) -> None:
        """Read one record."""
        message = record.get("message", record)
        if "tools" in record and "role" not in record:
            self._transcript.tools = _tools(record["tools"], place)
            return
        if record.get("isSidechain"):
            self._leave_out("side conversation")
            return
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            self._leave_out(f"record of type {_kind(record)}")
            return
        if self._is_repeated(record):
            self._leave_out("record that was written twice")
            return
        if record.get("isCompactSummary"):
            self._begin_anew()
        if message["role"] == "tool":
            result = self._text(message.get("content"), place)
            self._add_result(message.get("tool_call_id"), result, place)
        else:
            self._read(message, place)

    def _is_repeated(self, record: Mapping[str, Any]) -> bool:
        name = record.get("uuid")
        if not isinstance(name, str):
            return False
        known = name in self._seen
        self._seen.add(name)
        return known

    def _begin_anew(self) -> None:
        """What comes now was sent without what came before."""
        self._transcript.restarts.add(len(self._transcript.messages))
        self._open.clear()

    def finish(self) -> Transcript:
        """The conversation.

        Raises:
            ParameterError: there is none.
        """
        transcript = self._transcript
        for message in transcript.messages:
            if isinstance(message["content"], list):
                message["content"] = _BETWEEN.join(message["content"])
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
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list):
            raise ParameterError(f"{place}: tool_calls is {shown(calls)}; expected a list")
        for call in (_an_object(each, place) for each in calls):
            function = _an_object(call.get("function"), place)
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
        if texts:
            self._turn(role)["content"] += filter(None, texts)
            texts.clear()

    def _turn(self, role: str) -> Message:
        """The turn that a role has now; its content is a list of texts until the end."""
        messages = self._transcript.messages
        begins = len(messages) in self._transcript.restarts
        if begins or not messages or messages[-1]["role"] != role:
            messages.append({"role": role, "content": []})
        return messages[-1]

    def _add_call(self, call_id: Any, name: Any, arguments: Any, place: str) -> None:
        if not isinstance(name, str) or not name:
            raise ParameterError(f"{place}: a tool call has no name")
        self._calls += 1
        call_id = f"call_{self._calls}" if call_id in (None, "") else str(call_id)
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments or {}, ensure_ascii=False)
        function = {"name": name, "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        self._turn("assistant").setdefault("tool_calls", []).append(call)
        self._open.append(call_id)

    def _add_result(self, call_id: Any, text: str, place: str) -> None:
        if call_id is None and len(self._open) == 1:
            call_id = self._open[0]
        if call_id is None or str(call_id) not in self._open:
            raise ParameterError(
                f"{place}: a tool result has the id {shown(call_id)}; the calls without a result "
                f"before it are {shown(self._open)}"
            )
        call_id = str(call_id)
        self._open.remove(call_id)
        message = {"role": "tool", "tool_call_id": call_id, "content": text}
        self._transcript.messages.append(message)


def _kind(record: Mapping[str, Any]) -> str:
    kind = record.get("type", "unknown")
    return kind if isinstance(kind, str) else shown(kind, 40)


def _tools(given: Any, place: str) -> list[Mapping[str, Any]]:
    """Definitions of tools, in OpenAI's form; Anthropic's are taken as well."""
    if not isinstance(given, list):
        raise ParameterError(f"{place}: tools is {shown(given)}; expected a list")
    tools: list[Mapping[str, Any]] = []
    for each in (_an_object(each, place) for each in given):
        function = each.get("function", each)
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name:
            raise ParameterError(f"{place}: a tool has no name: {shown(each)}")
        if "function" not in each:
            schema = each.get("input_schema") or {"type": "object", "properties": {}}
            text = each.get("description", "")
            function = {"name": name, "description": text, "parameters": schema}
        tools.append({"type": "function", "function": function})
    return tools


def _size(message: Message) -> int:
    calls = message.get("tool_calls", ())
    return len(message["content"]) + sum(len(call["function"]["arguments"]) for call in calls)
