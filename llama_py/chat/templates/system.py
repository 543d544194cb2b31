"""``place_system``: what becomes of system messages where a template does not take them.

Agents put system messages anywhere into a conversation, and many templates refuse, drop or hoist
them there. Such a message is folded into a message beside it. It is never moved to the front: the
prompt would begin otherwise with every turn, and nothing of it be reused. What becomes of a message
depends on those before it, and not on what later turns add.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from llama_py.chat.conversation import Message, Part, Text, ToolCall, ToolResult

__all__ = ["FixedSlots", "Slots", "fused", "has_system", "is_system", "place_system"]

P = TypeVar("P", bound=Part)

_SYSTEM = ("system", "developer")


class Slots(Protocol):
    """Which system messages a template takes."""

    @property
    def first(self) -> bool:
        """One at the beginning."""

    @property
    def last_turn(self) -> bool:
        """One at the beginning is written into the user's last turn, if that is the last one."""

    @property
    def several(self) -> bool:
        """More than one at the beginning."""

    @property
    def later(self) -> bool:
        """After messages of users and assistants."""

    @property
    def after_results(self) -> bool:
        """After results of tools."""

    @property
    def adjacent_users(self) -> bool:
        """Two messages of a user in a row; else they have to alternate."""

    @property
    def adjacent_replies(self) -> bool:
        """Two messages of the assistant in a row."""

    @property
    def without_user(self) -> bool:
        """A conversation in which no user says anything."""


@dataclass(frozen=True, slots=True)
class FixedSlots:
    """The ``Slots`` of a format that is known to take system messages at the beginning only."""

    first: bool = True
    last_turn: bool = False
    several: bool = True
    later: bool = False
    after_results: bool = False
    adjacent_users: bool = True
    adjacent_replies: bool = True
    without_user: bool = True


def has_system(messages: Sequence[Message]) -> bool:
    """True if there is something to place."""
    return any(message.role in _SYSTEM for message in messages)


def place_system(messages: Sequence[Message], slots: Slots) -> tuple[Message, ...]:
    """The conversation with system messages only where the template takes them.

    Several at the beginning become one if it takes one. A later one is folded into the user's
    message or the result of a tool before it, or else into the user's message behind it; between
    assistants it becomes a user's message. None stays between a call and its results.
    """
    count = next((i for i, each in enumerate(messages) if not is_system(each)), len(messages))
    head, rest = messages[:count], _behind_results(messages[count:])
    if not slots.first and not (slots.last_turn and messages[-1].role == "user"):
        head, rest = (), [*head, *rest]
    elif count > 1 and not slots.several:
        head = (replace(head[0], parts=(Text(_joined(map(_text_of, head))),)),)
    folding = _Folding(slots)
    for message in rest:
        folding.add(message)
    return (*head, *folding.end())


def _behind_results(messages: Sequence[Message]) -> list[Message]:
    """The same with system messages between a call and its results behind those."""
    out: list[Message] = []
    held: list[Message] = []
    calling = False
    for message in messages:
        if calling and is_system(message):
            held.append(message)
            continue
        if message.role != "tool":
            out += held
            held = []
            calling = any(isinstance(part, ToolCall) for part in message.parts)
        out.append(message)
    return out + held


class _Folding:
    """A conversation in which system messages without a place become part of others."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._out: list[Message] = []
        self._waiting: list[str] = []  # texts for the message that comes next
        self._extended = False  # the last message is a user's, and took a system message

    def add(self, message: Message) -> None:
        if not is_system(message):
            self._add_turn(message)
            return
        turns = (each.role for each in reversed(self._out) if not is_system(each))
        behind = next(turns, None)
        slots = self._slots
        taken = slots.after_results if behind == "tool" else slots.later and bool(behind)
        if taken:
            self._out.append(message)
        elif text := _text_of(message):
            last = self._out[-1] if self._out else None
            if last is not None and last.role in ("user", "tool"):
                self._out[-1] = _with_text(last, text)
                self._extended = last.role == "user"
            else:
                self._waiting.append(text)

    def end(self) -> list[Message]:
        self._speak()
        return self._out

    def _add_turn(self, message: Message) -> None:
        if self._waiting and message.role == "user":
            text = Text(_joined(self._waiting))
            message = replace(message, parts=fused((text,), message.parts))
            self._waiting = []
        self._speak()
        if self._extended and message.role == "user" and not self._slots.adjacent_users:
            last = self._out[-1]
            self._out[-1] = replace(last, parts=fused(last.parts, message.parts))
            return
        self._extended = False
        self._out.append(message)

    def _speak(self) -> None:
        """Say what still waits in a message of its own."""
        if self._waiting:
            self._out.append(Message("user", (Text(_joined(self._waiting)),)))
            self._waiting = []


def is_system(message: Message) -> bool:
    """Whether it is one of the caller, not of a side."""
    return message.role in _SYSTEM


def _text_of(message: Message) -> str:
    return "\n".join(part.text for part in message.parts if isinstance(part, Text))


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(text for text in texts if text)


def _with_text(message: Message, text: str) -> Message:
    """A user's message, or the result of a tool, with a text at its end."""
    *others, last = message.parts or (Text(""),)
    if isinstance(last, ToolResult):
        result = replace(last, content=fused(last.content, (Text(text),)))
        return replace(message, parts=(*others, result))
    return replace(message, parts=fused(message.parts, (Text(text),)))


def fused(one: tuple[P, ...], other: tuple[P, ...]) -> tuple[P | Text, ...]:
    """Both; texts that meet become one, because some templates put nothing between two."""
    if one and other and isinstance(one[-1], Text) and isinstance(other[0], Text):
        return (*one[:-1], Text(_joined((one[-1].text, other[0].text))), *other[1:])
    return (*one, *other)
