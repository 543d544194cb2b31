"""The input of the Responses API, a list of items, as a conversation.

Neighbours of the same side become one message: what an assistant thought, said and called, and what
a client sent in several messages of a user. Many templates accept nothing else. In which form a
client sends the same words makes no difference, so that what is cached of the prompt fits.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from llama_py.chat.checks import read_arguments, wrapped_arguments
from llama_py.chat.conversation import (
    AudioPart,
    ImagePart,
    Message,
    Part,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from llama_py.dialects.failures import Kind, RequestError
from llama_py.dialects.fields import Fields, as_text, missing, wrong_type, wrong_value
from llama_py.dialects.media_parts import PlacedImage, is_picture_url, read_media_part
from llama_py.dialects.responses.tools import Tools, custom_arguments, skipped
from llama_py.errors import ParameterError, shown

__all__ = [
    "CALL_ID",
    "NO_SENSES",
    "InputHistory",
    "Item",
    "Senses",
    "conversation_of",
    "input_items",
    "sealed",
    "unsealed",
]

Item = Mapping[str, Any]
#: What somebody said, or a tool returned.
Content = tuple[Text | ImagePart | AudioPart, ...]


@dataclass(frozen=True, slots=True)
class Senses:
    """Which parts beside texts the model can be shown. A text stands for all others: agents send
    screenshots to models that read text only, and have to go on."""

    sees: bool = False
    hears: bool = False


NO_SENSES = Senses()


@dataclass(frozen=True, slots=True)
class InputHistory:
    """The conversation so far, as it is stored.

    Attributes:
        size: in bytes.
    """

    items: tuple[Item, ...] = ()
    size: int = 0


#: What the ids of calls begin with on the wire: what follows is the model's own id. It may have a
#: few letters of its own in front, because models use the same ids again and again.
CALL_ID = "call_"
_OWN_LETTERS = re.compile(rf"{CALL_ID}(?:[0-9a-f]{{12}}_)?")
#: What stands before the text in what is passed off as encrypted reasoning.
_SEAL = "llama-py:"

_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
#: Parts that a model that reads text cannot be shown, and how they are called.
_MEDIA = {
    "input_image": "image",
    "computer_screenshot": "image",
    "input_file": "file",
    "input_audio": "recording",
}
#: Between the parts of a message, and between messages that become one.
_PARTS, _MESSAGES = "\n", "\n\n"


# ---- the list --------------------------------------------------------------------------------


def input_items(given: Any, find: Callable[[str], Item | None]) -> list[Item]:
    """``input`` as a list of items, with those that it refers to.

    Args:
        find: the item with an id, of a reply that was stored.

    Raises:
        RequestError: it is not a list of objects, or refers to something unknown.
    """
    if given is None:
        raise missing("input", "it must be a string or a list of items")
    if isinstance(given, str):
        text = as_text(given, "input")
        return [{"type": "message", "role": "user", "content": text}]
    if not isinstance(given, list):
        raise wrong_type("input", "a string or a list of items", given)
    return [_resolved(Fields(item, f"input[{i}]"), find) for i, item in enumerate(given)]


def _resolved(item: Fields, find: Callable[[str], Item | None]) -> Item:
    kind = item.get("type")
    if kind is None and "id" in item and "role" not in item:
        kind = "item_reference"  # whose type may be left out
    if kind != "item_reference":
        return item.values
    wanted = item.needed_text("id")
    found = find(wanted)
    if found is None:
        raise RequestError(
            Kind.INVALID_VALUE,
            f"{item.place('id')} refers to {shown(wanted)}, which is not stored (any more); send "
            "the item itself",
            item.place("id"),
            code="item_not_found",
        )
    return found


def conversation_of(
    items: Sequence[Item], tools: Tools, known: int = 0, senses: Senses = NO_SENSES
) -> list[Message]:
    """The messages that items are.

    Args:
        tools: the names under which the model knows tools.
        known: how many items at the beginning are from earlier turns, which were stored.

    Raises:
        RequestError, ParameterError: an item is wrong; with its place.
        MediaError: the base64 of a sound is none.
    """
    reader = _ItemReader(tools, senses)
    for index, item in enumerate(items):
        new = index - known
        reader.read(Fields(item, f"input[{new}]" if new >= 0 else f"the stored item {index}"))
    return reader.finish()


# ---- items to messages -----------------------------------------------------------------------


@dataclass(slots=True)
class _Turn:
    """The items of one message.

    Attributes:
        later: thoughts behind what was said, which are those of a further message if one follows.
    """

    role: Role
    thoughts: list[str] = field(default_factory=list)
    said: list[Content] = field(default_factory=list)
    later: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def message(self) -> Message:
        content = _joined([part for each in self.said for part in each], _MESSAGES)
        thoughts = [*self.thoughts, *self.later]
        parts: list[Part] = [Thinking("\n".join(thoughts))] if thoughts else []
        if content or self.role != "assistant":
            parts += content or [Text("")]
        return Message(self.role, (*parts, *self.calls))


class _ItemReader:
    """Collects items as messages."""

    def __init__(self, tools: Tools, senses: Senses) -> None:
        self._tools = tools
        self._senses = senses
        self._messages: list[Message] = []
        self._turn: _Turn | None = None
        #: Calls without a result: id -> name.
        self._open: dict[str, str] = {}
        self._readers: Mapping[str, Callable[[Fields], None]] = {
            "message": self._message,
            "reasoning": self._reasoning,
            "function_call": self._function_call,
            "custom_tool_call": self._custom_call,
            "function_call_output": self._output,
            "custom_tool_call_output": self._output,
        }

    def read(self, item: Fields) -> None:
        kind = item.get("type")
        if kind is None and "role" in item:
            kind = "message"
        if not isinstance(kind, str):
            raise wrong_type(item.place("type"), "the name of a kind of item", kind)
        reader = self._readers.get(kind)
        if reader is None:
            skipped(f"an input item of the type {shown(kind, 40)}")
        else:
            reader(item)

    def finish(self) -> list[Message]:
        self._end()
        return self._messages

    def _side(self, role: Role) -> _Turn:
        if self._turn is None or self._turn.role != role:
            self._end()
            self._turn = _Turn(role)
        return self._turn

    def _speaking(self) -> _Turn:
        """A message of its own for each that speaks, as in chats: the template decides."""
        side = self._side("assistant")
        if not side.said or side.calls:
            return side
        thoughts, side.later = side.later, []
        self._end()
        self._turn = _Turn("assistant", thoughts)
        return self._turn

    def _end(self) -> None:
        if self._turn is not None:
            self._messages.append(self._turn.message())
            self._turn = None

    # -- what is said -----------------------------------------------------------------------------

    def _message(self, item: Fields) -> None:
        role = item.get("role")
        if role in ("system", "developer"):
            self._end()
            self._messages.append(Message(role, _content(item, "content", NO_SENSES)))
        elif role == "user":  # each is a message of its own: the template decides
            self._end()
            said = _joined([*_content(item, "content", self._senses)], _MESSAGES)
            self._messages.append(Message(role, (*(said or [Text("")]),)))
        elif role == "assistant":
            content = _content(item, "content", NO_SENSES, alone=True)
            self._speaking().said.append(content)
        else:
            expected = "user, assistant, developer or system"
            raise wrong_value(item.place("role"), f"is {shown(role)}; expected {expected}")

    def _reasoning(self, item: Fields) -> None:
        """Its text, wherever the client kept it; what another server encrypted is left out."""
        text = _reasoning_text(item, "content")
        if not text:
            text = unsealed(item.get("encrypted_content")) or _reasoning_text(item, "summary")
        if text:
            side = self._side("assistant")
            (side.later if side.said else side.thoughts).append(text)

    # -- calls ------------------------------------------------------------------------------------

    def _function_call(self, item: Fields) -> None:
        text = item.text("arguments") or ""
        try:
            arguments = read_arguments(text, "arguments")
        except ParameterError:  # the model has written something else than an object
            arguments = wrapped_arguments(text)
        self._call(item, arguments)

    def _custom_call(self, item: Fields) -> None:
        self._call(item, custom_arguments(item.text("input") or ""))

    def _call(self, item: Fields, arguments: str) -> None:
        name = self._tools.name_of(item.needed_text("name"), item.text("namespace") or "")
        call_id = _own_id(item.text("call_id") or item.text("id") or "")
        self._open[call_id] = name
        self._side("assistant").calls.append(ToolCall(name, arguments, call_id))

    def _output(self, item: Fields) -> None:
        self._end()
        given = item.text("call_id")
        if given is None and len(self._open) != 1:
            problem = f"{len(self._open)} calls wait for a result; say which one this is of"
            raise missing(item.place("call_id"), problem)
        call_id = next(iter(self._open)) if given is None else _own_id(given)
        name = self._open.pop(call_id, "")
        content = _content(item, "output", self._senses, alone=True)
        result = ToolResult(call_id, content, name=name)
        self._messages.append(Message("tool", (result,)))


def _own_id(call_id: str) -> str:
    """The id of a call as the model knows it."""
    return _OWN_LETTERS.sub("", call_id, count=1)


# ---- content ---------------------------------------------------------------------------------


def _joined(
    parts: Sequence[Text | ImagePart | AudioPart], between: str
) -> list[Text | ImagePart | AudioPart]:
    """The parts in order; texts side by side are one, and those that are empty none."""
    joined: list[Text | ImagePart | AudioPart] = []
    for part in parts:
        last = joined[-1] if joined else None
        if not isinstance(part, Text):
            joined.append(part)
        elif part.text and isinstance(last, Text):
            joined[-1] = Text(f"{last.text}{between}{part.text}")
        elif part.text:
            joined.append(part)
    return joined


def _content(item: Fields, name: str, senses: Senses, *, alone: bool = False) -> Content:
    """The parts of a content, with a note in place of what the model cannot be shown.

    Args:
        alone: there may be nothing but pictures: an agent has to go on when a tool has returned a
            screenshot.
    """
    content, where = item.get(name), item.place(name)
    if isinstance(content, str):
        return (Text(as_text(content, where)),)
    if content is None and not alone:
        raise missing(where, "it must be a string or a list of parts")
    parts: list[Text | ImagePart | AudioPart] = []
    lost: list[str] = []
    for index, value in enumerate(item.list(name)):
        part = Fields(value, f"{where}[{index}]")
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in _MEDIA:
            parts.append(Text(_part(part)))
            continue
        medium = _medium(part, kind, senses)
        if medium is None:
            lost.append(_MEDIA[kind])
            note = f"[Here was a part of the type {kind}; this model {_reads(senses)}.]"
            parts.append(Text(note))
        else:
            parts.append(medium)
    if lost and len(lost) == len(parts) and not alone:
        raise wrong_value(
            where, f"has no text beside its {lost[0]}, and this model {_reads(senses)}"
        )
    # Texts side by side are joined as they are: an empty one is a line of its own.
    merged: list[Text | ImagePart | AudioPart] = []
    for texts, group in groupby(parts, key=lambda part: isinstance(part, Text)):
        if texts:
            merged.append(Text(_PARTS.join(part.text for part in group if isinstance(part, Text))))
        else:
            merged += group
    return tuple(merged) or (Text(""),)


def _reads(senses: Senses) -> str:
    others = [*(["sees pictures"] if senses.sees else []), *(["hears"] if senses.hears else [])]
    return f"reads text and {' and '.join(others)}, no more" if others else "reads text only"


def _medium(part: Fields, kind: str, senses: Senses) -> ImagePart | AudioPart | None:
    """A picture or a sound, None if the model cannot be shown it."""
    if kind == "input_audio":
        return read_media_part(part.values, kind, part.where) if senses.hears else None
    if not senses.sees:
        return None
    if kind == "input_file":
        url = part.get("file_data")
        if not (isinstance(url, str) and is_picture_url(url)):
            return None
        return PlacedImage(url=url, where=part.where)
    if part.get("image_url") is None and part.get("file_id") is not None:
        raise wrong_value(
            part.place("file_id"), "names a file, and none is stored here; send it as image_url"
        )
    return read_media_part(part.values, "input_image", part.where)


def _part(part: Fields) -> str:
    kind = part.get("type")
    if kind == "refusal":
        return part.needed_text("refusal")
    if kind not in _TEXTS:
        expected = "input_text or output_text"
        raise wrong_value(part.place("type"), f"is {shown(kind)}; expected {expected}")
    return part.needed_text("text")


def _reasoning_text(item: Fields, name: str) -> str:
    if isinstance(item.get(name), str):
        return item.text(name) or ""
    parts = [Fields(v, f"{item.place(name)}[{i}]") for i, v in enumerate(item.list(name))]
    return _PARTS.join(part.text("text") or "" for part in parts)


# ---- reasoning that a client keeps -----------------------------------------------------------


def sealed(text: str) -> str:
    """Reasoning as a value that clients keep for us. It is not secret: they have its text."""
    return _SEAL + base64.b64encode(text.encode()).decode("ascii")


def unsealed(value: Any) -> str:
    """The reasoning in such a value; "" if somebody else made it."""
    if not isinstance(value, str) or not value.startswith(_SEAL):
        return ""
    try:
        return base64.b64decode(value[len(_SEAL) :], validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
