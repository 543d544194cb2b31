"""Anthropic's messages and content blocks as a conversation of ``chat.conversation``.

The form in which a client sends the same words makes no difference: a string is a list of one text
block, ``cache_control`` and every other unknown field is ignored, and the block with Claude Code's
billing header, which differs in each request, is dropped. Otherwise the prompt would change from
turn to turn, and nothing of it could be reused.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from typing import Any

from llama_py.chat.checks import check_json, check_text
from llama_py.chat.conversation import (
    ImagePart,
    Message,
    Part,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from llama_py.dialects.media_parts import PlacedImage, is_picture_url
from llama_py.errors import ParameterError, ParameterTypeError, shown
from llama_py.media.sources import decode_base64

__all__ = [
    "HIDDEN",
    "TOOL_USE_ID",
    "check_list",
    "check_object",
    "note_ignored",
    "read_messages",
    "read_system",
    "with_texts_in_results",
]

_log = logging.getLogger("llama_py")

#: What a signature begins with whose rest is the thinking itself, in Base64.
HIDDEN = "llama-py:"
#: What the ids of tool calls begin with on the wire: what follows is the model's own id. It may
#: have a few letters of its own in front, because models use the same ids again and again.
TOOL_USE_ID = "toolu_"

_OWN_LETTERS = re.compile(rf"{TOOL_USE_ID}(?:[0-9a-f]{{12}}_)?")
_BILLING = "x-anthropic-billing-header:"
#: What the model is told in place of a block that it cannot read.
_INSTEAD = {
    "image": "[An image was left out here: this model reads text only.]",
    "document": "[A document was left out here: only documents of text can be read.]",
}
_PLACEHOLDERS = {"", *_INSTEAD.values()}
#: What separates the texts of one message.
_BETWEEN = "\n"

#: What users and tools say, in order.
Said = str | ImagePart


def read_system(value: Any) -> tuple[Message, ...]:
    """The system prompt: one message, or none.

    Args:
        value: a string or a list of text blocks, or None.

    Raises:
        ParameterError: with the place of the first mistake.
    """
    text = _system_text(value, "system")
    return (Message("system", (Text(text),)),) if text else ()


def with_texts_in_results(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The conversation for templates that want an assistant's message behind results of tools.

    What a user or a system message says right behind a result becomes part of it.
    """
    out: list[Message] = []
    for message in messages:
        if message.role in ("user", "system") and out and out[-1].role == "tool":
            (result,) = out[-1].parts
            if isinstance(result, ToolResult):
                said = _said_in((*result.content, *message.parts))
                more = replace(result, content=_parts_of(said, "\n\n"))
                out[-1] = replace(out[-1], parts=(more,))
        else:
            out.append(message)
    return tuple(out)


def read_messages(value: Any, *, sees: bool = False) -> tuple[Message, ...]:
    """The messages of a request. The parts of a reply are one message.

    Args:
        sees: the model sees pictures. Else a text stands for each: agents send screenshots to
            models that read text only, and have to go on.

    Raises:
        MediaError: the base64 of a picture is none.
        ParameterError: with the place of the first mistake.
    """
    given = check_list(value, "messages")
    if not given:
        raise ParameterError("messages is empty; a conversation needs at least one message")
    names: dict[str, str] = {}
    messages = [each for i, one in enumerate(given) for each in _message(one, names, i, sees)]
    if not messages:
        raise ParameterError("messages has no content; a conversation needs something to answer")
    sides = groupby(messages, key=lambda message: message.role)
    return tuple(each for role, side in sides for each in _united(role, side))


# ---- values ----------------------------------------------------------------------------------


def check_list(value: Any, where: str) -> Sequence[Any]:
    """A list.

    Raises:
        ParameterError: it is something else.
    """
    if value is None:
        raise ParameterError(f"{where} is missing")
    if not isinstance(value, list):
        raise ParameterTypeError(f"{where} must be a list, not {shown(value)}")
    return value


def check_object(value: Any, where: str) -> Mapping[str, Any]:
    """An object.

    Raises:
        ParameterError: it is something else.
    """
    if not isinstance(value, dict):
        raise ParameterTypeError(f"{where} must be an object, not {shown(value)}")
    return value


@lru_cache(256)
def note_ignored(what: str, kind: str) -> None:
    """Log that something of a request has no effect, once for each kind."""
    _log.info("%s of the type %s are ignored", what, shown(kind))


def _blocks(value: Any, where: str) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """(type, block, place) of each block of a content, which may be a string."""
    if isinstance(value, str):
        yield "text", {"text": value}, where
        return
    if value is None:
        raise ParameterError(f"{where} is missing; it must be a string or a list of blocks")
    if not isinstance(value, list):
        raise ParameterTypeError(
            f"{where} must be a string or a list of blocks, not {shown(value)}"
        )
    for i, block in enumerate(value):
        place = f"{where}[{i}]"
        kind = check_object(block, place).get("type")
        if not isinstance(kind, str):
            raise ParameterError(f"{place}.type is {shown(kind)}; a block has a type such as text")
        yield kind, block, place


