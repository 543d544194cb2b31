"""``ChatStream``: parses the text of a reply into reasoning, content and calls, piece by piece.

The form of these parts depends on the model's family. Text that may be the beginning of a marker is
held back until that is decided, and so is text that may be a call in plain JSON (``plain_calls``).
White space is no content beside a call: it is held back until there is some word. A reply that can
only be content is passed on without parsing.
"""

from __future__ import annotations

import json
import logging
import secrets
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from llama_py.chat.calls.plain_calls import PlainCallReader
from llama_py.chat.rendered import RenderedChat
from llama_py.chat.schemas.json_place import broken_off
from llama_py.core.chat import ReplyParser

__all__ = [
    "ChatStream",
    "Delta",
    "ParsedReply",
    "ParsedToolCall",
    "ToolCallDelta",
    "fold",
    "is_object",
    "parse_reply",
]

_log = logging.getLogger("llama_py")


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The new part of one tool call in a stream.

    Attributes:
        index: which call of the reply.
        id, name: set in the first delta of a call, and None in the others.
        arguments: the next piece of the JSON text of the arguments.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Delta:
    """The new part of a reply: a piece of content, of reasoning, or of a tool call."""

    content: str = ""
    reasoning: str = ""
    tool_call: ToolCallDelta | None = None