def _text(block: Mapping[str, Any], place: str) -> str:
    where = place if "type" not in block else f"{place}.text"
    return check_text(block.get("text"), where)


# ---- system ----------------------------------------------------------------------------------


def _system_text(value: Any, where: str) -> str:
    texts = []
    for kind, block, place in _blocks("" if value is None else value, where):
        if kind == "text":
            text = _text(block, place)
            texts.append(text.partition("\n")[2] if text.startswith(_BILLING) else text)
        else:
            note_ignored("blocks of system messages", kind[:60])
    return _joined(texts)


# ---- messages --------------------------------------------------------------------------------


def _message(value: Any, names: dict[str, str], number: int, sees: bool) -> Iterator[Message]:
    where = f"messages[{number}]"
    message = check_object(value, where)
    role, content = message.get("role"), message.get("content")
    if role == "system":
        text = _system_text(content, f"{where}.content")
        if text:
            yield Message("system", (Text(text),))
    elif role == "assistant":
        yield from _assistant(content, names, f"{where}.content")
    elif role == "user":
        yield from _user(content, names, f"{where}.content", sees)
    else:
        raise ParameterError(f"{where}.role is {shown(role)}; expected user, assistant or system")


@dataclass(slots=True)
class _Side:
    """The blocks of one message, by kind.

    Attributes:
        sees: pictures can be read.
    """

    sees: bool = False
    texts: list[str] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    results: list[ToolResult] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def _assistant(content: Any, names: dict[str, str], where: str) -> Iterator[Message]:
    side = _Side()
    for kind, block, place in _blocks(content, where):
        if kind == "text":
            side.texts.append(_text(block, place))
        elif kind == "thinking":
            side.thoughts.append(_thought(block, place))
        elif kind == "tool_use":
            name = check_text(block.get("name"), f"{place}.name")
            if not name:
                raise ParameterError(f"{place}.name is empty")
            given = {} if block.get("input") is None else block["input"]
            check_json(check_object(given, f"{place}.input"), f"{place}.input")
            call_id = _id(block, place, "id")
            names[call_id] = name
            side.calls.append(ToolCall(name, json.dumps(given, ensure_ascii=False), call_id))
        elif kind != "redacted_thinking":  # which nobody but its maker can read
            note_ignored("blocks of assistants", kind[:60])
    text, thought = _joined(side.texts), _joined(side.thoughts)
    parts: list[Part] = [Thinking(thought)] if thought else []
    parts += [Text(text)] if text else []
    if parts or side.calls:
        yield Message("assistant", (*parts, *side.calls))


def _joined(texts: Sequence[str]) -> str:
    return _BETWEEN.join(text for text in texts if text)


def _parts_of(said: Sequence[Said], between: str = _BETWEEN) -> tuple[Text | ImagePart, ...]:
    """Texts and pictures in order; texts side by side are one. Never nothing."""
    parts: list[Text | ImagePart] = []
    for each in said:
        last = parts[-1] if parts else None
        if isinstance(each, ImagePart):
            parts.append(each)
        elif each and isinstance(last, Text):
            parts[-1] = Text(f"{last.text}{between}{each}")
        elif each:
            parts.append(Text(each))
    return tuple(parts) or (Text(""),)


def _said_in(parts: Sequence[Part]) -> list[Said]:
    return [
        part.text if isinstance(part, Text) else part
        for part in parts
        if isinstance(part, Text | ImagePart)
    ]


def _thought(block: Mapping[str, Any], place: str) -> str:
    """The words of a thinking block. Those that we did not show are in its signature."""
    text = check_text(block.get("thinking", ""), f"{place}.thinking")
    signature = block.get("signature")
    if text or not isinstance(signature, str) or not signature.startswith(HIDDEN):
        return text
    try:
        return base64.b64decode(signature[len(HIDDEN) :], validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def _id(block: Mapping[str, Any], place: str, key: str) -> str:
    """The id of a call as the model knows it."""
    return _OWN_LETTERS.sub("", check_text(block.get(key), f"{place}.{key}"), count=1)


# ---- what users and tools say ------------------------------------------------------------------


def _user(content: Any, names: Mapping[str, str], where: str, sees: bool) -> Iterator[Message]:
    side = _Side(sees)
    for kind, block, place in _blocks(content, where):
        if kind == "tool_result":
            side.results.append(_result(block, names, place, sees))
        else:
            _add_foreign(side, kind, block, place)
    if side.unread and not (side.results or {*side.said} - _PLACEHOLDERS):
        raise ParameterError(
            f"{where} has nothing but blocks of the type {', '.join(side.unread[:3])}, which this "
            "model cannot read; add a text"
        )
    # Templates want results right behind their calls, wherever the text stands.
    for result in side.results:
        yield Message("tool", (result,))
    if any(side.said) or not side.results:
        yield Message("user", _parts_of(side.said))


def _result(
    block: Mapping[str, Any], names: Mapping[str, str], place: str, sees: bool
) -> ToolResult:
    side = _Side(sees)
    content = block.get("content")
    for kind, part, where in _blocks("" if content is None else content, f"{place}.content"):
        _add_foreign(side, kind, part, where)
    failed = block.get("is_error")
    if failed is not None and not isinstance(failed, bool):
        raise ParameterTypeError(f"{place}.is_error must be true or false, not {shown(failed)}")
    call_id = _id(block, place, "tool_use_id")
    return ToolResult(call_id, _parts_of(side.said), bool(failed), names.get(call_id, ""))


def _add_foreign(side: _Side, kind: str, block: Mapping[str, Any], place: str) -> None:
    """Add a block that a user or a tool may have."""
    read = _READERS.get(kind)
    found: list[Said] | None = None
    if kind == "document":
        found = _document(block, place, side.sees)
    elif kind == "image" and side.sees:
        found = [_picture(block, place)]
    elif read is not None:
        found = [read(block, place)]
    if found is not None:
        side.said += found
        return
    side.unread.append(kind)
    if kind in _INSTEAD:
        side.said.append(_INSTEAD[kind])
    else:
        note_ignored("blocks of users", kind[:60])


def _picture(block: Mapping[str, Any], place: str) -> ImagePart:
    where = f"{place}.source"
    source = check_object(block.get("source"), where)
    kind = source.get("type")
    if kind == "base64":
        media_type = _optional(source, "media_type", where)
        data = decode_base64(check_text(source.get("data"), f"{where}.data"), f"{where}.data")
        return PlacedImage(data, media_type, where=place)
    if kind == "url":
        return PlacedImage(url=check_text(source.get("url"), f"{where}.url"), where=place)
    if kind == "file":
        raise ParameterError(
            f"{where} is a file of Anthropic's, and none is stored here; send its data as base64"
        )
    raise ParameterError(f"{where}.type is {shown(kind)}; expected base64 or url")


def _document(block: Mapping[str, Any], place: str, sees: bool) -> list[Said] | None:
    """What of a document can be read: words and pictures, None if there is nothing."""
    where = f"{place}.source"
    source = check_object(block.get("source"), where)
    kind = source.get("type")
    found: list[Said] | None = None
    if kind == "text":
        found = [check_text(source.get("data"), f"{where}.data")]
    elif kind == "content":
        found = []
        for form, inner, at in _blocks(source.get("content"), f"{where}.content"):
            if form == "text":
                found.append(_text(inner, at))
            elif form == "image":
                found.append(_picture(inner, at) if sees else _INSTEAD["image"])
    elif sees and kind == "base64" and is_picture_url(f"data:{source.get('media_type')}"):
        found = [_picture(block, place)]
    if found is None:
        return None
    return [*(_optional(block, key, place) for key in ("title", "context")), *found]


def _optional(block: Mapping[str, Any], key: str, place: str) -> str:
    return "" if block.get(key) is None else check_text(block[key], f"{place}.{key}")


def _search_result(block: Mapping[str, Any], place: str) -> str:
    heads = [_optional(block, key, place) for key in ("title", "source")]
    parts = _blocks(block.get("content"), f"{place}.content")
    return _joined([*heads, *(_text(part, where) for kind, part, where in parts if kind == "text")])


def _reference(block: Mapping[str, Any], place: str) -> str:
    return f"Tool: {check_text(block.get('tool_name'), f'{place}.tool_name')}"


_READERS: dict[str, Callable[[Mapping[str, Any], str], str]] = {
    "text": _text,
    "search_result": _search_result,
    "tool_reference": _reference,
}


# ---- neighbours --------------------------------------------------------------------------------


def _united(role: Role, messages: Iterable[Message]) -> Iterator[Message]:
    """Thoughts, words and calls of a reply as one message; words behind words are another, as in
    chats."""
    reply: list[Part] = []
    for message in messages:
        if role != "assistant":
            yield message
            continue
        called = any(isinstance(part, ToolCall) for part in reply)
        if any(_said_in(reply)) and any(_said_in(message.parts)) and not called:
            said = max(i for i, part in enumerate(reply) if isinstance(part, Text)) + 1
            yield _in_order(reply[:said])
            reply = reply[said:]  # thoughts
        reply += message.parts
    if reply:
        yield _in_order(reply)


def _in_order(parts: Sequence[Part]) -> Message:
    """A message of the assistant: what it thought, said and called."""
    thought = _joined([part.text for part in parts if isinstance(part, Thinking)])
    words = _said_in(parts)
    calls = [part for part in parts if isinstance(part, ToolCall)]
    said: list[Part] = [Thinking(thought)] if thought else []
    if any(words):
        said += _parts_of(words)
    return Message("assistant", (*said, *calls))