@dataclass(slots=True)
class ParsedToolCall:
    """A tool call of a finished reply; ``arguments`` is JSON text."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class ParsedReply:
    """A finished reply.

    Attributes:
        complete: False if the reply ended in the middle of its format (cut off by a limit).
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ParsedToolCall] = field(default_factory=list)
    complete: bool = True

    def add(self, delta: Delta) -> None:
        """Append a delta."""
        self.content += delta.content
        self.reasoning += delta.reasoning
        call = delta.tool_call
        if call is None:
            return
        if call.index == len(self.tool_calls):
            self.tool_calls.append(ParsedToolCall(call.id or "", call.name or ""))
        self.tool_calls[call.index].arguments += call.arguments

    def as_message(self) -> dict[str, Any]:
        """The reply as an OpenAI assistant message."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["content"] = self.content or None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        return message


def is_object(arguments: str) -> bool:
    """Whether the arguments of a call are whole: the JSON text of an object."""
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False


def fold(deltas: Iterable[Delta]) -> ParsedReply:
    """The reply that deltas add up to."""
    reply = ParsedReply()
    for delta in deltas:
        reply.add(delta)
    return reply


_ALPHANUMERIC = string.ascii_letters + string.digits


def _new_id() -> str:
    # The templates of some families (Mistral's) refuse any id but nine letters and digits.
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))


class ChatStream:
    """Parses one reply while it is generated. Belongs to one thread at a time.

    Args:
        rendered: the prompt that is being answered.
        new_id: makes ids for tool calls if the model's format has none.
    """

    def __init__(self, rendered: RenderedChat, *, new_id: Callable[[], str] = _new_id) -> None:
        plain = rendered.plain or rendered.parser is None
        self._parser = None if plain else ReplyParser(rendered.parser or {})
        self._new_id = new_id
        plain_calls = rendered.plain_calls
        self._reader = None if plain_calls is None else PlainCallReader(plain_calls)
        #: White space that is content if the reply has words or no call; None once it has words.
        self._blank: str | None = "" if rendered.calls_tools else None
        #: The marks around reasoning, which are told with it where it is told as content.
        self._marks = (rendered.thinking_start, (*rendered.thinking_ends, "")[0])
        self._inline, self._thought_open = rendered.inline_reasoning, False
        #: What was generated last is reasoning.
        self.thinks = False
        # Pieces are joined once, at the end: appending to strings would copy them each time.
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[str, str, list[str]]] = []
        self._complete = True
        self._asks_json = rendered.schema is not None
        self._flushed = False

    def feed(self, text: str) -> list[Delta]:
        """Add generated text; return the deltas that are certain now (often none)."""
        if not text:
            return []
        if self._parser is None:
            return self._tell(Delta(content=text))
        return self._convert(self._parser.feed(text))

    def flush(self) -> list[Delta]:
        """End the reply; return the deltas that were held back."""
        if self._flushed:
            return []
        self._flushed = True
        news: list[Delta] = []
        if self._parser is not None:
            news = self._convert(self._parser.feed("", final=True))
            self._parser.close()
        if self._reader is not None:
            # What was held back as the beginning of a call in plain JSON: that call, or text.
            calls, text = self._reader.end()
            self._reader = None
            news += self._say(text)
            for index, call in enumerate(calls):
                made = ToolCallDelta(index, self._new_id(), call.name, call.arguments)
                news.append(self._note(Delta(tool_call=made)))
        blank, self._blank = self._blank, None
        if blank and not self._calls:  # it is all the content of the reply
            news.append(self._note(Delta(content=blank)))
        self._say_where()
        return news

    def _say_where(self) -> None:
        """Log where JSON that was asked for breaks off."""
        text = ""
        if self._calls:
            text = "".join(self._calls[-1][2]) if self.cut_off else ""
        elif self._asks_json:
            text = "".join(self._content)
        if place := broken_off(text):
            _log.info(
                "the reply ends within %s: allow more tokens, or give the schema bounds such as "
                "maxLength and maxItems",
                place,
            )

    def finish(self) -> ParsedReply:
        """End the reply and return the sum of all deltas, including those of ``flush``."""
        self.flush()
        calls = [
            ParsedToolCall(call_id, name, "".join(text)) for call_id, name, text in self._calls
        ]
        content, reasoning = "".join(self._content), "".join(self._reasoning)
        return ParsedReply(content, reasoning, calls, self._complete)

    @property
    def has_tool_calls(self) -> bool:
        """True if a tool call has been found so far."""
        return bool(self._calls)

    @property
    def cut_off(self) -> bool:
        """True if the reply, which has ended, broke off within a tool call."""
        return bool(self._calls) and not (self._complete or is_object("".join(self._calls[-1][2])))

    def _convert(self, news: list[dict[str, Any]]) -> list[Delta]:
        deltas = []
        for entry in news:
            if "complete" in entry:
                self._complete = entry["complete"]
                continue
            index = entry.get("tool_call")
            if index is None:
                delta = Delta(entry.get("content", ""), entry.get("reasoning", ""))
            else:
                name, call_id = entry.get("name"), entry.get("id")
                if name is not None and not call_id:
                    call_id = self._new_id()
                call = ToolCallDelta(index, call_id, name, entry.get("arguments", ""))
                delta = Delta(tool_call=call)
            for part in self._inlined(delta):
                deltas += self._tell(part)
        return deltas

    def _inlined(self, delta: Delta) -> list[Delta]:
        """The same with reasoning as content, where that is wanted."""
        start, end = self._marks
        if self._inline and delta.reasoning:
            opening, self._thought_open = "" if self._thought_open else start, True
            return [Delta(content=opening + delta.reasoning)]
        if self._thought_open:
            self._thought_open = False
            return [Delta(content=end), delta]
        return [delta]

    def _tell(self, delta: Delta) -> list[Delta]:
        """What is certain now that this is known."""
        self.thinks = bool(delta.reasoning)
        reader = self._reader
        if reader is None:
            return self._say(delta.content) if delta.content else [self._note(delta)]
        held = ""
        if delta.content:
            return self._say(reader.feed(delta.content))
        if delta.tool_call is not None or reader.holding:
            held, self._reader = reader.give_up(), None
        return [*self._say(held), self._note(delta)]

    def _say(self, text: str) -> list[Delta]:
        """Content, with the white space before it."""
        if self._blank is not None:
            held, self._blank = self._blank + text, None
            if not text or text.isspace():
                self._blank = held
                return []
            text = held
        return [self._note(Delta(content=text))] if text else []

    def _note(self, delta: Delta) -> Delta:
        if delta.content:
            self._content.append(delta.content)
        elif delta.reasoning:
            self._reasoning.append(delta.reasoning)
        call = delta.tool_call
        if call is not None:
            if call.name is not None:
                self._calls.append((call.id or "", call.name, []))
            self._calls[call.index][2].append(call.arguments)
        return delta


def parse_reply(rendered: RenderedChat, text: str) -> ParsedReply:
    """Parse a whole reply at once."""
    stream = ChatStream(rendered)
    stream.feed(text)
    return stream.finish()
